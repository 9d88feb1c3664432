"""Exponentials relative to a reference, for the running log-sum-exp and its backward.

A *reference* is one number R. Up to `limit` it stands for the power of two 2^(STEP·R), which is
near e^x for the x it was made of: moving a sum from one such reference to another rounds nothing,
so that no bit depends on when sums move. Beyond the limit it is that x itself, its *base*: there
neighbours are so far apart that their difference is exact, and powers of two are not told apart any
more. Both are in the order of the x, infinities included.

    reference(x)        is_far(R)
    by_the_limit(R)     whether R is far, or an x that counts next to it may be
    relative(x, R)      e^x over the reference, where both are near; relative_far: anywhere
    factor(R, to)       what a sum is multiplied by that moves to a higher reference; factor_far
    logarithm(s, R)     log of a sum; logarithm_far
    weighted(t, x, R, lift)   t·e^x·2^lift over the reference, rounded once; weighted_far

Sums are f64. Exponentials are of the working type: f32, or f64 for f64.
"""

import math

from numba import types

from pullback.cpu.elementary import (
    counter_bias,
    counter_bits,
    half_root_bits,
    mantissa,
    mantissa_mask,
    one_bits,
    per_type,
    polynomial,
    rounder,
)
from pullback.cpu.emit import inlined
from pullback.cpu.tiles import by_type
from pullback.cpu.vector import (
    absolute,
    as_float,
    as_int,
    fma,
    is_nan,
    maximum,
    minimum,
    not_le,
    select,
    shift_logical,
    to_f32,
    to_f64,
)

INFINITY, NAN = math.inf, math.nan
LIFT = 200.0  # binades by which sums of f64 are lifted in the backward
STEP = 32.0  # binades between neighbouring references

limit = per_type(2.0**20, 2.0**49)
_log2_e = per_type(1.4426950216293335, 1.4426950408889634)
steps_of = per_type(1.4426950216293335 / STEP, 1.4426950408889634 / STEP)
ln2 = per_type(0.6931471824645996, 0.6931471805599453)
_ln2_rest = per_type(-1.9046542e-09, 2.3190468138462996e-17)
_bias = per_type(127.0, 1023.0)
# What e^x over its reference is at least: next to 2^-STEP it is nothing.
_least = per_type(-80.0, -690.0)
# How many steps an x may be from its reference that counts next to it, or leaves it where it is.
_reach = per_type(5.0, 33.0)
# (e^r - 1) / r: errors of e^r 2^-26 and 2^-55.
_exp_series = polynomial(
    (1.0, 1.0, 0.5, 0.16666576266288757, 0.041666556149721146, 0.008363203145563602,
     0.0013926213141530752),
    (
        1.0, 1.0, 0.5000000000000001, 0.16666666666666669, 0.04166666666662399,
        0.008333333333330051, 0.0013888888917281794, 0.00019841269863105968,
        2.480152119021773e-05, 2.7557268378684192e-06, 2.7620138719733994e-07,
        2.5100424157005067e-08,
    ),
)  # fmt: skip
# 2·atanh(s) / s, in s^2: errors of the logarithm 2^-28 and 2^-57.
_log_series = polynomial(
    (2.0, 0.6666668653488159, 0.399887353181839, 0.2958202362060547),
    (
        2.0, 0.666666666666667, 0.3999999999989827, 0.28571428626533335, 0.22222211043822487,
        0.18182895746801428, 0.1533150172120742, 0.1461916477718642,
    ),
)  # fmt: skip


# --- references -----------------------------------------------------------------------------------


@inlined
def _whole(x):
    return (x + rounder(x)) - rounder(x)


@inlined
def is_near(x):
    """Whether an x has a power of two; NaN does not."""
    return absolute(x) <= limit(x)


@inlined
def near_reference(x):
    return _whole(x * steps_of(x))


@inlined
def reference(x):
    return select(is_near(x), near_reference(x), x)


@inlined
def is_far(R):
    """Whether a reference is a base: powers of two are counted in steps, and stay smaller."""
    return absolute(R) > limit(R) * 0.5


@inlined
def by_the_limit(R):
    """Sums over references on both sides of the limit round otherwise than those over one."""
    return not_le(absolute(R), limit(R) * steps_of(R) - _reach(R))


@inlined
def _base(R):
    return select(is_far(R), R, 0.0)


@inlined
def _exponent(R):
    return select(is_far(R), 0.0, R * STEP)


# --- exponentials ---------------------------------------------------------------------------------


@inlined
def _power(k):
    """2^k for integral k in the range of normal numbers."""
    bits = as_int(k + (rounder(k) + _bias(k)))
    return as_float(bits << mantissa(bits))


