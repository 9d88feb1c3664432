"""sparsemax and entmax15 in Numba: y = max((x - m)·scale - τ, 0)^power, m the maximum of the row.

τ is the root of a convex decreasing function of t, the excess: Σ max(z - t, 0) - 1 for sparsemax,
the Euclidean norm of max(z - t, 0) minus 1 for entmax15, with z = (x - m)·scale. Newton's method
from t = -1 climbs to it without ever passing it (for sparsemax that is Michelot's algorithm).
Each step leaves excess' / excess + slope' / slope <= 1, so the product of the two falls to a
quarter: log2(n) + 30 steps reach the last bit of an f64 whatever the row, and usually six do.

Along a row the steps look only at the candidates x >= m - 1/scale, set aside in a first pass if
they are few. Their sums are exact: each term is cut in two pieces that are multiples of fixed
powers of two, and those add up without rounding. So neither their order nor how many others were
looked at changes the bits.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable

import numpy as np

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer
from pullback.cpu.loops import extent
from pullback.cpu.memory import compress_store, fence, filled, get_first, scalar
from pullback.cpu.program import TENSORS
from pullback.cpu.tiles import by_type, moved, spread, stack
from pullback.cpu.vector import (
    absolute,
    any_lane,
    is_nan,
    like,
    maximum,
    reduce_add,
    select,
    splat,
    sqrt,
    to_f64,
)
from pullback.ops.simplex.cpu_walk import (
    LANES,
    PARTS,
    computed,
    each,
    give,
    greatest,
    source,
    strip,
    take,
    target,
    walk,
)

INFINITY, NAN = np.inf, np.nan
CANDIDATES = 512
ROOM = CANDIDATES + LANES
SEARCH = 16  # lanes of the search along a row: candidates are few
STEPS = 128  # more than any row can need
ENOUGH = 2.0**-53  # a step as small as this is rounding


@inlined
def _tops(at, left, cells, part, L):
    x, tops = take(at[0], left, -INFINITY, L), cells[0]
    tops[part] = select(is_nan(x), x, maximum(x, tops[part]))  # NaN, once in, stays


@inlined
def _pieces(v, sums, grid):
    """Add v, between 0 and 1, to its sum in two pieces: multiples of the grids' last places."""
    coarse, fine = sums
    high = (v + grid) - grid
    fine_grid = grid * grid * (2.0**-52 / 1.5)
    low = ((v - high) + fine_grid) - fine_grid
    return coarse + high, fine + low


