"""Maxima and minima over sorted rows, and where their gradients go.

A minimum is the maximum of the negated rows, so everything is written for maxima: `sign` is 1 or
-1. LAST is FIRST with rows and blocks walked backwards. Each strip keeps its extremum and beside it
a mark: the row that holds it, or how many rows do (SPLIT).
"""

from __future__ import annotations

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, real, word
from pullback.cpu.memory import (
    as_i64_pointer,
    filled,
    filled_wide,
    get_first,
    on_stack,
    put_first,
)
from pullback.cpu.vector import is_nan, like, not_le, select, splat, to_f64
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_list import fetch_listed, over_positions
from pullback.ops.segment.cpu_packed import (
    are_packed,
    lineup,
    packed_holder,
    to_packed_holder,
)
from pullback.ops.segment.cpu_panel import are_in_order, over_saved_panels, write_row
from pullback.ops.segment.cpu_strip import (
    as_compute,
    as_wide,
    lanes,
    load,
    load_wide,
    store,
    sum_lanes,
    tile_elements,
)
from pullback.ops.segment.cpu_walk import (
    SLIM,
    columns_of,
    over_long_blocks,
    over_long_segments,
    over_segments,
)
from pullback.ops.segment.cpu_words import BLOCK, LISTED, floats

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
def signed_row(p, places, j, base, along, count, n, sign):
    v = load(p, places[j] + base, along, count, n)
    return v * like(v, sign)


@inlined
def put_part(task, part, column, count, v):
    partials = floats(task, at.PARTIALS_AT)
    put_first(partials, part * word(task, at.COLUMNS) + column, 1, count, to_f64(v))


@inlined
def keep_holder(task, slot, column, count, best, mark):
    put_part(task, PARTS * slot, column, count, best)
    put_part(task, PARTS * slot + 1, column, count, mark)


@inlined
def get_part(task, part, column, count, n):
    partials = floats(task, at.PARTIALS_AT)
    return get_first(partials, part * word(task, at.COLUMNS) + column, 1, count, splat(0.0, n))


# --- forward ------------------------------------------------------------------------------------


@inlined
def extremum_strip(task, state, block, base, along, column, count, n):
    places, source, target, sign, _ = state
    s, _, start, end, size, _, _ = block
    if size == 0:
        empty = filled_wide(target, real(task, at.EMPTY), n)
        store(task, target, s * word(task, at.SEGMENT_ROW) + base[1], along[1], count, n, empty)
        return
    best = signed_row(source, places, 0, base[0], along[0], count, n, sign)
    for j in range(end - start):
        fetch_listed(source, places, j, base[0], n)
        v = signed_row(source, places, j, base[0], along[0], count, n, sign)
        best = select(beats(v, best), v, best)
    keep_extremum(task, state, block, base, along, column, count, n, best)


@inlined
def keep_extremum(task, state, block, base, along, column, count, n, best):
    target, sign, s, slot = state[2], state[3], block[0], block[5]
    if slot < 0:
        where = s * word(task, at.SEGMENT_ROW) + base[1]
        store(task, target, where, along[1], count, n, best * like(best, sign))
    else:
        put_part(task, PARTS * slot, column, count, best)


@inlined
def over_reduced(task, columns, wide, strip, state, block):
    """All strips of a block; or several rows at a time."""
    _, source, _, sign, line = state
    if line[0] > 0 and block[2] < block[3]:
        count, steps = columns[1], columns[3]
        best, _, nans = packed_holder(task, source, block, False, count, sign, line)
        if not nans:
            keep_extremum(task, state, block, (0, 0, 0), steps, 0, count, SLIM, best)
            return
    over_positions(task, columns, wide, strip, state, block)


@kernel
def extrema(task, lo, hi):
    """Items are places of the walk over segments and their rows."""
    source, target = pointer(task, at.SOURCE), pointer(task, at.TARGET)
    columns = columns_of(task)
    line = lineup(source, columns, are_packed(task, columns, at.POSITION_ROW, 0))
    state = (on_stack(as_i64_pointer(0), LISTED), source, target, real(task, at.SIGN), line)
    over_segments(task, lo, hi, sum_lanes(source), extremum_strip, state, over_reduced)


