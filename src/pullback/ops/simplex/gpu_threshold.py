"""The threshold of sparsemax and entmax15 in Triton, of rows in registers or in tiles.

It is the root of a convex, falling function of τ, so Newton's method from max - 1 rises to it: for
sparsemax in as many steps as the support shrinks, for entmax15 quadratically. Sums are in the wide
type, counts over tiles in 64 bits. FINE is f32 in f32: a threshold and what it is compared with are
pairs of f32, and so are sums.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.pairs import add_pairs, two_product, two_sum
from pullback.gpu.tile import divide, grid, start_of_loop

# Steps at most: every step divides residual times slope by four, or more.
STEPS = tl.constexpr(128)
# A row in registers takes steps in f32 until its sum is as near to 1, or a step as short; rounding
# errors of a sum in f32 are less.
ROUGH_EXCESS = tl.constexpr(2.0**-10)
ROUGH_STEP = tl.constexpr(2.0**-18)
# And then in pairs until this: those have 48 bits.
LAST_EXCESS = tl.constexpr(2.0**-40)
LAST_STEP = tl.constexpr(2.0**-44)
# No pair is taken further below the maximum, so that none of them has an infinity.
FAR = tl.constexpr(2.0**100)


@triton.jit
def facts(x, live):
    """Of a tile, by rows: the maximum without NaN, how many NaN, how many +inf."""
    nan = (x != x) & live
    peak = tl.max(tl.where(live & ~nan, x, float("-inf")), 1)
    tops = tl.sum(((x == float("inf")) & live).to(tl.int32), 1)
    return peak, tl.sum(nan.to(tl.int32), 1), tops


@triton.jit
def shift(x, peak, live, KIND: tl.constexpr):
    """x - max, halved for entmax15: 0 at the maximum, infinite or not; -inf where nothing is, and
    in rows of only that."""
    peak = peak[:, None]
    z = tl.where(x == peak, 0.0, x - peak)
    z = tl.where(live & (x == x) & (peak > float("-inf")), z, float("-inf"))
    return z * 0.5 if KIND == "entmax15" else z


@triton.jit
def beyond(x, z, peak, tau, low, KIND: tl.constexpr, FINE: tl.constexpr):
    """z - τ of z from `shift` as a pair, and whether that is in the support."""
    if FINE:
        _, rest = two_sum(x, -peak[:, None])
        rest = tl.where((z < 0.0) & (z > -2.0), rest, 0.0)
        rest = rest * 0.5 if KIND == "entmax15" else rest
        u, lost = two_sum(tl.maximum(z, -FAR), -tau[:, None])
        u, lost = two_sum(u, lost + (rest - low[:, None]))
    else:
        u = z - tau[:, None]
        lost = tl.zeros_like(u)
    return u, lost, u > 0.0


@triton.jit
def newton_sums(z, tau, KIND: tl.constexpr):
    """What one look at a tile adds up for Newton's step, and the support."""
    inside = z > tau[:, None]
    over = tl.where(inside, z - tau[:, None], 0.0)
    first = tl.sum(over * over if KIND == "entmax15" else over, 1)
    return first, tl.sum(over, 1), tl.sum(inside.to(tl.int32), 1)


@triton.jit
def _slope(second, count, KIND: tl.constexpr):
    if KIND == "entmax15":
        slope = tl.where(second > 0.0, 2.0 * second, 1.0)
    else:
        slope = tl.maximum(count, 1).to(second.dtype)
    return slope


@triton.jit
def _newton(tau, first, second, count, KIND: tl.constexpr, FINE: tl.constexpr):
    """The next threshold, never a lower one, and whether any row goes on."""
    step = divide(first - 1.0, _slope(second, count, KIND))
    higher = tl.where((step > 0.0) & (count > 0), tau + step, tau)
    if FINE:
        more = (higher - tau > ROUGH_STEP) & (first - 1.0 > ROUGH_EXCESS)
    else:
        more = higher > tau
    return higher, tl.max(more.to(tl.int32), 0)


