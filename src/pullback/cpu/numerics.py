"""Error-free sums and products, and one NaN for all."""

import math

from numba import types

from pullback.cpu.emit import Vec, inlined, op
from pullback.cpu.tiles import by_type
from pullback.cpu.vector import absolute, any_lane, fma, is_nan, select

NAN, INFINITY = math.nan, math.inf


@inlined
def plus(a, b):
    return a + b


@inlined
def times(a, b):
    return a * b


@inlined
def two_sum(a, b):
    """a + b rounded, and what was rounded off."""
    s = a + b
    part = s - a
    return s, (a - (s - part)) + (b - part)


@inlined
def two_product(a, b):
    """a · b rounded, and what was rounded off."""
    product = a * b
    return product, fma(a, b, -product)


@inlined
def finite_or_zero(v):
    return select(absolute(v) < INFINITY, v, 0.0)


@inlined
def any_error(value, error):
    return error


@inlined
def error_in_range(value, error):
    """Where a number left the range, its error is none."""
    return select((absolute(value) < INFINITY) & (absolute(error) < INFINITY), error, 0.0)


@inlined
def one_nan(v):
    """Every NaN as the same one."""
    return select(is_nan(v), NAN, v)


@by_type
def one_nan_each(columns):
    if len(columns) == 4:
        return lambda columns: (
            one_nan(columns[0]), one_nan(columns[1]), one_nan(columns[2]), one_nan(columns[3]),
        )  # fmt: skip
    return lambda columns: one_nan_each(columns[:4]) + one_nan_each(columns[4:])


@inlined
def has_nan(state, outputs):
    """Of scans that keep a NaN once they met it."""
    return any_lane(is_nan(state[0]))


@op
def unordered(u: Vec, v: Vec):
    """Lanes where either is NaN."""
    return v.of(types.boolean)(u, v), lambda b, u_, v_: b.fcmp_unordered("uno", u_, v_)


@by_type
def any_nan(columns):
    """One comparison for two columns."""
    if len(columns) == 4:
        return lambda columns: any_lane(
            unordered(columns[0], columns[1]) | unordered(columns[2], columns[3])
        )
    return lambda columns: any_nan(columns[:4]) or any_nan(columns[4:])