@inlined
def combine_strip(task, target, block, base, along, column, count, n):
    s, slot, blocks, _ = block
    best = get_part(task, PARTS * slot, column, count, n)
    for k in range(slot + 1, slot + blocks):
        v = get_part(task, PARTS * k, column, count, n)
        best = select(beats(v, best), v, best)
    best = as_wide(target, best * like(best, real(task, at.SIGN)))
    store(task, target, s * word(task, at.SEGMENT_ROW) + base[1], along[1], count, n, best)


@kernel
def combine_extrema(task, lo, hi):
    """Long segments: the extremum of their blocks."""
    over_long_segments(task, lo, hi, combine_strip, pointer(task, at.TARGET))


# --- backward -----------------------------------------------------------------------------------


@inlined
def first_holder(saved, places, rows, turn, base, along, count, n, sign):
    """The extremum of a block, and the number in the block of the first row that holds it, or of
    the last if it is walked backwards."""
    begin, way = (rows - 1, -1) if turn else (0, 1)
    best = signed_row(saved, places, begin, base, along, count, n, sign)
    mark = like(best, begin)
    for j in range(rows):
        fetch_listed(saved, places, j, base, n)
        v = signed_row(saved, places, begin + way * j, base, along, count, n, sign)
        better = beats(v, best)
        mark = select(better, like(mark, begin + way * j), mark)
        best = select(better, v, best)
    return best, mark


@inlined
def all_holders(saved, places, rows, base, along, count, n, sign):
    """The extremum of a block, and how many rows hold it."""
    best = signed_row(saved, places, 0, base, along, count, n, sign)
    mark = like(best, 0.0)
    for j in range(rows):
        fetch_listed(saved, places, j, base, n)
        v = signed_row(saved, places, j, base, along, count, n, sign)
        more = select(equals(v, best), mark + like(mark, 1.0), mark)
        better = beats(v, best)
        mark = select(better, like(mark, 1.0), more)
        best = select(better, v, best)
    return best, mark


@inlined
def to_holder(task, state, block, mark, base, along, count, n):
    """The gradient to the row whose number is the mark, zeros to the others."""
    _, target, sheet, _, source, _, _, _, _ = state
    s, _, start, end, _, _, _ = block
    g = load(source, s * word(task, at.SEGMENT_ROW) + base[0], along[0], count, n)
    for j in range(end - start):
        out = select(mark == like(mark, j), g, filled(target, 0.0, n))
        write_row(sheet, j, base, count, n, out)


@inlined
def to_holders(task, state, block, best, mark, base, along, count, n):
    """An equal share of the gradient to each row that holds the extremum."""
    _, target, sheet, places, source, saved, sign, _, _ = state
    s, _, start, end, _, _, _ = block
    g = load_wide(source, s * word(task, at.SEGMENT_ROW) + base[0], along[0], count, n)
    share = g / as_wide(target, mark)
    for j in range(end - start):
        v = signed_row(saved, places, j, base[2], along[2], count, n, sign)
        out = select(equals(v, best), share, filled_wide(target, 0.0, n))
        write_row(sheet, j, base, count, n, out)


@inlined
def gradient_strip(task, state, block, base, along, column, count, n):
    """One strip of one block: the gradient to its rows, or the partial extremum."""
    _, _, _, places, _, saved, sign, ties, _ = state
    _, _, start, end, size, slot, _ = block
    if size == 0:
        return False
    if ties == ALL_HOLDERS:
        best, mark = all_holders(saved, places, end - start, base[2], along[2], count, n, sign)
        if slot < 0:
            to_holders(task, state, block, best, mark, base, along, count, n)
        else:
            keep_holder(task, slot, column, count, best, mark)
    else:
        best, mark = first_holder(
            saved, places, end - start, ties == LAST_HOLDER, base[2], along[2], count, n, sign
        )
        if slot < 0:
            to_holder(task, state, block, mark, base, along, count, n)
        else:
            keep_holder(task, slot, column, count, best, mark)
    return slot < 0


