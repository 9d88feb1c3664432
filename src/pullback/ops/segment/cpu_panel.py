"""Blocks whose rows are written: into a tile first, and from there whole pieces of rows at once,
since half a cache line here and there costs more than everything else. Rows that lie one after
the other, and stay in the caches until all strips are written, need no tile.

Gain (narrow rows written in place): segment_prod backward sorted 1Mx5 f32 1.50.
"""

from __future__ import annotations

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import word
from pullback.cpu.memory import get, is_aligned, line_elements, put, put_first
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_list import list_rows
from pullback.ops.segment.cpu_strip import (
    MANY_LOOPS,
    fetch_strip,
    in_target,
    lanes,
    load,
    stream_line,
    streams_lines,
    tile_columns,
)
from pullback.ops.segment.cpu_walk import NARROW, SLIM, run_starts
from pullback.ops.segment.cpu_words import has_order

NO_LIMIT = 1 << 62
NOWHERE = -NO_LIMIT  # the limit of strips that write no lane they have not; offsets may be negative


@inlined
def are_in_order(task):
    """Whether the rows of a block lie in the target one after the other, to be kept in caches."""
    apart = word(task, at.POSITION_ROW)
    return apart != MANY_LOOPS and not has_order(task) and word(task, at.STREAMING) == 0


@inlined
def limit_of(columns, apart, block, column, panel, straight, forwards):
    """Up to where a strip may write more lanes than it has, from a column of a panel on: in a tile,
    where the row has room for them; in the target, where the next row comes next and is still to
    be written."""
    _, inner, outers, _, _ = columns
    if not straight:
        return NO_LIMIT if column + NARROW <= panel else NOWHERE
    covered = forwards and outers == 1 and inner <= NARROW and apart == inner
    return block[3] * apart if covered else NOWHERE


@inlined
def with_sheet(state, sheet, limit):
    """The state with what strips write to in place of the tile: memory, the distance of rows, and
    the limit."""
    return (state[0], state[1], (sheet[0], sheet[1], limit), *state[3:])


@inlined
def write_row(sheet, j, cols, v):
    """A strip of row j of the block."""
    (p, apart, limit), (base, _, count, n) = sheet, in_target(cols)
    here = j * apart + base
    if count >= n or here + n <= limit:
        put(p, here, 1, v, False)
    else:
        put_first(p, here, 1, count, v)


@inlined
def _over_panels(task, columns, wide, strip, state, block, forwards):
    w, inner, outers, steps, _ = columns
    places, target, tile = state[0], state[1], state[2]
    unit, panel = steps[0] == 1 and steps[2] == 1, tile_columns(target)
    rows = block[3] - block[2]
    straight = (forwards or inner <= NARROW) and steps[1] == 1 and are_in_order(task)
    sheet = (target, word(task, at.POSITION_ROW)) if straight else (tile, panel)
    if rows > 0 and not straight:
        list_rows(task, at.POSITION_ROW, block, places)
    for outer in range(outers):
        (i, j, k), column = run_starts(w, outer), outer * inner
        for begin in range(0, inner, panel):
            past, c, wrote = min(begin + panel, inner), begin, False
            left = block[2] * sheet[1] + j if straight else -begin
            known = with_sheet(state, sheet, NOWHERE)
            while unit and c + wide <= past:
                base = (i + c, left + c, k + c)
                wrote = strip(task, known, block, (base, (1, 1, 1), column + c, wide, wide))
                c += wide
            while c < past:
                base = (i + c * steps[0], left + c, k + c * steps[2])
                along, count = (steps[0], 1, steps[2]), min(past - c, NARROW)
                limit = limit_of(columns, sheet[1], block, c - begin, panel, straight, forwards)
                known = with_sheet(state, sheet, limit)
                if count <= SLIM:
                    wrote = strip(task, known, block, (base, along, column + c, count, SLIM))
                else:
                    cols = (base, along, column + c, count, NARROW)
                    wrote = strip(task, known, block, cols)
                c += NARROW
            if wrote and not straight:
                pour(task, target, places, rows, j + begin * steps[1], steps[1], tile, past - begin)


@inlined
def over_panels(task, columns, wide, strip, state, block):
    """All strips of a block. The state begins with a list for the rows of the target, the target
    and the tile; a strip is given a sheet in place of the tile and where it begins there as at[1],
    writes the rows in order, and returns whether it did."""
    _over_panels(task, columns, wide, strip, state, block, True)


@inlined
def over_saved_panels(task, columns, wide, strip, state, block):
    """The same where the saved input is read beside: its rows are listed next in the state."""
    if block[2] < block[3]:
        list_rows(task, at.SAVED_ROW, block, state[3])
    _over_panels(task, columns, wide, strip, state, block, True)


@inlined
def over_saved_panels_back(task, columns, wide, strip, state, block):
    """The same where a strip writes the last row first."""
    if block[2] < block[3]:
        list_rows(task, at.SAVED_ROW, block, state[3])
    _over_panels(task, columns, wide, strip, state, block, False)


@inlined
def pour(task, target, places, rows, base, along, tile, count):
    """A panel out of the tile: so many elements of each row, from `at` on in a row of the target.
    Rows at random go past the caches in whole lines only. Others are asked for before they are
    written: a line that is written in part must be read first."""
    scattered, streaming = has_order(task), word(task, at.STREAMING) == at.IN_ORDER
    for j in range(rows):
        where, here = places[j] + base, j * tile_columns(tile)
        if streams_lines(task, target, where, along, count):
            for c in range(0, count, line_elements(target)):
                stream_line(target, where + c, tile, here + c)
            continue
        if scattered:
            fetch_strip(target, places[j + at.FAR] + base, count)
        pour_row(target, where, along, tile, here, count, streaming)


@inlined
def pour_row(target, where, along, tile, here, count, streaming):
    wide, c = lanes(target), 0
    while along == 1 and c + wide <= count:
        v, there = get(tile, here + c, 1, wide), where + c
        put(target, there, 1, v, streaming and is_aligned(target, there, at.IN_ORDER))
        c += wide
    while c < count:
        left, there = min(count - c, NARROW), where + c * along
        v = load(tile, here + c, (0, 1, left, NARROW))
        if left == NARROW:
            put(target, there, along, v, streaming and is_aligned(target, there, at.IN_ORDER))
        else:
            put_first(target, there, along, left, v)
        c += NARROW
