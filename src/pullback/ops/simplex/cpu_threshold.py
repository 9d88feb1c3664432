"""The threshold of a row for sparsemax and entmax15: Newton's method, which cannot pass the root.

τ is the root of a convex decreasing function of t, the excess: Σ max(z - t, 0) - 1 for sparsemax,
the Euclidean norm of max(z - t, 0) minus 1 for entmax15, with z = (x - m)·scale. Newton's method
from t = -1 climbs to it without ever passing it (for sparsemax that is Michelot's algorithm). Its
first step looks at eight elements alone, the greatest of each class of positions (not in f64): the
root of fewer elements is no greater, and from there on candidates are few. Each step leaves
excess' / excess + slope' / slope <= 1, so the product of the two falls to a quarter: log2(n) + 30
steps reach the last bit of an f64 whatever the row, and usually six do.
Gain (first step from class maxima): entmax15 4096x1024 f32 1.46.

The steps look only at the candidates z >= t, copied into a list if they are few. The sums are
exact: each term is cut into pieces that are multiples of fixed powers of two, and those add up
without rounding: neither their order nor how many others were looked at changes them.
Gain (lists of rows): entmax15 256x32000 f32 8.00.
Gain (lists of columns): entmax15 4096x4096 axis 0 f32 2.67.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable

import numpy as np

from pullback.cpu.atomics import lowest_bit
from pullback.cpu.emit import inlined
from pullback.cpu.memory import advance, filled, get, put, read, scalar
from pullback.cpu.row_steps import CLASSES, LANES, WIDE, computed, exists, take, whole_steps
from pullback.cpu.tiles import by_type, moved, spread, stack
from pullback.cpu.vector import (
    any_lane,
    lane,
    lane_at,
    like,
    mask_bits,
    maximum,
    select,
    set_lane,
    splat,
    to_f64,
)
from pullback.ops.simplex.cpu_candidates import (
    CANDIDATES,
    LIST_LENGTH,
    SEARCH,
    exactly,
    note_places,
    over_lanes,
    sift,
)
from pullback.ops.simplex.cpu_traits import traits

INFINITY = np.inf
LONGEST = 1 << 31  # rows whose places fit their type
IN_COLUMN = 512  # candidates of one of the columns of a strip
COLUMN_LENGTH = IN_COLUMN + 2 * LANES
COLUMNS_LENGTH = WIDE * COLUMN_LENGTH
# Columns up to this length are summed whole at each step: without lists sparsemax and entmax15 of
# 65536x10 take 0.36 and 0.29 of the time, 65536x30 0.70 and 0.64; from 100 elements on lists win.
NO_LIST = 64
MANY = 1 << 40  # candidates that are too many to be known
STEPS = 128  # more than any row can need


def summation(scale: float, terms: Callable) -> tuple[Callable, ...]:
    """z from x, and excess and slope at t: of a vector, of a list, of a row, of columns."""

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
    def across(cursor, n, left, top, t, grid, L):
        """Excess and slope at t of L columns."""
        zero = like(top, 0.0)
        sums = zero, zero, zero
        for j in range(n):
            x = take(moved((cursor,), j, 0)[0], left, -INFINITY, L)
            sums = add(cursor[0], relative(x, top), t, grid, sums)
        return sums[0] + sums[1], sums[2]

    return relative, add, among, along, across


def listing(scale: float, relative: Callable) -> tuple[Callable, Callable]:
    """Candidates of a row and of columns, copied into lists."""

    @inlined
    def gather(cursor, n, top, t, found, places):
        """Set the candidates aside, and NaN, as z. Gives how many; too many are left."""
        p, i, apart, _ = cursor
        count = 0 if n < LONGEST else CANDIDATES + 1
        cut = spread(computed(p, top + t * (1.0 / scale)), filled(p, 0.0, LANES))
        whole, _ = whole_steps((cursor,), n)
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
    def gather_columns(cursor, n, left, top, t, lists, counts, L):
        """The same for each of L columns. Gives whether all have room."""
        cut, there = computed(cursor[0], top + t * (1.0 / scale)), exists(left, L)
        z = stack(0.0, L)
        for c in range(L):
            counts[c] = 0
        for j in range(n):
            x = take(moved((cursor,), j, 0)[0], left, -INFINITY, L)
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

    return gather, gather_columns


def starting(add: Callable, relative: Callable, stride: Callable) -> Callable:
    """Where the search begins: one step from the greatest element of each class of positions."""

    @inlined
    def beyond(excess, slope):
        step = stride(excess, slope)
        return select(step > 0, step - 1.0, -1.0)

    @by_type
    def first_step(p, maxima, top, grid, L):
        def row(p, maxima, top, grid, L):
            z = relative(maxima[0], top)
            zero = like(z, 0.0)
            return beyond(*over_lanes(add(p, z, splat(-1.0, 1), grid, (zero, zero, zero))))

        def columns(p, maxima, top, grid, L):
            zero = like(top, 0.0)
            sums = zero, zero, zero
            for k in range(CLASSES):
                sums = add(p, relative(maxima[k], top), like(top, -1.0), grid, sums)
            return beyond(sums[0] + sums[1], sums[2])

        if not traits(p).hinted:
            return lambda p, maxima, top, grid, L: like(top, -1.0)
        return row if L.literal_value == 1 else columns

    return first_step


def climbing(among: Callable, stride: Callable, last: Callable) -> tuple[Callable, ...]:
    """One step of Newton's method, and all the steps on lists of candidates."""

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
        """The same for each column."""
        step = like(t, 0.0)
        for c in range(left):
            found = advance(lists, c * COLUMN_LENGTH)
            root, rest, _ = finish(p, found, places, counts[c], splat(lane_at(t, c), 1), grid)
            t, step = set_lane(t, c, lane(root, 0)), set_lane(step, c, lane(rest, 0))
        return t, step, MANY

    return climb, finish, finish_columns


def threshold(
    scale: float, terms: Callable, stride: Callable, last: Callable
) -> tuple[Callable, Callable]:
    """first_step and search of a map: terms(u, grid) gives the summands of excess and slope for
    u = z - t >= 0, stride(excess, slope) a step. A step as small as last(p, grid) ends the climb:
    it is not made, but taken into account."""
    relative, add, among, along, across = summation(scale, terms)
    gather, gather_columns = listing(scale, relative)
    climb, finish, finish_columns = climbing(among, stride, last)

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
            step = like(top, 0.0)
            lists, counts = stack(0.0, COLUMNS_LENGTH), stack(0, L)
            for _ in range(STEPS):
                if n > NO_LIST and gather_columns(cursor, n, left, top, t, lists, counts, L):
                    return finish_columns(cursor[0], lists, places, counts, left, t, grid)
                excess, slope = across(cursor, n, left, top, t, grid, L)
                before = t
                t, step = climb(cursor[0], t, excess, slope, grid)
                if not any_lane(t > before):
                    break
            return t, step, MANY

        return row if L.literal_value == 1 else columns

    return starting(add, relative, stride), search
