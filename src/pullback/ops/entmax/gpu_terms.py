"""The terms of Fenchel-Young losses in Triton, by what the map of a row is known by. FINE is f32 in
f32: exponentials and logarithms from our own polynomials, sums in pairs of f32."""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.exponential import exp_f32, log_pair
from pullback.gpu.pairs import add_pairs, multiply_pairs, two_product, two_sum
from pullback.gpu.tile import divide
from pullback.ops.entmax.gpu_root import expm1, powers
from pullback.ops.simplex.gpu_kernels import power_of
from pullback.ops.simplex.gpu_threshold import FAR, beyond

LEAST_NORMAL = tl.constexpr(2.0**-126)

# --- softmax --------------------------------------------------------------------------------------


@triton.jit
def _below(x, peak, live, FINE: tl.constexpr):
    """e^(x - max) of what is less than the maximum, 0 elsewhere."""
    z = tl.where(live & (x < peak[:, None]), x - peak[:, None], float("-inf"))
    if FINE:
        _, rest = two_sum(x, -peak[:, None])
        e = exp_f32(z)
        e = tl.where(z > float("-inf"), tl.fma(e, rest, e), 0.0)
    else:
        e = tl.exp(z)
    return e


@triton.jit
def others(x, peak, live, FINE: tl.constexpr):
    """Powers of what is less than the maximum, by rows the largest of them, and how many are equal
    to the maximum: a sum without it keeps the digits of a loss close to 0."""
    e = _below(x, peak, live, FINE)
    return e, tl.max(e, 1), tl.sum((live & (x == peak[:, None])).to(tl.int32), 1)


@triton.jit
def beyond_one(total, rest, many):
    """What a row adds up to relative to its maximum, less 1, as a pair."""
    s, r = two_sum((many - 1).to(total.dtype), total)
    return s, r + rest


@triton.jit
def _level(excess, rest, FINE: tl.constexpr):
    """log(1 + excess) as a pair, with the digits of an excess next to 0, and 1 / (1 + excess)."""
    whole, lost = two_sum(excess, tl.full(excess.shape, 1.0, excess.dtype))
    inverse = divide(tl.full(whole.shape, 1.0, whole.dtype), whole)
    if FINE:
        high, low = log_pair(whole, lost + rest)
    else:
        high = tl.log(whole) + (lost + rest) * inverse
        low = tl.zeros_like(high)
    return high, low, inverse, lost + rest


@triton.jit
def softmax_terms(x, t, peak, live, excess, rest, FINE: tl.constexpr):
    """The terms as pairs, and the map."""
    high, low, inverse, lost = _level(excess, rest, FINE)
    top = live & (x == peak[:, None])
    e = tl.where(top, 1.0, _below(x, peak, live, FINE))
    p = e * inverse[:, None]
    # What rounding took from the quotient and from the sum.
    lost = (tl.fma(-(1.0 + excess), inverse, 1.0) - lost * inverse) * inverse
    p = tl.fma(e, lost[:, None], p)
    positive = t > 0.0
    z = tl.where(top, 0.0, x - peak[:, None])
    safe = tl.where(positive, t, 1.0)
    # 1 - p of a maximum that has nearly all keeps its digits.
    short = tl.where(top & (t == 1.0), (excess * inverse)[:, None], t - p)
    if FINE:
        logs, logs_low = log_pair(safe, None)
        _, off = two_sum(x, -peak[:, None])
        gap, r1 = two_sum(logs, -z)
        gap, r2 = two_sum(gap, tl.broadcast_to(high[:, None], gap.shape))
        r = (r1 + r2) + (logs_low + low[:, None] - tl.where(top, 0.0, off))
        term, left = two_product(safe, gap)
        left = tl.fma(safe, r, left)
        term, r = two_sum(term, -short)
        left = left + r
    else:
        term = safe * (tl.log(safe) - (z - high[:, None])) - short
        left = tl.zeros_like(term)
    term = tl.where(z > float("-inf"), term, float("inf"))
    term = tl.where(positive, tl.maximum(term, 0.0), p)
    kept = positive & (term > 0.0) & (term < float("inf"))
    return term, tl.where(kept, left, 0.0), p


