"""The linear recurrence on the GPU: which steps it takes, cut as scans are."""

from __future__ import annotations

from typing import Any

from pullback.contract.errors import Unsupported
from pullback.contract.extension import check_not_extended
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import Reproducibility
from pullback.gpu.program import EMPTY, GpuProgram, Layout, operands
from pullback.gpu.sketch import Sample
from pullback.gpu.tile import wide
from pullback.ops.recurrence.gpu_kernels import recur, recur_back
from pullback.ops.scan.gpu_cut import Builder, cut_of, scratch_bytes, tensor_arguments
from pullback.tensor.layout import along_axis

_NO_START = {"start_u": None, "start_v": None}
_NO_TOTAL = {"total_u": None, "total_v": None}


def _begin(desc: Any, views: dict[str, Any], backward: bool) -> tuple[Builder, dict[str, Any]]:
    """A builder, and the tensors and loops as kernels name them."""
    loops = along_axis(desc.input_shape, desc.scan_axis, [view.strides for view in views.values()])
    tensors = {"extents": loops.rest.extents}
    named = zip(views, operands(*views.values()), strict=True)
    for number, (name, operand) in enumerate(named):
        tensors.update(tensor_arguments(name, operand, loops, number))
    return Builder(desc, cut_of(desc, loops.columns, backward), "linear"), tensors


def _sweeps(build: Builder, kernel: Any, tensors: dict[str, Any], reads: int, passes: int) -> None:
    """One sweep, or three where rows are cut into chunks; `reads` of the `passes` are inputs."""
    cut, carried = build.cut, build.desc.element.accumulator
    shared = {
        **tensors,
        **build.extents,
        **build.whole(),
        "REVERSE": build.desc.reverse,
        "WIDE": wide(carried),
    }
    start: dict[str, Any] = _NO_START
    grid = cut.groups * cut.chunks
    if cut.chunks > 1:
        us, vs = build.states(cut.chunks, carried, carried)
        build.add(kernel, grid, reads, {**shared, **_NO_START, "total_u": us, "total_v": vs})
        build.join(us, vs, cut.chunks, "linear")
        start = {"start_u": us, "start_v": vs}
    build.add(kernel, grid, passes, {**shared, **start, **_NO_TOTAL})


def _forward(desc: Any, a: Any, b: Any, h: Any, *_: None) -> GpuProgram:
    build, tensors = _begin(desc, {"a": a, "b": b, "h": h}, False)
    if not build.cut.rows * build.cut.extent:
        return EMPTY
    _sweeps(build, recur, tensors, 2, 3)
    return GpuProgram(tuple(build.steps))


def _backward(desc: Any, dh: Any, a: Any, h: Any, da: Any, db: Any, *_: None) -> GpuProgram:
    views = {"dh": dh, "a": a, "h": h, "da": da, "db": db}
    build, tensors = _begin(desc, views, True)
    if not build.cut.rows * build.cut.extent:
        return EMPTY
    # What tiles need of their neighbours is read first: the gradients may overwrite it.
    several = build.cut.tiles > 1
    after = build.edges(tensors, "a", False) if several else None
    before = build.edges(tensors, "h", True) if several else None
    _sweeps(build, recur_back, {**tensors, "before": before, "after": after}, 2, 5)
    return GpuProgram(tuple(build.steps))


def _guarantee(desc: Any) -> PrecisionGuarantee:
    check_not_extended("linear_scan", desc, "a GPU")
    if desc.a_shape is not None:
        expected = f"of shape {desc.input_shape} on a GPU; on the CPU it may broadcast"
        raise Unsupported("linear_scan", "a", expected, f"shape {desc.a_shape}")
    return guarantee(desc.element.accumulator, Reproducibility.RUN_TO_RUN)


_SAMPLES = tuple(
    Sample(where, {"input_shape": shape, "scan_axis": axis})
    for where, shape, axis in (
        ("rows", (4096, 4096), 1),
        ("columns", (64, 512, 512), 1),
        ("row", (1 << 24,), 0),
    )
)

forward = Layout(_forward, _guarantee, lambda desc: scratch_bytes(desc, False), _SAMPLES)
backward = Layout(_backward, _guarantee, lambda desc: scratch_bytes(desc, True), _SAMPLES)
