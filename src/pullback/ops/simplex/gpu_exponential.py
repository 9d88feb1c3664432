"""softmax and log_softmax in Triton: a row in registers, or in tiles where it does not fit.

FINE is f32 in f32: exponentials from our own polynomials, differences and sums with what rounding
took from them. Other elements take Triton's exponentials and plain sums in the wide type.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.exponential import exp_f32, log_f32, power
from pullback.gpu.pairs import add_pairs, two_sum
from pullback.gpu.tile import bounds, divide, grid, place, start_of_loop
from pullback.ops.simplex.gpu_threshold import facts

# The reference of exponents follows the maximum when it is so far ahead: what was summed until then
# counts for so little that its rounding is none.
AHEAD = tl.constexpr(16.0)


@triton.jit
def _logarithm(total, rest, FINE: tl.constexpr):
    """log of the sum of a row, which is at least 1, or 0 in rows that are not finite."""
    if FINE:
        safe = tl.maximum(total, 1.0)
        found = log_f32(safe) + rest / safe
    else:
        found = tl.log(total)
    return found


@triton.jit
def _value(
    x, live, reference, total, rest, peak, nans, tops, KIND: tl.constexpr, FINE: tl.constexpr
):
    """The map itself, and the rules for rows with NaN, +inf, or nothing but -inf."""
    shared = tl.maximum(tops, 1).to(x.dtype)
    top = x == float("inf")
    if KIND == "softmax":
        e, whole = power(x, reference[:, None], live, FINE), tl.where(total > 0.0, total, 1.0)
        inverse = divide(tl.full(whole.shape, 1.0, whole.dtype), whole)
        y = e * inverse[:, None]
        if FINE:
            # What rounding took from the quotient and from the sum.
            lost = (tl.fma(-whole, inverse, 1.0) - rest * inverse) * inverse
            y = tl.fma(e, lost[:, None], y)
        share = divide(tl.full(shared.shape, 1.0, shared.dtype), shared)
        infinite = tl.where(top, share[:, None], 0.0)
    else:
        z = x - reference[:, None]
        log_total = _logarithm(total, rest, FINE)[:, None]
        if FINE:
            _, low = two_sum(x, -reference[:, None])
            y = tl.where(z > float("-inf"), z + (low - log_total), z)
        else:
            y = z - log_total
        if FINE:
            share = log_f32(shared)
        else:
            share = tl.log(shared)
        infinite = tl.where(top, -share[:, None], float("-inf"))
    y = tl.where((tl.abs(peak) < float("inf"))[:, None], y, infinite)
    return tl.where((nans > 0)[:, None], float("nan"), y)


@triton.jit
def sum_of(e, rest, FINE: tl.constexpr):
    """By rows, with what rounding took."""
    if FINE:
        total, rest = tl.reduce((e, rest), 1, add_pairs)
    else:
        total = tl.sum(e, 1)
        rest = tl.zeros_like(total)
    return total, rest


@triton.jit(do_not_specialize=["n", "rows"])
def exp_row(
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
    e = power(value, peak[:, None], live, FINE)
    total, rest = sum_of(e, tl.zeros([R, B], WIDE), FINE)
    result = _value(value, live, peak, total, rest, peak, nans, tops, KIND, FINE)
    at = grid(place(row, extents, strides_y), k, step_y)
    tl.debug_barrier()  # y may be x
    tl.store(y + at, result.to(y.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["n", "rows"])
def exp_tiles(
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
    """R rows too long for registers: once for maximum and sum together, once to write."""
    n, rows = bounds(n, rows, step_x, extents, strides_x)
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    row_live = row < rows
    at_x, at_y = place(row, extents, strides_x), place(row, extents, strides_y)
    peak = tl.full([R], float("-inf"), WIDE)
    reference = peak
    nans = tl.zeros([R], tl.int32)
    tops = tl.zeros([R], tl.int64)
    sums, rests = tl.zeros([R, B], WIDE), tl.zeros([R, B], WIDE)
    for start in range(start_of_loop(), n, B):
        k = start + tl.arange(0, B).to(tl.int64)
        live = row_live[:, None] & (k < n)[None, :]
        value = tl.load(x + grid(at_x, k, step_x), mask=live, other=0.0).to(WIDE)
        p, m, t = facts(value, live)
        peak, nans, tops = tl.maximum(peak, p), tl.maximum(nans, m), tops + t
        # Before anything is summed the reference is -inf, and there is nothing to fade.
        moves = (peak > reference + AHEAD) | (reference == float("-inf"))
        later = tl.where(moves, peak, reference)
        gap = tl.where(moves & (tl.abs(reference) < float("inf")), reference - later, 0.0)
        fade = exp_f32(gap) if FINE else tl.exp(gap)
        reference = later
        e = power(value, reference[:, None], live, FINE)
        if FINE:
            sums, rests = sums * fade[:, None], rests * fade[:, None]
            sums, lost = two_sum(sums, e)
            rests += lost
        else:
            sums = sums * fade[:, None] + e
    total, rest = sum_of(sums, rests, FINE)
    if KIND == "log_softmax":
        # Relative to the maximum itself: a logarithm close to 0 is as exact as one can be.
        gap = tl.where(tl.abs(peak) < float("inf"), reference - peak, 0.0)
        fade = exp_f32(gap) if FINE else tl.exp(gap)
        total, rest, reference = total * fade, rest * fade, peak
    for start in range(start_of_loop(), n, B):
        k = start + tl.arange(0, B).to(tl.int64)
        live = row_live[:, None] & (k < n)[None, :]
        value = tl.load(x + grid(at_x, k, step_x), mask=live, other=0.0).to(WIDE)
        result = _value(value, live, reference, total, rest, peak, nans, tops, KIND, FINE)
        tl.debug_barrier()  # y may be x
        tl.store(y + grid(at_y, k, step_y), result.to(y.dtype.element_ty), mask=live)
