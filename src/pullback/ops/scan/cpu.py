"""Scans in Numba: the kernels of each kind, and the program of a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.extension import Extension
from pullback.contract.kinds import ScanKind, TieRule
from pullback.cpu.extended_program import extended_program, with_slots
from pullback.cpu.program import Program
from pullback.cpu.scan_program import scan_program
from pullback.cpu.walks import Walks
from pullback.ops.scan.contract import (
    EXTREMA,
    NEEDS_Y,
    keeps_y,
    recomputed_bytes,
    staged,
    staged_backward,
)

# The kernels of a kind are imported when the first of them is needed.


def _cumsum(_desc: Any, _positions: bool = False) -> Walks:
    from pullback.ops.scan.cpu_cumsum import CUMSUM

    return CUMSUM


def _cumprod(desc: Any, _positions: bool = False) -> Walks:
    from pullback.ops.scan.cpu_cumprod import CUMPROD, CUMPROD_F64

    return CUMPROD_F64 if desc.element is ElementKind.F64 else CUMPROD


def _cumprod_backward(desc: Any) -> Walks:
    from pullback.ops.scan.cpu_cumprod_backward import CUMPROD_BACKWARD, CUMPROD_BACKWARD_F64

    return CUMPROD_BACKWARD_F64 if desc.element is ElementKind.F64 else CUMPROD_BACKWARD


def _extremum(desc: Any, positions: bool) -> Walks:
    from pullback.ops.scan.cpu_cummax import walks_of

    return walks_of(desc.kind is ScanKind.CUMMIN, desc.ties is TieRule.LAST, positions)


_FORWARD: dict[ScanKind, Callable[..., Walks]] = {
    ScanKind.CUMSUM: _cumsum,
    ScanKind.CUMPROD: _cumprod,
    ScanKind.CUMMAX: _extremum,
    ScanKind.CUMMIN: _extremum,
}
_BACKWARD: dict[ScanKind, Callable[..., Walks]] = {
    ScanKind.CUMSUM: _cumsum,
    ScanKind.CUMPROD: _cumprod_backward,
}


def _forward(desc: Any, x: Any, y: Any, indices: Any) -> Program:
    if walks := _FORWARD.get(desc.kind):
        return scan_program(walks(desc, indices is not None), desc, (x, y, indices))
    from pullback.ops.scan import cpu_ways

    return cpu_ways.forward(desc, x, y)


def _backward(desc: Any, dy: Any, dx: Any, x: Any, y: Any) -> Program:
    walks = _BACKWARD.get(desc.kind)
    if walks and (desc.kind is ScanKind.CUMSUM or keeps_y(desc)):
        return scan_program(walks(desc), desc, (dy, dx, x, y), against=True)
    from pullback.ops.scan import cpu_ways

    return cpu_ways.backward(desc, dy, dx, x, y)


def forward(desc: Any, x: Any, y: Any, indices: Any, initial: Any, offsets: Any) -> Program:
    if Extension.of(desc).is_plain:
        return with_slots(_forward(desc, x, y, indices), 3, 5)
    tensors = list(zip(staged(desc), (x, y, indices), strict=True))
    return extended_program(desc, _forward, tensors, initial, offsets)


def backward(
    desc: Any, dy: Any, dx: Any, x: Any, y: Any, initial: Any, offsets: Any, d_initial: Any
) -> Program:
    saved = y if keeps_y(desc) else None
    if Extension.of(desc).is_plain:
        return with_slots(_backward(desc, dy, dx, x, saved), 4, 7)
    tensors = list(zip(staged_backward(desc), (dy, dx, x, saved), strict=True))
    inner = recomputed_bytes(desc)
    return extended_program(
        desc, _backward, tensors, initial, offsets, d_initial, inner=inner, back=_walks_back(desc)
    )


def _walks_back(desc: Any) -> bool:
    """Whether the walk of a backward is against the axis: those that recompute y, and those of
    extrema, go ahead first."""
    ahead = desc.kind in EXTREMA or (desc.kind in NEEDS_Y and not keeps_y(desc))
    return bool(desc.reverse == ahead)
