"""Extrema of rows so narrow that several of them, one after the other in memory, make a vector.

Each of those has its own extremum and mark; in the end they are compared, and of equal ones that of
the row which comes first (or last) is taken: what a walk row by row finds.

Gain (narrow rows packed in a vector): segment_max sorted 1Mx5 bf16 2.37.
"""

from __future__ import annotations

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import word
from pullback.cpu.memory import (
    elements_in,
    filled,
    get,
    line_elements,
    prefetch_early,
    prefetch_written,
    put,
    put_first,
    scalar,
)
from pullback.cpu.tiles import stack
from pullback.cpu.vector import any_lane, is_nan, like, select
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_strip import load
from pullback.ops.segment.cpu_walk import NARROW, SLIM
from pullback.ops.segment.cpu_words import has_order

ROOM = NARROW + SLIM
ahead = elements_in(1 << 13)  # from a request for memory to its use


@inlined
def are_packed(task, columns, row_at, tensor):
    """Whether the rows of a tensor, their distance being in word `row_at`, are narrow and lie one
    after the other."""
    _, inner, outers, steps, _ = columns
    touching = outers == 1 and steps[tensor] == 1 and word(task, row_at) == inner
    listed = has_order(task) or word(task, at.MAPPING) != at.BY_POSITION
    return touching and 0 < inner <= SLIM and not listed


@inlined
def lineup(numbers, columns, packed):
    """How many rows make a vector, none if they are not packed; to which each lane belongs, for
    which there is room at `numbers`."""
    count = max(columns[1], 1)
    for k in range(NARROW):
        numbers[k] = float(k // count)
    return NARROW // count if packed else 0, numbers


@inlined
def _ask_ahead(ask, p, i):
    for line in range(0, NARROW, line_elements(p)):
        ask(p, i + ahead(p) + line)


@inlined
def packed_holder(task, saved, block, turn, count, sign, line):
    """The extremum of a block, and the number in the block of the first row that holds it, or of
    the last one; and whether there may be a NaN, which would not be found. The last step is as
    short as need be."""
    (group, numbers), rows, begin = line, block[3] - block[2], block[2] * count
    j, way = (max(rows - group, 0), -1) if turn else (0, 1)
    number, past = get(numbers, 0, 1, NARROW), word(task, at.ROWS) * count
    best = _vector(saved, begin + j * count, past, sign)
    mark, left, nans = number + like(number, j), rows - group, is_nan(best)
    while left > 0:
        j += way * min(group, left)
        left -= group
        _ask_ahead(prefetch_early, saved, begin + j * count)
        v = _vector(saved, begin + j * count, past, sign)
        better, nans = v > best, nans | is_nan(v)
        mark = select(better, number + like(number, j), mark)
        best = select(better, v, best)
    best, mark = _best_of_rows(saved, best, mark, min(group, rows), way, count)
    return best, mark, any_lane(nans)


@inlined
def _vector(p, i, past, sign):
    v = load(p, i, (0, 1, past - i, NARROW))
    return v * like(v, sign)


@inlined
def _best_of_rows(p, best, mark, group, way, count):
    bests, marks = stack(scalar(p, 0.0), ROOM), stack(scalar(p, 0.0), ROOM)
    put(bests, 0, 1, best, False)
    put(marks, 0, 1, mark, False)
    top, holder = get(bests, 0, 1, SLIM), get(marks, 0, 1, SLIM)
    for k in range(1, group):
        v, m = get(bests, k * count, 1, SLIM), get(marks, k * count, 1, SLIM)
        sooner = (m - holder) * like(m, way) < 0
        better = (v > top) | ((v == top) & sooner)
        top, holder = select(better, v, top), select(better, m, holder)
    return top, holder


@inlined
def _side_by_side(p, v, group, count):
    """The first lanes of v, over and over."""
    room = stack(scalar(p, 0.0), ROOM)
    for k in range(group):
        put(room, k * count, 1, v, False)
    return get(room, 0, 1, NARROW)


@inlined
def to_packed_holder(p, block, count, mark, g, line):
    """g to the row whose number is the mark, zeros to the others. What a vector writes beyond its
    rows the next one writes over."""
    (group, numbers), rows, begin = line, block[3] - block[2], block[2] * count
    number, zero = get(numbers, 0, 1, NARROW), filled(p, 0.0, NARROW)
    marks, shares = _side_by_side(p, mark, group, count), _side_by_side(p, g, group, count)
    j = 0
    while j + group < rows:
        _ask_ahead(prefetch_written, p, begin + j * count)
        out = select(number + like(number, j) == marks, shares, zero)
        put(p, begin + j * count, 1, out, False)
        j += group
    last = max(rows - group, 0)
    out = select(number + like(number, last) == marks, shares, zero)
    put_first(p, begin + last * count, 1, min(group, rows) * count, out)
