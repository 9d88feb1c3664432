"""Maxima and minima over listed rows, which rows hold them, and where their gradients go.

A minimum is the maximum of the negated rows, so everything is written for maxima: `sign` is 1 or
-1. LAST is FIRST with rows and blocks walked backwards. Each strip keeps its extremum and beside it
a mark: the number of the row that holds it, or how many rows do (SPLIT); -1 where there is no row.
Partial results have the number in the segment, not in the block.
"""

from __future__ import annotations

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import index_pointer, real, word
from pullback.cpu.memory import filled, filled_wide, get, put
from pullback.cpu.vector import is_nan, lane_at, like, not_le, select, splat, to_f64
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_engine import (
    first_slot,
    get_part,
    put_parts,
    reduction,
    spread,
    write_empty,
    write_segment,
)
from pullback.ops.segment.cpu_index import id_by_step, single_step
from pullback.ops.segment.cpu_list import fetch_listed, over_listed
from pullback.ops.segment.cpu_packed import are_packed, lineup, packed_holder, to_packed_holder
from pullback.ops.segment.cpu_panel import are_in_order, over_saved_panels, write_row
from pullback.ops.segment.cpu_strip import (
    as_compute,
    as_wide,
    in_saved,
    in_source,
    lanes,
    load,
    load_wide,
    sum_lanes,
)
from pullback.ops.segment.cpu_walk import SLIM, columns_of
from pullback.ops.segment.cpu_words import has_order, offsets_of, order_of, table

PARTS = 2  # the extremum and its mark
FIRST_HOLDER, LAST_HOLDER, ALL_HOLDERS = 0, 1, 2


@inlined
def beats(v, best):
    """Where v is greater than the best so far; NaN is greatest, and NaNs are equal."""
    return not_le(v, best) & (best == best)


@inlined
def equals(v, best):
    return (v == best) | (is_nan(v) & is_nan(best))


@inlined
def signed_row(p, place, view, sign):
    v = load(p, place, view)
    return v * like(v, sign)


# --- values ---------------------------------------------------------------------------------------


@inlined
def _largest(task, state, block, cols):
    source, (places, _), _, _, sign, _ = state
    view = in_source(cols)
    best = signed_row(source, places[0], view, sign)
    for j in range(block[7]):
        fetch_listed(source, places, j, view)
        v = signed_row(source, places[j], view, sign)
        best = select(beats(v, best), v, best)
    return (best,)


@inlined
def _write(task, state, block, cols, found):
    write_segment(task, state[2], block[0], cols, found[0] * like(found[0], state[4]))


@inlined
def _over_reduced(task, columns, wide, strip, state, block):
    """All strips of a block; or several rows at a time."""
    source, sign, line = state[0], state[4], state[5]
    if line[0] > 0 and block[2] < block[3]:
        cols = ((0, 0, 0), columns[3], 0, columns[1], SLIM)
        best, _, nans = packed_holder(task, source, block, False, columns[1], sign, line)
        if not nans and block[5] < 0:
            _write(task, state, block, cols, (best,))
            return
        if not nans:
            put_parts(task, PARTS * block[5], cols, (best,))
            return
    over_listed(task, columns, wide, strip, state, block)


@inlined
def _own_line(task, p, kept):
    columns = columns_of(task)
    line = lineup(kept, columns, are_packed(task, columns, at.POSITION_ROW, 0))
    return real(task, at.SIGN), line


@inlined
def _join(task, target, block, cols):
    s, slot, blocks, _ = block
    best = get_part(task, PARTS * slot, cols)
    for k in range(slot + 1, slot + blocks):
        v = get_part(task, PARTS * k, cols)
        best = select(beats(v, best), v, best)
    v = as_wide(target, best * like(best, real(task, at.SIGN)))
    write_segment(task, target, s, cols, v)


EXTREMA = reduction(
    __name__,
    ("extrema", "combine_extrema"),
    total=_largest,
    write=_write,
    parts=inlined(lambda p, found: found),
    join=_join,
    many=PARTS,
    own=_own_line,
    wide=sum_lanes,
    over=_over_reduced,
)

# --- who holds them -------------------------------------------------------------------------------


