"""sparsemax and entmax15 in Numba: y = max((x - m)·scale - τ, 0)^power, m the maximum of the row
and τ the threshold with which the results add up to 1 (cpu_threshold).

Cells of a row: the greatest x, lane by lane; what is taken off x, first and then in two pieces;
the x that has its own result, if the top is infinite, and that result.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable

import numpy as np

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer
from pullback.cpu.loops import extent
from pullback.cpu.memory import fence, filled, read, scalar, write
from pullback.cpu.program import TENSORS
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
from pullback.ops.simplex.cpu_panels import in_panels
from pullback.ops.simplex.cpu_row_max import max_of_part, no_max, scan_max
from pullback.ops.simplex.cpu_steps import give, prefetch_step, take, to_next
from pullback.ops.simplex.cpu_threshold import INFINITY, MANY, threshold
from pullback.ops.simplex.cpu_traits import LANES
from pullback.ops.simplex.cpu_walk import (
    PARTS,
    SPAN,
    computed,
    each,
    each_rarely,
    exists,
    source,
    strip,
    target,
    walk,
)

NAN = np.nan
FEW = 256  # candidates worth writing one by one
SPARSE = 16  # elements of a row for each of these


def results(scale: float, value: Callable) -> tuple[Callable, ...]:
    """From the threshold to y = value(u): cells of a row, a step of a regular row, the few
    candidates of a sparse one, a step of a row with infinities or NaN."""

    @inlined
    def finalize_row(p, cells, part, top, t, rest):
        """Cells of the results. Of large x the top is taken off first, which is exact. Gives the
        lanes that are regular."""
        _, shifts, high, low, marks, values = cells[:6]
        t, rest = settled(p, t, rest)
        infinite = absolute(top) == INFINITY
        shift = select((absolute(top) < 2) | infinite, 0.0, top)
        start = select((shift == 0) & ~infinite, top, 0.0) * scale
        cut = start + t
        error = (start - (cut - t)) + rest  # |start| < 2 and -1 <= t <= 0: close enough
        cut = select(is_nan(rest), like(top, NAN), select(infinite, like(top, INFINITY), cut))
        shifts[part], high[part] = computed(p, shift), computed(p, cut)
        low[part] = computed(p, select(infinite, 0.0, (cut - to_f64(high[part])) + error))
        marks[part] = computed(p, select(infinite, top, NAN))
        share = 1.0 / round_even(1.0 / value(-t - rest))  # as many share as are infinite
        values[part] = computed(p, select(top == -INFINITY, 0.0, share))
        return absolute(cut) < INFINITY

    @inlined
    def result(x, cells, part):
        shifts, high, low = cells[1:4]
        u = (x - spread(shifts[part], x)) * scale - spread(high[part], x) - spread(low[part], x)
        return value(maximum(0.0, u))

    @inlined
    def plain(at, left, cells, part, L):
        prefetch_step(at[0], cells[6], L)
        give(at[1], left, result(take(at[0], left, 0.0, L), cells, part), L)

    @inlined
    def nothing(at, left, cells, part, L):
        prefetch_step(at[0], cells[6], L)
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
                values[k] = lane(result(v, cells, 0), 0)
            each(nothing, (x, y), cells, n, 1, L)
            for k in range(count):
                write(y[0], y[1] + places[k] * y[2], values[k])
            return True

        return row if L.literal_value == 1 else (lambda x, y, cells, places, count, n, L: False)

    @inlined
    def guarded(at, left, cells, part, L):
        x, (high, _, marks, values) = take(at[0], left, 0.0, L), cells[2:6]
        y = result(x, cells, part)
        y = select(x == spread(marks[part], x), spread(values[part], x), y)
        give(at[1], left, select(is_nan(spread(high[part], x)), like(y, NAN), y), L)

    return finalize_row, plain, write_few, guarded


def projected(
    scale: float, terms: Callable, stride: Callable, value: Callable, last: Callable
) -> Callable:
    """A kernel body for a map given by the functions of `threshold` and `results`."""
    first_step, search = threshold(scale, terms, stride, last)
    finalize_row, plain, write_few, guarded = results(scale, value)

    @inlined
    def run(task, lo, hi, L):
        p, n = pointer(task, TENSORS), extent(walk(task, 2))
        zero = filled(p, 0.0, L)
        found, places, few = stack(0.0, LIST_LENGTH), stack(np.int32(0), LIST_LENGTH), MANY
        maxima, shifts, high = (
            stack(no_max(p, L), SPAN),
            stack(zero, PARTS),
            stack(zero, PARTS),
        )
        low, marks, values = stack(zero, PARTS), stack(zero, PARTS), stack(zero, PARTS)
        cells = maxima, shifts, high, low, marks, values, to_next(source(task, 2, 0, 0, L), n)
        grid = 3.0
        while grid < 3.0 * n:
            grid *= 2.0
        for item in range(lo, hi):
            row, width = strip(task, 2, item, L)
            x, y = source(task, 2, 0, row, L), target(task, 2, row, L)
            scan_max(x, cells, n, width, L)
            regular = True
            for c in range(0, width, LANES):
                part = c // LANES
                top = max_of_part(maxima, part, L)
                at, there = moved((x,), 0, c)[0], exists(width - c, L)
                t = first_step(p, maxima, part, top, grid, L)
                t, rest, few = search(at, n, width - c, top, t, grid, found, places, L)
                regular = all_lanes(finalize_row(p, cells, part, top, t, rest) | ~there) and regular
            if regular:
                if not write_few(x, y, cells, places, few, n, L):
                    each(plain, (x, y), cells, n, width, L)
            else:
                each_rarely(guarded, (x, y), cells, n, width, L)
        fence()

    return run


sparsemax = projected(1.0, linear, by_sum, itself, if_straight)
entmax15 = projected(0.5, square, by_norm, squared, if_curved)
sparsemax_across, entmax15_across = in_panels(sparsemax, 2), in_panels(entmax15, 2)


@kernel
def sparsemax_rows(task, lo, hi):
    sparsemax(task, lo, hi, 1)


@kernel
def sparsemax_columns(task, lo, hi):
    sparsemax_across(task, lo, hi)


@kernel
def entmax15_rows(task, lo, hi):
    entmax15(task, lo, hi, 1)


@kernel
def entmax15_columns(task, lo, hi):
    entmax15_across(task, lo, hi)
