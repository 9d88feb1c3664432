"""Exponentials as pairs (m, k) of value m·2^k: nothing overflows, and sums are exact in k."""

import math

from pullback.cpu.elementary import _mantissa as mantissa
from pullback.cpu.elementary import _per_type as per_type
from pullback.cpu.elementary import _rounder as rounder
from pullback.cpu.elementary import (
    exp_parts_within,
)
from pullback.cpu.emit import inlined
from pullback.cpu.tiles import (
    by_type,
    earlier,
)
from pullback.cpu.vector import (
    absolute,
    as_float,
    as_int,
    copysign,
    maximum,
    select,
)

INFINITY = math.inf

# Up to here x·log2(e) is an exact integer plus a remainder; beyond, values are told apart by their
# bits alone: f32 in f64 and halves in f32 are then so far apart that only the largest counts.
limit = per_type(2.0**20, 2.0**50)
limit_bits = per_type(0x49800000, 0x4310000000000000)
limit_exponent = per_type(1512776.0, 1624361064268800.0)
kept_bits = per_type(16, 29)
apart = per_type(256.0, 2048.0)
infinite_exponent = per_type(
    1512776.0 + 256.0 * ((0x7F800000 - 0x49800000) >> 16),
    1624361064268800.0 + 2048.0 * ((0x7FF0000000000000 - 0x4310000000000000) >> 29),
)
one_exponent = per_type(127.0, 1023.0)
least = per_type(-120.0, -1000.0)  # powers of two that count as nothing


@inlined
def power(k):
    """2^k for integral k in the range of normal numbers."""
    whole = as_int(k + (rounder(k) + one_exponent(k)))
    return as_float(whole << mantissa(whole))


@inlined
def exponential(x):
    """e^x as a pair, for any x."""
    far = absolute(x) > limit(x)
    m, k = exp_parts_within(select(far, 0.0, x))
    steps = (as_int(absolute(x)) - limit_bits(as_int(x))) >> kept_bits(as_int(x))
    beyond = limit_exponent(x) + apart(x) * small_float(steps, x)
    return select(far, 1.0, m), select(far, copysign(beyond, x), k)


@by_type
def small_float(steps, x):
    """Integers below 2^mantissa as floats, by way of the low bits of a float."""
    return lambda steps, x: as_float(steps + as_int(rounder(x))) - rounder(x)


@inlined
def shrunk(k):
    """2^k for integral k <= 0; what is too small to change a sum may stay too large."""
    return power(maximum(least(k), k))


@inlined
def added(m, k, n, j):
    top = maximum(k, j)
    return m * shrunk(k - top) + n * shrunk(j - top), top


@inlined
def added_sums(m, k, L):
    """The sums of pairs so far: the tree of `sums`."""
    lowest = -infinite_exponent(k)
    m, k = added(earlier(m, 0.0, 1, L), earlier(k, lowest, 1, L), m, k)
    m, k = added(earlier(m, 0.0, 2, L), earlier(k, lowest, 2, L), m, k)
    return added(earlier(m, 0.0, 4, L), earlier(k, lowest, 4, L), m, k)


@inlined
def two_sum(s, low, b):
    """s + b with what its rounding lost added to `low`."""
    total = s + b
    part = total - s
    return total, low + ((s - (total - part)) + (b - part))


@inlined
def running_max(v, before, L):
    v = maximum(v, earlier(v, -INFINITY, 1, L))
    v = maximum(v, earlier(v, -INFINITY, 2, L))
    v = maximum(v, earlier(v, -INFINITY, 4, L))
    return maximum(v, before)
