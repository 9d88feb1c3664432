"""Scans in Numba: the kernels of each kind, and the program of a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.kinds import ScanKind, TieRule
from pullback.cpu.extended_program import extended_program, with_slots
from pullback.cpu.program import Program
from pullback.cpu.scan_program import scan_program
from pullback.cpu.stateful_program import stateful_program
from pullback.cpu.walks import Walks
from pullback.ops.scan.contract import (
    IDENTITY,
    carries,
    extension_of,
    keeps_y,
    kept,
    staged,
    staged_backward,
)

# The kernels of a kind are imported when the first of them is needed.


def _cumsum(desc: Any, _positions: bool = False) -> Walks:
    from pullback.ops.scan import cpu_cumsum as kernels

    return kernels.CUMSUM


def _cumprod(desc: Any, _positions: bool = False) -> Walks:
    from pullback.ops.scan import cpu_cumprod as kernels

    return kernels.CUMPROD_F64 if desc.element is ElementKind.F64 else kernels.CUMPROD


def _cumprod_backward(desc: Any) -> Walks:
    from pullback.ops.scan import cpu_cumprod_backward as kernels

    if not keeps_y(desc):
        return kernels.CUMPROD_BACKWARD_RECOMPUTED
    if desc.element is ElementKind.F64:
        walks = kernels.CUMPROD_BACKWARD_F64_EXCLUSIVE, kernels.CUMPROD_BACKWARD_F64
    else:
        walks = kernels.CUMPROD_BACKWARD_EXCLUSIVE, kernels.CUMPROD_BACKWARD
    return walks[0] if desc.exclusive else walks[1]


def _extremum_backward(desc: Any) -> Walks:
    from pullback.ops.scan import cpu_cummax_backward as kernels

    return kernels.EXTREMUM_BACKWARD


def _extremum(desc: Any, positions: bool) -> Walks:
    from pullback.ops.scan.cpu_cummax import walks_of

    return walks_of(desc.ties is TieRule.LAST, positions)


def _logcumsumexp(desc: Any, _positions: bool = False) -> Walks:
    from pullback.ops.scan import cpu_logcumsumexp as kernels

    return kernels.LOGCUMSUMEXP


def _logcumsumexp_backward(desc: Any) -> Walks:
    if keeps_y(desc):
        from pullback.ops.scan.cpu_logcumsumexp_backward import LOGCUMSUMEXP_BACKWARD

        return LOGCUMSUMEXP_BACKWARD
    from pullback.ops.scan.cpu_logcumsumexp_recomputed import LOGCUMSUMEXP_RECOMPUTED

    return LOGCUMSUMEXP_RECOMPUTED


_FORWARD: dict[ScanKind, Callable[..., Walks]] = {
    ScanKind.CUMSUM: _cumsum,
    ScanKind.CUMPROD: _cumprod,
    ScanKind.CUMMAX: _extremum,
    ScanKind.CUMMIN: _extremum,
    ScanKind.LOG_CUMSUM_EXP: _logcumsumexp,
}
_BACKWARD: dict[ScanKind, Callable[..., Walks]] = {
    ScanKind.CUMSUM: _cumsum,
    ScanKind.CUMPROD: _cumprod_backward,
    ScanKind.CUMMAX: _extremum_backward,
    ScanKind.CUMMIN: _extremum_backward,
    ScanKind.LOG_CUMSUM_EXP: _logcumsumexp_backward,
}


def _forward(desc: Any, x: Any, y: Any, indices: Any, edges: Any = (None, None)) -> Program:
    walks = _FORWARD[desc.kind](desc, indices is not None)
    least = desc.kind is ScanKind.CUMMIN
    return scan_program(walks, desc, (x, y, indices), edges=edges, negated=least)


def _backward(desc: Any, dy: Any, dx: Any, x: Any, y: Any, edges: Any = (None, None)) -> Program:
    if desc.kind is ScanKind.CUMSUM:  # whatever sums start from
        edges = (None, edges[1])
    views, last = (dy, dx, x, y), desc.ties is TieRule.LAST
    least, walks = desc.kind is ScanKind.CUMMIN, _BACKWARD[desc.kind](desc)
    return scan_program(walks, desc, views, against=True, edges=edges, negated=least, option=last)


def forward(
    desc: Any,
    x: Any,
    y: Any,
    indices: Any,
    initial: Any,
    offsets: Any,
    state: Any,
    final_state: Any,
    positions: Any,
) -> Program:
    extension = extension_of(desc)
    tensors = list(zip(staged(desc), (x, y, indices), strict=True))
    if desc.stateful:
        own, identity = carries(desc), IDENTITY[desc.kind]
        given = state, final_state, positions
        return stateful_program(desc, _forward, tensors, given, own=own, identity=identity)
    if extension.is_plain:
        return with_slots(_forward(desc, x, y, indices), 3, 8)
    found = extended_program(desc, _forward, tensors, initial, offsets, own=extension.own)
    return with_slots(found, 5, 8)


def backward(
    desc: Any, dy: Any, dx: Any, x: Any, y: Any, initial: Any, offsets: Any, d_initial: Any
) -> Program:
    saved = y if keeps_y(desc) else None
    extension = extension_of(desc, backward=True)
    if extension.is_plain:
        return with_slots(_backward(desc, dy, dx, x, saved), 4, 7)
    tensors = list(zip(staged_backward(desc), (dy, dx, x, saved), strict=True))
    return extended_program(
        desc,
        _backward,
        tensors,
        initial,
        offsets,
        d_initial,
        kept=kept(desc),
        back=not desc.reverse,
        own=extension.own,
    )
