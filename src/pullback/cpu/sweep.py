"""Walking lines in tiles: along the axis in registers, or across several lines side by side.

Words of such a kernel, from LINES on: lines that lie side by side (1 along the axis), how many of
them an item takes, whether outputs outgrow the caches, an option of the family, then the words of
the axis walk.

An item is a strip of neighbouring lines; along the axis, a single line. A *state* goes from tile to
tile of a line: any tuple of Vec(L). Across, the states of a strip wait on the stack.
"""

from typing import Final

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import word, words
from pullback.cpu.loops import extent, offset, step
from pullback.cpu.memory import is_aligned
from pullback.cpu.scan_words import FIRST_WORD
from pullback.cpu.tiles import by_type, moved, turned_round

LINES: Final = FIRST_WORD
STRIP: Final = LINES + 1
STREAMS: Final = LINES + 2
OPTION: Final = LINES + 3
AXIS: Final = LINES + 5


@inlined
def strip_of(task, item):
    """The first line of an item, and how many it has."""
    lines, strip = word(task, LINES), word(task, STRIP)
    strips = (lines + strip - 1) // strip
    block = item // strips
    column = (item - block * strips) * strip
    return block * lines + column, min(strip, lines - column)


@inlined
def length(task):
    """Elements along the axis."""
    return extent(words(task, AXIS))


@inlined
def cursor(task, p, tensor, line, L):
    """Where a line of a tensor begins; streaming if asked for and if every tile is aligned."""
    w = words(task, AXIS)
    i, along = offset(w, tensor, line), step(w, tensor)
    return p, i, along, word(task, STREAMS) != 0 and _aligned(p, i, along, L)


@by_type
def _aligned(p, i, along, L):
    if L.literal_value == 1:
        return lambda p, i, along, L: is_aligned(p, i + 1 if along < 0 else i, 16)
    return lambda p, i, along, L: is_aligned(p, i, 16) and is_aligned(p, i + along, 16)


@inlined
def backwards(cursors, n):
    """The same cursors at the far end of n steps, walking back."""
    return turned_round(moved(cursors, n - 1, 0))


@by_type
def sweep(tile, cursors, n, lines, states, rows, lead, left, L):
    """tile(cursors, size, state, L) -> state, over n steps of `lines` lines.

    The first `lead` steps are a part of their own: then the borders of tiles lie elsewhere. The
    last `left` steps always belong to a part: a tile that looks one step ahead stays inside.
    """
    return _along if L.literal_value == 1 else _across


def _along(tile, cursors, n, lines, states, rows, lead, left, L):
    state = states[0]
    k, end = 0, lead
    for part in range(2):
        if k < end:
            state = tile(moved(cursors, k, 0), (end - k, lines), state, L)
        if part == 0:
            k = lead + max(n - lead - left, 0) // rows * rows
            end = n
            for i in range(lead, k, rows):
                state = tile(moved(cursors, i, 0), None, state, L)
    states[0] = state


def _across(tile, cursors, n, lines, states, rows, lead, left, L):
    full = lines // L * L
    k = 0
    while k < n:
        whole = k >= lead and k + rows + left <= n
        start = full if whole else 0
        if whole:
            for c in range(0, full, L):
                states[c // L] = tile(moved(cursors, k, c), None, states[c // L], L)
        end = lead if k < lead else n
        for c in range(start, lines, L):
            size = (end - k, min(lines - c, L))
            states[c // L] = tile(moved(cursors, k, c), size, states[c // L], L)
        k = lead if k < lead else k + rows