@inlined
def first_holder(p, places, rows, turn, view, sign):
    """The extremum of a block, and the number in its list of the first row that holds it, or of
    the last if it is walked backwards."""
    begin, way = (rows - 1, -1) if turn else (0, 1)
    best = signed_row(p, places[begin], view, sign)
    mark = like(best, begin)
    for j in range(rows):
        fetch_listed(p, places, j, view)
        v = signed_row(p, places[begin + way * j], view, sign)
        better = beats(v, best)
        mark = select(better, like(mark, begin + way * j), mark)
        best = select(better, v, best)
    return best, mark


@inlined
def all_holders(p, places, rows, view, sign):
    """The extremum of a block, and how many rows hold it."""
    best = signed_row(p, places[0], view, sign)
    mark = like(best, 0.0)
    for j in range(rows):
        fetch_listed(p, places, j, view)
        v = signed_row(p, places[j], view, sign)
        more = select(equals(v, best), mark + like(mark, 1.0), mark)
        better = beats(v, best)
        mark = select(better, like(mark, 1.0), more)
        best = select(better, v, best)
    return best, to_f64(mark)


@inlined
def _numbered(task, numbers, kept, mark, n):
    """The number in the block, where rows that are not kept are not listed."""
    if word(task, at.SCALING) == at.NUMBERED:
        put(kept, 0, 1, mark, False)
        for k in range(n):
            kept[k] = numbers[int(kept[k])]
        mark = get(kept, 0, 1, n)
    return mark


@inlined
def held(task, state, block, cols):
    """The extremum of the listed rows, and the number in the segment of the row that holds it."""
    p, (places, numbers), _, kept, sign, ties = state
    best = filled(p, 0.0, cols[4])
    mark = like(to_f64(best), -1.0)
    if block[7] > 0:
        turn = ties == LAST_HOLDER
        best, number = first_holder(p, places, block[7], turn, in_source(cols), sign)
        number = to_f64(_numbered(task, numbers, kept, number, cols[4]))
        mark = number + like(mark, block[2] - block[1])
    return best, mark


@inlined
def put_winners(task, s, cols, mark):
    """The positions that hold the extrema of a segment; or what the ids of bags are there."""
    if word(task, at.WINNERS_AT) == at.NOWHERE:
        return
    winners = table(task, at.WINNERS_AT, word(task, at.WINNERS_SLOT))
    ids, order, first = index_pointer(task, at.IDS), order_of(task), offsets_of(task)[s]
    where, step, indirect = s * word(task, at.WINNERS_ROW), single_step(task), has_order(task)
    for k in range(cols[3]):
        number, found = int(lane_at(mark, k)), -1
        if number >= 0:
            found = order[first + number] if indirect else first + number
            if word(task, at.NAMED):
                found = id_by_step(task, ids, found, step)
        winners[where + cols[0][2] + k * cols[1][2]] = found


@inlined
def _put_held(task, target, s, cols, best, mark):
    v = best * like(best, real(task, at.SIGN))
    v = select(mark < 0, like(v, real(task, at.EMPTY)), v)
    write_segment(task, target, s, cols, v)
    put_winners(task, s, cols, mark)


@inlined
def _write_held(task, state, block, cols, found):
    _put_held(task, state[2], block[0], cols, found[0], found[1])


@inlined
def _none_held(task, state, block, cols):
    write_empty(task, state, block, cols)
    put_winners(task, block[0], cols, splat(-1.0, cols[4]))


@inlined
def held_parts(p, found):
    return to_f64(found[0]), found[1]


@inlined
def joined_holders(task, block, cols):
    """The extremum of the blocks of a long segment, and its mark."""
    _, slot, blocks, _ = block
    ties = word(task, at.TIES)
    begin, way = (slot + blocks - 1, -1) if ties == LAST_HOLDER else (slot, 1)
    best, mark = get_part(task, PARTS * begin, cols), get_part(task, PARTS * begin + 1, cols)
    for j in range(1, blocks):
        k = PARTS * (begin + way * j)
        v, m = get_part(task, k, cols), get_part(task, k + 1, cols)
        better = (m >= 0) & ((mark < 0) | beats(v, best))
        if ties == ALL_HOLDERS:
            mark = select((m >= 0) & equals(v, best), mark + m, mark)
        mark = select(better, m, mark)
        best = select(better, v, best)
    return best, mark


