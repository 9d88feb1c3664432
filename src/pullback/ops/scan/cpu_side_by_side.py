"""Tiles across the axis, line after line.

tiles_at(tile, cursors, k, next, n, lines, states, rows, L)
    tile(cursors, place, size, state, L) -> state at step k of all lines
"""

from llvmlite import ir
from numba import types

from pullback.cpu.emit import I8, I32, I64, Lane, inlined, llvm_call, op
from pullback.cpu.tiles import moved

CACHE_LINE = 64
SHORT = 512  # rows of so many lines end before the machine sees that they are walked
TO_SECOND_CACHE = 2


@op
def _ask_for(cursors: types.BaseTuple, number: types.Integer, rows: Lane, L: Lane):
    """Ask for memory of a later tile. Tiles that share cache lines ask for some rows each."""

    def emit(b, cursors_, number_, _rows, _L):
        for t, kind in enumerate(cursors):
            if not isinstance(kind, types.BaseTuple):
                continue
            p, i, step = (b.extract_value(cursors_, [t, k]) for k in range(3))
            sharing = max(1, CACHE_LINE * 8 // (kind[0].dtype.bitwidth * L.literal_value))
            own = -(-rows.literal_value // sharing)
            first = b.mul(b.urem(number_, I64(sharing)), I64(own))
            for row in range(own):
                there = b.add(i, b.mul(step, b.add(first, I64(row))))
                where = b.bitcast(b.gep(p, [there]), I8.as_pointer())
                hints = I32(0), I32(TO_SECOND_CACHE), I32(1)
                llvm_call(b, "prefetch", ir.VoidType(), [where, *hints], [where.type])

    return types.void(cursors, types.int64, rows, L), emit


@inlined
def tiles_at(tile, cursors, k, following, n, lines, states, rows, L):
    start = lines // L * L if k + rows <= n else 0
    for c in range(0, start, L):
        if lines <= SHORT:
            _ask_for(moved(cursors, following, c), c // L, rows, L)
        states[c // L] = tile(moved(cursors, k, c), (k, c), None, states[c // L], L)
    for c in range(start, lines, L):
        size = (n - k, min(lines - c, L))
        states[c // L] = tile(moved(cursors, k, c), (k, c), size, states[c // L], L)
