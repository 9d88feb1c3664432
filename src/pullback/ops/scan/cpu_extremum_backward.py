"""The gradient of running extrema: dx[k] = Σ dy[j] over the j whose extremum is x[k].

A chunk is walked twice: forwards for its records, one bit for each, and back for the sums of dy
from each record up to the next. Most tiles have no record, or nothing but records: either takes a
shorter way to the same bits.
"""

from typing import Any

from llvmlite import ir
from numba import types

from pullback.cpu.emit import I64, Lane, inlined, op
from pullback.cpu.kernel import kernel, pointer, word
from pullback.cpu.memory import fence, filled_wide, on_stack, write
from pullback.cpu.numerics import one_nan
from pullback.cpu.program import TENSORS
from pullback.cpu.staging import sweep_back
from pullback.cpu.sweep import OPTION, cursor, length, strip_of, sweep
from pullback.cpu.tile_blocks import in_blocks_back, steps_of
from pullback.cpu.tiles import (
    by_type,
    earlier,
    expect,
    first,
    inside,
    lanes_of,
    last,
    later,
    load,
    load_wide,
    long_rows,
    moved,
    spread,
    stack,
    store,
)
from pullback.cpu.vector import (
    any_lane,
    is_nan,
    lane,
    like,
    mask_bits,
    select,
)
from pullback.ops.scan.cpu_block_sums import (
    chosen,
    cleared,
    increased,
    joined,
    line_of,
    no_sum,
    rounded,
    spread_sum,
    total,
    totals_back,
)
from pullback.ops.scan.cpu_extremum import (
    BLOCK,
    LINES,
    first_extrema,
    first_wins,
    flipped,
    last_extrema,
    last_wins,
)
from pullback.ops.scan.cpu_extremum_halves import holds
from pullback.ops.scan.cpu_panels import AS_BEFORE, in_panels
from pullback.ops.scan.cpu_side_by_side import AHEAD, are_near, ask_ahead

CHUNK = 2048
SIDE = 1024  # lines of an item across
PITCH = SIDE + 32
CELLS, ROOM = SIDE // LINES, BLOCK * PITCH
FEW = 2  # lines of a tile across
LAST = OPTION + 1  # the word that says whether the last of equal elements takes over
# The records of a tile are the bits of one word: step r of line c is bit r * L + c.
ROWS = 32
WORDS_ALONG, WORDS_ACROSS = CHUNK // ROWS, CHUNK // BLOCK * CELLS


def _by_lines(along: int, across: int) -> Any:
    def number(L: Lane):
        value = along if L.literal_value == 1 else across
        return types.int64(L), lambda b, _: I64(value)

    return op(number)


rows_of = _by_lines(ROWS, BLOCK)
lanes_to_a_word = _by_lines(ROWS, LINES)
every_bit = _by_lines((1 << ROWS) - 1, -1)
first_step = _by_lines(1, (1 << LINES) - 1)
# Times this, step r of a line comes from bit 8r to bit GATHERED + r.
GATHER = sum(1 << 7 * r for r in range(1, BLOCK + 1))
GATHERED = 56
first_line = _by_lines((1 << ROWS) - 1, sum(1 << LINES * r for r in range(BLOCK)))


@op
def bits_later(bits: types.Integer, k: Lane, L: Lane):
    """Of a word of a block: step r <- step r + k."""
    by = I64(k.literal_value * L.literal_value)
    return types.int64(types.int64, k, L), lambda b, bits_, *_: b.lshr(bits_, by)


# Going back, a state is (carry, seen, held): the sum of the steps since the next record; the bits
# of the lines that had a record yet in this chunk; the sum that belongs to the last of them.


@inlined
def sums_to_records(g, records, state, L):
    """The sums of a block from each step up to the next record."""
    carry, seen, held = state
    stop = bits_later(records, 1, L)
    s = g + select(lanes_of(stop, g), -0.0, later(g, -0.0, 1, L))
    stop |= bits_later(stop, 1, L)
    s += select(lanes_of(stop, g), -0.0, later(s, -0.0, 2, L))
    stop |= bits_later(stop, 2, L)
    s += select(lanes_of(stop, g), -0.0, later(s, -0.0, 4, L))
    stop |= bits_later(stop, 4, L)
    own = first(s, L)
    s += select(lanes_of(stop, g), -0.0, spread(rounded(carry), s))
    if seen != first_step(L):
        sum_there = total(select(lanes_of(records & ~stop, s), s, -0.0), L)
        held = select(lanes_of(seen, held), held, sum_there)
        seen |= (records | stop) & first_step(L)
    none = cleared(carry)
    carry = increased(chosen(lanes_of(stop & first_step(L), own), none, carry), own)
    carry = chosen(lanes_of(records & first_step(L), own), none, carry)
    return select(lanes_of(records, s), one_nan(s), 0.0), (carry, seen, held)


