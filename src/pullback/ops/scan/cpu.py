"""Scans in Numba: which kernel a plan runs, and over which lines."""

from __future__ import annotations

from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.kinds import ScanKind, TieRule
from pullback.cpu.chain import LINK_WORDS, TENSORS_WALKED
from pullback.cpu.loops import axis_words
from pullback.cpu.program import Phase, Program, grain_for, streams
from pullback.ops.scan import cpu_extremum as extremum
from pullback.ops.scan import cpu_extremum_backward as extremum_backward
from pullback.ops.scan import cpu_logsumexp as logsumexp
from pullback.ops.scan import cpu_logsumexp_backward as logsumexp_backward
from pullback.ops.scan import cpu_product as product
from pullback.ops.scan import cpu_product_backward as product_backward
from pullback.ops.scan import cpu_sum as sum_
from pullback.ops.scan.contract import keeps_y
from pullback.tensor.layout import along_axis

K, T = ScanKind, TieRule
# Kernels that threads share one line with, used where there are few lines, and long ones.
CHAINED = {sum_.cumsum_along: sum_.cumsum_chained}
FEW_LINES = 16
# Kernels across that write whole rows.
STAGED = {extremum_backward.first_backward_across, extremum_backward.last_backward_across}


def forward(desc: Any, x: Any, y: Any, indices: Any) -> Program:
    views = [x, y, indices]
    option = 0
    if desc.kind is K.CUMSUM:
        kernels = sum_.cumsum_along, sum_.cumsum_across
    elif desc.kind is K.CUMPROD:
        kernels = product.cumprod_along, product.cumprod_across
    elif desc.kind in (K.CUMMAX, K.CUMMIN):
        option = _sign(desc)
        name = desc.ties.value + ("_indices" if indices is not None else "")
        kernels = getattr(extremum, name + "_along"), getattr(extremum, name + "_across")
    else:
        kernels = logsumexp.logcumsumexp_along, logsumexp.logcumsumexp_across
        side = 128 * (4 if desc.element.accumulator is ElementKind.F64 else 8)
        return _program(desc, views, kernels, desc.reverse, option, side)
    return _program(desc, views, kernels, desc.reverse, option)


def backward(desc: Any, dy: Any, dx: Any, x: Any, y: Any) -> Program:
    if not keeps_y(desc):
        y = None
    views = [dy, dx, x, y]
    option = 0
    reverse = not desc.reverse
    side = None
    if desc.kind is K.CUMSUM:
        kernels = sum_.cumsum_along, sum_.cumsum_across
    elif desc.kind is K.CUMPROD and y is not None:
        kernels = product_backward.cumprod_backward_along, product_backward.cumprod_backward_across
        reverse = desc.reverse
    elif desc.kind is K.CUMPROD:
        kernels = (
            product_backward.cumprod_recomputed_along,
            product_backward.cumprod_recomputed_across,
        )
        reverse, side = desc.reverse, product_backward.SIDE
    elif desc.kind in (K.CUMMAX, K.CUMMIN):
        option, reverse, side = _sign(desc), desc.reverse, extremum_backward.SIDE
        name = desc.ties.value + "_backward"
        kernels = (
            getattr(extremum_backward, name + "_along"),
            getattr(extremum_backward, name + "_across"),
        )
    elif y is None:
        kernels = (
            logsumexp_backward.logcumsumexp_recomputed_along,
            logsumexp_backward.logcumsumexp_recomputed_across,
        )
        reverse, side = desc.reverse, logsumexp_backward.SIDE
    else:
        kernels = (
            logsumexp_backward.logcumsumexp_backward_along,
            logsumexp_backward.logcumsumexp_backward_across,
        )
        side = 128 * (4 if desc.element.accumulator is ElementKind.F64 else 8)
    return _program(desc, views, kernels, reverse, option, side)


def _sign(desc: Any) -> int:
    if desc.kind is K.CUMMAX:
        return 0
    return -(1 << 63) if desc.element is ElementKind.F64 else -(1 << 31)


def _program(desc, views, kernels, reverse, option, side=None) -> Program:
    present = next(v for v in views if v is not None)
    strides = [(v or present).strides for v in views]
    strides += [present.strides] * (TENSORS_WALKED - len(strides))
    loops = along_axis(desc.input_shape, desc.scan_axis, strides)
    n, lines = loops.extent, loops.rest.count
    columns = strip = 1
    items, links = lines if n else 0, 0
    across = 4 if desc.element.accumulator is ElementKind.F64 else 8
    kernel = kernels[loops.columns]
    if loops.columns:
        columns, strip = loops.rest.extents[-1], side or 256 * across
        items = lines // columns * -(-columns // strip) if n and columns else 0
    elif kernel in CHAINED and 0 < lines < FEW_LINES and n >= 2 * sum_.CHUNK:
        kernel = CHAINED[kernel]
        items, strip, links = lines * -(-n // sum_.CHUNK), lines, lines
    tensors = sum(v is not None for v in views)
    size = n * min(strip, columns) * desc.element.itemsize * tensors
    phase = Phase(kernel, items, 1 if links else grain_for(size))
    words = (
        *(0,) * (TENSORS_WALKED - len(views)),
        columns,
        strip,
        # Across, a line of memory is written in several pieces: they must meet in the cache.
        int((kernel in STAGED or not loops.columns) and streams(n * lines * desc.element.itemsize)),
        option,
        -1 if desc.reverse else 0,
        *axis_words(loops, reverse),
        *(0,) * (LINK_WORDS * links),
    )
    return Program((phase,), words)
