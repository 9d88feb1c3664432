"""softmax and log_softmax in Numba: a pass of exponentials and their sum, a pass of results.

e^x is p·2^k with p from x itself, not from x - max: nothing is lost to rounding that difference.
The sum is kept relative to a power of two, which only moves exponents: any power near the maximum
gives the same bits. So the first pass guesses it, from the first elements, and finds the maximum on
the way; a row that does not fit is summed again. Beyond FAR the difference itself is exact (or its
exponential 0), and the maximum is the origin.

Rows near the origin without NaN take the plain steps, any other the guarded ones, which give those
the same bits.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable

import numpy as np
from numba import types

from pullback.cpu.elementary import log, log_joined, log_parts_normal
from pullback.cpu.emit import inlined
from pullback.cpu.memory import get, put, scalar
from pullback.cpu.numerics import two_sum
from pullback.cpu.row_steps import (
    LANES,
    computed,
    exists,
    give,
    largest,
    narrowed,
    no_max,
    prefetch_step,
    take,
    to_next,
)
from pullback.cpu.row_sums import each, each_rarely, total, total_rarely
from pullback.cpu.rows import row_kernels
from pullback.cpu.tiles import by_type, spread, stack
from pullback.cpu.vector import (
    absolute,
    all_lanes,
    any_lane,
    fma,
    is_nan,
    like,
    maximum,
    select,
    to_f64,
)
from pullback.ops.simplex.cpu_exponential import LN2, drift_of, times
from pullback.ops.simplex.cpu_reference import (
    FAR,
    HEADROOM,
    any_exp,
    first_look,
    fits,
    near_exp,
    nearest_power,
    origin_of,
    reference_at,
)

INFINITY, NAN = np.inf, np.nan
LN2_LOW = 2.3190468138462996e-17
PEAKED = 0.5  # a smaller log-sum needs more digits than the sum has

# --- exponentials kept between the passes -------------------------------------------------------
#
# Gain (exponentials kept between passes): softmax 4096x1024 bf16 1.63.

KEPT = 1 << 15  # exponentials of a row or strip; those of longer ones are computed twice


@by_type
def _exp_cache(p, L):
    """A cursor on them, which moves as those of the row."""

    return lambda p, L: (stack(scalar(p, 0.0), KEPT), 0, L, False)


@by_type
def _keep(kept, e):
    def keep(kept, e):
        put(kept[0], kept[1] % KEPT, 1, e, False)  # longer rows wrap around

    return (lambda kept, e: None) if isinstance(kept, types.NoneType) else keep


# --- their sum ----------------------------------------------------------------------------------
#
# Cells: the reference, and the greatest x by lanes.


@inlined
def _near_term(at, left, cells, L):
    reference, maxima = cells
    x = take(at[0], left, -INFINITY, L)
    maxima[0] = maximum(narrowed(x, L), maxima[0])
    e = near_exp(at[0][0], x, reference)
    _keep(at[1], e)
    return (e,)


@inlined
def _any_term(at, left, cells, L):
    reference, maxima = cells
    x = take(at[0], left, -INFINITY, L)
    maxima[0] = maximum(narrowed(x, L), maxima[0])
    return (any_exp(at[0][0], x, reference),)


@inlined
def _sum(x, kept, n, width, L):
    """Sums relative to powers of two near the maxima, the powers, and the maxima."""
    p, guess, there = x[0], first_look(x, n, width, L), exists(width, L)
    none = no_max(p, L)
    maxima, top, sum = stack(none, 1), guess, guess
    for _ in range(2):
        maxima[0] = none
        origin = origin_of(guess)
        cells = reference_at(p, origin, nearest_power(guess), 1.0), maxima
        if all_lanes((origin == 0) | ~there):
            (sum,) = total(_near_term, (x, kept), cells, n, width, L)
        else:
            (sum,) = total_rarely(_any_term, (x, kept), cells, n, width, L)
        top = largest(maxima[0], L)
        if all_lanes(fits(guess, top) | ~there):
            break
        guess = top
    return sum, guess, top


# --- softmax ------------------------------------------------------------------------------------
#
# Cells: the reference, 1 / sum in two pieces, how far ahead to prefetch.


@by_type
def _exps_of_step(kept, L):
    lanes = max(L.literal_value, LANES)
    return lambda kept, L: get(kept[0], kept[1], 1, lanes)


@inlined
def _kept_exp(at, left, cells, L):
    kept = at[2]
    return _exps_of_step(kept, L)


@inlined
def _near_exp(at, left, cells, L):
    return near_exp(at[0][0], take(at[0], left, 0.0, L), cells[0])


def _writer(exponential: Callable) -> Callable:
    @inlined
    def write(at, left, cells, L):
        prefetch_step(at[0], cells[3], L)
        e = exponential(at, left, cells, L)
        y = times(at[0][0], e, spread(cells[1], e), spread(cells[2], e))
        give(at[1], left, y, L)

    return write


_write_kept, _write_long = _writer(_kept_exp), _writer(_near_exp)


@inlined
def _write_any(at, left, cells, L):
    e = any_exp(at[0][0], take(at[0], left, 0.0, L), cells[0])
    high = spread(cells[1], e)
    y = times(at[0][0], e, high, spread(cells[2], e))
    give(at[1], left, select(is_nan(high), like(y, NAN), y), L)


@inlined
def softmax(at, n, width, L):
    x, y = at
    p, kept = x[0], _exp_cache(x[0], L)
    sum, guess, top = _sum(x, kept, n, width, L)
    inverse = select(sum == 0, 0.0, 1.0 / sum)
    high = computed(p, inverse)
    low = computed(p, fma(-to_f64(high), sum, 1.0) * inverse)
    reference = reference_at(p, origin_of(guess), nearest_power(guess), 1.0)
    cells, cursors = (reference, high, low, to_next(x, n)), (x, y, kept)
    if not all_lanes(((absolute(top) < FAR) & (sum > 0)) | ~exists(width, L)):
        each_rarely(_write_any, cursors, cells, n, width, L)
    elif n * L <= KEPT:
        each(_write_kept, cursors, cells, n, width, L)
    else:
        each(_write_long, cursors, cells, n, width, L)


# --- log_softmax --------------------------------------------------------------------------------


@inlined
def _log_of_sum(sum, power, top):
    """log Σ e^(x - top) from the sum relative to a power."""
    near, exact = absolute(top) < FAR, nearest_power(top)
    m, k = log_parts_normal(select(sum > 0, sum, 1.0))
    rest = select(near, fma(exact, LN2, -top) + exact * LN2_LOW, 0.0)
    value = log_joined(m, k + (power - exact - HEADROOM)) + rest
    return select(is_nan(sum), like(sum, NAN), value)


@inlined
def _log_of_others(sum):
    """log(1 + the others)."""
    w = sum * 2.0**-HEADROOM
    all = 1.0 + w
    return select(all == 1, w, log(all) * (w / (all - 1.0)))


@by_type
def _minus(x, high, low):
    """x - high - low. In f64 the log-sum has an error of its own, so there the difference is
    rounded only once: what the first step lost goes into the second."""

    def twice(x, high, low):
        return x - high - low

    def once(x, high, low):
        v, error = two_sum(x, -high)
        return select(absolute(v) < INFINITY, v + (error - low), v)

    return once if x.dtype == types.float64 else twice


# Cells: what is taken off, in two pieces; an infinite maximum and its result; how far to prefetch.


@inlined
def _log_probability(at, left, cells, L):
    x = take(at[0], left, 0.0, L)
    return x, _minus(x, spread(cells[0], x), spread(cells[1], x))


@inlined
def _write_log(at, left, cells, L):
    prefetch_step(at[0], cells[4], L)
    give(at[1], left, _log_probability(at, left, cells, L)[1], L)


@inlined
def _write_any_log(at, left, cells, L):
    x, v = _log_probability(at, left, cells, L)
    v = select(x == spread(cells[2], x), spread(cells[3], x), v)
    give(at[1], left, select(is_nan(spread(cells[0], x)), like(v, NAN), v), L)


@inlined
def _log_sum(x, n, width, L):
    """log Σ e^(x - top), and top."""
    p = x[0]
    sum, guess, top = _sum(x, None, n, width, L)
    drift = nearest_power(top) * drift_of(p)
    value = _log_of_sum(sum, nearest_power(guess), top) - drift
    if any_lane((value < PEAKED) & exists(width, L)):
        maxima = stack(no_max(p, L), 1)
        cells = reference_at(p, top, like(top, 0.0), 0.0), maxima
        (others,) = total_rarely(_any_term, (x, None), cells, n, width, L)
        value = select(value < PEAKED, _log_of_others(others), value)
    return value, top


@inlined
def log_softmax(at, n, width, L):
    """What is taken off is top + log-sum, in two pieces whose sum has the digits of both. An
    infinite top has its own result, the others beside it -inf."""
    x, _ = at
    p, (value, top) = x[0], _log_sum(x, n, width, L)
    infinite, (whole, error) = absolute(top) == INFINITY, two_sum(top, value)
    whole = select(infinite, top, whole)
    whole = select(is_nan(value), value, whole)
    high = computed(p, whole)
    low = computed(p, select(infinite, 0.0, (whole - to_f64(high)) + error))
    mark = computed(p, select(infinite, top, NAN))
    own = computed(p, select(top == -INFINITY, top, -value))
    cells = high, low, mark, own, to_next(x, n)
    if all_lanes((absolute(whole) < INFINITY) | ~exists(width, L)):
        each(_write_log, at, cells, n, width, L)
    else:
        each_rarely(_write_any_log, at, cells, n, width, L)


SOFTMAX = row_kernels(softmax, 2, "softmax", __name__)
LOG_SOFTMAX = row_kernels(log_softmax, 2, "log_softmax", __name__)
