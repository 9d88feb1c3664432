"""softmax and log_softmax in Numba: a pass of exponentials and their sum, a pass of results.

e^x is p·2^k with p from x itself, not from x - max: nothing is lost to rounding that difference.
The sum is kept relative to a power of two, which only moves exponents: any power near the maximum
gives the same bits. So the first pass guesses it, from the row before, and finds the maximum on
the way; a row that does not fit is summed again. Beyond FAR the difference itself is exact (or its
exponential 0), and the maximum is the origin.

Cells of a row: the greatest x, lane by lane and of all lanes; origin and power of the sum, and the
term of an x at the origin; the power to guess next; two for the results.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable

import numpy as np

from pullback.cpu.elementary import (
    exp_parts_within,
    log,
    log_joined,
    log_parts_normal,
    scale_or_flush,
)
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer
from pullback.cpu.loops import extent
from pullback.cpu.memory import fence, filled, filled_wide
from pullback.cpu.program import TENSORS
from pullback.cpu.tiles import spread, stack
from pullback.cpu.vector import (
    absolute,
    all_lanes,
    any_lane,
    fma,
    is_nan,
    like,
    maximum,
    round_even,
    select,
    splat,
    to_f64,
)
from pullback.ops.simplex.cpu_walk import (
    LANES,
    PARTS,
    SUMS,
    computed,
    each,
    exists,
    give,
    greatest,
    source,
    strip,
    take,
    take_wide,
    target,
    total,
    walk,
    widened,
)

INFINITY, NAN = np.inf, np.nan
FAR = 2048.0
HEADROOM = 64.0  # binades from a maximum of 1 up: terms are normal even where results are not
NEAR = 8.0  # binades by which a guess may be off
KEPT = 1 << 15  # exponentials of a row kept on the stack; those of longer rows are computed twice
LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.6931471805599453, 2.3190468138462996e-17
PEAKED = 0.5  # a smaller log-sum needs more digits than the sum has
DONE, OTHERS, EXACT, GUESS = range(4)  # what to sum next


# --- the sum of exponentials --------------------------------------------------------------------


@inlined
def _power(x, cells, part):
    """e^(x - origin)·2^(HEADROOM - power), and the origin's own term at the origin."""
    _, _, origins, powers, owns, _, _, _ = cells
    origin = spread(origins[part], x)
    p, k = exp_parts_within(maximum(-2 * FAR, x - origin))
    e = scale_or_flush(p, k + (HEADROOM - spread(powers[part], x)))
    return select(x == origin, spread(owns[part], x), e)  # +inf - +inf is not 0


@inlined
def _terms(at, left, cells, part, L):
    x, tops = take(at[0], left, -INFINITY, L), cells[0]
    tops[part] = maximum(x, tops[part])  # passes over NaN, which the sum will show
    return _power(x, cells, part), None


@inlined
def _nearest_power(top):
    return select(absolute(top) < FAR, round_even(top * LOG2_E), 0.0)


@inlined
def _aim(x, cells, part, wanted):
    """Set origin, power and own term of the wanted sum."""
    tops, peaks, origins, powers, owns, guesses, _, _ = cells
    top = peaks[part]
    origin, power, own = like(top, 0.0), to_f64(guesses[part]), like(top, 1.0)
    if wanted == GUESS:
        tops[part] = like(tops[part], -INFINITY)
    elif wanted == EXACT:
        origin = select((absolute(top) < FAR) | (top == -INFINITY), 0.0, top)
        power = _nearest_power(top)
        guesses[part] = computed(x, power)
    else:
        origin, power, own = top, like(top, 0.0), like(top, 0.0)
    origins[part], powers[part] = computed(x, origin), computed(x, power)
    owns[part] = scale_or_flush(computed(x, own), HEADROOM - powers[part])


@inlined
def _fits(cells, part):
    """Lanes whose guess was near enough."""
    top, guess = cells[1][part], to_f64(cells[5][part])
    return (absolute(top) < FAR) & (absolute(_nearest_power(top) - guess) <= NEAR)