@inlined
def _remainder(x, k):
    return fma(k, -_ln2_rest(x), fma(k, -ln2(x), x))


@inlined
def _exp_over(x, k):
    """e^x·2^-k where that is a normal number."""
    origin = rounder(x) - k
    t = fma(x, _log2_e(x), origin)
    m = _exp_series(_remainder(x, t - origin))
    bits = as_int(t)
    return as_float(as_int(m) + (bits << mantissa(bits)))


@inlined
def _exp_at_least(x, k):
    return _exp_over(maximum(fma(k, ln2(x), _least(x)), x), k)


@inlined
def relative(x, R):
    return _exp_at_least(x, R * STEP)


@inlined
def _distance(x, base):
    """x - base, where an infinity is no distance from itself."""
    return select(x == base, 0.0, x - base)


@inlined
def relative_far(x, R):
    return select(is_nan(x), x, _exp_at_least(_distance(x, _base(R)), _exponent(R)))


@inlined
def is_tiny(R, x):
    """Whether e^x is too small to be told over a near reference."""
    return not_le(fma(R * STEP, ln2(x), _least(x)), x)


@inlined
def factor(R, to):
    return _power(maximum(-1000.0, to_f64(R - to) * STEP))


@inlined
def factor_far(R, to):
    d = _distance(to_f64(_base(R)), to_f64(_base(to)))
    f = _exp_at_least(d, to_f64(_exponent(to)) - to_f64(_exponent(R)))
    apart = (to_f64(R) == -INFINITY) | (to_f64(to) == INFINITY)
    return select(to_f64(R) == to_f64(to), 1.0, select(apart, 0.0, f))


# --- logarithms -----------------------------------------------------------------------------------


@by_type
def working(R, s):
    """A sum in the working type."""
    if R.dtype == types.float32:
        return lambda R, s: to_f32(s)
    return lambda R, s: s


@inlined
def _logarithm(s, k):
    """log(s·2^k) for a normal s > 0."""
    bits = as_int(s)
    offset = bits + (one_bits(bits) - half_root_bits(bits))
    e = as_float(shift_logical(offset, mantissa(bits)) | counter_bits(bits))
    m = as_float((offset & mantissa_mask(bits)) + half_root_bits(bits))
    q = (m - 1) / (m + 1)
    return fma(e + (k - counter_bias(k)), ln2(s), q * _log_series(q * q))


@inlined
def logarithm(s, R):
    return _logarithm(working(R, s), R * STEP)


@inlined
def logarithm_far(s, R):
    """Of no sum, whose base is -inf, as well."""
    found = _base(R) + _logarithm(working(R, s), _exponent(R))
    return select(is_nan(working(R, s)), NAN, found)


# --- weights --------------------------------------------------------------------------------------


@inlined
def pair(x):
    """e^x as m·2^k; next to anything with a near reference, what is less than this is nothing."""
    x = maximum(-2.0 * limit(x), x)
    k = fma(x, _log2_e(x), rounder(x)) - rounder(x)
    return _exp_series(_remainder(x, k)), k


@by_type
def _scaled(x, t, k):
    """t·2^k in the type of x, rounded once: t is far from the ends of f64 where x is not f64."""
    if x.dtype == types.float32:
        return lambda x, t, k: to_f32(t * _power(maximum(-1000.0, to_f64(k))))

    def in_two(x, t, k):
        k = minimum(2 * _bias(k), maximum(-2 * _bias(k) + 4, k))
        part = _whole(k * 0.5)
        return t * _power(part) * _power(k - part)

    return in_two


@inlined
def _weighted(t, x, d, k):
    m, j = pair(d)
    m = select(x == -INFINITY, 0.0, m)
    return _scaled(x, to_f64(m) * t, j + k)


@by_type
def _times_power(R, t, k):
    """t·2^k, where t is told over references R."""
    if R.dtype == types.float32:
        return lambda R, t, k: t * _power(maximum(-1000.0, to_f64(k)))
    return lambda R, t, k: _scaled(R, t, k)


@inlined
def lowered(t, R, to, lift):
    """A sum that is multiplied by the reference R, times 2^lift, for a lower reference."""
    return _times_power(R, t, (to - R) * STEP + lift)


@inlined
def lowered_far(t, R, to, lift):
    """Next to +inf, what is finite is nothing."""
    m, k = pair(_distance(_base(to), _base(R)))
    m = select((R == INFINITY) & (to != R), 0.0, m)
    return _times_power(R, t * to_f64(m), k + (_exponent(to) - _exponent(R)) + lift)


@inlined
def weighted(t, x, R, lift):
    return _weighted(t, x, x, lift - R * STEP)


@inlined
def weighted_far(t, x, R, lift):
    return _weighted(t, x, _distance(x, _base(R)), lift - _exponent(R))
