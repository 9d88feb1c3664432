"""Exponentials as pairs: m·2^k for any x, however large, and sums of such pairs.

Precision is what the element needs: f32 in f64 takes shorter series than f64 does.
"""

from collections.abc import Callable
from typing import Any

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
from pullback.cpu.emit import Vec, constant, inlined, llvm_call, op
from pullback.cpu.tiles import by_type
from pullback.cpu.vector import (
    absolute,
    as_float,
    as_int,
    copysign,
    fma,
    maximum,
    minimum,
    select,
    shift_logical,
    to_f32,
    to_f64,
)
from pullback.ops.scan.cpu_columns import over

Pointer: Any = types.CPointer

bias = per_type(127.0, 1023.0)
log2_e = per_type(1.4426950216293335, 1.4426950408889634)
ln2 = per_type(0.6931471824645996, 0.6931471805599453)

# e^x = m·2^k exactly enough up to here. Beyond, values are told apart by their bits alone: f32 in
# f64, and halves in f32, lie so far apart there that only the largest counts in any sum.
limit = per_type(2.0**20, 2.0**50)
limit_bits = per_type(0x49800000, 0x4310000000000000)
limit_exponent = per_type(1512776.0, 1624361064268800.0)
dropped_bits = per_type(16, 29)
# So far that the largest gradient times the power of two of one step is nothing.
apart = per_type(512.0, 4096.0)
INFINITE_F32 = 1512776.0 + 512.0 * ((0x7F800000 - 0x49800000) >> 16)
infinite = per_type(
    INFINITE_F32,
    1624361064268800.0 + 4096.0 * ((0x7FF0000000000000 - 0x4310000000000000) >> 29),
)
smallest = per_type(-120.0, -1000.0)

_HALF = (1.0, 0.5, 0.16666576266288757, 0.041666556149721146, 0.008363203145563602,
         0.0013926213141530752)  # fmt: skip
_EXP: dict[Any, tuple[float, ...]] = {  # (e^r - 1) / r: errors of e^r 2^-26, 2^-34, 2^-55
    types.int16: _HALF,
    types.uint16: _HALF,
    types.float32: (
        1.0000000002102654, 0.5000000077606794, 0.1666666515478559, 0.041666270981394735,
        0.008333569838440738, 0.0013946011410298311, 0.0001976752598447785,
    ),
    types.float64: (
        1.0, 0.5000000000000001, 0.16666666666666669, 0.04166666666662399, 0.008333333333330051,
        0.0013888888917281794, 0.00019841269863105968, 2.480152119021773e-05,
        2.7557268378684192e-06, 2.7620138719733994e-07, 2.5100424157005067e-08,
    ),
}  # fmt: skip
_LOG_HALF = (0.6666668653488159, 0.399887353181839, 0.2958202362060547)
_LOG: dict[Any, tuple[float, ...]] = {  # (2·atanh(s)/s - 2) / s^2: errors 2^-28, 2^-39, 2^-57
    types.int16: _LOG_HALF,
    types.uint16: _LOG_HALF,
    types.float32: (
        0.6666666507237231, 0.40000436538420947, 0.28531904665342467, 0.2367180884506743,
    ),
    types.float64: (
        0.666666666666667, 0.3999999999989827, 0.28571428626533335, 0.22222211043822487,
        0.18182895746801428, 0.1533150172120742, 0.1461916477718642,
    ),
}  # fmt: skip
# For arguments near a known one, at most NEAR from it: log(1 + d) / d, errors 2^-25 and 2^-37. No
# series that short serves f64.
NEAR = 0.0625
_LOG_NEAR_HALF = (0.9999899362296647, -0.49900877924939935, 0.30529430953730907)
_LOG_NEAR: dict[Any, tuple[float, ...]] = {
    types.int16: _LOG_NEAR_HALF,
    types.uint16: _LOG_NEAR_HALF,
    types.float32: (
        0.9999999966985478, -0.4999992442343882, 0.3332770026706956, -0.24815631034102545,
        0.17215952567905862,
    ),
}  # fmt: skip
# What log 2 lacks in the compute type. For f32 in f64 that is below what its results can show.
_LN2_REST = {
    types.int16: -1.9046542e-09,
    types.uint16: -1.9046542e-09,
    types.float64: 2.3190468138462996e-17,
}


def _series(coefficients: dict[Any, tuple[float, ...]], *leading: float) -> Callable:
    """An operation (p, v) -> leading + coefficients of p's element as a polynomial in v."""

    def evaluate(p: Pointer, v: Vec):
        def emit(b, _p, v_):
            *lower, total = (constant(v.llvm, c) for c in (*leading, *coefficients[p.dtype]))
            for c in reversed(lower):
                total = llvm_call(b, "fma", v.llvm, [total, v_, c], [v.llvm])
            return total

        return v(p, v), emit

    return op(evaluate)


exp_series, log_series = _series(_EXP, 1.0), _series(_LOG, 2.0)
log_near_series = _series(_LOG_NEAR)


@op
def remainder(p: Pointer, x: Vec, k: Vec):
    """x - k·log 2"""

    def emit(b, _p, x_, k_):
        def less(x_, part):
            return llvm_call(b, "fma", x.llvm, [k_, constant(x.llvm, -part), x_], [x.llvm])

        narrow = x.dtype == types.float32
        r = less(x_, 0.6931471824645996 if narrow else 0.6931471805599453)
        return less(r, _LN2_REST[p.dtype]) if p.dtype in _LN2_REST else r

    return x(p, x, k), emit


