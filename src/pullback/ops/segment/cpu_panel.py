"""Blocks whose rows are written: into a tile first, and from there whole pieces of rows at once,
since half a cache line here and there costs more than everything else."""

from __future__ import annotations

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import word
from pullback.cpu.memory import get, is_aligned, put, put_first, to_next_line
from pullback.ops.segment.cpu_list import list_rows
from pullback.ops.segment.cpu_strip import (
    lanes,
    line_elements,
    load,
    piece_elements,
    prefetch_to_write,
    store,
    stream_line,
    streams_lines,
    tile_columns,
)
from pullback.ops.segment.cpu_walk import NARROW, run_starts
from pullback.ops.segment.cpu_words import (
    AT_RANDOM,
    FAR,
    POSITION_ROW,
    SAVED_ROW,
    STREAMING,
    has_order,
)


@inlined
def over_panels(task, columns, wide, strip, state, block):
    """All strips of a block. The state begins with a list for the rows of the target, the target
    and the tile; a strip is given its place in the tile as at[1], and returns whether it wrote."""
    w, inner, outers, steps, _ = columns
    places, target, tile = state[0], state[1], state[2]
    unit, panel = steps[0] == 1 and steps[2] == 1, tile_columns(target)
    rows = block[3] - block[2]
    if rows > 0:
        list_rows(task, POSITION_ROW, block, places)
    for outer in range(outers):
        (i, j, k), column = run_starts(w, outer), outer * inner
        for begin in range(0, inner, panel):
            past, c, wrote = min(begin + panel, inner), begin, False
            while unit and c + wide <= past:
                at = (i + c, c - begin, k + c)
                wrote = strip(task, state, block, at, (1, 1, 1), column + c, wide, wide)
                c += wide
            while c < past:
                at, count = (i + c * steps[0], c - begin, k + c * steps[2]), min(past - c, NARROW)
                along = (steps[0], 1, steps[2])
                wrote = strip(task, state, block, at, along, column + c, count, NARROW)
                c += NARROW
            if wrote:
                pour(task, target, places, rows, j + begin * steps[1], steps[1], tile, past - begin)


@inlined
def over_saved_panels(task, columns, wide, strip, state, block):
    """The same where the saved input is read beside: its rows are listed next in the state."""
    if block[2] < block[3]:
        list_rows(task, SAVED_ROW, block, state[3])
    over_panels(task, columns, wide, strip, state, block)


@inlined
def write_tile(tile, j, at, count, n, v):
    """A strip of row j of the block."""
    here = j * tile_columns(tile) + at[1]
    if count >= n:
        put(tile, here, 1, v, False)
    else:
        put_first(tile, here, 1, count, v)


@inlined
def pour(task, target, places, rows, at, along, tile, count):
    """A panel out of the tile: so many elements of each row, from `at` on in a row of the target.
    Rows at random are asked for before they are written, unless they are written in whole lines: a
    line that is not must be read first."""
    scattered, random = has_order(task), word(task, STREAMING) == AT_RANDOM and along == 1
    for j in range(rows):
        where, here, c = places[j] + at, j * tile_columns(tile), 0
        if streams_lines(task, target, where, along, count):
            for c in range(0, count, line_elements(target)):
                stream_line(target, where + c, tile, here + c)
            continue
        if scattered:
            soon = places[j + FAR] + at
            prefetch_to_write(target, soon)
            prefetch_to_write(target, soon + count - 1)
        if random and is_aligned(target, where, 16):
            c = pour_lines(target, where, tile, here, count)
        pour_rest(task, target, where, along, tile, here, c, count)


@inlined
def pour_lines(target, where, tile, here, count):
    """Whole lines of a row past the caches, what is left of the first and the last one piece by
    piece; returns how many elements that makes."""
    piece, line, c = piece_elements(target), line_elements(target), 0
    head = min(to_next_line(target, where), count)
    while c + piece <= head:
        put(target, where + c, 1, get(tile, here + c, 1, piece), False)
        c += piece
    while c + line <= count:
        stream_line(target, where + c, tile, here + c)
        c += line
    while c + piece <= count:
        put(target, where + c, 1, get(tile, here + c, 1, piece), False)
        c += piece
    return c


@inlined
def pour_rest(task, target, where, along, tile, here, c, count):
    wide = lanes(target)
    while along == 1 and c + wide <= count:
        v = load(tile, here + c, 1, wide, wide)
        store(task, target, where + c, 1, wide, wide, v)
        c += wide
    while c < count:
        left = min(count - c, NARROW)
        v = load(tile, here + c, 1, left, NARROW)
        store(task, target, where + c * along, along, left, NARROW, v)
        c += NARROW
