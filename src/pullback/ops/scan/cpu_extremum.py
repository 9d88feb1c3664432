"""Running extrema and the gradient of the elements that hold them.

    forward   y[j] = max(x[0], …, x[j])
    backward  dx[k] = Σ dy[j] over the j whose extremum is x[k]

A minimum is the maximum of the negated elements: a flip of the sign bit, there and back, so every
value keeps its own bits. An element is a *record* if it takes over the extremum.
"""

import math

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import index_pointer, kernel, pointer, word
from pullback.cpu.memory import fence, filled_wide, write
from pullback.cpu.program import TENSORS
from pullback.cpu.sweep import OPTION, cursor, length, strip_of, sweep, sweep_back
from pullback.cpu.tiles import (
    by_type,
    earlier,
    first,
    inside,
    lanes_of,
    last,
    later,
    lines_across,
    load,
    load_wide,
    moved,
    spread,
    stack,
    step_numbers,
    store,
)
from pullback.cpu.vector import (
    all_lanes,
    any_lane,
    as_float,
    as_int,
    is_nan,
    lane_at,
    like,
    mask_bits,
    maximum,
    not_le,
    select,
    splat,
    to_i64,
)
from pullback.ops.scan.cpu_sum import BLOCK

CELLS = 256
# The backward looks at this many elements at once: their records wait on the stack.
CHUNK = 4096
SIDE = 256
SIDE_CELLS, SIDE_STEP = SIDE // 4, SIDE // BLOCK
ALONG = CHUNK // BLOCK
FLAGS = CHUNK * SIDE_STEP // 4
INFINITY = math.inf


@inlined
def flipped(v, sign):
    return as_float(as_int(v) ^ like(as_int(v), sign))


# Whether b takes over from a, met earlier. NaN beats all but NaN; the simple forms are for b that
# is no NaN: an a that is NaN stays.


@inlined
def first_simple(b, a):
    return b > a


@inlined
def first_wins(b, a):
    return (b > a) | (is_nan(b) & ~is_nan(a))


@inlined
def last_simple(b, a):
    return b >= a


@inlined
def last_wins(b, a):
    return (b >= a) | is_nan(b)


@inlined
def first_maybe(b, a):
    return not_le(b, a)


@inlined
def last_maybe(b, a):
    return ~(b < a)


@inlined
def _doubling(v, wins, L):
    e = earlier(v, -INFINITY, 1, L)
    v = select(wins(v, e), v, e)
    e = earlier(v, -INFINITY, 2, L)
    v = select(wins(v, e), v, e)
    e = earlier(v, -INFINITY, 4, L)
    return select(wins(v, e), v, e)


@inlined
def running(v, best, simple, wins, L):
    """The extremum after each step, given the one before the tile."""
    before = spread(best, v)
    if any_lane(is_nan(v)):
        v = _doubling(v, wins, L)
        return select(wins(v, before), v, before)
    v = _doubling(v, simple, L)
    return select(simple(v, before), v, before)


@inlined
def _highest(k, L):
    """The highest number so far of each line."""
    k = maximum(k, earlier(k, -1, 1, L))
    k = maximum(k, earlier(k, -1, 2, L))
    return maximum(k, earlier(k, -1, 4, L))


