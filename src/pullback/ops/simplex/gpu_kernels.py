"""Simplex maps with a threshold in Triton: a row in registers, or in tiles where it does not fit.
See `gpu_threshold` for the threshold, and for what FINE is.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.tile import bounds, divide, grid, place, start_of_loop
from pullback.ops.simplex.gpu_threshold import (
    beyond,
    facts,
    shift,
    threshold_of_rows,
    threshold_of_tiles,
)


@triton.jit
def power_of(u, lost, KIND: tl.constexpr, FINE: tl.constexpr):
    """The map from a pair that is beyond the threshold."""
    if KIND == "sparsemax":
        y = u
    elif FINE:
        y = tl.fma(u, u, 2.0 * u * lost)
    else:
        y = u * u
    return y


@triton.jit
def _value(x, live, tau, low, peak, nans, tops, KIND: tl.constexpr, FINE: tl.constexpr):
    """The map itself, and the rules for rows with NaN, +inf, or nothing but -inf."""
    u, lost, on = beyond(x, shift(x, peak, live, KIND), peak, tau, low, KIND, FINE)
    y = tl.where(on, power_of(u, lost, KIND, FINE), 0.0)
    shared = tl.maximum(tops, 1).to(y.dtype)
    share = divide(tl.full(shared.shape, 1.0, shared.dtype), shared)
    settled = tl.where(x == float("inf"), share[:, None], 0.0)
    y = tl.where((tl.abs(peak) < float("inf"))[:, None], y, settled)
    return tl.where((nans > 0)[:, None], float("nan"), y)


@triton.jit(do_not_specialize=["n", "rows"])
def map_row(
    x,
    y,
    n,
    rows,
    step_x,
    step_y,
    extents,
    strides_x,
    strides_y,
    KIND: tl.constexpr,
    FINE: tl.constexpr,
    WIDE: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """R whole rows in registers: each element is read and written once."""
    n, rows = bounds(n, rows, step_x, extents, strides_x)
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    k = tl.arange(0, B).to(tl.int64)
    live = (row < rows)[:, None] & (k < n)[None, :]
    at = grid(place(row, extents, strides_x), k, step_x)
    value = tl.load(x + at, mask=live, other=0.0).to(WIDE)
    peak, nans, tops = facts(value, live)
    tau, low = threshold_of_rows(value, peak, live, KIND, FINE)
    result = _value(value, live, tau, low, peak, nans, tops, KIND, FINE)
    at = grid(place(row, extents, strides_y), k, step_y)
    tl.debug_barrier()  # y may be x
    tl.store(y + at, result.to(y.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["n", "rows"])
def map_tiles(
    x,
    y,
    n,
    rows,
    step_x,
    step_y,
    extents,
    strides_x,
    strides_y,
    KIND: tl.constexpr,
    FINE: tl.constexpr,
    WIDE: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """R rows too long for registers: once for the maximum, once for each sum, once to write."""
    n, rows = bounds(n, rows, step_x, extents, strides_x)
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    row_live = row < rows
    at_x, at_y = place(row, extents, strides_x), place(row, extents, strides_y)
    peak = tl.full([R], float("-inf"), WIDE)
    nans = tl.zeros([R], tl.int32)
    tops = tl.zeros([R], tl.int64)
    for start in range(start_of_loop(), n, B):
        k = start + tl.arange(0, B).to(tl.int64)
        live = row_live[:, None] & (k < n)[None, :]
        value = tl.load(x + grid(at_x, k, step_x), mask=live, other=0.0).to(WIDE)
        p, m, t = facts(value, live)
        peak, nans, tops = tl.maximum(peak, p), tl.maximum(nans, m), tops + t
    tau, low = threshold_of_tiles(x, at_x, row_live, n, step_x, peak, KIND, FINE, R, B)
    for start in range(start_of_loop(), n, B):
        k = start + tl.arange(0, B).to(tl.int64)
        live = row_live[:, None] & (k < n)[None, :]
        value = tl.load(x + grid(at_x, k, step_x), mask=live, other=0.0).to(WIDE)
        result = _value(value, live, tau, low, peak, nans, tops, KIND, FINE)
        tl.debug_barrier()  # y may be x
        tl.store(y + grid(at_y, k, step_y), result.to(y.dtype.element_ty), mask=live)