def normalised(example: Callable, settle: Callable, write: Callable) -> Callable:
    """A kernel body: after settle(x, cells, part, sum, there) made the cells for the results, of
    the type of `example`, write(...), a step on x and y, gives them. It may want one more sum."""

    @inlined
    def run(task, lo, hi, L):
        p, n = pointer(task, TENSORS), extent(walk(task, 2))
        none, zero, nought = filled(p, -INFINITY, LANES), filled(p, 0.0, L), splat(0.0, L)
        fours, sums, tops, peaks = (
            stack(none, SUMS),
            stack((nought, nought), SUMS),
            stack(none, PARTS),
            stack(nought, PARTS),
        )
        origins, powers, owns = stack(zero, PARTS), stack(zero, PARTS), stack(zero, PARTS)
        guesses = stack(zero, PARTS)
        first, second = stack(example(p, 0.0, L), PARTS), stack(example(p, 0.0, L), PARTS)
        cells = tops, peaks, origins, powers, owns, guesses, first, second
        for part in range(PARTS):
            guesses[part] = zero
        for item in range(lo, hi):
            row, width = strip(task, 2, item)
            x, y = source(task, 2, 0, row), target(task, 2, row)
            wanted = GUESS
            while wanted != DONE:
                for part in range((width + LANES - 1) // LANES):
                    _aim(p, cells, part, wanted)
                total(_terms, (x,), cells, n, width, fours, sums, L)
                found, wanted = wanted, DONE
                for part in range((width + LANES - 1) // LANES):
                    there = exists(width - part * LANES, L)
                    peaks[part] = greatest(tops[part], L)
                    if found == GUESS and not all_lanes(_fits(cells, part) | ~there):
                        wanted = EXACT
                    wanted = max(
                        wanted, settle(p, cells, part, sums[part][0] + sums[part][1], there, found)
                    )
            each(write, (x, y), cells, n, width, L)
        fence()

    return run


# --- softmax ------------------------------------------------------------------------------------


@inlined
def _inverse(x, cells, part, total, there, found):
    """1 / sum in two pieces; 0 without mass."""
    first, second = cells[6], cells[7]
    inverse = select(total == 0, 0.0, 1.0 / total)
    first[part] = computed(x, inverse)
    second[part] = computed(x, fma(-to_f64(first[part]), total, 1.0) * inverse)
    return DONE


@inlined
def _probabilities(at, left, cells, part, L):
    e = _power(take(at[0], left, 0.0, L), cells, part)
    high, low = spread(cells[6][part], e), spread(cells[7][part], e)
    give(at[1], left, select(is_nan(high), like(e, NAN), fma(e, high, e * low)), L)


# --- log_softmax --------------------------------------------------------------------------------


@inlined
def _log_of_sum(total, power, top):
    """log Σ e^(x - top) from the sum relative to a power."""
    near, exact = absolute(top) < FAR, _nearest_power(top)
    m, k = log_parts_normal(select(total > 0, total, 1.0))
    rest = select(near, fma(exact, LN2_HIGH, -top) + exact * LN2_LOW, 0.0)
    value = log_joined(m, k + (power - exact - HEADROOM)) + rest
    return select(total > 0, value, select(total == 0, like(total, INFINITY), NAN))


@inlined
def _log_of_others(total):
    """log(1 + the others)."""
    w = total * 2.0**-HEADROOM
    sum = 1.0 + w
    return select(sum == 1, w, log(sum) * (w / (sum - 1.0)))


@inlined
def _log(x, cells, part, total, there, found):
    _, peaks, _, powers, _, _, logs, shifts = cells
    if found == OTHERS:
        value = widened(x, _log_of_others(total))
        logs[part] = select(logs[part] < PEAKED, value, logs[part])
        return DONE
    shifts[part] = widened(x, peaks[part])
    logs[part] = widened(x, _log_of_sum(total, to_f64(powers[part]), peaks[part]))
    return OTHERS if any_lane((logs[part] < PEAKED) & there) else DONE


@inlined
def _log_probabilities(at, left, cells, part, L):
    x = take_wide(at[0], left, 0.0, L)
    log_sum, top = spread(cells[6][part], x), spread(cells[7][part], x)
    v = select(x == top, 0.0, x - top) - log_sum
    give(at[1], left, select(is_nan(log_sum), like(x, NAN), v), L)


softmax = normalised(filled, _inverse, _probabilities)
log_softmax = normalised(filled_wide, _log, _log_probabilities)


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
