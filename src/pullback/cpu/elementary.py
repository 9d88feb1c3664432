"""exp and log of vectors and scalars, f32 and f64, from polynomials of our own.

No libm call, so a loop stays in registers and the bits are the same on every machine. Every step is
one correctly rounded operation per lane, so a scalar gives the same bits as a lane of any vector.

    exp(x)                   within 1 ulp; e^-inf = 0, overflow to inf, subnormal results rounded
    log(x)                   within 1 ulp; log 0 = -inf, log of negatives NaN, subnormal x exact
    exp_parts(x)  -> p, k    e^x = p * 2^k, p in [0.7, 1.42], k integral and of x's type; |x| counts
                             as 2^20 (f32) or 2^40 (f64) at most, so infinities have a finite k
    exp_parts_within(x)      the same when |x| is known to be within that limit, or NaN
    scale_by_power(p, k)     p * 2^k rounded once, for any integral k and |p| in [2^-24, 2^100]
    scale_or_flush(p, k)     the same in one product, where 2^k is normal; 0 where it is smaller
    log_parts(x)  -> m, k    x = m * 2^k, m in [0.7, 1.42), for x in (0, inf)
    log_parts_normal(x)      the same when x is known not to be subnormal
    log_joined(m, k)         log m + k log 2: add to k first to take the log of a scaled sum

NaN goes through all of them, except that log_parts needs its x in (0, inf).
"""

import math
from collections.abc import Callable

from numba import types
from numba.extending import overload

from pullback.cpu.emit import Vec, constant, inlined, llvm_call, op
from pullback.cpu.vector import (
    as_float,
    as_int,
    fma,
    lane,
    like,
    maximum,
    minimum,
    select,
    shift_logical,
    splat,
)


def per_type(f32: float, f64: float) -> Callable:
    """An operation v -> that constant in v's lanes, by v's width."""
    values = {types.float32: f32, types.int32: f32, types.float64: f64, types.int64: f64}

    def constant_like(v: Vec):
        return v(v), lambda b, _: constant(v.llvm, values[v.dtype])

    return op(constant_like)


def polynomial(f32: tuple[float, ...], f64: tuple[float, ...]) -> Callable:
    """An operation v -> c0 + c1 v + c2 v^2 + ..., by Horner's rule with fma."""
    coefficients = {types.float32: f32, types.float64: f64}

    def evaluate(v: Vec):
        def emit(b, v_):
            *lower, total = (constant(v.llvm, c) for c in coefficients[v.dtype])
            for c in reversed(lower):
                total = llvm_call(b, "fma", v.llvm, [total, v_, c], [v.llvm])
            return total

        return v(v), emit

    return op(evaluate)


_LOG2_E = 1.4426950408889634
# log 2 to twice the precision. x - k * high is exact in an fma: it is small, and a whole number of
# steps of high's last bit.
ln2_high = per_type(0.6931471824645996, 0.6931471805599453)
ln2_low = per_type(-1.9046542121259336e-09, 2.3190468138462996e-17)
# Adding 1.5 * 2^m rounds to an integer and leaves it in the low bits of the sum.
rounder = per_type(1.5 * 2.0**23, 1.5 * 2.0**52)
# The same, and twice the exponent bias: halves of that sum are biased exponents.
_twice_biased = per_type(1.5 * 2.0**23 + 2 * 127, 1.5 * 2.0**52 + 2 * 1023)
biased = per_type(1.5 * 2.0**23 + 127, 1.5 * 2.0**52 + 1023)
mantissa = per_type(23, 52)

_exp_limit = per_type(2.0**20, 2.0**40)
_exp_low = per_type(-104.0, -746.0)  # e^x rounds to 0 from here on down
_exp_high = per_type(89.0, 710.0)  # and to inf from here on up
least_exponent = per_type(-127.0, -1023.0)
_power_low = per_type(-252.0, -2044.0)
_power_high = per_type(254.0, 2046.0)