def projected(scale: float, terms: Callable, advance: Callable, value: Callable) -> Callable:
    """A kernel body: terms(u) gives the summands of excess and slope for u = z - t > 0,
    advance(excess, slope) a step, value(u) the result."""

    @inlined
    def add(x, top, t, grid, excess, slope):
        z = select(x == top, 0.0, x - top) * scale  # the top may be +inf
        u = maximum(0.0, z - t)
        f, g = terms(u)
        return _pieces(f, excess, grid), _pieces(g, slope, grid)

    @by_type
    def measure(cursor, n, left, top, t, grid, L):
        """Excess and slope at t."""

        def row(cursor, n, left, top, t, grid, L):
            p, i, apart, _ = cursor
            zero = splat(0.0, SEARCH)
            excess, slope = (zero, zero), (zero, zero)
            for j in range(0, n, SEARCH):
                none = filled(p, -INFINITY, SEARCH)
                x = to_f64(get_first(p, i + j * apart, apart, n - j, none))
                excess, slope = add(x, spread(top, x), spread(t, x), grid, excess, slope)
            f = reduce_add(excess[0]) + reduce_add(excess[1])
            g = reduce_add(slope[0]) + reduce_add(slope[1])
            return splat(f, 1), splat(g, 1)

        def columns(cursor, n, left, top, t, grid, L):
            zero = splat(0.0, LANES)
            excess, slope = (zero, zero), (zero, zero)
            for j in range(n):
                x = to_f64(take(moved((cursor,), j, 0)[0], left, -INFINITY, L))
                excess, slope = add(x, top, t, grid, excess, slope)
            return excess[0] + excess[1], slope[0] + slope[1]

        return row if L.literal_value == 1 else columns

    @inlined
    def search(cursor, n, left, top, grid, L):
        """The threshold of each row."""
        t = like(top, -1.0)
        for _ in range(STEPS):
            excess, slope = measure(cursor, n, left, top, t, grid, L)
            step = advance(excess, slope)
            before, t = t, select(step > ENOUGH, t + step, t)
            if not any_lane(t > before):
                break
        return t

    @by_type
    def threshold(cursor, n, left, top, grid, found, L):
        def row(cursor, n, left, top, grid, found, L):
            cut = spread(computed(cursor[0], top - 1.0 / scale), filled(cursor[0], 0.0, LANES))
            count = 0
            for j in range(0, n, LANES):
                x = take(moved((cursor,), j, 0)[0], n - j, -INFINITY, L)
                if any_lane(x >= cut):
                    if count > CANDIDATES:
                        break
                    count += compress_store(found, count, x, x >= cut)
            if count > CANDIDATES:
                return search(cursor, n, left, top, grid, L)
            return search((found, 0, 1, False), count, left, top, grid, L)

        return row if L.literal_value == 1 else search_columns

    def search_columns(cursor, n, left, top, grid, found, L):
        return search(cursor, n, left, top, grid, L)

    @inlined
    def settle(p, cells, part, top, t, excess):
        """Cells of the results: the top and its value, the shift and the threshold in two pieces.
        Of large x the top is taken off first, which is exact."""
        _, peaks, values, shifts, high, low = cells
        shift = select((absolute(top) < 2) | (top == -INFINITY), 0.0, top)
        far = select(shift == 0, top, 0.0) * scale + t
        far = select(is_nan(top), like(top, NAN), far)
        peaks[part], shifts[part] = computed(p, top), computed(p, shift)
        values[part] = computed(p, select(top == -INFINITY, 0.0, value(-t)))
        high[part] = computed(p, far)
        low[part] = computed(p, far - to_f64(high[part]))

    @inlined
    def write(at, left, cells, part, L):
        _, peaks, values, shifts, high, low = cells
        x = take(at[0], left, 0.0, L)
        u = (x - spread(shifts[part], x)) * scale - spread(high[part], x) - spread(low[part], x)
        y = select(x == spread(peaks[part], x), spread(values[part], x), value(maximum(0.0, u)))
        give(at[1], left, select(is_nan(spread(high[part], x)), like(y, NAN), y), L)

    @inlined
    def run(task, lo, hi, L):
        p, n = pointer(task, TENSORS), extent(walk(task, 2))
        none, zero = filled(p, -INFINITY, LANES), filled(p, 0.0, L)
        found = stack(scalar(p, 0.0), ROOM)
        tops, peaks, values = stack(none, PARTS), stack(zero, PARTS), stack(zero, PARTS)
        shifts, high, low = stack(zero, PARTS), stack(zero, PARTS), stack(zero, PARTS)
        cells = tops, peaks, values, shifts, high, low
        grid = 3.0
        while grid < 3.0 * n:
            grid *= 2.0
        for item in range(lo, hi):
            row, width = strip(task, 2, item)
            x, y = source(task, 2, 0, row), target(task, 2, row)
            for part in range(PARTS):
                tops[part] = none
            each(_tops, (x,), cells, n, width, L)
            for c in range(0, width, LANES):
                part = c // LANES
                top = greatest(tops[part], L)
                at = moved((x,), 0, c)[0]
                t = threshold(at, n, width - c, top, grid, found, L)
                settle(p, cells, part, top, t, grid)
            each(write, (x, y), cells, n, width, L)
        fence()

    return run


@inlined
def _linear(u):
    return u, select(u > 0, 1.0, u)


@inlined
def _square(u):
    return u * u, u


@inlined
def _by_sum(excess, slope):
    return (excess - 1.0) / slope


@inlined
def _by_norm(excess, slope):
    norm = sqrt(excess)
    return (norm - 1.0) * norm / slope


@inlined
def _itself(u):
    return u


@inlined
def _squared(u):
    return u * u


sparsemax = projected(1.0, _linear, _by_sum, _itself)
entmax15 = projected(0.5, _square, _by_norm, _squared)


@kernel
def sparsemax_rows(task, lo, hi):
    sparsemax(task, lo, hi, 1)


@kernel
def sparsemax_columns(task, lo, hi):
    sparsemax(task, lo, hi, LANES)


@kernel
def entmax15_rows(task, lo, hi):
    entmax15(task, lo, hi, 1)


@kernel
def entmax15_columns(task, lo, hi):
    entmax15(task, lo, hi, LANES)
