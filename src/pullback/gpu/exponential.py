"""exp and log in f32 from the polynomials of `cpu/elementary`: what takes f64 elsewhere, within the
same bounds and with no instruction of f64. `tl.fma` is one rounding; nothing else is contracted.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.pairs import two_sum

_LOG2_E = tl.constexpr(1.4426950408889634)
_LN2_HIGH = tl.constexpr(0.6931471824645996)
_LN2_LOW = tl.constexpr(-1.9046542121259336e-09)
# Adding it rounds to an integer and leaves that in the low bits of the sum.
_ROUNDER = tl.constexpr(12582912.0)
# The same, and twice the exponent bias: halves of that sum are biased exponents.
_TWICE_BIASED = tl.constexpr(12582912.0 + 254.0)
_HALF_ROOT = tl.constexpr(0x3F3504F3)  # bits of sqrt(1/2)
_ONE = tl.constexpr(0x3F800000)
_MANTISSA = tl.constexpr(0x007FFFFF)


@triton.jit
def _tail_of_exp(r):
    """(e^r - 1 - r) / r^2 for r up to half the logarithm of 2."""
    tail = tl.fma(r, 0.0013814308, 0.008368853)
    tail = tl.fma(r, tail, 0.0416684)
    tail = tl.fma(r, tail, 0.1666652)
    return tl.fma(r, tail, 0.49999994)


@triton.jit
def _times_power_of_two(p, k):
    """p·2^k for an integer k of f32."""
    # Two factors, since 2^k itself need not be a float; the first product is exact.
    whole = (k + _TWICE_BIASED).to(tl.int32, bitcast=True)
    first = whole >> 1
    second = whole - first
    p = p * (first << 23).to(tl.float32, bitcast=True)
    return p * (second << 23).to(tl.float32, bitcast=True)


@triton.jit
def exp_f32(x):
    """e^x within 1 ulp, subnormal results included; x is not NaN."""
    x = tl.minimum(tl.maximum(x, -104.0), 89.0)
    k = tl.fma(x, _LOG2_E, _ROUNDER) - _ROUNDER
    high = tl.fma(k, -_LN2_HIGH, x)
    r = tl.fma(k, -_LN2_LOW, high)
    # r itself is rounded, `high` is not: the leading term takes the latter.
    p = high + tl.fma(k, -_LN2_LOW, r * r * _tail_of_exp(r)) + 1.0
    return _times_power_of_two(p, k)


@triton.jit
def _parts_of_log(x):
    """Of log x, for normal x in (0, inf): k, f, f^2/2 and what is left of k·ln 2 + log(1 + f)."""
    bits = x.to(tl.int32, bitcast=True)
    offset = bits - _HALF_ROOT + _ONE
    k = ((offset >> 23) - 127).to(tl.float32)
    m = ((offset & _MANTISSA) + _HALF_ROOT).to(tl.float32, bitcast=True)
    f = m - 1.0
    s = tl.div_rn(f, f + 2.0)
    z = s * s
    square = f * f * 0.5
    tail = tl.fma(z, tl.fma(z, 0.29873094, 0.39977494), 0.66666776)
    return k, f, square, tl.fma(s, tl.fma(z, tail, square), k * _LN2_LOW)


@triton.jit
def log_f32(x):
    """log x within 1 ulp, for normal x in (0, inf)."""
    k, f, square, rest = _parts_of_log(x)
    return tl.fma(k, _LN2_HIGH, f - (square - rest))


@triton.jit
def exp_pair(x, reference):
    """e^(x - reference) as a pair of f32, for x up to the reference, neither of them NaN; 0 from
    104 below it on."""
    z, rest = two_sum(x, -reference)
    rest = tl.where(z > -104.0, rest, 0.0)
    z = tl.maximum(z, -104.0)
    k = tl.fma(z, _LOG2_E, _ROUNDER) - _ROUNDER
    high = tl.fma(k, -_LN2_HIGH, z)
    low = tl.fma(k, -_LN2_LOW, rest)
    r = high + low
    p, lost = two_sum(tl.full(high.shape, 1.0, tl.float32), high)
    p, lost = two_sum(p, lost + (low + r * r * _tail_of_exp(r)))
    return _times_power_of_two(p, k), _times_power_of_two(lost, k)


@triton.jit
def log_of_pair(s, r, reference):
    """reference + log(s + r) of a pair with a normal sum: the logarithm itself is not rounded where
    the two cancel."""
    k, f, square, rest = _parts_of_log(s)
    high, low = two_sum(reference, k * _LN2_HIGH)
    return high + (f + (((rest - square) + tl.div_rn(r, s)) + low))


@triton.jit
def power(x, reference, live, FINE: tl.constexpr):
    """e^(x - reference); 0 where nothing is, where x is NaN, and where the reference is not finite.
    FINE: f32, by the polynomial."""
    use = live & (tl.abs(reference) < float("inf")) & (x == x)
    z = tl.where(use, x - reference, float("-inf"))
    e = exp_f32(z) if FINE else tl.exp(z)
    if FINE | (x.dtype == tl.float64):
        # A steep slope would show what the difference loses in rounding.
        _, rest = two_sum(x, -reference)
        e = tl.where(z > float("-inf"), tl.fma(e, rest, e), 0.0)
    return e
