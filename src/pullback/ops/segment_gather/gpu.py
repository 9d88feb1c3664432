"""Gathered rows reduced by segment on the GPU: which steps it takes.

Positions are grouped by segment, and read the rows they gather: that is the reduction. Grouped by
row, each reads the gradient of its segment: the whole of a sum, its share of a mean, and of extrema
those columns that it holds. Nothing has a row for each position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import IndexPolicy, Reproducibility, TieRule
from pullback.gpu.program import (
    ALIGNMENT,
    GpuProgram,
    Layout,
    Operand,
    Scratch,
    Step,
    ceil_div,
)
from pullback.gpu.sketch import Sample, Sketch
from pullback.gpu.tile import wide
from pullback.ops.embedding.gpu_kernels import dots
from pullback.ops.segment.gpu_grouping import grouped, grouped_bytes, lookup
from pullback.ops.segment.gpu_groups import (
    Groups,
    check_bytes,
    run_bytes,
    sort_bytes,
    walk,
)
from pullback.ops.segment.gpu_reduce import ROWS, Reduction, dense, table
from pullback.ops.segment_gather.contract import EXTREMA, OP, GatherReduceKind, check_weights
from pullback.ops.segment_gather.gpu_kernels import divisors

GATHER, WEIGHTS, X, D_WEIGHTS = (
    5,
    6,
    7,
    8,
)  # slots of the backward; the first two of the forward too
WRONG_ROW = 4  # the status word of a row out of range
_I64 = ElementKind.I64
_PLAIN = {"index": None, "rows": None, "factor": None}
_STATES = {TieRule.FIRST: "first", TieRule.LAST: "last", TieRule.SPLIT: "split"}


def _compared(desc: Any) -> ElementKind:
    """What extrema are compared in."""
    return desc.element if desc.element is ElementKind.F64 else ElementKind.F32


def _reduction(desc: Any, state: str, **options: Any) -> Reduction:
    """Of positions by segment, unless the number of groups is another."""
    fields = {
        "groups": desc.num_segments,
        "columns": desc.embedding_dim,
        "positions": desc.num_inputs,
        "element": desc.element,
        "carried": desc.element.accumulator if state == "sum" else _compared(desc),
        "state": state,
    }
    return Reduction(**{**fields, **options})


@dataclass(slots=True)
class Positions:
    """Positions by segment, and by row; `rows` holds the row of each, or -1."""

    desc: Any
    groups: Groups
    ids: Any
    own: dict[str, Any]
    by_row: Groups
    rows: Scratch

    @classmethod
    def of(cls, desc: Any, ids: Any, order: Any, offsets: Any, gather: Any, by_id: bool) -> Any:
        """All checks come first."""
        groups, own = grouped(desc, ids, order, offsets, desc.ascending, by_id)
        by_row = Groups(desc.num_inputs, desc.num_rows, groups.arena, groups.steps, groups.status)
        operand = Operand(GATHER, gather.element)
        strict = desc.policy is IndexPolicy.ERROR
        by_row.check(operand, gather, strict, ascending=False, code=WRONG_ROW)
        groups.status = by_row.status
        rows = by_row.keys(operand, gather, None, None, -1)
        return cls(desc, groups, ids, own, by_row, rows)

    @property
    def program(self) -> GpuProgram:
        return GpuProgram(tuple(self.groups.steps), self.groups.status)

    def segments(self) -> tuple[Any, Sketch]:
        """The segment of each position, or -1."""
        view = Sketch((self.desc.num_inputs,), (1,), _I64)
        if self.desc.borders:
            return self.own["ids"], view
        return self.groups.keys(self.own["ids"], self.ids, None, None, -1), view

    def reduce(self, reduction: Reduction, **tensors: Any) -> None:
        """By segment, of the rows that are gathered."""
        known = {**_PLAIN, **lookup(self.groups), "rows": self.rows}
        self.groups.steps += reduction.steps(self.groups.arena, {**known, **tensors})


def _shares(weights: Any) -> dict[str, Any]:
    if weights is None:
        return {}
    return {"factor": Operand(WEIGHTS, weights.element), **walk("factor", weights)}


def _sign(desc: Any) -> int:
    return -1 if desc.reduce is GatherReduceKind.MIN else 1


def _forward(
    desc: Any, x: Any, ids: Any, out: Any, order: Any, offsets: Any, gather: Any, weights: Any
) -> GpuProgram:
    check_weights(OP, desc, weights)
    at = Positions.of(desc, ids, order, offsets, gather, False)
    result = {"out": Operand(2, out.element), **table("out", out)}
    at.groups.fill({"out": result["out"], **walk("out", out)}, 0.0)
    source = {"source": Operand(0, x.element), **table("source", x)}
    if desc.reduce in EXTREMA:
        reduction = _reduction(desc, "first", sign=_sign(desc))
    else:
        reduction = _reduction(desc, "sum", mean=desc.reduce is GatherReduceKind.MEAN)
    at.reduce(reduction, **source, **result, **_shares(weights))
    return at.program


# --- backward -----------------------------------------------------------------------------------


def _backward(
    desc: Any,
    dy: Any,
    ids: Any,
    dx: Any,
    order: Any,
    offsets: Any,
    gather: Any,
    weights: Any,
    x: Any,
    dweights: Any,
) -> GpuProgram:
    check_weights(f"{OP}_backward", desc, weights)
    extrema = dx is not None and desc.reduce in EXTREMA
    at = Positions.of(desc, ids, order, offsets, gather, not extrema)
    segments, view = at.segments()
    source = {"source": Operand(0, dy.element), **table("source", dy), "rows": segments}
    if dx is not None:
        more = _shares(weights)
        if extrema:
            more = _winners(at, x)
        elif desc.reduce is GatherReduceKind.MEAN:
            more = _divisors(at, segments, view)
        at.by_row.sort(Operand(GATHER, gather.element), gather)
        at.groups.fill({"out": Operand(2, dx.element), **walk("out", dx)}, 0.0)
        mean = desc.reduce is GatherReduceKind.MEAN
        reduction = _reduction(desc, "sum", groups=desc.num_rows, divide=mean)
        out = {"out": Operand(2, dx.element), **table("out", dx), "gate": at.groups.status}
        known = {**_PLAIN, **lookup(at.by_row), **source, **out, **more}
        at.groups.steps += reduction.steps(at.groups.arena, known)
    if dweights is not None and desc.num_inputs:
        _dots(at, dy, x, segments, dweights)
    return at.program


def _winners(at: Positions, x: Any) -> dict[str, Any]:
    """Who holds the extrema, or how many do."""
    desc, count = at.desc, at.desc.num_segments * at.desc.embedding_dim
    best, holder = at.groups.arena.take(_compared(desc), count), at.groups.arena.take(_I64, count)
    reduction = _reduction(desc, _STATES[desc.ties], sign=_sign(desc), winners=True)
    source = {"source": Operand(X, x.element), **table("source", x)}
    cells = dense("out", desc.num_segments, desc.embedding_dim)
    at.reduce(reduction, **source, **cells, out=best, index=holder)
    rule = "held"
    if desc.ties is TieRule.SPLIT:
        rule = "shared low" if desc.reduce is GatherReduceKind.MIN else "shared"
    own = {"own": Operand(X, x.element), **table("own", x)}
    return {"shift": holder, "mean": best, "SHIFT": rule, **own}


def _divisors(at: Positions, segments: Any, view: Sketch) -> dict[str, Any]:
    """By how many positions of its segment each one is divided: those whose row is dropped do not
    count."""
    count = at.desc.num_inputs
    divisor = at.groups.arena.take(_I64, count)
    at.groups.sort(segments, view, None, at.rows)
    found = at.groups.runs(cleared=True)
    if count:
        at.groups.flat(
            divisors, count, 32 * count, segments=segments, divisor=divisor, **found, count=count
        )
    return {"factor": divisor, "factor_extents": (count,), "factor_strides": (1,)}


def _dots(at: Positions, dy: Any, x: Any, segments: Any, dweights: Any) -> None:
    desc, tile = at.desc, ROWS[at.desc.embedding_dim]
    arguments = {
        "dout": Operand(0, dy.element),
        "weight": Operand(X, x.element),
        "rows": at.rows,
        "bag": segments,
        "out": Operand(D_WEIGHTS, dweights.element),
        "gate": at.groups.status,
        "count": desc.num_inputs,
        "columns": desc.embedding_dim,
        **walk("out", dweights),
        **table("dout", dy),
        **table("weight", x),
        "WIDE": wide(desc.element.accumulator),
        "P": tile.rows,
        "B": tile.block,
    }
    size = desc.element.itemsize
    traffic = desc.num_inputs * (2 * desc.embedding_dim * size + size + 16)
    grid = ceil_div(desc.num_inputs, tile.rows)
    at.groups.steps.append(Step(dots, grid, arguments, tile.warps, traffic))


# --- what plans ask -----------------------------------------------------------------------------


def _bytes(desc: Any) -> int:
    """Groups and rows of positions, and the parts of blocks."""
    total = grouped_bytes(desc) + check_bytes(desc.num_inputs) + 8 * desc.num_inputs + ALIGNMENT
    return total + _reduction(desc, "first" if desc.reduce in EXTREMA else "sum").nbytes


def _backward_bytes(desc: Any) -> int:
    """The same, a sort by row, the segment and the divisor of each position, the borders of
    segments, and for each cell who holds it."""
    cells = desc.num_segments * desc.embedding_dim
    total = _bytes(desc) + 16 * desc.num_inputs + 4 * ALIGNMENT
    total += sort_bytes(desc.num_inputs, desc.num_rows)
    if desc.reduce is GatherReduceKind.MEAN:
        total += sort_bytes(desc.num_inputs, desc.num_segments) + run_bytes(desc.num_segments)
    total += (8 + _compared(desc).itemsize) * cells * (desc.reduce in EXTREMA)
    return total + _reduction(desc, "sum", groups=desc.num_rows).nbytes


def _guarantee(desc: Any) -> PrecisionGuarantee:
    """The CPU's bits where values are only copied."""
    exact = desc.reduce in EXTREMA and not hasattr(desc, "ties")
    level = Reproducibility.ANY_MACHINE if exact else Reproducibility.RUN_TO_RUN
    return guarantee(_compared(desc) if exact else desc.element.accumulator, level)


_SIZES = {"num_inputs": 1 << 18, "embedding_dim": 128, "num_segments": 1 << 16, "num_rows": 1 << 16}
_KINDS = {kind: Sample(kind.value, {**_SIZES, "reduce": kind}) for kind in GatherReduceKind}
# Minima are maxima with another sign, but where equals share a gradient.
_FORWARD = tuple(_KINDS[kind] for kind in GatherReduceKind if kind is not GatherReduceKind.MIN)
_WEIGHTED = Sample("weighted", _SIZES, ("weights",))
_BACKWARD = tuple(Sample(s.title, s.options, ("dx",)) for s in _FORWARD)
_SHARED = tuple(
    Sample(f"{kind.value}, shared", {**_KINDS[kind].options, "ties": TieRule.SPLIT}, ("dx",))
    for kind in EXTREMA
)
_OF_WEIGHTS = Sample("weights", _SIZES, ("x", "dweights"))

forward = Layout(_forward, _guarantee, _bytes, (*_FORWARD, _WEIGHTED))
backward = Layout(_backward, _guarantee, _backward_bytes, (*_BACKWARD, *_SHARED, _OF_WEIGHTS))
