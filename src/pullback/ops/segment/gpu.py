"""Segment reductions on the GPU: which steps the twenty plans take.

Ids are checked on the device and, where they may come in any order, sorted by the framework. The
check is read back before a plan returns: a plan that checks nothing (any order, policy SKIP) waits
for nothing.
"""

from __future__ import annotations

from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import Reproducibility, SegmentKind, TieRule
from pullback.gpu.program import (
    ALIGNMENT,
    GpuProgram,
    Layout,
    Operand,
    Sort,
    Step,
    Tile,
    ceil_div,
)
from pullback.gpu.sketch import Sample, Sketch
from pullback.gpu.tile import wide
from pullback.ops.segment.contract import NEUTRAL, Traits
from pullback.ops.segment.gpu_grouping import grouped, grouped_bytes, lookup
from pullback.ops.segment.gpu_groups import Groups, run_bytes, walk
from pullback.ops.segment.gpu_reduce import ROWS, Reduction, dense, table, tables
from pullback.ops.segment.gpu_spread import spread, spread_product, surround
from pullback.tensor.layout import contiguous_strides

PRODUCT = 64  # positions of a block whose products run both ways
PRODUCT_COLUMNS = 32
PARTS = Tile(64, 16, 4)  # parts at a time, where their products run both ways, and columns
_RULES = {TieRule.FIRST: "first", TieRule.LAST: "last", TieRule.SPLIT: "split"}
_NO_SOURCE = {"index": None, "rows": None, "factor": None}


def _carried(traits: Traits, element: ElementKind) -> ElementKind:
    if traits.reduction == "prod":
        return ElementKind.F64
    if traits.reduction in ("max", "min"):  # only compared
        return element if element is ElementKind.F64 else ElementKind.F32
    return element.accumulator


def _grouped(
    traits: Traits, desc: Any, ids: Any, order: Any, offsets: Any
) -> tuple[Groups, dict[str, Any]]:
    """Groups, and the id of each row. Rows that receive a sum find their group by its id alone."""
    by_id = traits.backward and traits.reduction == "sum"
    return grouped(desc, ids, order, offsets, traits.ascending, by_id)


def _reduction(traits: Traits, desc: Any, **options: Any) -> Reduction:
    return Reduction(
        groups=desc.num_segments,
        columns=desc.embedding_dim,
        positions=desc.num_inputs,
        element=desc.element,
        carried=_carried(traits, desc.element),
        sign=-1 if traits.reduction == "min" else 1,
        **options,
    )


def _forward(
    traits: Traits,
    desc: Any,
    x: Any,
    ids: Any,
    out: Any,
    order: Any,
    offsets: Any,
    indices: Any = None,
) -> GpuProgram:
    groups, _ = _grouped(traits, desc, ids, order, offsets)
    state = {"max": "first", "min": "first", "mean": "sum"}.get(traits.reduction, traits.reduction)
    empty = NEUTRAL[traits.reduction] if desc.empty is None else float(desc.empty)
    reduction = _reduction(traits, desc, state=state, mean=traits.reduction == "mean")
    result = Operand(2, out.element)
    groups.fill({"out": result, **walk("out", out)}, empty)
    tensors = {
        **_NO_SOURCE,
        **lookup(groups),
        "source": Operand(0, x.element),
        "out": result,
        **table("source", x),
        **table("out", out),
    }
    if indices is None:
        steps = reduction.steps(groups.arena, tensors)
    else:
        steps = _with_positions(traits, desc, groups, reduction, tensors, out, indices)
    return GpuProgram((*groups.steps, *steps), groups.status)


def _with_positions(
    traits: Traits,
    desc: Any,
    groups: Groups,
    reduction: Reduction,
    tensors: dict[str, Any],
    out: Any,
    indices: Any,
) -> list[Step | Sort]:
    """The extrema and where they are. The value is that of the first of equals in any case: the
    last of them are found by themselves."""
    positions = Operand(5, indices.element)
    groups.fill({"out": positions, **walk("out", indices)}, -1.0)
    both = {**tensors, "index": positions, **tables(("out", "index"), (out, indices))}
    if desc.ties is not TieRule.LAST:
        return reduction.steps(groups.arena, both)
    carried = _carried(traits, desc.element)
    unused = groups.arena.take(carried, _cells(desc))
    like = Sketch(indices.extents, contiguous_strides(indices.extents), carried)
    search = {**tensors, **tables(("out", "index"), (like, indices))}
    search |= {"out": unused, "index": positions}
    last = _reduction(traits, desc, state="last", winners=True)
    return [*reduction.steps(groups.arena, tensors), *last.steps(groups.arena, search)]


