"""Running extrema: y[j] = max(x[0], …, x[j]).

A minimum is the maximum of the negated elements: a flip of the sign bit, there and back, so every
value keeps its own bits. An element is a *record* if it takes over the extremum.
"""

import math

from numba import types

from pullback.cpu.emit import I32, Lane, Vec, constant, inlined, op, shaped
from pullback.cpu.kernel import index_pointer, kernel, pointer, word
from pullback.cpu.memory import encoded, fence, on_stack
from pullback.cpu.program import TENSORS
from pullback.cpu.sweep import OPTION, cursor, length, strip_of, sweep
from pullback.cpu.tile_blocks import in_blocks
from pullback.cpu.tiles import (
    Tile,
    by_type,
    earlier,
    last,
    lines_across,
    load,
    long_rows,
    moved,
    spread,
    stack,
    step_numbers,
    steps_and_lines,
    store,
)
from pullback.cpu.vector import (
    all_lanes,
    any_lane,
    as_float,
    as_int,
    is_nan,
    like,
    maximum,
    not_le,
    select,
    splat,
    to_i64,
)
from pullback.ops.scan.cpu_extremum_halves import holds, store_held
from pullback.ops.scan.cpu_panels import AS_BEFORE, in_panels
from pullback.ops.scan.cpu_side_by_side import rows_at
from pullback.ops.scan.cpu_sum import BLOCK

CELLS = 256
LINES = 8  # side by side in a tile across
SIDE = 1024  # lines of an item across, without indices
PITCH = SIDE + 32
CELLS_OF_VALUES, ROOM = SIDE // LINES, BLOCK * PITCH
INFINITY = math.inf


@op
def store_as_is(cursor: types.BaseTuple, size: object, v: Vec, L: Lane):
    """What came from such memory: of bf16, the upper half of f32, nothing is rounded off."""
    rows = v.n // L.literal_value

    def emit(b, cursor_, size_, v_, _L):
        tile = Tile(b, cursor, cursor_, rows, L.literal_value)
        if cursor[0].dtype == types.uint16:
            bits = b.bitcast(v_, shaped(I32, v_.type))
            raw = b.trunc(b.lshr(bits, constant(bits.type, 16)), tile.raw)
        else:
            raw = encoded(b, cursor[0], v_, v.dtype)
        if isinstance(size, types.NoneType):
            tile.store(raw)
        else:
            tile.store_part(raw, *steps_and_lines(b, size_))

    return types.void(cursor, size, v, L), emit


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


def running_blocks(maybe, simple, wins):
    """(tile, best) -> the extremum after each step, whether any is a record, whether all are."""

    @inlined
    def block(tiles, best, L):
        y = running(tiles[0], best, simple, wins, L)
        return y, last(y, L)

    @inlined
    def extrema(v, best, L):
        before = spread(best, v)
        if not any_lane(maybe(v, before)):
            return before, False, False
        if all_lanes(simple(v, earlier(v, before, 1, L))):
            return v, True, True
        return in_blocks(block, (v,), best, BLOCK, L)[0], True, False

    return extrema


@inlined
def _highest(k, L):
    """The highest number so far of each line."""
    k = maximum(k, earlier(k, -1, 1, L))
    k = maximum(k, earlier(k, -1, 2, L))
    return maximum(k, earlier(k, -1, 4, L))


def _forward(extrema, simple, wins, last_too):
    @inlined
    def values(at, size, state, rows, L):
        x, y, sign = at
        if holds(x, size, state[0], sign, last_too, rows, L):
            store_held(y, size, state[0], sign, rows, L)
            return state
        v = flipped(load(x, size, 0.0, rows, L), sign)
        y_ = extrema(v, state[0], L)[0]
        store_as_is(y, size, flipped(y_, sign), L)
        return (last(y_, L),)

    @inlined
    def tile(at, place, size, state, L):
        return values(at, size, state, BLOCK, L)

    @by_type
    def sweep_values(at, box, n, lines, states, L):
        return along if L.literal_value == 1 else across

    def along(at, box, n, lines, states, L):
        """Long tiles, then blocks: a short line is all blocks."""
        state, k, rows = states[0], 0, long_rows(at[0][0], L)
        while k + rows <= n:
            state = values(moved(at, k, 0), None, state, rows, L)
            k += rows
        while k + BLOCK <= n:
            state = values(moved(at, k, 0), None, state, BLOCK, L)
            k += BLOCK
        if k < n:
            state = values(moved(at, k, 0), (n - k, 1), state, BLOCK, L)
        states[0] = state

    def across(at, box, n, lines, states, L):
        for k in range(0, n, BLOCK):
            rows_at(tile, at, box, PITCH, k, n, lines, states, BLOCK, L)

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
        store_as_is(y, size, flipped(y_, sign), L)
        store(indices, size, there, L)
        return last(y_, L), last(there, L), position + ((BLOCK ^ direction) - direction)

    @inlined
    def scan_values(task, lo, hi, cells, room, L):
        p, q, sign = pointer(task, TENSORS), pointer(task, TENSORS + 1), word(task, OPTION)
        box = on_stack(q, room)
        states = stack((load(cursor(task, p, 0, 0, L), (1, 1), 0.0, 1, L),), cells)
        for item in range(lo, hi):
            line, lines = strip_of(task, item)
            at = cursor(task, p, 0, line, L), cursor(task, q, 1, line, L), sign
            for c in range(0, lines, L):
                begin = load(moved(at, 0, c)[0], (1, min(lines - c, L)), 0.0, 1, L)
                states[c // L] = (flipped(begin, sign),)
            sweep_values(at, box, length(task), lines, states, L)
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


first_extrema = running_blocks(first_maybe, first_simple, first_wins)
last_extrema = running_blocks(last_maybe, last_simple, last_wins)
_first_values, _first_indices = _forward(first_extrema, first_simple, first_wins, 0)
_last_values, _last_indices = _forward(last_extrema, last_simple, last_wins, 1)


def _in_panels(values):
    return in_panels(
        lambda task, lo, hi: values(task, lo, hi, CELLS_OF_VALUES, ROOM, LINES),
        BLOCK,
        {0: AS_BEFORE},
    )


_first_in_panels, _last_in_panels = _in_panels(_first_values), _in_panels(_last_values)


@kernel
def first_along(task, lo, hi):
    _first_values(task, lo, hi, 1, 1, 1)


@kernel
def first_across(task, lo, hi):
    _first_in_panels(task, lo, hi)


@kernel
def last_along(task, lo, hi):
    _last_values(task, lo, hi, 1, 1, 1)


@kernel
def last_across(task, lo, hi):
    _last_in_panels(task, lo, hi)


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
