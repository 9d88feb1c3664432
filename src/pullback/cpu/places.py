"""Where the lines of a scan are: the words of its programs, and cursors made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.cpu.block import TENSORS
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import index_pointer, pointer, word, words
from pullback.cpu.loops import between, extent, offset, step
from pullback.cpu.scan_words import FIRST_WORD

# Words of a scan: lines that lie side by side, how many of them an item takes, whether outputs go
# past the caches, by how much every tensor walks the axis if that is 1 or -1, else 0; 0 or -1 for a
# reversed scan, where the links of `shared` begin; which words have the addresses of the initial
# value and of what is asked for at the end, 0 if there is none; which tensors of the layout these
# are; the sign bit where all elements of a scan that FLIPS are negated, else 0; whether it is
# exclusive; what an op decides at run time.
ROW, STRIP, STREAMS, STRAIGHT, REVERSED, LINKS = (FIRST_WORD + k for k in range(6))
INITIAL, FINAL, EDGES, SIGN, EXCLUSIVE, OPTION, AXIS = (FIRST_WORD + k for k in range(6, 13))


@inlined
def place_at(task, t, line):
    w = words(task, AXIS)
    return pointer(task, TENSORS + t), offset(w, t, line), step(w, t), between(w, t)


@inlined
def index_place(task, t, line):
    w = words(task, AXIS)
    return index_pointer(task, TENSORS + t), offset(w, t, line), step(w, t), between(w, t)


@inlined
def place_ahead(task, t, line):
    w = words(task, AXIS)
    return pointer(task, TENSORS + t), offset(w, t, line) + step(w, t), step(w, t), between(w, t)


@inlined
def place_turned(task, t, line):
    """Walked from the other end."""
    w = words(task, AXIS)
    last = max(extent(w) - 1, 0)
    p, first = pointer(task, TENSORS + t), offset(w, t, line) + last * step(w, t)
    return p, first, -step(w, t), between(w, t)


def cursors_of(places: list[tuple[Callable[..., Any], int]]) -> Callable[..., Any]:
    """(task, line) -> the cursors of these slots."""
    if not places:
        return inlined(lambda task, line: ())
    (place, t), *rest = places
    if not rest:
        return inlined(lambda task, line: (place(task, t, line),))
    others = cursors_of(rest)
    return inlined(lambda task, line: (place(task, t, line), *others(task, line)))


@inlined
def strip_at(task, item):
    """(first line of these columns, first column of the strip, columns)"""
    lines, strip = word(task, ROW), word(task, STRIP)
    strips = (lines + strip - 1) // strip
    block = item // strips
    return block * lines, (item - block * strips) * strip, lines


@inlined
def edge_of(task, which, line):
    """(pointer, index, pitch from line to line) of the initial value (0) or of the end (1)."""
    w = words(task, AXIS)
    t = word(task, EDGES) + which
    return pointer(task, word(task, INITIAL + which)), offset(w, t, line), between(w, t)
