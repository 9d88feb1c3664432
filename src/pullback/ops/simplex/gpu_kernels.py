"""Simplex maps with a threshold in Triton: a row in registers, or in tiles where it does not fit.

The threshold of sparsemax and entmax15 is the root of a convex, falling function of τ, so Newton's
method from max - 1 rises to it: for sparsemax in as many steps as the support shrinks, for entmax15
quadratically. Sums are in the wide type, counts over tiles in 64 bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.tile import bounds, divide, grid, place, start_of_loop

# Steps at most: every step divides residual times slope by four, or more.
STEPS = tl.constexpr(128)


@triton.jit
def _facts(x, live):
    """Of a tile, by rows: the maximum without NaN, how many NaN, how many +inf."""
    nan = (x != x) & live
    peak = tl.max(tl.where(live & ~nan, x, float("-inf")), 1)
    tops = tl.sum(((x == float("inf")) & live).to(tl.int32), 1)
    return peak, tl.sum(nan.to(tl.int32), 1), tops


@triton.jit
def _shift(x, peak, live, KIND: tl.constexpr):
    """x - max, halved for entmax15; -inf where nothing is, and in rows that are not finite."""
    finite = (tl.abs(peak) < float("inf"))[:, None]
    z = tl.where(live & finite & (x == x), x - peak[:, None], float("-inf"))
    return z * 0.5 if KIND == "entmax15" else z


@triton.jit
def _sums(z, tau, KIND: tl.constexpr):
    """What one look at a tile adds up for Newton's step, and the support."""
    inside = z > tau[:, None]
    over = tl.where(inside, z - tau[:, None], 0.0)
    first = tl.sum(over * over if KIND == "entmax15" else over, 1)
    return first, tl.sum(over, 1), tl.sum(inside.to(tl.int32), 1)


@triton.jit
def _newton(tau, first, second, count, KIND: tl.constexpr):
    """The next threshold, never a lower one."""
    if KIND == "entmax15":
        slope = tl.where(second > 0.0, 2.0 * second, 1.0)
    else:
        slope = tl.maximum(count, 1).to(tau.dtype)
    step = (first - 1.0) / slope
    return tl.where((step > 0.0) & (count > 0), tau + step, tau)


@triton.jit
def _value(x, z, tau, peak, nans, tops, KIND: tl.constexpr):
    """The map itself, and the rules for rows with NaN, +inf, or nothing but -inf."""
    y = tl.maximum(z - tau[:, None], 0.0)
    if KIND == "entmax15":
        y = y * y
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
    peak, nans, tops = _facts(value, live)
    z = _shift(value, peak, live, KIND)
    tau = tl.full([R], -1.0, WIDE)
    first, second, count = _sums(z, tau, KIND)
    left = tl.full((), STEPS, tl.int32)
    while left > 0:
        higher = _newton(tau, first, second, count, KIND)
        left = tl.where(tl.max((higher > tau).to(tl.int32), 0) > 0, left - 1, 0)
        tau = higher
        first, second, count = _sums(z, tau, KIND)
    result = _value(value, z, tau, peak, nans, tops, KIND)
    at = grid(place(row, extents, strides_y), k, step_y)
    tl.debug_barrier()  # y may be x
    tl.store(y + at, result.to(y.dtype.element_ty), mask=live)


@triton.jit
def _tiled_sums(
    x, offset, row_live, n, step, peak, tau, KIND: tl.constexpr, R: tl.constexpr, B: tl.constexpr
):
    """`_sums` over all tiles of the rows."""
    first = tl.zeros([R], tau.dtype)
    second = tl.zeros([R], tau.dtype)
    count = tl.zeros([R], tl.int64)
    for start in range(start_of_loop(), n, B):
        k = start + tl.arange(0, B).to(tl.int64)
        live = row_live[:, None] & (k < n)[None, :]
        value = tl.load(x + grid(offset, k, step), mask=live, other=0.0).to(tau.dtype)
        f, s, c = _sums(_shift(value, peak, live, KIND), tau, KIND)
        first, second, count = first + f, second + s, count + c
    return first, second, count


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
        p, m, t = _facts(value, live)
        peak, nans, tops = tl.maximum(peak, p), tl.maximum(nans, m), tops + t
    tau = tl.full([R], -1.0, WIDE)
    first, second, count = _tiled_sums(x, at_x, row_live, n, step_x, peak, tau, KIND, R, B)
    left = tl.full((), STEPS, tl.int32)
    while left > 0:
        higher = _newton(tau, first, second, count, KIND)
        left = tl.where(tl.max((higher > tau).to(tl.int32), 0) > 0, left - 1, 0)
        tau = higher
        first, second, count = _tiled_sums(x, at_x, row_live, n, step_x, peak, tau, KIND, R, B)
    for start in range(start_of_loop(), n, B):
        k = start + tl.arange(0, B).to(tl.int64)
        live = row_live[:, None] & (k < n)[None, :]
        value = tl.load(x + grid(at_x, k, step_x), mask=live, other=0.0).to(WIDE)
        z = _shift(value, peak, live, KIND)
        result = _value(value, z, tau, peak, nans, tops, KIND)
        tl.debug_barrier()  # y may be x
        tl.store(y + grid(at_y, k, step_y), result.to(y.dtype.element_ty), mask=live)