# (e^r - 1 - r) / r^2 for |r| <= log(2) / 2: relative error of e^r 2^-28 and 2^-57
exp_tail = polynomial(
    (0.49999994, 0.1666652, 0.0416684, 0.008368853, 0.0013814308),
    (
        0.5000000000000011, 0.16666666666666408, 0.04166666666652807, 0.008333333333496923,
        0.0013888888944258396, 0.00019841269502782078, 2.4801492379416297e-05,
        2.7557588361500092e-06, 2.763052642530628e-07, 2.4999882370903013e-08,
    ),
)  # fmt: skip
# (2 atanh(s) / s - 2) / z with z = s^2, |s| <= (sqrt 2 - 1) / (sqrt 2 + 1): errors 2^-30 and 2^-59
_log_tail = polynomial(
    (0.66666776, 0.39977494, 0.29873094),
    (
        0.6666666666666735, 0.39999999999411034, 0.28571428743273364, 0.2222219847503175,
        0.18183569784120546, 0.1531390221542598, 0.14797517220303863,
    ),
)  # fmt: skip

_smallest_normal = per_type(2.0**-126, 2.0**-1022)
_lift = per_type(2.0**25, 2.0**54)
_lifted_by = per_type(-25.0, -54.0)
half_root_bits = per_type(0x3F3504F3, 0x3FE6A09E667F3BCD)  # sqrt(1/2)
one_bits = per_type(0x3F800000, 0x3FF0000000000000)
mantissa_mask = per_type(0x007FFFFF, 0x000FFFFFFFFFFFFF)
counter_bits = per_type(0x4B000000, 0x4330000000000000)  # 2^23, 2^52: OR in a small integer
counter_bias = per_type(2.0**23 + 127, 2.0**52 + 1023)


@inlined
def exp_parts_within(x):
    k = fma(x, _LOG2_E, rounder(x)) - rounder(x)
    high, low = fma(k, -ln2_high(x), x), -ln2_low(x)
    r = fma(k, low, high)
    # r itself is rounded, `high` is not: the leading term takes the latter.
    return high + fma(k, low, r * r * exp_tail(r)) + 1, k


@inlined
def exp_parts(x):
    limit = _exp_limit(x)
    return exp_parts_within(minimum(limit, maximum(-limit, x)))


@inlined
def _scale(p, k):
    # Two factors, since 2^k itself need not be a float; the first product is exact.
    whole = as_int(k + _twice_biased(k))
    first = shift_logical(whole, 1)
    second = whole - first
    width = mantissa(whole)
    return p * as_float(first << width) * as_float(second << width)


@inlined
def scale_by_power(p, k):
    return _scale(p, minimum(_power_high(k), maximum(_power_low(k), k)))


@inlined
def scale_or_flush(p, k):
    whole = as_int(maximum(least_exponent(k), k) + biased(k))
    return p * as_float(whole << mantissa(whole))


@inlined
def _exp(x):
    p, k = exp_parts_within(minimum(_exp_high(x), maximum(_exp_low(x), x)))
    return _scale(p, k)


@inlined
def log_parts_normal(x):
    # Counting exponents from sqrt(1/2) centres m on 1. The exponent becomes a float by way of the
    # low bits of 2^mantissa: there is no vector conversion from 64-bit integers below AVX-512.
    bits = as_int(x)
    offset = bits - half_root_bits(bits) + one_bits(bits)
    exponent = as_float(shift_logical(offset, mantissa(bits)) | counter_bits(bits))
    m = as_float((offset & mantissa_mask(bits)) + half_root_bits(bits))
    return m, exponent - counter_bias(x)


@inlined
def log_parts(x):
    small = x < _smallest_normal(x)
    m, k = log_parts_normal(select(small, x * _lift(x), x))
    return m, k + select(small, _lifted_by(x), 0)


@inlined
def log_joined(m, k):
    f = m - 1
    s = f / (f + 2)
    z = s * s
    square = f * f * 0.5
    rest = fma(s, fma(z, _log_tail(z), square), k * ln2_low(m))
    return fma(k, ln2_high(m), f - (square - rest))


@inlined
def _log(x):
    m, k = log_parts(x)
    y = select(x < math.inf, log_joined(m, k), x)
    pole = select(x == 0, like(x, -math.inf), math.nan)
    return select(x <= 0, pole, y)


def exp(x):
    """e^x, for kernels."""
    raise NotImplementedError("exp is for kernels")


def log(x):
    """log x, for kernels."""
    raise NotImplementedError("log is for kernels")


def _for_vectors_and_scalars(name: Callable, function: Callable) -> None:
    def vector(x):
        return function(x)

    def scalar(x):
        return lane(function(splat(x, 1)), 0)

    @overload(name, jit_options={"forceinline": True})
    def chosen(x):
        if isinstance(x, Vec):
            return vector
        return scalar if isinstance(x, types.Float) else None


_for_vectors_and_scalars(exp, _exp)
_for_vectors_and_scalars(log, _log)