@by_type
def mixed_tile(dx, dy, g, records, size, state, L):
    """A tile in which some steps are records."""
    return _mixed_along if L.literal_value == 1 else _mixed_across


def _mixed_along(dx, dy, g, records, size, state, L):
    s, (_, state) = in_blocks_back(_last_block, (g,), (records, state), BLOCK, L)
    store(dx, size, s, L)
    return state


@inlined
def _last_block(tiles, records_and_state, L):
    records, state = records_and_state
    here = (records >> (ROWS - BLOCK)) & ((1 << BLOCK) - 1)
    s, state = sums_to_records(tiles[0], here, state, L)
    return s, (records << BLOCK, state)


def _mixed_across(dx, dy, g, records, size, state, L):
    """Where records are few, their lines are taken one by one."""
    left = lines_with_bits(records)
    if number_of_bits(left) > FEW:
        s, state = sums_to_records(g, records, state, L)
        store(dx, size, s, L)
        return state
    store(dx, size, like(g, 0.0), L)
    before, seen, held = state
    carry = increased(before, total(g, L))
    while left != 0:
        k = lowest_bit(left)
        alone = (steps_of(size, BLOCK), 1)
        from_, to = moved((dy, dx), 0, k)
        g1 = load_wide(from_, alone, -0.0, BLOCK, 1)
        state1 = line_of(before, k), (seen >> k) & 1, line_of(held, k)
        s, (carry1, seen1, held1) = sums_to_records(g1, line_bits(records, k), state1, 1)
        store(to, alone, s, 1)
        line = lanes_of(1 << k, held)
        carry = chosen(line, spread_sum(carry1, carry), carry)
        held = select(line, spread(held1, held), held)
        seen |= seen1 << k
        left &= left - 1
    return carry, seen, held


@inlined
def lines_with_bits(records):
    records |= bits_later(records, 4, LINES)
    records |= bits_later(records, 2, LINES)
    records |= bits_later(records, 1, LINES)
    return records & first_step(LINES)


@op
def number_of_bits(bits: types.Integer):
    return types.int64(types.int64), lambda b, bits_: b.ctpop(bits_)


@op
def lowest_bit(bits: types.Integer):
    return types.int64(types.int64), lambda b, bits_: b.cttz(bits_, ir.IntType(1)(1))


@inlined
def line_bits(records, k):
    """The bits of one line: those at k, k + 8, … side by side."""
    return bits_later(((records >> k) & first_line(LINES)) * GATHER, GATHERED, 1)