@inlined
def over_held(task, columns, wide, strip, state, block):
    """All strips of a block; or several rows at a time."""
    _, target, _, _, source, saved, sign, ties, line = state
    s, _, start, end, _, slot, _ = block
    if line[0] > 0 and start < end:
        count, turn = columns[1], ties == LAST_HOLDER
        best, mark, nans = packed_holder(task, saved, block, turn, count, sign, line)
        if not nans and slot < 0:
            g = load(source, s * word(task, at.SEGMENT_ROW), columns[3][0], count, SLIM)
            to_packed_holder(target, block, count, mark, g, line)
            return
        if not nans:
            keep_holder(task, slot, 0, count, best, mark)
            return
    over_saved_panels(task, columns, wide, strip, state, block)


@inlined
def gradient_state(task, places, tile, saved_places):
    columns = columns_of(task)
    packed = are_packed(task, columns, at.SAVED_ROW, 2) and are_in_order(task)
    packed = packed and are_packed(task, columns, at.POSITION_ROW, 1)
    packed = packed and word(task, at.TIES) != ALL_HOLDERS
    return (
        places,
        pointer(task, at.TARGET),
        tile,
        saved_places,
        pointer(task, at.SOURCE),
        pointer(task, at.SAVED),
        real(task, at.SIGN),
        word(task, at.TIES),
        lineup(pointer(task, at.SAVED), columns, packed),
    )


@kernel
def extremum_gradients(task, lo, hi):
    """Short segments whole, long ones to partial extrema. Items are places of the walk."""
    target, places = pointer(task, at.TARGET), on_stack(as_i64_pointer(0), LISTED)
    tile, saved_places = on_stack(target, tile_elements(target)), on_stack(places, LISTED)
    state = gradient_state(task, places, tile, saved_places)
    over_segments(task, lo, hi, lanes(target), gradient_strip, state, over_held)


@inlined
def combine_holders_strip(task, ties, block, base, along, column, count, n):
    _, slot, blocks, _ = block
    begin, way = (slot + blocks - 1, -1) if ties == LAST_HOLDER else (slot, 1)
    best = get_part(task, PARTS * begin, column, count, n)
    mark = get_part(task, PARTS * begin + 1, column, count, n)
    holder = like(mark, begin - slot)
    for j in range(1, blocks):
        k = begin + way * j
        v = get_part(task, PARTS * k, column, count, n)
        m = get_part(task, PARTS * k + 1, column, count, n)
        better = beats(v, best)
        if ties == ALL_HOLDERS:
            mark = select(equals(v, best), mark + m, mark)
        mark = select(better, m, mark)
        holder = select(better, like(holder, k - slot), holder)
        best = select(better, v, best)
    if ties != ALL_HOLDERS:
        mark = mark + holder * like(holder, BLOCK)
    keep_holder(task, slot, column, count, best, mark)


@kernel
def combine_holders(task, lo, hi):
    """Long segments: extremum and mark of all blocks, left in the place of the first."""
    over_long_segments(task, lo, hi, combine_holders_strip, word(task, at.TIES))


@inlined
def hand_out_strip(task, state, block, base, along, column, count, n):
    saved, ties = state[5], state[7]
    _, first, start, _, _, slot, _ = block
    # The segment's first block holds what is known of them all.
    part = PARTS * (slot - (start - first) // BLOCK)
    best = as_compute(saved, get_part(task, part, column, count, n))
    mark = get_part(task, part + 1, column, count, n)
    if ties == ALL_HOLDERS:
        to_holders(task, state, block, best, mark, base, along, count, n)
    else:
        mark = mark - like(mark, start - first)
        to_holder(task, state, block, as_compute(saved, mark), base, along, count, n)
    return True


@kernel
def hand_out_long(task, lo, hi):
    """Long segments: the gradient to their rows. Items are block numbers."""
    target, places = pointer(task, at.TARGET), on_stack(as_i64_pointer(0), LISTED)
    tile, saved_places = on_stack(target, tile_elements(target)), on_stack(places, LISTED)
    state = gradient_state(task, places, tile, saved_places)
    over_long_blocks(task, lo, hi, lanes(target), hand_out_strip, state, over_saved_panels)
