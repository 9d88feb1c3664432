"""entmax for any alpha in Triton, and the gradients of x and of alpha. All is in f64; see
`contract` for what is computed, and `gpu_root` for the root.

`alpha` is a tensor that has one for each row, or None, and `beta` the number less 1.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.tile import bounds, grid, lanes, place, start_of_loop
from pullback.ops.entmax.gpu_root import log1p, powers, root_of_rows, root_of_tiles
from pullback.ops.simplex.gpu_threshold import facts, shift

NEAR = tl.constexpr(2.0**-4)


@triton.jit(do_not_specialize=["rows"])
def find_alphas(alpha, found, rows, extents, strides, B: tl.constexpr):
    """Of a block of rows, the first whose alpha is less than 1, or not finite."""
    rows = lanes(rows, extents, strides)
    row = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = row < rows
    a = tl.load(alpha + place(row, extents, strides), mask=live, other=1.0).to(tl.float64)
    bad = live & ~((a >= 1.0) & (a < float("inf")))
    tl.store(found + tl.program_id(0), tl.min(tl.where(bad, row, rows), 0))


@triton.jit(do_not_specialize=["rows", "blocks"])
def conclude_alphas(found, status, rows, blocks, CODE: tl.constexpr, B: tl.constexpr):
    """The status of that check."""
    first = tl.full([B], rows, tl.int64)
    for start in range(start_of_loop(), blocks, B):
        k = start + tl.arange(0, B)
        first = tl.minimum(first, tl.load(found + k, mask=k < blocks, other=rows))
    row, one = tl.min(first, 0), tl.arange(0, 1).to(tl.int64)
    tl.store(status + one, one + tl.where(row < rows, CODE, 0))
    tl.store(status + 1 + one, one + row)
    tl.store(status + 2 + one, one)


@triton.jit
def beta_of(alpha, beta, row, row_live, extents, strides):
    """b by rows."""
    if alpha is None:
        b = tl.zeros_like(row).to(tl.float64) + beta
    else:
        at = place(row, extents, strides)
        b = tl.load(alpha + at, mask=row_live, other=1.5).to(tl.float64) - 1.0
    return b


@triton.jit
def _live_rows(rows, gate, R: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    row_live = row < rows
    if gate is not None:
        row_live = row_live & (tl.load(gate) == 0)
    return row, row_live


@triton.jit
def _value(z, c, own, beta, peak, nans):
    _, _, p, _ = powers(z, c, own, beta)
    p = tl.where((peak > float("-inf"))[:, None], p, 0.0)
    return tl.where((nans > 0)[:, None], float("nan"), p)


@triton.jit
def tiled_facts(x, at, row_live, n, step, R: tl.constexpr, B: tl.constexpr):
    """The maximum of rows in tiles, and whether there is a NaN."""
    peak, nans = tl.full([R], float("-inf"), tl.float64), tl.zeros([R], tl.int32)
    for start in range(start_of_loop(), n, B):
        k = start + tl.arange(0, B).to(tl.int64)
        live = row_live[:, None] & (k < n)[None, :]
        value = tl.load(x + grid(at, k, step), mask=live, other=0.0).to(tl.float64)
        own_peak, own_nans, _ = facts(value, live)
        peak, nans = tl.maximum(peak, own_peak), tl.maximum(nans, own_nans)
    return peak, nans


@triton.jit(do_not_specialize=["n", "rows"])
def entmax_map(
    x,
    alpha,
    y,
    gate,
    beta: tl.float64,
    n,
    rows,
    step_x,
    step_y,
    extents,
    strides_x,
    each_alpha,
    strides_y,
    TILED: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """R rows: read once where they are held whole, else for every step of the root."""
    n, rows = bounds(n, rows, step_x, extents, strides_x)
    row, row_live = _live_rows(rows, gate, R)
    b = beta_of(alpha, beta, row, row_live, extents, each_alpha)
    at_x, at_y = place(row, extents, strides_x), place(row, extents, strides_y)
    if TILED:
        peak, nans = tiled_facts(x, at_x, row_live, n, step_x, R, B)
        c, own = root_of_tiles(x, at_x, row_live, n, step_x, peak, b, R, B)
        for start in range(start_of_loop(), n, B):
            k = start + tl.arange(0, B).to(tl.int64)
            live = row_live[:, None] & (k < n)[None, :]
            value = tl.load(x + grid(at_x, k, step_x), mask=live, other=0.0).to(tl.float64)
            result = _value(shift(value, peak, live, "entmax"), c, own, b, peak, nans)
            tl.debug_barrier()  # y may be x
            tl.store(y + grid(at_y, k, step_y), result.to(y.dtype.element_ty), mask=live)
    else:
        k = tl.arange(0, B).to(tl.int64)
        live = row_live[:, None] & (k < n)[None, :]
        value = tl.load(x + grid(at_x, k, step_x), mask=live, other=0.0).to(tl.float64)
        peak, nans, _ = facts(value, live)
        z = shift(value, peak, live, "entmax")
        c, own = root_of_rows(z, peak, n, b)
        result = _value(z, c, own, b, peak, nans)
        tl.debug_barrier()  # y may be x
        tl.store(y + grid(at_y, k, step_y), result.to(y.dtype.element_ty), mask=live)


# --- the gradient of x ----------------------------------------------------------------------------


@triton.jit
def _exponent(y, live, beta):
    """By rows the largest logarithm of a weight for alpha > 2, where they may be beyond all
    numbers: they are taken relative to it. Others are at most 1."""
    least = tl.min(tl.where(live & (y > 0.0), y, 1.0), 1)
    return tl.where(beta > 1.0, (1.0 - beta) * tl.log(least), 0.0)


@triton.jit
def _weights(y, exponent, beta):
    """s = y^(1-b) on the support relative to the exponent, 0 off it, NaN where y is."""
    support = y > 0.0
    logs = tl.log(tl.where(support, y, 1.0))
    s = tl.exp((1.0 - beta)[:, None] * logs - exponent[:, None])
    return tl.where(support, s, y * 0.0)


@triton.jit
def _weighted(dy, s, beta):
    """s·dy, where dy is not read off the support but of a softmax."""
    return tl.where((s > 0.0) | (beta == 0.0)[:, None], s * dy, 0.0)


@triton.jit
def _gradient(dy, s, dot, mass, exponent, beta):
    flat, none = (beta == 0.0)[:, None], (mass == 0.0)[:, None]
    mean = dot / tl.where((mass == 0.0) | (beta == 0.0), 1.0, mass)
    dx = s * (dy - mean[:, None])
    dx = tl.where((dx == 0.0) | (beta <= 1.0)[:, None], dx, dx * tl.exp(exponent)[:, None])
    dx = tl.where(((s > 0.0) | flat) & ~none, dx, 0.0)
    return tl.where((mass != mass)[:, None], float("nan"), dx)


@triton.jit(do_not_specialize=["n", "rows"])
def entmax_back(
    dy,
    y,
    alpha,
    dx,
    gate,
    beta: tl.float64,
    n,
    rows,
    step_dy,
    step_y,
    step_dx,
    extents,
    strides_dy,
    strides_y,
    each_alpha,
    strides_dx,
    TILED: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """R rows: the largest weight, sums over the row, then each element; read once unless tiled."""
    n, rows = bounds(n, rows, step_dy, extents, strides_dy)
    row, row_live = _live_rows(rows, gate, R)
    b = beta_of(alpha, beta, row, row_live, extents, each_alpha)
    at_dy, at_y = place(row, extents, strides_dy), place(row, extents, strides_y)
    at_dx = place(row, extents, strides_dx)
    if TILED:
        exponent = tl.zeros([R], tl.float64)
        for start in range(start_of_loop(), n, B):
            k = start + tl.arange(0, B).to(tl.int64)
            live = row_live[:, None] & (k < n)[None, :]
            p = tl.load(y + grid(at_y, k, step_y), mask=live, other=0.0).to(tl.float64)
            exponent = tl.maximum(exponent, _exponent(p, live, b))
        dot, mass = tl.zeros([R], tl.float64), tl.zeros([R], tl.float64)
        for start in range(start_of_loop(), n, B):
            k = start + tl.arange(0, B).to(tl.int64)
            live = row_live[:, None] & (k < n)[None, :]
            p = tl.load(y + grid(at_y, k, step_y), mask=live, other=0.0).to(tl.float64)
            g = tl.load(dy + grid(at_dy, k, step_dy), mask=live, other=0.0).to(tl.float64)
            s = _weights(p, exponent, b)
            dot, mass = dot + tl.sum(_weighted(g, s, b), 1), mass + tl.sum(s, 1)
        for start in range(start_of_loop(), n, B):
            k = start + tl.arange(0, B).to(tl.int64)
            live = row_live[:, None] & (k < n)[None, :]
            p = tl.load(y + grid(at_y, k, step_y), mask=live, other=0.0).to(tl.float64)
            g = tl.load(dy + grid(at_dy, k, step_dy), mask=live, other=0.0).to(tl.float64)
            result = _gradient(g, _weights(p, exponent, b), dot, mass, exponent, b)
            tl.debug_barrier()  # dx may be dy or y
            tl.store(dx + grid(at_dx, k, step_dx), result.to(dx.dtype.element_ty), mask=live)
    else:
        k = tl.arange(0, B).to(tl.int64)
        live = row_live[:, None] & (k < n)[None, :]
        p = tl.load(y + grid(at_y, k, step_y), mask=live, other=0.0).to(tl.float64)
        g = tl.load(dy + grid(at_dy, k, step_dy), mask=live, other=0.0).to(tl.float64)
        exponent = _exponent(p, live, b)
        s = _weights(p, exponent, b)
        dot, mass = tl.sum(_weighted(g, s, b), 1), tl.sum(s, 1)
        result = _gradient(g, s, dot, mass, exponent, b)
        tl.debug_barrier()  # dx may be dy or y
        tl.store(dx + grid(at_dx, k, step_dx), result.to(dx.dtype.element_ty), mask=live)


# --- the gradient of alpha ------------------------------------------------------------------------


@triton.jit
def _curve(s, log_u, u):
    """(log(1+s) - s/(1+s)) / s², 1/2 at 0."""
    near = tl.abs(s) < NEAR
    series = tl.full(s.shape, 12.0 / 13.0, tl.float64)
    for k in tl.static_range(10, -1, -1):
        series = (k + 1.0) / (k + 2.0) - s * series
    safe = tl.where(near, 1.0, s)
    return tl.where(near, series, (log_u - s / u) / (safe * safe))


@triton.jit
def _bends(z, g, live, c, own, beta):
    """Of a tile, by rows: Σ a, Σ s, Σ g·a, Σ g·s with a = ∂p/∂b at fixed z - c, s = ∂p/∂z; g is not
    read off the support."""
    u, _, p, slope = powers(z, c, own, beta)
    support = live & (p > 0.0)
    w = tl.where(support, z - c[:, None], 0.0)
    u, g = tl.where(support, u, 1.0), tl.where(support, g, 0.0)
    s = beta[:, None] * w
    log_u = tl.where((beta <= 1.0)[:, None], log1p(tl.where(support, s, 0.0)), tl.log(u))
    a = tl.where(support, -p * w * w * _curve(s, log_u, u), 0.0)
    slope = tl.where(support, slope, 0.0)
    return tl.sum(a, 1), tl.sum(slope, 1), tl.sum(g * a, 1), tl.sum(g * slope, 1)


@triton.jit(do_not_specialize=["n", "rows"])
def alpha_back(
    dy,
    alpha,
    x,
    out,
    gate,
    n,
    rows,
    step_dy,
    step_x,
    extents,
    strides_dy,
    each_alpha,
    strides_x,
    each_out,
    TILED: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """The gradient of alpha of R rows: Σ dy·(a - s·Σ a / Σ s), from the root of x."""
    n, rows = bounds(n, rows, step_dy, extents, strides_dy)
    row, row_live = _live_rows(rows, gate, R)
    b = beta_of(alpha, 0.0, row, row_live, extents, each_alpha)
    at_dy, at_x = place(row, extents, strides_dy), place(row, extents, strides_x)
    if TILED:
        peak, nans = tiled_facts(x, at_x, row_live, n, step_x, R, B)
        c, own = root_of_tiles(x, at_x, row_live, n, step_x, peak, b, R, B)
        bend, slope = tl.zeros([R], tl.float64), tl.zeros([R], tl.float64)
        with_bend, with_slope = tl.zeros([R], tl.float64), tl.zeros([R], tl.float64)
        for start in range(start_of_loop(), n, B):
            k = start + tl.arange(0, B).to(tl.int64)
            live = row_live[:, None] & (k < n)[None, :]
            value = tl.load(x + grid(at_x, k, step_x), mask=live, other=0.0).to(tl.float64)
            g = tl.load(dy + grid(at_dy, k, step_dy), mask=live, other=0.0).to(tl.float64)
            found = _bends(shift(value, peak, live, "entmax"), g, live, c, own, b)
            bend, slope = bend + found[0], slope + found[1]
            with_bend, with_slope = with_bend + found[2], with_slope + found[3]
    else:
        k = tl.arange(0, B).to(tl.int64)
        live = row_live[:, None] & (k < n)[None, :]
        value = tl.load(x + grid(at_x, k, step_x), mask=live, other=0.0).to(tl.float64)
        g = tl.load(dy + grid(at_dy, k, step_dy), mask=live, other=0.0).to(tl.float64)
        peak, nans, _ = facts(value, live)
        z = shift(value, peak, live, "entmax")
        c, own = root_of_rows(z, peak, n, b)
        bend, slope, with_bend, with_slope = _bends(z, g, live, c, own, b)
    rate = bend / tl.where(slope > 0.0, slope, 1.0)
    found = tl.where(peak > float("-inf"), with_bend - with_slope * rate, 0.0)
    found = tl.where(nans > 0, float("nan"), found)
    tl.store(out + place(row, extents, each_out), found, mask=row_live)