def _cells(desc: Any) -> int:
    return int(desc.num_segments * desc.embedding_dim)


def _backward(
    traits: Traits, desc: Any, grad: Any, ids: Any, out: Any, order: Any, offsets: Any, x: Any
) -> GpuProgram:
    groups, rows = _grouped(traits, desc, ids, order, offsets)
    columns = desc.embedding_dim
    if not desc.num_inputs * columns:
        return GpuProgram(tuple(groups.steps), groups.status)
    tensors = {
        "grad": Operand(0, grad.element),
        "out": Operand(2, out.element),
        "x": None if x is None else Operand(5, x.element),
        **table("grad", grad),
        **table("out", out),
        **table("x", grad if x is None else x),
    }
    if traits.reduction == "prod":
        steps = _product_steps(traits, desc, groups, tensors, rows)
    elif traits.has_ties:
        steps = _extremum_steps(traits, desc, groups, tensors, rows, out)
    else:
        found = groups.runs() if traits.reduction == "mean" else {}
        steps = [_spread(traits, desc, groups, tensors, rows, traits.reduction, **found)]
    return GpuProgram((*groups.steps, *steps), groups.status)


def _spread(
    traits: Traits,
    desc: Any,
    groups: Groups,
    tensors: dict[str, Any],
    rows: dict[str, Any],
    rule: str,
    **found: Any,
) -> Step:
    tile = ROWS[desc.embedding_dim]
    blocks = ceil_div(desc.embedding_dim, tile.block)
    arguments = {
        "value": None,
        "holder": None,
        "begin": None,
        "end": None,
        **found,
        **tensors,
        **rows,
        "gate": groups.status,
        "count": desc.num_inputs,
        "groups": desc.num_segments,
        "columns": desc.embedding_dim,
        "blocks": blocks,
        "RULE": rule,
        "SIGN": -1 if traits.reduction == "min" else 1,
        "WIDE": wide(_carried(traits, desc.element)),
        "P": tile.rows,
        "B": tile.block,
    }
    size = desc.num_inputs * desc.embedding_dim * desc.element.itemsize
    traffic = (2 + (rule == "split")) * size + desc.num_inputs * rows["ids"].element.itemsize
    grid = ceil_div(desc.num_inputs, tile.rows) * blocks
    return Step(spread, grid, arguments, tile.warps, traffic)


def _extremum_steps(
    traits: Traits, desc: Any, groups: Groups, tensors: dict[str, Any], rows: Any, out: Any
) -> list[Step | Sort]:
    """The row that holds an extremum receives the gradient, all others zeros. Where equals share
    it, how many there are is found first."""
    segments, columns = desc.num_segments, desc.embedding_dim
    source = {key.replace("x_", "source_"): v for key, v in tensors.items() if key[:2] == "x_"}
    search = {**_NO_SOURCE, **lookup(groups), **source, "source": tensors["x"]}
    if desc.ties is not TieRule.SPLIT:
        groups.fill({"out": tensors["out"], **walk("out", out)}, 0.0)
        tables = {k: v for k, v in tensors.items() if k.startswith(("out", "grad"))}
        reduction = _reduction(traits, desc, state=_RULES[desc.ties])
        return reduction.steps(groups.arena, {**search, **tables})
    carried = _carried(traits, desc.element)
    value = groups.arena.take(carried, segments * columns)
    holder = groups.arena.take(ElementKind.I64, segments * columns)
    reduction = _reduction(traits, desc, state="split", winners=True)
    search |= {**dense("out", segments, columns), "out": value, "index": holder}
    spreading = _spread(traits, desc, groups, tensors, rows, "split", value=value, holder=holder)
    return [*reduction.steps(groups.arena, search), spreading]


