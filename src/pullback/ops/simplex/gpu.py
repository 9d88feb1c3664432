"""Simplex maps on the GPU: which step a map takes. The kernels are in `gpu_exponential`, those of
maps with a threshold in `gpu_kernels`, and gradients in `gpu_backward`."""

from __future__ import annotations

from math import prod
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import Reproducibility, SoftmaxKind
from pullback.gpu.program import (
    EMPTY,
    GpuProgram,
    Layout,
    Step,
    Steps,
    Tile,
    ceil_div,
    operands,
)
from pullback.gpu.sketch import Sample
from pullback.gpu.tile import wide
from pullback.ops.simplex.contract import kind_of
from pullback.ops.simplex.gpu_backward import map_back
from pullback.ops.simplex.gpu_exponential import exp_row, exp_tiles
from pullback.ops.simplex.gpu_kernels import map_row, map_tiles
from pullback.tensor.layout import along_axis

# Rows that fit are held whole; along the axis where its elements are neighbours, else across.
ALONG = Steps(
    (16, Tile(32, 16, 4)),
    (64, Tile(16, 64, 4)),
    (128, Tile(8, 128, 4)),
    (256, Tile(4, 256, 4)),
    (1024, Tile(1, 1024, 4)),
    (4096, Tile(1, 4096, 16)),
    (None, Tile(1, 2048, 8)),
)
# Without a threshold they take fewer registers.
WHOLE = Steps(*ALONG.entries[:-1], (8192, Tile(1, 8192, 16)), ALONG.entries[-1])
# All registers of a multiprocessor: enough for gradients of elements of up to four bytes, and for
# softmax of two. Others would spill.
WHOLE_NARROW = Steps(*WHOLE.entries[:-1], (16384, Tile(1, 16384, 16)), WHOLE.entries[-1])
ACROSS = Steps(
    (16, Tile(64, 16, 4)), (64, Tile(32, 64, 8)), (128, Tile(16, 128, 8)), (None, Tile(32, 32, 4))
)


_EXPONENTIAL = (SoftmaxKind.SOFTMAX, SoftmaxKind.LOG_SOFTMAX)


def _computed(desc: Any) -> ElementKind:
    """What a map is computed in: f32 in pairs of f32."""
    return desc.element if desc.element is ElementKind.F32 else desc.element.accumulator


def _table(desc: Any, backward: bool) -> Steps:
    """The launch table for rows along memory."""
    if kind_of(desc) not in _EXPONENTIAL or (desc.element is ElementKind.F64 and not backward):
        return ALONG
    plain = kind_of(desc) is SoftmaxKind.SOFTMAX
    narrow = desc.element.itemsize <= (4 if backward else 2 * plain)
    return WHOLE_NARROW if narrow else WHOLE


def _program(
    desc: Any, tensors: dict[str, Any], kernels: tuple[Any, Any], again: int
) -> GpuProgram:
    """One step: `kernels` are for rows held whole, and for rows in tiles, of which so many tensors
    are read `again`."""
    if not prod(desc.input_shape):
        return EMPTY
    loops = along_axis(
        desc.input_shape, desc.softmax_axis, [view.strides for view in tensors.values()]
    )
    tile = (ACROSS if loops.columns else _table(desc, "dy" in tensors))[loops.extent]
    tiled = loops.extent > tile.block
    rows = loops.rest.count
    arguments: dict[str, Any] = dict(zip(tensors, operands(*tensors.values()), strict=True))
    for number, name in enumerate(tensors):
        arguments[f"step_{name}"] = loops.steps[number]
        arguments[f"strides_{name}"] = loops.rest.strides[number]
    arguments |= {
        "n": loops.extent,
        "rows": rows,
        "extents": loops.rest.extents,
        "KIND": kind_of(desc).value,
        "FINE": desc.element is ElementKind.F32,
        "WIDE": wide(_computed(desc)),
        "R": tile.rows,
        "B": tile.block,
    }
    kernel = kernels[tiled]
    if kernels[0] is kernels[1]:
        arguments["TILED"] = tiled
    passes = len(tensors) + again * tiled
    traffic = rows * loops.extent * desc.element.itemsize * passes
    return GpuProgram((Step(kernel, ceil_div(rows, tile.rows), arguments, tile.warps, traffic),))


def _forward(desc: Any, x: Any, y: Any) -> GpuProgram:
    """In tiles, x is read for maximum and sum together, and to write y. A threshold reads it for
    the maximum, and for each of its steps, of which one is counted."""
    if kind_of(desc) in _EXPONENTIAL:
        return _program(desc, {"x": x, "y": y}, (exp_row, exp_tiles), 1)
    return _program(desc, {"x": x, "y": y}, (map_row, map_tiles), 2)


def _backward(desc: Any, dy: Any, y: Any, dx: Any) -> GpuProgram:
    return _program(desc, {"dy": dy, "y": y, "dx": dx}, (map_back, map_back), 2)


def _guarantee(desc: Any) -> PrecisionGuarantee:
    return guarantee(_computed(desc), Reproducibility.RUN_TO_RUN)


def _samples() -> tuple[Sample, ...]:
    """Of all maps, and of all tiles; sparsemax has plans of its own, without a kind."""
    problems = {
        "rows": ((4096, 1024), 1),
        "long rows": ((64, 1 << 20), 1),
        "columns": ((64, 64, 1024), 1),
        "rows of 500": ((4096, 500), 1),  # too odd for wide loads
        **{f"rows of {n}": ((4096, n), 1) for n, _ in WHOLE_NARROW.entries if n},
        **{f"columns of {n or 200}": ((64, n or 200, 1024), 1) for n, _ in ACROSS.entries},
    }
    found = []
    for kind in SoftmaxKind:
        own = {} if kind is SoftmaxKind.SPARSEMAX else {"kind": kind}
        for where, (shape, axis) in problems.items():
            options = {**own, "input_shape": shape, "softmax_axis": axis}
            found.append(Sample(f"{kind.value} {where}", options))
    return tuple(found)


forward = Layout(_forward, _guarantee, samples=_samples())
backward = Layout(_backward, _guarantee, samples=_samples())