@triton.jit
def _weights(y, KIND: tl.constexpr):
    """What dy is weighted with: a power of y on its support."""
    if KIND == "sparsemax":
        w = tl.where(y > 0.0, 1.0, 0.0).to(y.dtype)
    else:
        w = tl.sqrt(tl.where(y > 0.0, y, 0.0))
    return w


@triton.jit
def _back_sums(dy, y, live, KIND: tl.constexpr):
    """Of a tile, by rows: Σ w·dy, Σ w, how many have mass, how many NaN."""
    w = _weights(y, KIND)
    dy = tl.where(w > 0.0, dy, 0.0)  # not read off the support
    masses = tl.sum(((y != 0.0) & live).to(tl.int32), 1)
    return tl.sum(w * dy, 1), tl.sum(w, 1), masses, tl.sum(((y != y) & live).to(tl.int32), 1)


@triton.jit
def _gradient(dy, y, dot, total, masses, nans, KIND: tl.constexpr):
    w = _weights(y, KIND)
    mean = dot / tl.where(total > 0.0, total, 1.0)
    dx = tl.where(w > 0.0, w * dy - w * mean[:, None], 0.0)
    dx = tl.where(((masses == 0) & (nans == 0))[:, None], 0.0, dx)
    return tl.where((nans > 0)[:, None], float("nan"), dx)


@triton.jit(do_not_specialize=["n", "rows"])
def map_back(
    dy,
    y,
    dx,
    n,
    rows,
    step_dy,
    step_y,
    step_dx,
    extents,
    strides_dy,
    strides_y,
    strides_dx,
    KIND: tl.constexpr,
    WIDE: tl.constexpr,
    TILED: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """The gradient of R rows: sums over the row, then each element; read once unless tiled."""
    n, rows = bounds(n, rows, step_dy, extents, strides_dy)
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    at_dy, at_y = place(row, extents, strides_dy), place(row, extents, strides_y)
    at_dx = place(row, extents, strides_dx)
    dot, total = tl.zeros([R], WIDE), tl.zeros([R], WIDE)
    masses, nans = tl.zeros([R], tl.int32), tl.zeros([R], tl.int32)
    if TILED:
        for start in range(start_of_loop(), n, B):
            k = start + tl.arange(0, B).to(tl.int64)
            live = (row < rows)[:, None] & (k < n)[None, :]
            g = tl.load(dy + grid(at_dy, k, step_dy), mask=live, other=0.0).to(WIDE)
            p = tl.load(y + grid(at_y, k, step_y), mask=live, other=0.0).to(WIDE)
            d, t, m, nan = _back_sums(g, p, live, KIND)
            dot, total = dot + d, total + t
            masses, nans = tl.maximum(masses, m), tl.maximum(nans, nan)
        for start in range(start_of_loop(), n, B):
            k = start + tl.arange(0, B).to(tl.int64)
            live = (row < rows)[:, None] & (k < n)[None, :]
            g = tl.load(dy + grid(at_dy, k, step_dy), mask=live, other=0.0).to(WIDE)
            p = tl.load(y + grid(at_y, k, step_y), mask=live, other=0.0).to(WIDE)
            result = _gradient(g, p, dot, total, masses, nans, KIND)
            tl.debug_barrier()  # dx may be dy or y
            tl.store(dx + grid(at_dx, k, step_dx), result.to(dx.dtype.element_ty), mask=live)
    else:
        k = tl.arange(0, B).to(tl.int64)
        live = (row < rows)[:, None] & (k < n)[None, :]
        g = tl.load(dy + grid(at_dy, k, step_dy), mask=live, other=0.0).to(WIDE)
        p = tl.load(y + grid(at_y, k, step_y), mask=live, other=0.0).to(WIDE)
        dot, total, masses, nans = _back_sums(g, p, live, KIND)
        result = _gradient(g, p, dot, total, masses, nans, KIND)
        tl.debug_barrier()  # dx may be dy or y
        tl.store(dx + grid(at_dx, k, step_dx), result.to(dx.dtype.element_ty), mask=live)
