"""Tiles across the axis, line after line.

tiles_at(tile, cursors, k, following, n, lines, states, rows, L)
    tile(cursors, place, size, state, L) -> state at step k of all lines; `following`: the next step
rows_at(tile, cursors, box, pitch, k, n, lines, states, rows, L)
    the same for a walk forwards whose second cursor is that of the output: if it goes past the
    caches, it waits in the box until whole rows are there (see cpu/staging)
are_near(cursors)
    whether it helps to ask for memory: rows that are near each other end before the machine sees
    that they are walked
ask_ahead(cursors, tiles, rows, L)
    ask for that of so many tiles further on, or further back
"""

from llvmlite import ir
from numba import types

from pullback.cpu.emit import I64, Lane, inlined, op
from pullback.cpu.tiles import moved
from pullback.cpu.transfer import asked_for

CACHE_LINE = 64
NEAR = 4096  # bytes
AHEAD = 2  # tiles between a request for memory and its use


@op
def are_near(cursors: types.BaseTuple):
    """Whether the rows of all tensors are."""

    def emit(b, cursors_):
        near = ir.IntType(1)(1)
        for t, kind in enumerate(cursors):
            if isinstance(kind, types.BaseTuple):
                reach = NEAR * 8 // kind[0].dtype.bitwidth
                step = b.add(b.extract_value(cursors_, [t, 2]), I64(reach))
                near = b.and_(near, b.icmp_unsigned("<", step, I64(2 * reach)))
        return near

    return types.boolean(cursors), emit


@op
def ask_ahead(cursors: types.BaseTuple, tiles: types.Integer, rows: Lane, L: Lane):
    """Tiles that share cache lines ask for some rows each."""
    width = L.literal_value

    def emit(b, cursors_, tiles_, _rows, _L):
        for t, kind in enumerate(cursors):
            if width == 1 or not isinstance(kind, types.BaseTuple):
                continue
            p, i, step = (b.extract_value(cursors_, [t, k]) for k in range(3))
            sharing = max(1, CACHE_LINE * 8 // (kind[0].dtype.bitwidth * width))
            own = -(-rows.literal_value // sharing)
            number = b.urem(b.udiv(i, I64(width)), I64(sharing))
            first = b.add(b.mul(number, I64(own)), b.mul(tiles_, I64(rows.literal_value)))
            for row in range(own):
                asked_for(b, p, b.add(i, b.mul(step, b.add(first, I64(row)))), early=True)

    return types.void(cursors, types.int64, rows, L), emit


@inlined
def tiles_at(tile, cursors, k, following, n, lines, states, rows, L):
    ahead = AHEAD if following > k else -AHEAD
    _tiles(tile, cursors, cursors, k, ahead, n, lines, states, rows, L)


@inlined
def _tiles(tile, cursors, asked, k, ahead, n, lines, states, rows, L):
    start = lines // L * L if k + rows <= n else 0
    near = are_near(asked)
    for c in range(0, start, L):
        if near:
            ask_ahead(moved(asked, k, c), ahead, rows, L)
        states[c // L] = tile(moved(cursors, k, c), (k, c), None, states[c // L], L)
    for c in range(start, lines, L):
        size = (n - k, min(lines - c, L))
        states[c // L] = tile(moved(cursors, k, c), (k, c), size, states[c // L], L)
