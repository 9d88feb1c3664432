"""Rows on their way out: what tiles across write waits on the stack until whole rows are there.

A tile across has a few bytes for each of several rows, and rows a power of two apart meet in the
same set of the cache: written in place, lines are fetched and thrown out again piece by piece. From
the stack they leave as whole lines, past the caches if the output outgrows them.

    sweep_back(tile, out, box, pitch, cursors, n, lines, states, rows, L)
        tile((out, *cursors), size, state, L) -> state over the tiles of `sweep`, last one first.
        Across, `box` has room for the rows of a tile, `pitch` elements each, of out's kind; along,
        tiles write to `out` itself
"""

from numba import types

from pullback.cpu.emit import I64, inlined, op
from pullback.cpu.memory import address, as_f32_pointer, get, put
from pullback.cpu.tiles import Pointer, by_type, moved

LINE = 16  # of f32: 64 bytes


@op
def element_bytes(p: Pointer):
    return types.int64(p), lambda b, _p: I64(p.dtype.bitwidth // 8)


@inlined
def move_row(box, i, out, j, n, streaming):
    """n elements of a row, as they are."""
    size = element_bytes(box)
    source = as_f32_pointer(address(box) + i * size)
    target = as_f32_pointer(address(out) + j * size)
    lines = n * size // (4 * LINE)
    for k in range(0, lines * LINE, LINE):
        put(target, k, 1, get(source, k, 1, LINE), streaming)
    for k in range(lines * (4 * LINE) // size, n):
        out[j + k] = box[i + k]


@by_type
def sweep_back(tile, out, box, pitch, cursors, n, lines, states, rows, L):
    return _along if L.literal_value == 1 else _across


def _along(tile, out, box, pitch, cursors, n, lines, states, rows, L):
    state = states[0]
    whole = n // rows * rows
    at = moved((out,), 0, 0) + cursors
    if whole < n:
        state = tile(moved(at, whole, 0), (n - whole, lines), state, L)
    for k in range(whole - rows, -1, -rows):
        state = tile(moved(at, k, 0), None, state, L)
    states[0] = state


def _across(tile, out, box, pitch, cursors, n, lines, states, rows, L):
    p, origin, step, streaming = out
    full = lines // L * L
    for k in range((n - 1) // rows * rows, -1, -rows):
        start = full if k + rows <= n else 0
        for c in range(0, start, L):
            at = _boxed(box, pitch, cursors, k, c)
            states[c // L] = tile(at, None, states[c // L], L)
        for c in range(start, lines, L):
            at = _boxed(box, pitch, cursors, k, c)
            states[c // L] = tile(at, (n - k, min(lines - c, L)), states[c // L], L)
        for row in range(min(rows, n - k)):
            move_row(box, row * pitch, p, origin + (k + row) * step, lines, streaming)


@inlined
def _boxed(box, pitch, cursors, k, c):
    return moved(((box, c, pitch, False),), 0, 0) + moved(cursors, k, c)