@inlined
def _join_held(task, target, block, cols):
    best, mark = joined_holders(task, block, cols)
    _put_held(task, target, block[0], cols, as_compute(target, best), mark)


@inlined
def own_ties(task, p, kept):
    return real(task, at.SIGN), word(task, at.TIES)


# Extrema, and which positions hold them, or which rows of a table.
HELD = reduction(
    __name__,
    ("held_extrema", "combine_held"),
    total=held,
    write=_write_held,
    parts=held_parts,
    join=_join_held,
    many=PARTS,
    empty=_none_held,
    own=own_ties,
    over=over_listed,
)

# --- gradients ------------------------------------------------------------------------------------


@inlined
def _holders(task, state, block, cols):
    listed, saved, sign, ties = state[3], state[5], state[8], state[9]
    rows, view = block[3] - block[2], in_saved(cols)
    if ties == ALL_HOLDERS:
        return all_holders(saved, listed, rows, view, sign)
    best, mark = first_holder(saved, listed, rows, ties == LAST_HOLDER, view, sign)
    return best, to_f64(mark) + like(to_f64(mark), block[2] - block[1])


@inlined
def _write_gradient(task, state, block, cols, whole):
    """The gradient to the row whose number is the mark, or an equal share of it to each row that
    holds the extremum; zeros to the others."""
    _, target, sheet, listed, source, saved, _, _, sign, ties, _ = state
    best, mark = whole
    rows, here = block[3] - block[2], block[0] * word(task, at.SEGMENT_ROW)
    if ties == ALL_HOLDERS:
        share = load_wide(source, here, in_source(cols)) / as_wide(target, mark)
        for j in range(rows):
            v = signed_row(saved, listed[j], in_saved(cols), sign)
            out = select(equals(v, best), share, filled_wide(target, 0.0, cols[4]))
            write_row(sheet, j, cols, out)
    else:
        g = load(source, here, in_source(cols))
        for j in range(rows):
            out = select(mark == like(mark, j), g, filled(target, 0.0, cols[4]))
            write_row(sheet, j, cols, out)


@inlined
def _over_held(task, columns, wide, strip, state, block):
    """All strips of a block; or several rows at a time."""
    _, target, _, _, source, saved, _, _, sign, ties, line = state
    s, first, start, end, _, slot, _ = block
    if line[0] > 0 and start < end:
        count, turn = columns[1], ties == LAST_HOLDER
        cols = ((0, 0, 0), columns[3], 0, count, SLIM)
        best, mark, nans = packed_holder(task, saved, block, turn, count, sign, line)
        if not nans and slot < 0:
            g = load(source, s * word(task, at.SEGMENT_ROW), in_source(cols))
            to_packed_holder(target, block, count, mark, g, line)
            return
        if not nans:
            marks = to_f64(mark)
            marks = marks + like(marks, start - first)
            put_parts(task, PARTS * slot, cols, (to_f64(best), marks))
            return
    over_saved_panels(task, columns, wide, strip, state, block)


@inlined
def _own_gradient(task, p, kept):
    columns, ties = columns_of(task), word(task, at.TIES)
    packed = are_packed(task, columns, at.SAVED_ROW, 2) and are_in_order(task)
    packed = packed and are_packed(task, columns, at.POSITION_ROW, 1)
    line = lineup(kept, columns, packed and ties != ALL_HOLDERS)
    return real(task, at.SIGN), ties, line


@inlined
def _join_holders(task, target, block, cols):
    put_parts(task, PARTS * block[1], cols, joined_holders(task, block, cols))


@inlined
def _again(task, state, block, cols):
    saved, part = state[5], PARTS * first_slot(block)
    best, mark = as_compute(saved, get_part(task, part, cols)), get_part(task, part + 1, cols)
    if state[9] != ALL_HOLDERS:
        mark = mark - like(mark, block[2] - block[1])
    return best, as_compute(saved, mark)


GRADIENTS = spread(
    __name__,
    ("extremum_gradients", "combine_holders", "hand_out_long"),
    total=_holders,
    whole=inlined(lambda p, found: (found[0], as_compute(p, found[1]))),
    write=_write_gradient,
    parts=held_parts,
    join=_join_holders,
    again=_again,
    many=PARTS,
    own=_own_gradient,
    wide=lanes,
    over=_over_held,
)