def _forward(simple, wins):
    @inlined
    def values(at, size, state, L):
        x, y, sign = at
        v = flipped(load(x, size, 0.0, BLOCK, L), sign)
        y_ = running(v, state[0], simple, wins, L)
        store(y, size, flipped(y_, sign), L)
        return (last(y_, L),)

    @inlined
    def with_indices(at, size, state, L):
        x, y, indices, sign, direction = at
        best, holder, position = state
        v = flipped(load(x, size, 0.0, BLOCK, L), sign)
        y_ = running(v, best, simple, wins, L)
        record = wins(v, earlier(y_, spread(best, v), 1, L))
        steps = _highest(select(record, step_numbers(as_int(v), L), -1), L)
        there = to_i64(steps)
        # Counted from the far end where the walk is reversed: direction is 0 or -1.
        there = select(
            there < 0, spread(holder, there), ((there ^ direction) - direction) + position
        )
        store(y, size, flipped(y_, sign), L)
        store(indices, size, there, L)
        return last(y_, L), last(there, L), position + ((BLOCK ^ direction) - direction)

    @inlined
    def scan_values(task, lo, hi, cells, L):
        p, q, sign = pointer(task, TENSORS), pointer(task, TENSORS + 1), word(task, OPTION)
        states = stack((load(cursor(task, p, 0, 0, L), (1, 1), 0.0, 1, L),), cells)
        for item in range(lo, hi):
            line, lines = strip_of(task, item)
            at = cursor(task, p, 0, line, L), cursor(task, q, 1, line, L), sign
            for c in range(0, lines, L):
                begin = load(moved(at, 0, c)[0], (1, min(lines - c, L)), 0.0, 1, L)
                states[c // L] = (flipped(begin, sign),)
            sweep(values, at, length(task), lines, states, BLOCK, 0, 0, L)
        fence()

    @inlined
    def scan_indices(task, lo, hi, cells, L):
        p, q, r = (
            pointer(task, TENSORS),
            pointer(task, TENSORS + 1),
            index_pointer(task, TENSORS + 2),
        )
        sign, backwards = word(task, OPTION), word(task, OPTION + 1)
        states = stack((load(cursor(task, p, 0, 0, L), (1, 1), 0.0, 1, L), splat(0, L), 0), cells)
        origin = (length(task) - 1) & backwards
        for item in range(lo, hi):
            line, lines = strip_of(task, item)
            at = (
                cursor(task, p, 0, line, L),
                cursor(task, q, 1, line, L),
                cursor(task, r, 2, line, L),
                sign,
                backwards,
            )
            for c in range(0, lines, L):
                begin = load(moved(at, 0, c)[0], (1, min(lines - c, L)), 0.0, 1, L)
                states[c // L] = flipped(begin, sign), splat(origin, L), origin
            sweep(with_indices, at, length(task), lines, states, BLOCK, 0, 0, L)
        fence()

    return scan_values, scan_indices


_first_values, _first_indices = _forward(first_simple, first_wins)
_last_values, _last_indices = _forward(last_simple, last_wins)


# --- backward -----------------------------------------------------------------------------------


@inlined
def suffix_sums(v, L):
    v += later(v, -0.0, 1, L)
    v += later(v, -0.0, 2, L)
    return v + later(v, -0.0, 4, L)


@inlined
def _any_step(m, L):
    m |= later(m, False, 1, L)
    m |= later(m, False, 2, L)
    m |= later(m, False, 4, L)
    return m


@by_type
def _cell(i, L):
    """Where the records of a tile are: one word for each."""
    rows = BLOCK if L.literal_value == 1 else L.literal_value
    return lambda i, L: i // rows


@inlined
def gradient_tile(at, size, state, L):
    """Sums of dy from each record up to the next, from the last tile to the first.

    carry  the sum of the steps since the next record
    seen   whether this chunk had a record yet; its last one has the sum `held` and lies at `where`
    """
    dy, dx, flags = at
    carry, seen, held, where, position = state
    g = load_wide(dy, size, -0.0, BLOCK, L)
    records = lanes_of(flags[0][_cell(flags[1], L)], g)
    if any_lane(records):
        keep = ~later(records, False, 1, L)
        s = g + select(keep, later(g, -0.0, 1, L), -0.0)
        keep &= later(keep, True, 1, L)
        s += select(keep, later(s, -0.0, 2, L), -0.0)
        keep &= later(keep, True, 2, L)
        s += select(keep, later(s, -0.0, 4, L), -0.0)
        keep &= later(keep, True, 4, L)
        s += select(keep, spread(carry, s), -0.0)
        store(dx, size, select(records, s, 0.0), L)
        if not all_lanes(seen):
            since = _any_step(records, L)
            latest = records & ~later(since, False, 1, L)
            steps = select(latest, step_numbers(as_int(g), L), -1)
            held = select(seen, held, first(suffix_sums(select(latest, s, -0.0), L), L))
            where = select(seen, where, to_i64(last(_highest(steps, L), L)) + position)
            seen |= first(since, L)
        carry = select(first(records, L), -0.0, first(s, L))
    else:
        store(dx, size, like(g, 0.0), L)
        carry += first(suffix_sums(g, L), L)
    return carry, seen, held, where, position - BLOCK


def _backward(maybe, simple, wins):
    @inlined
    def record_tile(at, size, state, L):
        x, flags, sign = at
        best = state[0]
        v = flipped(load(x, size, 0.0, BLOCK, L), sign)
        before = spread(best, v)
        records = maybe(v, before)
        if any_lane(records):
            y = running(v, best, simple, wins, L)
            records = wins(v, earlier(y, before, 1, L)) & inside(size, v, L)
            best = last(y, L)
        flags[0][_cell(flags[1], L)] = mask_bits(records)
        return (best,)

    @inlined
    def scan(task, lo, hi, cells, side, entries, L):
        p, q, r = pointer(task, TENSORS), pointer(task, TENSORS + 1), pointer(task, TENSORS + 2)
        sign, n = word(task, OPTION), length(task)
        sample = load(cursor(task, r, 2, 0, L), (1, 1), 0.0, BLOCK, L)
        bests = stack((first(sample, L),), cells)
        nothing = filled_wide(p, -0.0, L)
        nowhere = splat(0, L)
        unseen = is_nan(nothing)
        sums = stack((nothing, unseen, nothing, nowhere, 0), cells)
        pending = stack((nowhere, nothing), cells)
        flags = stack(0, entries)
        for item in range(lo, hi):
            line, lines = strip_of(task, item)
            dy, dx = cursor(task, p, 0, line, L), cursor(task, q, 1, line, L)
            x = cursor(task, r, 2, line, L)
            for c in range(0, lines, L):
                start = load(moved((x,), 0, c)[0], (1, min(lines - c, L)), 0.0, 1, L)
                bests[c // L] = (flipped(start, sign),)
                pending[c // L] = nowhere, nothing
            for begin in range(0, n, CHUNK):
                steps = min(CHUNK, n - begin)
                marks = flags, 0, side, False
                at = moved((x,), begin, 0)[0], marks, sign
                sweep(record_tile, at, steps, lines, bests, BLOCK, 0, 0, L)
                final = begin + (steps - 1) // BLOCK * BLOCK
                for c in range(0, lines, L):
                    sums[c // L] = nothing, unseen, nothing, nowhere, final
                    if begin == 0:
                        flags[c // L] |= mask_bits(inside((1, min(lines - c, L)), sample, L))
                at_ = moved((dy, dx), begin, 0)
                sweep_back(gradient_tile, (at_[0], at_[1], marks), steps, lines, sums, BLOCK, L)
                for c in range(0, lines, L):
                    head, seen, held, where, _ = sums[c // L]
                    place, total = pending[c // L]
                    if begin > 0:
                        # What came before this chunk's first record belongs to the last one.
                        total += head
                        for k in range(min(lines - c, L)):
                            there = dx[1] + lane_at(place, k) * dx[2] + c + k
                            write(dx[0], there, lane_at(total, k))
                    pending[c // L] = select(seen, where, place), select(seen, held, total)
        fence()

    return scan


_first_backward = _backward(first_maybe, first_simple, first_wins)
_last_backward = _backward(last_maybe, last_simple, last_wins)


@kernel
def first_along(task, lo, hi):
    _first_values(task, lo, hi, 1, 1)


@kernel
def first_across(task, lo, hi):
    _first_values(task, lo, hi, CELLS, lines_across(pointer(task, TENSORS)))


@kernel
def last_along(task, lo, hi):
    _last_values(task, lo, hi, 1, 1)


@kernel
def last_across(task, lo, hi):
    _last_values(task, lo, hi, CELLS, lines_across(pointer(task, TENSORS)))


@kernel
def first_indices_along(task, lo, hi):
    _first_indices(task, lo, hi, 1, 1)


@kernel
def first_indices_across(task, lo, hi):
    _first_indices(task, lo, hi, CELLS, lines_across(pointer(task, TENSORS)))


@kernel
def last_indices_along(task, lo, hi):
    _last_indices(task, lo, hi, 1, 1)


@kernel
def last_indices_across(task, lo, hi):
    _last_indices(task, lo, hi, CELLS, lines_across(pointer(task, TENSORS)))


@kernel
def first_backward_along(task, lo, hi):
    _first_backward(task, lo, hi, 1, 1, ALONG, 1)


@kernel
def first_backward_across(task, lo, hi):
    L = lines_across(pointer(task, TENSORS))
    _first_backward(task, lo, hi, SIDE_CELLS, SIDE_STEP, FLAGS, L)


@kernel
def last_backward_along(task, lo, hi):
    _last_backward(task, lo, hi, 1, 1, ALONG, 1)


@kernel
def last_backward_across(task, lo, hi):
    L = lines_across(pointer(task, TENSORS))
    _last_backward(task, lo, hi, SIDE_CELLS, SIDE_STEP, FLAGS, L)
