"""The linear recurrence on the GPU: which steps it takes, cut as scans are."""

from __future__ import annotations

from typing import Any

from pullback.contract.extension import check_not_stateful
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import Reproducibility
from pullback.gpu.program import Arena, GpuProgram, Layout, Step
from pullback.gpu.sketch import Sample
from pullback.gpu.tile import wide
from pullback.ops.recurrence.contract import STAGED, STAGED_BACKWARD, sums_factors
from pullback.ops.recurrence.gpu_kernels import recur, recur_back
from pullback.ops.scan.gpu_cut import (
    NO_START,
    NO_TOTAL,
    Builder,
    Given,
    Pieces,
    cut_of,
    scratch_bytes,
    tensor_arguments,
)
from pullback.ops.scan.gpu_extended import extended, extended_bytes
from pullback.tensor.layout import along_axis


def _begin(
    desc: Any, given: dict[str, Given], backward: bool, arena: Arena, pieces: Pieces
) -> tuple[Builder, dict[str, Any]]:
    """A builder, and the tensors and loops as kernels name them. A factor that broadcasts has no
    say in which way the tiles lie."""
    order = sorted(given, key=lambda name: name == "a")
    strides = [given[name].strides for name in order]
    loops = along_axis(desc.input_shape, desc.scan_axis, strides[:-1], strides[-1:])
    tensors: dict[str, Any] = {"extents": loops.rest.extents}
    for number, name in enumerate(order):
        tensors.update(tensor_arguments(name, given[name].operand, loops, number))
    cut = cut_of(desc, loops.columns, backward)
    return Builder(desc, cut, "linear", arena, pieces), tensors


def _sweeps(build: Builder, kernel: Any, tensors: dict[str, Any], reads: int, passes: int) -> None:
    """One sweep, or three where rows are cut into chunks; `reads` of the `passes` are inputs."""
    cut, carried = build.cut, build.desc.element.accumulator
    shared = {
        **tensors,
        **build.pieces.arguments,
        **build.extents,
        **build.whole(),
        "REVERSE": build.desc.reverse,
        "WIDE": wide(carried),
    }
    start: dict[str, Any] = NO_START
    grid = cut.groups * cut.chunks
    if cut.chunks > 1:
        totals = build.totals(cut.chunks, carried, carried)
        build.add(kernel, grid, reads, {**shared, **NO_START, **totals})
        start = build.join(totals, cut.chunks, "linear")
    build.add(kernel, grid, passes, {**shared, **start, **NO_TOTAL})


def _forward(desc: Any, given: dict[str, Given], arena: Arena, pieces: Pieces) -> list[Step]:
    build, tensors = _begin(desc, given, False, arena, pieces)
    _sweeps(build, recur, tensors, 2, 3)
    return build.steps


def _backward(desc: Any, given: dict[str, Given], arena: Arena, pieces: Pieces) -> list[Step]:
    build, tensors = _begin(desc, given, True, arena, pieces)
    # What tiles need of their neighbours is read first: the gradients may overwrite it.
    several = build.cut.tiles > 1
    after = build.edges(tensors, "a", False) if several else None
    before = build.edges(tensors, "h", True) if several else None
    _sweeps(build, recur_back, {**tensors, "before": before, "after": after}, 2, 5)
    return build.steps


def _lay_out(desc: Any, a: Any, b: Any, h: Any, initial: Any, offsets: Any, *_: None) -> GpuProgram:
    return extended(desc, _forward, tuple(zip(STAGED, (a, b, h), strict=True)), initial, offsets)


def _lay_out_back(
    desc: Any,
    dh: Any,
    a: Any,
    h: Any,
    da: Any,
    db: Any,
    initial: Any,
    offsets: Any,
    d_initial: Any,
) -> GpuProgram:
    tensors = tuple(zip(STAGED_BACKWARD, (dh, a, h, da, db), strict=True))
    summed = sums_factors(desc)
    return extended(desc, _backward, tensors, initial, offsets, d_initial, summed=summed)


def _bytes_back(desc: Any) -> int:
    summed = [(name, desc.a_shape) for name in sums_factors(desc)]
    return extended_bytes(desc, STAGED_BACKWARD, lambda plain: scratch_bytes(plain, True), summed)


def _guarantee(desc: Any) -> PrecisionGuarantee:
    check_not_stateful("linear_scan", desc, "a GPU")
    return guarantee(desc.element.accumulator, Reproducibility.RUN_TO_RUN)


_PIECES = {"a_shape": (4096, 1), "exclusive": True, "initial_shape": (), "num_pieces": 100}
_SAMPLES = tuple(
    Sample(where, {"input_shape": shape, "scan_axis": axis, **more})
    for where, shape, axis, more in (
        ("rows", (4096, 4096), 1, {}),
        ("columns", (64, 512, 512), 1, {}),
        ("row", (1 << 24,), 0, {}),
        ("pieces", (4096, 4096), 1, _PIECES),
    )
)

forward = Layout(
    _lay_out,
    _guarantee,
    lambda desc: extended_bytes(desc, STAGED, lambda plain: scratch_bytes(plain, False)),
    _SAMPLES,
)
backward = Layout(_lay_out_back, _guarantee, _bytes_back, _SAMPLES)