@triton.jit
def _fine_sums(x, z, peak, tau, low, KIND: tl.constexpr):
    """`newton_sums` in pairs: terms by elements, and the support."""
    u, lost, on = beyond(x, z, peak, tau, low, KIND, True)
    u, lost = tl.where(on, u, 0.0), tl.where(on, lost, 0.0)
    if KIND == "entmax15":
        first, rest = two_product(u, u)
        rest = rest + 2.0 * u * lost
    else:
        first, rest = u, lost
    return first, rest, tl.sum(u, 1), tl.sum(on.to(tl.int32), 1)


@triton.jit
def _fine_newton(tau, low, first, rest, second, count, KIND: tl.constexpr):
    """The next threshold as a pair, and whether any row goes on. The first may have been too high
    by a rounding error."""
    excess, lost = two_sum(first, tl.full(first.shape, -1.0, tl.float32))
    excess = excess + (lost + rest)
    step = tl.where(count > 0, divide(excess, _slope(second, count, KIND)), 0.0)
    next_tau, lost = two_sum(tau, step)
    next_tau, next_low = two_sum(next_tau, low + lost)
    more = (tl.abs(excess) > LAST_EXCESS) & (tl.abs(step) > LAST_STEP)
    return next_tau, next_low, tl.max(more.to(tl.int32), 0)


@triton.jit
def threshold_of_rows(x, peak, live, KIND: tl.constexpr, FINE: tl.constexpr):
    """The threshold of rows in registers as a pair."""
    z = shift(x, peak, live, KIND)
    tau = tl.full(peak.shape, -1.0, peak.dtype)
    low = tl.zeros_like(tau)
    left = tl.full((), STEPS, tl.int32)
    while left > 0:
        first, second, count = newton_sums(z, tau, KIND)
        tau, more = _newton(tau, first, second, count, KIND, FINE)
        left = tl.where(more > 0, left - 1, 0)
    if FINE:
        left = tl.full((), STEPS, tl.int32)
        while left > 0:
            first, rest, second, count = _fine_sums(x, z, peak, tau, low, KIND)
            first, rest = tl.reduce((first, rest), 1, add_pairs)
            tau, low, more = _fine_newton(tau, low, first, rest, second, count, KIND)
            left = tl.where(more > 0, left - 1, 0)
    return tau, low


@triton.jit
def _tiled_step(
    x,
    offset,
    row_live,
    n,
    step,
    peak,
    tau,
    low,
    KIND: tl.constexpr,
    FINE: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """One step of rows in tiles, all of which are read."""
    second, count = tl.zeros([R], tau.dtype), tl.zeros([R], tl.int64)
    if FINE:
        first, rest = tl.zeros([R, B], tau.dtype), tl.zeros([R, B], tau.dtype)
    else:
        first = tl.zeros([R], tau.dtype)
    for start in range(start_of_loop(), n, B):
        k = start + tl.arange(0, B).to(tl.int64)
        live = row_live[:, None] & (k < n)[None, :]
        value = tl.load(x + grid(offset, k, step), mask=live, other=0.0).to(tau.dtype)
        z = shift(value, peak, live, KIND)
        if FINE:
            f, r, s, c = _fine_sums(value, z, peak, tau, low, KIND)
            first, rest = add_pairs(first, rest, f, r)
        else:
            f, s, c = newton_sums(z, tau, KIND)
            first = first + f
        second, count = second + s, count + c
    if FINE:
        first, rest = tl.reduce((first, rest), 1, add_pairs)
        tau, low, more = _fine_newton(tau, low, first, rest, second, count, KIND)
    else:
        tau, more = _newton(tau, first, second, count, KIND, FINE)
    return tau, low, more


@triton.jit
def threshold_of_tiles(
    x,
    offset,
    row_live,
    n,
    step,
    peak,
    KIND: tl.constexpr,
    FINE: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """The threshold of rows in tiles as a pair: they are read for every step."""
    tau = tl.full(peak.shape, -1.0, peak.dtype)
    low = tl.zeros_like(tau)
    left = tl.full((), STEPS, tl.int32)
    while left > 0:
        tau, low, more = _tiled_step(x, offset, row_live, n, step, peak, tau, low, KIND, FINE, R, B)
        left = tl.where(more > 0, left - 1, 0)
    return tau, low