def _product_steps(
    traits: Traits, desc: Any, groups: Groups, tensors: dict[str, Any], rows: Any
) -> list[Step | Sort]:
    """Zeros for rows without a group; products of blocks, of what surrounds them, and of rows."""
    segments, columns = desc.num_segments, desc.embedding_dim
    steps: list[Step | Sort] = [_spread(traits, desc, groups, tensors, rows, "skipped")]
    if not segments:
        return steps
    reduction = _reduction(traits, desc, state="prod", length=PRODUCT)
    level = reduction.levels[0]
    before = after = None
    if level.blocks > 1:
        source = {key.replace("x_", "source_"): v for key, v in tensors.items() if key[:2] == "x_"}
        search = {
            **_NO_SOURCE,
            **lookup(groups),
            **source,
            **dense("out", segments, columns),
            "source": tensors["x"],
            "out": None,
        }
        (pieces,) = reduction.steps(groups.arena, search)
        assert isinstance(pieces, Step)
        parts = 2 * level.blocks
        before, after = (groups.arena.take(ElementKind.F64, parts * columns) for _ in range(2))
        arguments = {
            "keys": pieces.arguments["part_key"],
            "held": pieces.arguments["part_held"],
            "part": pieces.arguments["part_u"],
            "before": before,
            "after": after,
            "count": parts,
            "columns": columns,
            "P": PARTS.rows,
            "B": PARTS.block,
        }
        grid = ceil_div(columns, PARTS.block)
        steps += [pieces, Step(surround, grid, arguments, PARTS.warps, 32 * columns * parts)]
    blocks = ceil_div(columns, PRODUCT_COLUMNS)
    arguments = {
        **tensors,
        **lookup(groups),
        "before": before,
        "after": after,
        "count": desc.num_inputs,
        "groups": segments,
        "columns": columns,
        "blocks": blocks,
        "L": PRODUCT,
        "B": PRODUCT_COLUMNS,
    }
    traffic = desc.num_inputs * columns * desc.element.itemsize * 3
    steps.append(Step(spread_product, level.blocks * blocks, arguments, 8, traffic))
    return steps


# --- what plans ask -----------------------------------------------------------------------------


def _bytes(traits: Traits, desc: Any) -> int:
    """A check and a sort; the parts of blocks; what equals share, for each group."""
    total = grouped_bytes(desc)
    cells = _cells(desc)
    if traits.backward and traits.reduction == "prod":
        reduction = _reduction(traits, desc, state="prod", length=PRODUCT)
        around = 32 * reduction.levels[0].blocks * desc.embedding_dim + 2 * ALIGNMENT
        return total + reduction.nbytes + around
    if traits.backward and not traits.has_ties:
        return total + run_bytes(desc.num_segments) * (traits.reduction == "mean")
    state = {"prod": "prod", "max": "first", "min": "first"}.get(traits.reduction, "sum")
    total += _reduction(traits, desc, state=state).nbytes
    if traits.is_extremum and not traits.backward and desc.ties is TieRule.LAST:
        total = 2 * total + 8 * cells + ALIGNMENT  # with positions it is searched twice
    shared = traits.has_ties and desc.ties is TieRule.SPLIT
    return total + (16 * cells + 2 * ALIGNMENT) * shared


def _guarantee(traits: Traits, desc: Any) -> PrecisionGuarantee:
    """The CPU's bits where values and gradients are only copied."""
    if traits.backward:
        exact = traits.reduction == "sum" or (traits.has_ties and desc.ties is not TieRule.SPLIT)
    else:
        exact = traits.reduction in ("max", "min")
    level = Reproducibility.ANY_MACHINE if exact else Reproducibility.RUN_TO_RUN
    return guarantee(_carried(traits, desc.element), level)


def _samples(traits: Traits) -> tuple[Sample, ...]:
    """Rows; single numbers and shared extrema where they are another code. Min is max with another
    sign, and ids that are sorted already differ in where a position is found: a sum shows it."""
    if traits.reduction == "min" or (traits.ascending and traits.reduction != "sum"):
        return ()
    sizes: dict[str, Any] = {"num_inputs": 1 << 20, "embedding_dim": 128, "num_segments": 1 << 14}
    samples = [Sample("rows", sizes)]
    if traits.ascending and not traits.backward:
        samples.append(Sample("borders", {**sizes, "borders": True}))
    if traits.reduction == "max" and not traits.backward:
        samples.append(Sample("positions", sizes, ("indices",)))
        samples.append(Sample("last positions", {**sizes, "ties": TieRule.LAST}, ("indices",)))
    if not traits.ascending and traits.reduction in ("sum", "max"):
        samples.append(Sample("numbers", {**sizes, "embedding_dim": 1}))
    if traits.has_ties:
        samples.append(Sample("shared", {**sizes, "ties": TieRule.SPLIT}))
    return tuple(samples)


def _layout(kind: SegmentKind) -> Layout:
    traits = Traits.of(kind)

    def lay_out(desc: Any, *views: Any) -> GpuProgram:
        return (_backward if traits.backward else _forward)(traits, desc, *views)

    return Layout(
        lay_out,
        lambda desc: _guarantee(traits, desc),
        lambda desc: _bytes(traits, desc),
        _samples(traits),
    )


globals().update({kind.value: _layout(kind) for kind in SegmentKind})
