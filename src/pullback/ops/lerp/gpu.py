"""Lerp on the GPU: which steps it takes. The kernels are in `gpu_kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import BinaryKind, Reproducibility
from pullback.gpu.program import (
    ALIGNMENT,
    EMPTY,
    ENOUGH_PROGRAMS,
    Arena,
    GpuProgram,
    Layout,
    Step,
    Tile,
    ceil_div,
    operands,
)
from pullback.gpu.sketch import Sample, Sketch
from pullback.gpu.tile import wide
from pullback.ops.lerp.gpu_kernels import add_up, blend, share, sum_back
from pullback.tensor.layout import merge

FLAT = Tile(1, 1024, 4)
# Sums along memory, across it, and of the sums of chunks.
ALONG = Tile(2, 512, 4)
ACROSS = Tile(64, 16, 4)
LAST = Tile(4, 64, 4)

# Fewer terms than this per chunk are not worth a second stage.
CHUNK = 1 << 13


def _elementwise(
    kernel: Any, desc: Any, views: dict[str, Any], fixed: dict[str, Any]
) -> GpuProgram:
    """One step over the merged loops of tensors, given by the names of the kernel's strides."""
    count = prod(desc.shape)
    if not count:
        return EMPTY
    loops = merge(desc.shape, [view.strides for view in views.values()])
    strides = {f"strides_{name}": steps for name, steps in zip(views, loops.strides, strict=True)}
    arguments = {
        **fixed,
        **strides,
        "extents": loops.extents,
        "count": count,
        "WIDE": wide(desc.element.accumulator),
        "B": FLAT.block,
    }
    traffic = count * desc.element.itemsize * len(views)
    step = Step(kernel, ceil_div(count, FLAT.block), arguments, FLAT.warps, traffic)
    return GpuProgram((step,))


def _constant(desc: Any) -> dict[str, float]:
    param = float(desc.param)
    return {"param": param, "rest": 1.0 - param}


def _forward(desc: Any, a: Any, b: Any, y: Any) -> GpuProgram:
    names = dict(zip(("a", "b", "y"), operands(a, b, y), strict=True))
    fixed = {**names, **_constant(desc), "weight": None, "strides_w": ()}
    return _elementwise(blend, desc, {"a": a, "b": b, "y": y}, fixed)


def _forward_weights(desc: Any, a: Any, b: Any, weight: Any, y: Any) -> GpuProgram:
    names = dict(zip(("a", "b", "weight", "y"), operands(a, b, weight, y), strict=True))
    fixed = {**names, "param": 0.0, "rest": 1.0}
    return _elementwise(blend, desc, {"a": a, "b": b, "w": weight, "y": y}, fixed)


def _backward(desc: Any, dy: Any, da: Any, db: Any) -> GpuProgram:
    names = dict(zip(("dy", "da", "db"), operands(dy, da, db), strict=True))
    fixed = {**names, **_constant(desc)}
    return _elementwise(share, desc, {"dy": dy, "da": da, "db": db}, fixed)


# --- gradients summed back to the shapes of the operands --------------------------------------


def stretched(view: Any, rank: int) -> tuple[int, ...]:
    """Strides of an operand as if it had the full rank; 0 where it is broadcast or absent."""
    if view is None:
        return (0,) * rank
    strides = tuple(0 if n == 1 else s for n, s in zip(view.shape, view.strides, strict=True))
    return (0,) * (rank - len(view.shape)) + strides


