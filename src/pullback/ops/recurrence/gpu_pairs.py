"""The linear recurrence of f32 in pairs of f32, a tile at a time.

A map q -> u·q + v has v as a pair; u is a pair of size 1 to 2, or 0, and a power of two beside it,
because products of many factors have no range of their own. What a product of v loses below the
range of f32 matters only if nothing larger is added to it, or if it grows again. Then, and where a
sum is not finite, the rest is NaN from there on; the tile is done again in f64.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.pairs import LEAST, multiply_pairs, narrowed, rounded, two_sum, widened
from pullback.gpu.tile import lane_of
from pullback.ops.scan.gpu_states import resume, with_nan_of

# Beside a term of this size nothing below LEAST is missed.
_AMPLE = tl.constexpr(2.0**-70)
_MANTISSA = tl.constexpr(-0x7F800001)  # the sign, too
_ONE = tl.constexpr(0x3F800000)


@triton.jit
def _split(a):
    """A factor as size and power of two; NaN where it has none that is a normal number."""
    bits = a.to(tl.int32, bitcast=True)
    exponent = (bits >> 23) & 255
    size = ((bits & _MANTISSA) | _ONE).to(tl.float32, bitcast=True)
    size = tl.where((exponent == 0) | (exponent == 255), float("nan"), size)
    return tl.where(a == 0.0, 0.0, size), tl.where(a == 0.0, 0, exponent - 127)


@triton.jit
def _scaled(x, e):
    """x·2^e, in two factors."""
    e = tl.minimum(tl.maximum(e, -252), 252)
    first = e >> 1
    second = e - first
    x = x * ((first + 127) << 23).to(tl.float32, bitcast=True)
    return x * ((second + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _apply(vs1, vr1, us, ur, e, vs2, vr2):
    """v1·u + v2."""
    p, pr = multiply_pairs(vs1, vr1, us, ur)
    q, qr = _scaled(p, e), _scaled(pr, e)
    s, r = two_sum(q, vs2)
    grows = (tl.abs(p) < LEAST) & (e > 0)
    alone = (tl.abs(q) < LEAST) & ~(tl.abs(vs2) > _AMPLE)
    lost = (p != 0.0) & (grows | alone)
    return s, tl.where(lost, float("nan"), r + (qr + vr2))


@triton.jit
def _compose(us1, ur1, e1, vs1, vr1, us2, ur2, e2, vs2, vr2):
    """First map 1, then map 2."""
    vs, vr = _apply(vs1, vr1, us2, ur2, e2, vs2, vr2)
    u, ur = multiply_pairs(us1, ur1, us2, ur2)
    large = tl.abs(u) >= 2.0
    half = tl.where(large, 0.5, 1.0)
    return u * half, ur * half, e1 + e2 + large.to(tl.int32), vs, vr


@triton.jit
def _as_f64(us, ur, e):
    """A product as a number of f64, as far as that has its range."""
    u = us.to(tl.float64) + ur.to(tl.float64)
    e = tl.minimum(tl.maximum(e, -2044), 2044).to(tl.int64)
    first = e >> 1
    second = e - first
    u = u * ((first + 1023) << 52).to(tl.float64, bitcast=True)
    return u * ((second + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def carried(v):
    """A carry of f64 as a pair; an infinite sum where it is out of range, and where it is too small
    for a pair: it may grow again."""
    s, r = narrowed(v)
    return tl.where((tl.abs(v) < LEAST) & (v != 0.0), float("inf"), s), r


@triton.jit
def linear_tile(a, b, factor, begins, cs, cr, cv, lane, LAST: tl.constexpr, REVERSE: tl.constexpr):
    """h[j] = a[j]·h[j-1] + b[j] along the lanes after a carry, and h times a factor if there is
    one; the carry after lane LAST, `cv` where the pair has no finite sum; and the product of all
    factors, in f64. Lanes that `begins` flags have no factor, but 0."""
    size, power = _split(a)
    rest = tl.zeros_like(a)
    us, ur, e, vs, vr = tl.associative_scan(
        (size, rest, power, b, rest), 1, _compose, reverse=REVERSE
    )
    s, r = _apply(cs[:, None], cr[:, None], us, ur, e, vs, vr)
    y = rounded(s, r)
    z = y
    if factor is not None:
        z = rounded(*multiply_pairs(s, r, factor, tl.zeros_like(factor)))
    product = _as_f64(lane_of(us, lane, LAST), lane_of(ur, lane, LAST), lane_of(e, lane, LAST))
    last_s, last_r = lane_of(s, lane, LAST), lane_of(r, lane, LAST)
    beyond = ~(tl.abs(s) < float("inf")) | (r != r)
    if tl.max(tl.max(beyond.to(tl.int32), 1), 0) > 0:
        u, v = a.to(tl.float64), b.to(tl.float64)
        one = tl.full(cv.shape, 1.0, tl.float64)
        u, v = resume(one, widened(cs, cr, cv), begins, u, with_nan_of(u, v), "linear", REVERSE)
        y = v.to(tl.float32)
        z = y
        if factor is not None:
            z = (v * factor.to(tl.float64)).to(tl.float32)
        product, cv = lane_of(u, lane, LAST), lane_of(v, lane, LAST)
        last_s, last_r = carried(cv)
    return y, z, last_s, last_r, cv, product