@inlined
def gradient_tile(at, size, state, L):
    dx, dy, marks, x = at
    carry, seen, held = state
    expect(x, long_rows(dy[0], L), L)
    if are_near((dy,)):
        ask_ahead((dy,), -AHEAD, long_rows(dy[0], L), L)
    g = load_wide(dy, size, -0.0, long_rows(dy[0], L), L)
    records = marks[0][marks[1] // lanes_to_a_word(L)]
    if records == 0:
        store(dx, size, like(g, 0.0), L)
        return totals_back(total(g, L), carry, L), seen, held
    if records == every_bit(L):
        s = g + later(like(g, -0.0), spread(rounded(carry), g), 1, L)
        store(dx, size, one_nan(s) if any_lane(is_nan(s)) else s, L)
        held = select(lanes_of(seen, held), held, last(s, L))
        return cleared(carry), first_step(L), held
    return mixed_tile(dx, dy, g, records, size, state, L)


@inlined
def latest_record(words, pitch, line, steps, L):
    """The last record of a line in a chunk; there is one."""
    rows, bit = rows_of(L), line % L
    tile = (steps - 1) // rows
    at = tile * pitch + line // L
    while words[at] & (first_line(L) << bit) == 0:
        tile -= 1
        at -= pitch
    step = rows - 1
    while (words[at] >> (step * L + bit)) & 1 == 0:
        step -= 1
    return tile * rows + step


@inlined
def line_end(state, words, pitch, line, begin, steps, L):
    """What a chunk leaves of a line: the sum up to its first record, whether it has one, whether
    its first step is one, the place of the last and the sum that belongs to it."""
    head, seen, held = state
    bit = line % L
    new, first_too = (seen >> bit) & 1, (words[line // L] >> bit) & 1
    place = begin + latest_record(words, pitch, line, steps, L) if new == 1 else 0
    return line_of(head, bit), new, first_too, place, line_of(held, bit)


@inlined
def settled(dx, begin, steps, n, ends, place, total):
    """The record that holds the extremum after a chunk, and its sum; the one before is written
    when it is complete."""
    head, new, first_too, new_place, held = ends
    if begin > 0:
        # What came before this chunk's first record belongs to the one before it.
        total = joined(total, head)
        written = first_too == 1 and place >= begin - CHUNK
        if (new == 1 or begin + steps == n) and not written:
            write(dx[0], dx[1] + place * dx[2], lane(one_nan(rounded(total)), 0))
    if new == 1:
        return new_place, increased(cleared(total), held)
    return place, total


def records_of(extrema, wins, last_too):
    """(x, marks, sign, dy, _): the extremum after a tile, and the bits of its records. Meanwhile dy
    is asked for, and later what the next chunk begins with: no machine looks there by itself."""

    @inlined
    def record_tile(at, size, state, L):
        x, marks, sign, dy, _ = at
        best = state[0]
        expect(dy, long_rows(x[0], L), L)
        if holds(x, size, best, sign, last_too, long_rows(x[0], L), L):
            marks[0][marks[1] // lanes_to_a_word(L)] = 0
            return state
        if are_near((x,)):
            ask_ahead((x,), AHEAD, long_rows(x[0], L), L)
        v = flipped(load(x, size, 0.0, long_rows(x[0], L), L), sign)
        y, some, every = extrema(v, best, L)
        bits = 0
        if some:
            bits = mask_bits(inside(size, v, L))
            if not every:
                bits &= mask_bits(wins(v, earlier(y, spread(best, v), 1, L)))
        marks[0][marks[1] // lanes_to_a_word(L)] = bits
        return (last(y, L),)

    return record_tile


_first_records = records_of(first_extrema, first_wins, 0)
_last_records = records_of(last_extrema, last_wins, 1)


@inlined
def record_tile(at, size, state, L):
    """`at` ends with whether the last of equal elements takes over."""
    if at[4] != 0:
        return _last_records(at, size, state, L)
    return _first_records(at, size, state, L)


@inlined
def _backward(task, lo, hi, cells, side, pitch, room, entries, L):
    p, q, r = pointer(task, TENSORS), pointer(task, TENSORS + 1), pointer(task, TENSORS + 2)
    sign, last_too, n = word(task, OPTION), word(task, LAST), length(task)
    sample = load(cursor(task, r, 2, 0, L), (1, 1), 0.0, 1, L)
    nothing, none = filled_wide(p, -0.0, L), no_sum(p, L)
    bests, sums = stack((sample,), cells), stack((none, 0, nothing), cells)
    # The record that holds the extremum: its place, and the sum that belongs to it.
    places, totals = stack(0, side), stack(no_sum(p, 1), side)
    box, words = on_stack(p, room), stack(0, entries)
    # A single chunk leaves nothing to settle: no line must keep the sum of its last record.
    known = 0 if n > CHUNK else first_step(L)
    for item in range(lo, hi):
        line, lines = strip_of(task, item)
        dy, dx = cursor(task, p, 0, line, L), cursor(task, q, 1, line, L)
        x = cursor(task, r, 2, line, L)
        for c in range(0, lines, L):
            start = load(moved((x,), 0, c)[0], (1, min(lines - c, L)), 0.0, 1, L)
            bests[c // L] = (flipped(start, sign),)
        for begin in range(0, n, CHUNK):
            steps = min(CHUNK, n - begin)
            marks = words, 0, cells, False
            x_, dy_, dx_ = moved((x, dy, dx), begin, 0)
            at = x_, marks, sign, dy_, last_too
            sweep(record_tile, at, steps, lines, bests, long_rows(p, L), 0, 0, L)
            for c in range(0, lines, L):
                sums[c // L] = none, known, nothing
                if begin == 0:
                    words[c // L] |= mask_bits(inside((1, min(lines - c, L)), sample, L))
            rows, after = long_rows(p, L), moved((x_,), CHUNK, 0)[0]
            back = dy_, marks, after
            sweep_back(gradient_tile, dx_, box, pitch, back, steps, lines, sums, rows, L)
            for c in range(lines if n > CHUNK else 0):
                ends = line_end(sums[c // L], words, cells, c, begin, steps, L)
                to = moved((dx,), 0, c)[0]
                places[c], totals[c] = settled(to, begin, steps, n, ends, places[c], totals[c])
    fence()


_in_panels = in_panels(
    lambda task, lo, hi: _backward(task, lo, hi, CELLS, SIDE, PITCH, ROOM, WORDS_ACROSS, LINES),
    BLOCK,
    {0: -0.0, 2: AS_BEFORE},
)


@kernel
def extremum_backward_along(task, lo, hi):
    _backward(task, lo, hi, 1, 1, 0, 1, WORDS_ALONG, 1)


@kernel
def extremum_backward_across(task, lo, hi):
    _in_panels(task, lo, hi)