def _chunks(kept: int, summed: int, tile: Tile) -> tuple[int, int]:
    """How many chunks the summed elements are cut into, and how long one is."""
    groups = ceil_div(kept, tile.rows)
    wanted = ceil_div(ENOUGH_PROGRAMS, max(groups, 1))
    chunks = max(1, min(wanted, summed // CHUNK))
    chunk = ceil_div(ceil_div(max(summed, 1), chunks), tile.block) * tile.block
    return ceil_div(max(summed, 1), chunk), chunk


_FIELDS = ("dy", "w", "a", "b")


def sum_steps(
    shape: tuple[int, ...],
    element: ElementKind,
    source: Any,
    out: Any,
    target: Any,
    gate: Any,
    arena: Arena,
) -> list[Step]:
    """A tensor of some shape summed to that of `target`, which `out` is the operand of."""
    absent = dict.fromkeys(("weight", "a", "b"))
    fixed = {"dy": source.operand, **absent, "out": out, "factor": 1.0, "gate": gate}
    summed = _Summed(shape, element, 0.0)
    strided = Sketch(shape, source.strides, element)
    return _sum_steps("a", summed, target, (strided, None, None, None), fixed, arena)


def sum_bytes(shape: tuple[int, ...], target: tuple[int, ...]) -> int:
    """Scratch for it, in either orientation."""
    kept, size = prod(target), prod(shape)
    summed = size // kept if kept else 0
    most = max(_chunks(kept, summed, tile)[0] for tile in (ALONG, ACROSS))
    return 8 * kept * most + ALIGNMENT if most > 1 else 0


@dataclass(frozen=True, slots=True)
class _Summed:
    """What a sum looks at in a descriptor."""

    shape: tuple[int, ...]
    element: ElementKind
    param: float | None


def _sum_steps(
    which: str, desc: Any, target: Any, views: Sequence[Any], fixed: dict[str, Any], arena: Arena
) -> list[Step]:
    """One gradient: a sum per element of its operand, in two stages where few sums are long."""
    rank = len(desc.shape)
    shape = (1,) * (rank - len(target.shape)) + tuple(target.shape)
    kept = [axis for axis, n in enumerate(desc.shape) if shape[axis] == n]
    summed = [axis for axis in range(rank) if axis not in kept]
    full = [stretched(view, rank) for view in (*views, target)]

    def loops(axes: list[int]) -> Any:
        return merge(
            tuple(desc.shape[axis] for axis in axes),
            [tuple(strides[axis] for axis in axes) for strides in full],
        )

    outer, inner = loops(kept), loops(summed)
    if not outer.count:
        return []
    across = bool(outer.extents) and outer.strides[0][-1] == 1
    tile = ACROSS if across else ALONG
    chunks, chunk = _chunks(outer.count, inner.count, tile)
    out = fixed["out"]
    parts = arena.take(ElementKind.F64, outer.count * chunks) if chunks > 1 else out
    ends = {"extents": outer.extents, "strides_out": outer.strides[-1]}
    arguments = {
        **fixed,
        **ends,
        **{f"strides_{name}": s for name, s in zip(_FIELDS, outer.strides, strict=False)},
        **{f"inner_{name}": s for name, s in zip(_FIELDS, inner.strides, strict=False)},
        "out": parts,
        "inner": inner.extents,
        "kept": outer.count,
        "summed": inner.count,
        "chunks": chunks,
        "chunk": chunk,
        "WHICH": which,
        "R": tile.rows,
        "B": tile.block,
    }
    read = {"a": 2, "b": 2, "weight": 3}[which] if desc.param is None else 1
    traffic = (outer.count * inner.count * read + outer.count) * desc.element.itemsize
    grid = ceil_div(outer.count, tile.rows) * chunks
    steps = [Step(sum_back, grid, arguments, tile.warps, traffic)]
    if chunks > 1:
        last = {"parts": parts, "out": out, "gate": fixed["gate"], "kept": outer.count}
        last |= {"chunks": chunks, **ends}
        shape_of = {"R": LAST.rows, "B": LAST.block}
        grid = ceil_div(outer.count, LAST.rows)
        steps.append(Step(add_up, grid, {**last, **shape_of}, LAST.warps, 8 * outer.count * chunks))
    return steps


def _backward_summed(
    desc: Any, dy: Any, da: Any, db: Any, weight: Any, a: Any, b: Any, dweight: Any
) -> GpuProgram:
    named = dict(
        zip(
            ("dy", "da", "db", "weight", "a", "b", "dweight"),
            operands(dy, da, db, weight, a, b, dweight),
            strict=True,
        )
    )
    param = 0.0 if desc.param is None else float(desc.param)
    targets = (
        ("a", "da", da, 1.0 - param),
        ("b", "db", db, param),
        ("weight", "dweight", dweight, 0.0),
    )
    inputs = {name: named[name] for name in ("dy", "weight", "a", "b")}
    arena, steps = Arena(), []
    for which, name, target, factor in targets:
        if target is not None:
            fixed = {**inputs, "out": named[name], "factor": factor, "gate": None}
            steps += _sum_steps(which, desc, target, (dy, weight, a, b), fixed, arena)
    return GpuProgram(tuple(steps))


def _bytes(desc: Any) -> int:
    """Scratch for either orientation, so that it follows from the descriptor alone."""
    targets = (desc.a_shape, desc.b_shape, desc.weight_shape)
    return sum(sum_bytes(desc.shape, shape) for shape in targets if shape is not None)


# --- what plans ask -----------------------------------------------------------------------------


def _same_bits(desc: Any) -> PrecisionGuarantee:
    return guarantee(desc.element.accumulator, Reproducibility.ANY_MACHINE)


def _sums(_: Any) -> PrecisionGuarantee:
    return guarantee(ElementKind.F64, Reproducibility.RUN_TO_RUN)


_PARAM = Sample("param", {"kind": BinaryKind.LERP, "shape": (4096, 4096), "param": 0.3})
_SUMMED = (
    Sample(
        "columns",
        {"shape": (4096, 4096), "a_shape": (4096,), "b_shape": (4096, 4096), "weight_shape": ()},
    ),
    Sample(
        "rows",
        {
            "shape": (4096, 4096),
            "a_shape": (4096, 1),
            "b_shape": (),
            "weight_shape": None,
            "param": 0.3,
        },
    ),
)

forward = Layout(_forward, _same_bits, samples=(_PARAM,))
backward = Layout(_backward, _same_bits, samples=(_PARAM,))
forward_weights = Layout(
    _forward_weights, _same_bits, samples=(Sample("weights", {"shape": (4096, 4096)}),)
)
backward_summed = Layout(_backward_summed, _sums, _bytes, _SUMMED)
