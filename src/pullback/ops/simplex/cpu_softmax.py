"""softmax and log_softmax in Numba: a pass of exponentials and their sum, a pass of results.

e^x is p·2^k with p from x itself, not from x - max: nothing is lost to rounding that difference.
The sum is kept relative to a power of two, which only moves exponents: any power near the maximum
gives the same bits. So the first pass guesses it, from the row before, and finds the maximum on
the way; a row that does not fit is summed again. Beyond FAR the difference itself is exact (or its
exponential 0), and the maximum is the origin.

Cells of a row: the greatest x, lane by lane and of all lanes; the power to guess next; the power
and the reference of the sum (see cpu_reference); the sum or its logarithm; then what the results
need. Rows near the origin without NaN take the plain steps, any other the guarded ones, which give
those the same bits.

No result lies half-way between two numbers: e^x is irrational but for x = 0, so all are irrational
but those of rows of equals, 1/n and -log n, and of these what has few bits has one.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable

import numpy as np
from numba import types

from pullback.cpu.elementary import log, log_joined, log_parts_normal
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer
from pullback.cpu.loops import extent
from pullback.cpu.memory import fence, filled
from pullback.cpu.program import TENSORS
from pullback.cpu.tiles import by_type, spread, stack
from pullback.cpu.vector import (
    absolute,
    all_lanes,
    any_lane,
    fma,
    is_nan,
    like,
    select,
    splat,
    to_f64,
)
from pullback.ops.simplex.cpu_exp_cache import (
    exp_cache,
    fits_exp_cache,
    keep_exp,
    kept_exp,
    no_exp_cache,
)
from pullback.ops.simplex.cpu_exponential import LN2, drift_of, times
from pullback.ops.simplex.cpu_reference import (
    DONE,
    EXACT,
    FAR,
    GUESS,
    HEADROOM,
    OTHERS,
    PEAKED,
    any_exp,
    choose_reference,
    fits,
    near_exp,
    nearest_power,
)
from pullback.ops.simplex.cpu_row_max import max_of_rows, max_with, no_max
from pullback.ops.simplex.cpu_steps import give_inexact, prefetch_step, take, to_next
from pullback.ops.simplex.cpu_sums import total_of_positive, total_of_positive_rarely
from pullback.ops.simplex.cpu_traits import GROUP, LANES
from pullback.ops.simplex.cpu_walk import (
    PARTS,
    SUMS,
    computed,
    each,
    each_rarely,
    exists,
    source,
    spots,
    strip,
    target,
    walk,
)

INFINITY, NAN = np.inf, np.nan
LN2_LOW = 2.3190468138462996e-17


# --- their sum, and what follows from it --------------------------------------------------------


def _computed(exponential: Callable) -> Callable:
    """The exponentials once more."""

    @inlined
    def compute(at, left, cells, part, L):
        return exponential(at[0][0], take(at[0], left, 0.0, L), cells[4], part)

    return compute


_near_computed, _any_computed = _computed(near_exp), _computed(any_exp)


@by_type
def _kept(at, left, cells, part, L):
    """The exponentials put aside, or computed if none are."""

    def fetch(at, left, cells, part, L):
        return kept_exp(cells[-1], part, left)

    return _near_computed if isinstance(cells[-1], types.NoneType) else fetch


@inlined
def _near_term(at, left, cells, part, L):
    x, maxima = take(at[0], left, -INFINITY, L), cells[0]
    maxima[part] = max_with(at[0], left, x, maxima[part], L)
    return keep_exp(cells[-1], part, left, near_exp(at[0][0], x, cells[4], part)), None


@inlined
def _any_term(at, left, cells, part, L):
    """Tops are known by now, and rows that come here from anywhere compute the terms again."""
    x = take(at[0], left, -INFINITY, L)
    if all_lanes(cells[5][part] > cells[4][4][part]):
        return like(x, 0.0), None
    return any_exp(at[0][0], x, cells[4], part), None


def normalised(
    cache: Callable, check_sum: Callable, finalize_row: Callable, steps: tuple
) -> Callable:
    """A kernel body: check_sum(p, cells, part, sum, there, found) takes a sum and says which to
    compute next; finalize_row(p, cells, part) makes the cells for the results and gives the lanes
    that are regular; steps, plain and guarded, write them. cache(p, n, L) is where exponentials
    are kept, if they are few; the steps of longer rows, and the guarded ones, recompute them."""
    plain, longer, guarded = steps

    @by_type
    def write_long(cursors, cells, n, width, L):
        def row(cursors, cells, n, width, L):
            each(longer, cursors, cells, n, width, L)

        never = isinstance(cells[-1], types.NoneType) or L.literal_value == GROUP
        return (lambda cursors, cells, n, width, L: None) if never else row

    @inlined
    def run(task, lo, hi, L):
        p, n = pointer(task, TENSORS), extent(walk(task, 2))
        terms, zero, nought = filled(p, -INFINITY, LANES), filled(p, 0.0, L), splat(0.0, L)
        fours, sums = stack(terms, SUMS), stack((nought, nought), SUMS)
        maxima, guesses = stack(no_max(p, L), spots(L)), stack(zero, PARTS)
        row_maxima, powers, measures = (
            stack(nought, PARTS),
            stack(nought, PARTS),
            stack(nought, PARTS),
        )
        four = stack(zero, PARTS), stack(zero, PARTS), stack(zero, PARTS), stack(zero, PARTS)
        final = stack(zero, PARTS), stack(zero, PARTS), stack(zero, PARTS), stack(zero, PARTS)
        reference = *four, stack(nought, PARTS)
        ahead, kept = to_next(source(task, 2, 0, 0, L), n), cache(p, n, L)
        cells = maxima, row_maxima, guesses, powers, reference, measures, final, ahead, kept
        for part in range(PARTS):
            guesses[part] = zero
        for item in range(lo, hi):
            row, width = strip(task, 2, item, L)
            x, y = source(task, 2, 0, row, L), target(task, 2, row, L)
            parts = (width + LANES - 1) // LANES
            wanted = GUESS
            while wanted != DONE:
                near = True
                for part in range(parts):
                    near = all_lanes(choose_reference(p, cells, part, wanted, L)) and near
                if near:
                    total_of_positive(_near_term, (x,), cells, n, width, fours, sums, L)
                else:
                    total_of_positive_rarely(_any_term, (x,), cells, n, width, fours, sums, L)
                found, wanted = wanted, DONE
                for part in range(parts):
                    there = exists(width - part * LANES, L)
                    row_maxima[part] = max_of_rows(maxima, part, L)
                    if found == GUESS and not all_lanes(fits(cells, part) | ~there):
                        wanted = EXACT
                    sum = sums[part][0] + sums[part][1]
                    wanted = max(wanted, check_sum(p, cells, part, sum, there, found))
            regular = True
            for part in range(parts):
                there = exists(width - part * LANES, L)
                regular = all_lanes(finalize_row(p, cells, part) | ~there) and regular
            if regular and fits_exp_cache(kept):
                each(plain, (x, y), cells, n, width, L)
            elif regular:
                write_long((x, y), cells, n, width, L)
            else:
                each_rarely(guarded, (x, y), cells, n, width, L)
        fence()

    return run


# --- softmax ------------------------------------------------------------------------------------


@inlined
def _take_sum(p, cells, part, sum, there, found):
    measures = cells[5]
    measures[part] = sum
    return DONE


@inlined
def _invert(p, cells, part):
    """1 / sum in two pieces; 0 without mass."""
    row_maxima, measures, (high, low, _, _) = cells[1], cells[5], cells[6]
    sum = measures[part]
    inverse = select(sum == 0, 0.0, 1.0 / sum)
    high[part] = computed(p, inverse)
    low[part] = computed(p, fma(-to_f64(high[part]), sum, 1.0) * inverse)
    return (absolute(row_maxima[part]) < FAR) & (sum > 0)


def _probabilities(again: Callable) -> Callable:
    @inlined
    def probability(at, left, cells, part, L):
        high, low, _, _ = cells[6]
        e = again(at, left, cells, part, L)
        return times(at[0][0], e, spread(high[part], e), spread(low[part], e))

    return probability


_kept_probability, _near_probability = _probabilities(_kept), _probabilities(_near_computed)
_any_probability = _probabilities(_any_computed)


def _writer(probability: Callable) -> Callable:
    @inlined
    def write(at, left, cells, part, L):
        prefetch_step(at[0], cells[7], L)
        give_inexact(at[1], left, probability(at, left, cells, part, L), L)

    return write


_write_probability, _write_long = _writer(_kept_probability), _writer(_near_probability)


@inlined
def _write_any_probability(at, left, cells, part, L):
    v = _any_probability(at, left, cells, part, L)
    nan = is_nan(spread(cells[6][0][part], v))
    give_inexact(at[1], left, select(nan, like(v, NAN), v), L)


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


@inlined
def _take_log(p, cells, part, sum, there, found):
    row_maxima, powers, logs = cells[1], cells[3], cells[5]
    if found == OTHERS:
        logs[part] = select(logs[part] < PEAKED, _log_of_others(sum), logs[part])
        return DONE
    top = row_maxima[part]
    drift = nearest_power(top) * drift_of(p)
    logs[part] = _log_of_sum(sum, powers[part], top) - drift
    return OTHERS if any_lane((logs[part] < PEAKED) & there) else DONE


@inlined
def _offsets(p, cells, part):
    """What is taken off, top + log-sum, in two pieces whose sum has the digits of both. An infinite
    top has its own result, the others beside it -inf."""
    top, value, (high, low, origins, owns) = cells[1][part], cells[5][part], cells[6]
    infinite = absolute(top) == INFINITY
    whole = top + value
    max_or_nan = whole - top
    error = (top - (whole - max_or_nan)) + (value - max_or_nan)
    whole = select(infinite, top, whole)
    whole = select(is_nan(value), value, whole)
    high[part] = computed(p, whole)
    rest = (whole - to_f64(high[part])) + error
    low[part] = computed(p, select(infinite, 0.0, rest))
    origins[part] = computed(p, select(infinite, top, NAN))
    owns[part] = computed(p, select(top == -INFINITY, top, -value))
    return absolute(whole) < INFINITY


@by_type
def _minus(x, high, low):
    """x - high - low. In f64 the log-sum has an error of its own, so there the difference is
    rounded only once: what the first step lost goes into the second."""

    def twice(x, high, low):
        return x - high - low

    def once(x, high, low):
        v = x - high
        max_or_nan = v - x
        error = (x - (v - max_or_nan)) - (high + max_or_nan)
        return select(absolute(v) < INFINITY, v + (error - low), v)

    return once if x.dtype == types.float64 else twice


@inlined
def _log_probability(at, left, cells, part, L):
    high, low, _, _ = cells[6]
    x = take(at[0], left, 0.0, L)
    return _minus(x, spread(high[part], x), spread(low[part], x))


@inlined
def _write_log(at, left, cells, part, L):
    prefetch_step(at[0], cells[7], L)
    give_inexact(at[1], left, _log_probability(at, left, cells, part, L), L)


@inlined
def _write_any_log(at, left, cells, part, L):
    high, _, origins, owns = cells[6]
    v = _log_probability(at, left, cells, part, L)
    x = take(at[0], left, 0.0, L)
    v = select(x == spread(origins[part], x), spread(owns[part], x), v)
    give_inexact(at[1], left, select(is_nan(spread(high[part], x)), like(v, NAN), v), L)


softmax = normalised(
    exp_cache, _take_sum, _invert, (_write_probability, _write_long, _write_any_probability)
)
log_softmax = normalised(
    no_exp_cache, _take_log, _offsets, (_write_log, _write_log, _write_any_log)
)


@kernel
def softmax_rows(task, lo, hi):
    softmax(task, lo, hi, 1)


@kernel
def softmax_columns(task, lo, hi):
    softmax(task, lo, hi, LANES)


@kernel
def log_softmax_rows(task, lo, hi):
    log_softmax(task, lo, hi, 1)


@kernel
def log_softmax_columns(task, lo, hi):
    log_softmax(task, lo, hi, LANES)


@kernel
def softmax_groups(task, lo, hi):
    softmax(task, lo, hi, GROUP)


@kernel
def log_softmax_groups(task, lo, hi):
    log_softmax(task, lo, hi, GROUP)