@triton.jit
def class_loss(score, peak, excess, rest, most, n, FINE: tl.constexpr, REL, ABS):
    """log Σ e^(x - m) + m - x at the class; 0 where the map is 1, as far as the dtype tells."""
    high, low, _, _ = _level(excess, rest, FINE)
    top = score == peak
    value, r = two_sum(high, tl.where(top, 0.0, peak - score))
    value = tl.where(tl.abs(value) < float("inf"), value + (r + low), value)
    sure = top & (excess <= REL + ABS) & (excess <= ABS * (2.0 * n))
    sure = sure & (most * (1.0 - REL) <= ABS)
    return tl.where(sure, 0.0, value)


# --- sparsemax and entmax15 -----------------------------------------------------------------------


@triton.jit
def _minus(a, a_low, b, b_low, FINE: tl.constexpr):
    """The difference of two pairs."""
    if FINE:
        found, low = add_pairs(a, a_low, -b, -b_low)
    else:
        found = a - b
        low = tl.zeros_like(found)
    return found, low


@triton.jit
def _times(a, a_low, b, b_low, FINE: tl.constexpr):
    """The product of two pairs."""
    if FINE:
        found, low = multiply_pairs(a, a_low, b, b_low)
    else:
        found = a * b
        low = tl.zeros_like(found)
    return found, low


@triton.jit
def _root_of(t, FINE: tl.constexpr):
    """√t as a pair."""
    if FINE:
        # From an approximation; roots of subnormal numbers, less than 2^-63, do not count.
        normal = t >= LEAST_NORMAL
        inverse = tl.rsqrt(tl.where(normal, t, 1.0))
        s = tl.where(normal, t * inverse, 0.0)
        low = tl.where(normal, tl.fma(-s, s, t) * (0.5 * inverse), 0.0)
    else:
        s = tl.sqrt(t)
        low = tl.zeros_like(s)
    return s, low


@triton.jit
def threshold_terms(x, z, t, peak, tau, low, KIND: tl.constexpr, FINE: tl.constexpr):
    """Half of the terms as pairs, and the map."""
    u, rest, on = beyond(x, z, peak, tau, low, KIND, FINE)
    t = tl.maximum(t, 0.0)
    p = tl.where(on, power_of(u, rest, KIND, FINE), 0.0)
    none = tl.zeros_like(t)
    if KIND == "sparsemax":
        one, lost = _minus(t, none, u, rest, FINE)
        other, lost_other = _minus(0.5 * t, none, u, rest, FINE)
        a, a_low = tl.where(on, one, t), tl.where(on, lost, 0.0)
        b, b_low = tl.where(on, 0.5 * one, other), tl.where(on, 0.5 * lost, lost_other)
    else:
        s, s_low = _root_of(t, FINE)
        one, lost = _minus(s, s_low, u, rest, FINE)
        square, square_low = _times(one, lost, one, lost, FINE)
        a, a_low = tl.where(on, square, t), tl.where(on, square_low, 0.0)
        factor = tl.where(on, -0.5, 1.5)
        b, b_low = _minus(s, s_low, factor * u, factor * rest, FINE)
    term, left = _times(a, a_low, b, b_low, FINE)
    if FINE:
        # A difference that f32 may not hold: nothing else counts beside it.
        far = z <= -FAR
        half = tl.where(x > float("-inf"), 0.5 * peak[:, None] - 0.5 * x, float("inf"))
        term = tl.where(far, (1.5 * t if KIND == "entmax15" else 2.0 * t) * half, term)
        left = tl.where(far | ~(tl.abs(term) < float("inf")), 0.0, left)
    kept = on | (t > 0.0)
    return tl.where(kept, term, 0.0), tl.where(kept, left, 0.0), p


# --- any other alpha ------------------------------------------------------------------------------


@triton.jit
def power_terms(z, t, c, own, b):
    """The terms, and the map."""
    u, v, p, _ = powers(z, c, own, b)
    b, positive = b[:, None], t > 0.0
    safe = tl.where(positive, t, 1.0)
    # 1 - p of a class that has nearly all keeps its digits.
    short = tl.where((t == 1.0) & (p > 0.0), -expm1(v), t - p)
    distance = expm1(b * tl.log(safe)) / b - (z - c[:, None])
    term = tl.maximum(safe * distance - u * short, 0.0)
    term = tl.where(z > float("-inf"), term, float("inf"))
    return tl.where(positive, term, tl.where(p == 0.0, 0.0, u * p)), p