@inlined
def power(k):
    """2^k for integral k in the range of normal numbers."""
    bits = as_int(k + (rounder(k) + bias(k)))
    return as_float(bits << mantissa(bits))


@inlined
def shrunk(k):
    """2^k for integral k <= 0; what is too small to change a sum may stay too large."""
    return power(maximum(smallest(k), k))


@inlined
def grown(k):
    """2^k for integral k; what is too large may stay too small to be near anything."""
    return power(minimum(-smallest(k), maximum(smallest(k), k)))


@inlined
def scaled(v, k):
    """v·2^k, rounded once, for any integral k."""
    k = minimum(2 * bias(k), maximum(-2 * bias(k) + 4, k))
    part = (k * 0.5 + rounder(k)) - rounder(k)
    return v * power(part) * power(k - part)


@inlined
def scaled_far(v, k):
    """The same where v is so large that 2^k may be smaller than `scaled` allows."""
    far = k < -2 * bias(k) + 4
    return scaled(select(far, v * 2.0**-60, v), select(far, k + 60.0, k))


@inlined
def exp_near(p, x, k):
    """e^x·2^-k where that is a normal number."""
    origin = rounder(x) - k
    t = fma(x, log2_e(x), origin)
    m = exp_series(p, remainder(p, x, t - origin))
    bits = as_int(t)
    return as_float(as_int(m) + (bits << mantissa(bits)))


@inlined
def exp_pair(p, x):
    """e^x as m·2^k, for |x| up to the limit."""
    k = fma(x, log2_e(x), rounder(x)) - rounder(x)
    return exp_series(p, remainder(p, x, k)), k


# How far from a reference e^x may be where its scaled self is f32; up to where f32 resolves x.
TOP, REACH = 100.0, 2.0**20

# The same where the exponentials of f32 are f32 themselves: two parts of log 2, six terms.
narrow_series = polynomial((1.0, *_HALF), ())


@inlined
def narrow_remainder(x, k):
    return fma(k, 1.9046542e-09, fma(k, -ln2(x), x))


@inlined
def narrow_exp_near(x, k):
    origin = rounder(x) - k
    t = fma(x, log2_e(x), origin)
    m = narrow_series(narrow_remainder(x, t - origin))
    bits = as_int(t)
    return as_float(as_int(m) + (bits << mantissa(bits)))


@inlined
def narrow_exp_pair(x):
    k = fma(x, log2_e(x), rounder(x)) - rounder(x)
    return narrow_series(narrow_remainder(x, k)), k


@inlined
def exponential(p, x):
    """e^x as m·2^k, for any x: the infinities have the exponents +-infinite."""
    far = absolute(x) > limit(x)
    m, k = exp_pair(p, select(far, 0.0, x))
    bits = as_int(absolute(x))
    steps = (bits - limit_bits(bits)) >> dropped_bits(bits)
    beyond = limit_exponent(x) + apart(x) * (as_float(steps + as_int(rounder(x))) - rounder(x))
    return select(far, 1.0, m), select(far, copysign(beyond, x), k)


@by_type
def exponential_of(p, v):
    """e^v as a pair. Exponentials of f32 are f32: only sums and products of them need more."""
    if p.dtype != types.float32:
        return lambda p, v: exponential(p, v)

    def narrow(p, v):
        near = absolute(v) <= REACH
        m, k = narrow_exp_pair(to_f32(select(near, v, 0.0)))
        n, j = exponential(p, v)
        return select(near, to_f64(m), n), select(near, to_f64(k), j)

    return narrow


@inlined
def parts(s, k):
    """s·2^k as m·2^e with m in [sqrt(1/2), sqrt(2)), for a normal s > 0."""
    bits = as_int(s)
    offset = bits + (one_bits(bits) - half_root_bits(bits))
    e = as_float(shift_logical(offset, mantissa(bits)) | counter_bits(bits))
    m = as_float((offset & mantissa_mask(bits)) + half_root_bits(bits))
    return m, e + (k - counter_bias(k))


@inlined
def log_of(p, s, k):
    """log(s·2^k) for a normal s > 0."""
    m, e = parts(s, k)
    q = (m - 1) / (m + 1)
    return fma(e, ln2(e), q * log_series(p, q * q))


@inlined
def added(m, k, n, j):
    """m·2^k + n·2^j"""
    top = maximum(k, j)
    return m * shrunk(k - top) + n * shrunk(j - top), top


@inlined
def added_exactly(m, k, n, j):
    """m·2^k + n·2^j where either number may be zero or tiny: then the other's power of two must
    not be cut short, as it is in `added`. A zero has no exponent: what is next to it may be
    subnormal, and would lose digits."""
    k, j = select(m == 0, -infinite(k), k), select(n == 0, -infinite(j), j)
    top = maximum(k, j)
    return scaled_far(m, k - top) + scaled_far(n, j - top), top


@inlined
def added_up(m, k, L):
    """The sums of a block of pairs so far: the tree of `running`."""
    lowest = -infinite(k)
    m, k = added(over(m, 0.0, 1, L), over(k, lowest, 1, L), m, k)
    m, k = added(over(m, 0.0, 2, L), over(k, lowest, 2, L), m, k)
    return added(over(m, 0.0, 4, L), over(k, lowest, 4, L), m, k)
