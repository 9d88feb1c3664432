"""sparsemax and entmax15 in Numba: y = max((x - m)·scale - τ, 0)^power, m the maximum of the row
and τ the threshold with which the results add up to 1 (cpu_threshold).
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable

import numpy as np

from pullback.cpu.emit import inlined
from pullback.cpu.memory import filled, read, scalar, write
from pullback.cpu.row_steps import (
    CLASSES,
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
from pullback.cpu.row_sums import each, each_rarely
from pullback.cpu.rows import row_kernels
from pullback.cpu.tiles import by_type, moved, spread, stack
from pullback.cpu.vector import (
    absolute,
    all_lanes,
    is_nan,
    lane,
    like,
    maximum,
    round_even,
    select,
    splat,
    to_f64,
)
from pullback.ops.simplex.cpu_candidates import (
    LIST_LENGTH,
    by_norm,
    by_sum,
    if_curved,
    if_straight,
    itself,
    linear,
    settled,
    square,
    squared,
)
from pullback.ops.simplex.cpu_threshold import INFINITY, threshold

NAN = np.nan
FEW = 256  # candidates worth writing one by one
SPARSE = 16  # elements of a row for each of these


def results(scale: float, value: Callable) -> tuple[Callable, ...]:
    """From the threshold to y = value(u): cells of a row, a step of a regular row, the few
    candidates of a sparse one, a step of a row with infinities or NaN."""

    @inlined
    def finalize(p, top, t, rest, ahead):
        """Cells of the results. Of large x the top is taken off first, which is exact."""
        t, rest = settled(p, t, rest)
        infinite = absolute(top) == INFINITY
        shift = select((absolute(top) < 2) | infinite, 0.0, top)
        start = select((shift == 0) & ~infinite, top, 0.0) * scale
        cut = start + t
        error = (start - (cut - t)) + rest  # |start| < 2 and -1 <= t <= 0: close enough
        cut = select(is_nan(rest), like(top, NAN), select(infinite, like(top, INFINITY), cut))
        high = computed(p, cut)
        low = computed(p, select(infinite, 0.0, (cut - to_f64(high)) + error))
        share = 1.0 / round_even(1.0 / value(-t - rest))  # as many share as are infinite
        own = computed(p, select(top == -INFINITY, 0.0, share))
        mark = computed(p, select(infinite, top, NAN))
        return (computed(p, shift), high, low, mark, own, ahead), absolute(cut) < INFINITY

    @inlined
    def result(x, cells):
        shift, high, low = cells[:3]
        u = (x - spread(shift, x)) * scale - spread(high, x) - spread(low, x)
        return value(maximum(0.0, u))

    @inlined
    def plain(at, left, cells, L):
        prefetch_step(at[0], cells[5], L)
        give(at[1], left, result(take(at[0], left, 0.0, L), cells), L)

    @inlined
    def nothing(at, left, cells, L):
        prefetch_step(at[0], cells[5], L)
        give(at[1], left, filled(at[1][0], 0.0, LANES), L)

    @by_type
    def write_few(x, y, cells, places, count, n, L):
        """If the candidates are few in a row, write them into zeros. Gives whether they are.
        Gain (few results written into zeros): sparsemax 4096x1024 bf16 1.34."""

        def row(x, y, cells, places, count, n, L):
            if count * SPARSE > n or count > FEW or y[3]:  # what streams is written only once
                return False
            values = stack(scalar(x[0], 0.0), FEW)
            for k in range(count):  # all of x is read before y is written: they may be one
                v = splat(read(x[0], x[1] + places[k] * x[2]), 1)
                values[k] = lane(result(v, cells), 0)
            each(nothing, (x, y), cells, n, 1, L)
            for k in range(count):
                write(y[0], y[1] + places[k] * y[2], values[k])
            return True

        return row if L.literal_value == 1 else (lambda x, y, cells, places, count, n, L: False)

    @inlined
    def guarded(at, left, cells, L):
        x, (_, high, _, mark, own, _) = take(at[0], left, 0.0, L), cells
        y = select(x == spread(mark, x), spread(own, x), result(x, cells))
        give(at[1], left, select(is_nan(spread(high, x)), like(y, NAN), y), L)

    return finalize, plain, write_few, guarded


# --- the greatest of each class of positions ----------------------------------------------------
#
# Along a row they are the lanes of one cell; across they have a cell each.


@inlined
def _see(at, left, cells, L):
    cells[0] = maximum(narrowed(take(at[0], left, -INFINITY, L), L), cells[0])


@by_type
def scan_max(x, maxima, n, width, L):
    """Find them, and the greatest of each row."""

    def row(x, maxima, n, width, L):
        maxima[0] = like(maxima[0], -INFINITY)
        each(_see, (x,), maxima, n, width, L)
        return largest(maxima[0], L)

    def across(x, maxima, n, width, L):
        for k in range(CLASSES):
            maxima[k] = like(maxima[k], -INFINITY)
        for j in range(n):
            v = take(moved((x,), j, 0)[0], width, -INFINITY, L)
            maxima[j % CLASSES] = maximum(v, maxima[j % CLASSES])
        top = maxima[0]
        for k in range(1, CLASSES):
            top = maximum(maxima[k], top)
        return largest(top, L)

    return row if L.literal_value == 1 else across


def projected(
    scale: float, terms: Callable, stride: Callable, value: Callable, last: Callable
) -> Callable:
    """A kernel body for a map given by the functions of `threshold` and `results`."""
    first_step, search = threshold(scale, terms, stride, last)
    finalize, plain, write_few, guarded = results(scale, value)

    @inlined
    def project(at, n, width, L):
        x, y = at
        p, maxima = x[0], stack(no_max(x[0], L), CLASSES)
        found, places = stack(0.0, LIST_LENGTH), stack(np.int32(0), LIST_LENGTH)
        grid = 3.0
        while grid < 3.0 * n:
            grid *= 2.0
        top = scan_max(x, maxima, n, width, L)
        t = first_step(p, maxima, top, grid, L)
        t, rest, few = search(x, n, width, top, t, grid, found, places, L)
        cells, regular = finalize(p, top, t, rest, to_next(x, n))
        if not all_lanes(regular | ~exists(width, L)):
            each_rarely(guarded, at, cells, n, width, L)
        elif not write_few(x, y, cells, places, few, n, L):
            each(plain, at, cells, n, width, L)

    return project


sparsemax = projected(1.0, linear, by_sum, itself, if_straight)
entmax15 = projected(0.5, square, by_norm, squared, if_curved)
SPARSEMAX = row_kernels(sparsemax, 2, "sparsemax", __name__)
ENTMAX15 = row_kernels(entmax15, 2, "entmax15", __name__)
