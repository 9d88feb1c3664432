"""sparsemax and entmax15 in Numba: y = max((x - m)·scale - τ, 0)^power, m the maximum of the row.

τ is the root of a convex decreasing function of t, the excess: Σ max(z - t, 0) - 1 for sparsemax,
the Euclidean norm of max(z - t, 0) minus 1 for entmax15, with z = (x - m)·scale. Newton's method
from t = -1 climbs to it without ever passing it (for sparsemax that is Michelot's algorithm). Its
first step looks at eight elements alone, the greatest of each class of positions (not in f64): the
root of fewer lies no max_with, and from there on candidates are few. Each step leaves excess' /
excess + slope' / slope <= 1, so the product of the two falls to a quarter: log2(n) + 30 steps reach
the last bit of an f64 whatever the row, and usually six do.

The steps look only at the candidates z >= t, set aside if they are few. The sums are exact: each
term is cut into pieces that are multiples of fixed powers of two, and those add up without
rounding: neither their order nor how many others were looked at changes them.

Cells of a row: the greatest x, lane by lane; what is taken off x, first and then in two pieces;
the x that has its own result, if the top is infinite, and that result.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable

import numpy as np

from pullback.cpu.atomics import lowest_bit
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer
from pullback.cpu.loops import extent
from pullback.cpu.memory import advance, fence, filled, get, put, read, scalar, write
from pullback.cpu.program import TENSORS
from pullback.cpu.tiles import by_type, moved, spread, stack
from pullback.cpu.vector import (
    absolute,
    all_lanes,
    any_lane,
    is_nan,
    lane,
    lane_at,
    like,
    mask_bits,
    maximum,
    round_even,
    select,
    set_lane,
    splat,
    to_f64,
)
from pullback.ops.simplex.cpu_candidates import (
    CANDIDATES,
    LIST_LENGTH,
    SEARCH,
    by_norm,
    by_sum,
    exactly,
    if_curved,
    if_straight,
    itself,
    linear,
    note_places,
    over_lanes,
    settled,
    sift,
    square,
    squared,
)
from pullback.ops.simplex.cpu_panels import in_panels
from pullback.ops.simplex.cpu_row_max import by_class, max_of_part, no_max, scan_max
from pullback.ops.simplex.cpu_steps import give, prefetch_step, take, to_next, whole_steps
from pullback.ops.simplex.cpu_traits import CLASSES, LANES, traits
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

INFINITY, NAN = np.inf, np.nan
LONGEST = 1 << 31  # rows whose places fit their type
IN_COLUMN = 512  # candidates of one of the LANES columns of a part
COLUMN_LENGTH = IN_COLUMN + 2 * LANES
COLUMNS_LENGTH = LANES * COLUMN_LENGTH
FEW, MANY = 256, 1 << 40  # candidates worth writing one by one; too many to be known
SPARSE = 16  # elements of a row for each of these
STEPS = 128  # more than any row can need


def projected(
    scale: float, terms: Callable, stride: Callable, value: Callable, last: Callable
) -> Callable:
    """A kernel body: terms(u, grid) gives the summands of excess and slope for u = z - t >= 0,
    stride(excess, slope) a step, value(u) the result. A step as small as last(p, grid) ends the
    climb: it is not made, but taken into account."""

    @inlined
    def relative(x, top):
        x = to_f64(x)
        return select(x == spread(top, x), 0.0, x - spread(top, x)) * scale  # +inf - +inf is not 0

    @inlined
    def add(p, z, t, grid, sums):
        f, g = terms(maximum(0.0, z - spread(t, z)), grid)
        high, low = exactly(p, f, sums[:2], grid)
        return high, low, sums[2] + g

    @inlined
    def among(p, found, count, t, grid):
        """Excess and slope at t from the candidates."""
        zero = splat(0.0, SEARCH)
        sums = zero, zero, zero
        for j in range(0, count, SEARCH):
            sums = add(p, get(found, j, 1, SEARCH), t, grid, sums)
        return over_lanes(sums)

    @inlined
    def along(cursor, n, top, t, grid):
        """Excess and slope at t from the whole row."""
        zero = splat(0.0, LANES)
        sums = zero, zero, zero
        for j in range(0, n, LANES):
            x = take(moved((cursor,), j, 0)[0], n - j, -INFINITY, 1)
            sums = add(cursor[0], relative(x, top), t, grid, sums)
        return over_lanes(sums)

    @inlined
    def across(cursor, n, left, top, t, grid):
        """Excess and slope at t of LANES columns."""
        zero = splat(0.0, LANES)
        sums = zero, zero, zero
        for j in range(n):
            x = take(moved((cursor,), j, 0)[0], left, -INFINITY, LANES)
            sums = add(cursor[0], relative(x, top), t, grid, sums)
        return sums[0] + sums[1], sums[2]

    @inlined
    def gather(cursor, n, top, t, found, places):
        """Set the candidates aside, and NaN, as z. Gives how many; too many are left."""
        p, i, apart, _ = cursor
        count = 0 if n < LONGEST else CANDIDATES + 1
        cut = spread(computed(p, top + t * (1.0 / scale)), filled(p, 0.0, LANES))
        whole = whole_steps((cursor,), n)
        for j in range(0, whole, LANES):
            if count <= CANDIDATES:
                x = take(moved((cursor,), 0, j)[0], (n - j,), -INFINITY, 1)
                count = note_places(p, places, count, j, x, cut)
        kept = count
        for j in range(whole, n, LANES):
            if count <= CANDIDATES:
                x = take(moved((cursor,), j, 0)[0], n - j, -INFINITY, 1)
                count = note_places(p, places, count, j, x, cut)
        if count > CANDIDATES:
            return count
        values = stack(scalar(p, 0.0), LIST_LENGTH)
        for k in range(kept):
            values[k] = read(p, i + places[k])
        for k in range(kept, count):
            place = places[k]
            values[kept], places[kept] = read(p, i + min(place, n - 1) * apart), place
            kept += 1 if place < n else 0  # where all is -inf, so is what fills the last step
        for k in range(0, kept, SEARCH):
            put(found, k, 1, relative(get(values, k, 1, SEARCH), top), False)
        return kept

    @inlined
    def gather_columns(cursor, n, left, top, t, lists, counts):
        """The same for each of LANES columns. Gives whether all have room."""
        cut, there = computed(cursor[0], top + t * (1.0 / scale)), exists(left, LANES)
        z = stack(0.0, LANES)
        for c in range(LANES):
            counts[c] = 0
        for j in range(n):
            x = take(moved((cursor,), j, 0)[0], left, -INFINITY, LANES)
            chosen = mask_bits(~(x < cut) & there)
            if chosen != 0:
                put(z, 0, 1, relative(x, top), False)
            while chosen != 0:
                c = lowest_bit(chosen)
                chosen &= chosen - 1
                if counts[c] == IN_COLUMN:
                    return False
                lists[c * COLUMN_LENGTH + counts[c]] = z[c]
                counts[c] += 1
        return True

    @inlined
    def climb(p, t, excess, slope, grid):
        """One step of Newton's method: where it leads, and the step."""
        step = stride(excess, slope)
        return select(step > spread(last(p, grid), step), t + step, t), step

    @inlined
    def finish(p, found, places, count, t, grid):
        """The threshold from the candidates at t, and how many are left."""
        step = splat(0.0, 1)
        put(found, count, 1, splat(-INFINITY, SEARCH), False)
        for number in range(STEPS):
            if count > 2 * SEARCH and 0 < number < 3:
                count = sift(found, places, count, lane(t, 0))
                put(found, count, 1, splat(-INFINITY, SEARCH), False)
            excess, slope = among(p, found, count, t, grid)
            before = t
            t, step = climb(p, t, excess, slope, grid)
            if not any_lane(t > before):
                break
        return t, step, count

    @inlined
    def finish_columns(p, lists, places, counts, left, t, grid):
        """The same for each of LANES columns."""
        step = like(t, 0.0)
        for c in range(min(left, LANES)):
            found = advance(lists, c * COLUMN_LENGTH)
            root, rest, _ = finish(p, found, places, counts[c], splat(lane_at(t, c), 1), grid)
            t, step = set_lane(t, c, lane(root, 0)), set_lane(step, c, lane(rest, 0))
        return t, step, MANY

    @by_type
    def first_step(p, maxima, part, top, grid, L):
        """Where the search begins."""

        def row(p, maxima, part, top, grid, L):
            z = relative(by_class(maxima[0]), top)
            zero = like(z, 0.0)
            return beyond(*over_lanes(add(p, z, splat(-1.0, 1), grid, (zero, zero, zero))))

        def columns(p, maxima, part, top, grid, L):
            zero = splat(0.0, LANES)
            sums = zero, zero, zero
            for k in range(CLASSES):
                sums = add(p, relative(maxima[k * PARTS + part], top), like(top, -1.0), grid, sums)
            return beyond(sums[0] + sums[1], sums[2])

        if not traits(p).hinted:
            return lambda p, maxima, part, top, grid, L: like(top, -1.0)
        return row if L.literal_value == 1 else columns

    @inlined
    def beyond(excess, slope):
        step = stride(excess, slope)
        return select(step > 0, step - 1.0, -1.0)

    @by_type
    def search(cursor, n, left, top, t, grid, found, places, L):
        """The threshold of each row, and what rounding left of the last step: NaN if there was.
        Along a row also how many candidates are left, if they are few."""

        def row(cursor, n, left, top, t, grid, found, places, L):
            step = splat(0.0, 1)
            for _ in range(STEPS):
                count = gather(cursor, n, top, t, found, places)
                if count <= CANDIDATES:
                    return finish(cursor[0], found, places, count, t, grid)
                excess, slope = along(cursor, n, top, t, grid)
                before = t
                t, step = climb(cursor[0], t, excess, slope, grid)
                if not any_lane(t > before):
                    break
            return t, step, MANY

        def columns(cursor, n, left, top, t, grid, found, places, L):
            step = splat(0.0, LANES)
            lists, counts = stack(0.0, COLUMNS_LENGTH), stack(0, LANES)
            for _ in range(STEPS):
                if gather_columns(cursor, n, left, top, t, lists, counts):
                    return finish_columns(cursor[0], lists, places, counts, left, t, grid)
                excess, slope = across(cursor, n, left, top, t, grid)
                before = t
                t, step = climb(cursor[0], t, excess, slope, grid)
                if not any_lane(t > before):
                    break
            return t, step, MANY

        return row if L.literal_value == 1 else columns

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
        """If the candidates are few in a row, write them into zeros. Gives whether they are."""

        def row(x, y, cells, places, count, n, L):
            if count * SPARSE > n or count > FEW or y[3]:  # what streams is written only once
                return False
            results = stack(scalar(x[0], 0.0), FEW)
            for k in range(count):  # all of x is read before y is written: they may be one
                v = splat(read(x[0], x[1] + places[k] * x[2]), 1)
                results[k] = lane(result(v, cells, 0), 0)
            each(nothing, (x, y), cells, n, 1, L)
            for k in range(count):
                write(y[0], y[1] + places[k] * y[2], results[k])
            return True

        return row if L.literal_value == 1 else (lambda x, y, cells, places, count, n, L: False)

    @inlined
    def guarded(at, left, cells, part, L):
        x, (high, _, marks, values) = take(at[0], left, 0.0, L), cells[2:6]
        y = result(x, cells, part)
        y = select(x == spread(marks[part], x), spread(values[part], x), y)
        give(at[1], left, select(is_nan(spread(high[part], x)), like(y, NAN), y), L)

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
