"""Maxima and minima over sorted rows, and where their gradients go.

A minimum is the maximum of the negated rows, so everything is written for maxima: `sign` is 1 or
-1. LAST is FIRST with rows and blocks walked backwards. Each strip keeps its extremum and beside it
a mark: the row that holds it, or how many rows do (SPLIT).
"""

from __future__ import annotations

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, real, word
from pullback.cpu.memory import as_f64_pointer, filled, filled_wide, get_first, on_stack, put_first
from pullback.cpu.vector import is_nan, like, not_le, select, splat, to_f64
from pullback.ops.segment.cpu_strip import (
    as_compute,
    as_wide,
    fetch_ahead,
    lanes,
    load,
    load_wide,
    row_at,
    rows_of,
    store,
    tile_elements,
)
from pullback.ops.segment.cpu_walk import (
    over_columns,
    over_long_blocks,
    over_long_segments,
    over_panels,
    over_segments,
    write_tile,
)
from pullback.ops.segment.cpu_words import (
    BLOCK,
    COLUMNS,
    EMPTY,
    PARTIALS_AT,
    POSITION_ROW,
    SAVED,
    SAVED_ROW,
    SEGMENT_ROW,
    SIGN,
    SOURCE,
    TARGET,
    TIES,
    scratch,
)

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
def signed_row(task, p, rows, i, at, along, count, n, sign):
    v = load(p, row_at(task, rows, i) + at, along, count, n)
    return v * like(v, sign)


@inlined
def put_part(task, part, column, count, v):
    partials = as_f64_pointer(scratch(task, PARTIALS_AT))
    put_first(partials, part * word(task, COLUMNS) + column, 1, count, to_f64(v))


@inlined
def get_part(task, part, column, count, n):
    partials = as_f64_pointer(scratch(task, PARTIALS_AT))
    return get_first(partials, part * word(task, COLUMNS) + column, 1, count, splat(0.0, n))


# --- forward ------------------------------------------------------------------------------------


@inlined
def extremum_strip(task, state, block, at, along, column, count, n):
    source, target, rows, sign = state
    s, _, start, end, size, slot, last = block
    where = s * word(task, SEGMENT_ROW) + at[1]
    if size == 0:
        empty = filled_wide(target, real(task, EMPTY), n)
        store(task, target, where, along[1], count, n, empty)
        return
    best = signed_row(task, source, rows, start, at[0], along[0], count, n, sign)
    for i in range(start + 1, end):
        fetch_ahead(task, rows, source, i, at[0], last, n)
        v = signed_row(task, source, rows, i, at[0], along[0], count, n, sign)
        best = select(beats(v, best), v, best)
    if slot < 0:
        store(task, target, where, along[1], count, n, best * like(best, sign))
    else:
        put_part(task, PARTS * slot, column, count, best)


@kernel
def extrema(task, lo, hi):
    """Items are places of the walk over segments and their rows."""
    source, target = pointer(task, SOURCE), pointer(task, TARGET)
    state = (source, target, rows_of(task, POSITION_ROW), real(task, SIGN))
    over_segments(task, lo, hi, lanes(source), extremum_strip, state, over_columns)


@inlined
def combine_strip(task, target, block, at, along, column, count, n):
    s, slot, blocks, _ = block
    best = get_part(task, PARTS * slot, column, count, n)
    for k in range(slot + 1, slot + blocks):
        v = get_part(task, PARTS * k, column, count, n)
        best = select(beats(v, best), v, best)
    best = as_wide(target, best * like(best, real(task, SIGN)))
    store(task, target, s * word(task, SEGMENT_ROW) + at[1], along[1], count, n, best)


@kernel
def combine_extrema(task, lo, hi):
    """Long segments: the extremum of their blocks."""
    over_long_segments(task, lo, hi, combine_strip, pointer(task, TARGET))


# --- backward -----------------------------------------------------------------------------------


@inlined
def first_holder(task, saved, rows, block, turn, at, along, count, n, sign):
    """The extremum of a block, and the number in the block of the first row that holds it, or of
    the last if it is walked backwards."""
    _, _, start, end, _, _, last = block
    begin, way = (end - 1, -1) if turn else (start, 1)
    best = signed_row(task, saved, rows, begin, at, along, count, n, sign)
    mark = like(best, begin - start)
    for j in range(1, end - start):
        i = begin + way * j
        fetch_ahead(task, rows, saved, start + j, at, last, n)
        v = signed_row(task, saved, rows, i, at, along, count, n, sign)
        better = beats(v, best)
        mark = select(better, like(mark, i - start), mark)
        best = select(better, v, best)
    return best, mark


@inlined
def all_holders(task, saved, rows, block, at, along, count, n, sign):
    """The extremum of a block, and how many rows hold it."""
    _, _, start, end, _, _, last = block
    best = signed_row(task, saved, rows, start, at, along, count, n, sign)
    mark = like(best, 1.0)
    for i in range(start + 1, end):
        fetch_ahead(task, rows, saved, i, at, last, n)
        v = signed_row(task, saved, rows, i, at, along, count, n, sign)
        more = select(equals(v, best), mark + like(mark, 1.0), mark)
        better = beats(v, best)
        mark = select(better, like(mark, 1.0), more)
        best = select(better, v, best)
    return best, mark


@inlined
def to_holder(task, state, block, mark, at, along, count, n):
    """The gradient to the row whose number is the mark, zeros to the others."""
    target, _, buffer, source, _, _, _, _ = state
    s, _, start, end, _, _, _ = block
    g = load(source, s * word(task, SEGMENT_ROW) + at[0], along[0], count, n)
    for j in range(end - start):
        out = select(mark == like(mark, j), g, filled(target, 0.0, n))
        write_tile(buffer, j, at, count, n, out)


@inlined
def to_holders(task, state, block, best, mark, at, along, count, n):
    """An equal share of the gradient to each row that holds the extremum."""
    target, _, buffer, source, saved, saved_rows, sign, _ = state
    s, _, start, end, _, _, _ = block
    g = load_wide(source, s * word(task, SEGMENT_ROW) + at[0], along[0], count, n)
    share = g / as_wide(target, mark)
    for i in range(start, end):
        v = signed_row(task, saved, saved_rows, i, at[2], along[2], count, n, sign)
        out = select(equals(v, best), share, filled_wide(target, 0.0, n))
        write_tile(buffer, i - start, at, count, n, out)


@inlined
def gradient_strip(task, state, block, at, along, column, count, n):
    """One strip of one block: the gradient to its rows, or the partial extremum."""
    _, _, _, _, saved, saved_rows, sign, ties = state
    _, _, _, _, size, slot, _ = block
    if size == 0:
        return False
    if ties == ALL_HOLDERS:
        best, mark = all_holders(task, saved, saved_rows, block, at[2], along[2], count, n, sign)
        if slot < 0:
            to_holders(task, state, block, best, mark, at, along, count, n)
        else:
            put_part(task, PARTS * slot, column, count, best)
            put_part(task, PARTS * slot + 1, column, count, mark)
    else:
        best, mark = first_holder(
            task, saved, saved_rows, block, ties == LAST_HOLDER, at[2], along[2], count, n, sign
        )
        if slot < 0:
            to_holder(task, state, block, mark, at, along, count, n)
        else:
            put_part(task, PARTS * slot, column, count, best)
            put_part(task, PARTS * slot + 1, column, count, mark)
    return slot < 0


@inlined
def gradient_state(task, buffer):
    return (
        pointer(task, TARGET),
        rows_of(task, POSITION_ROW),
        buffer,
        pointer(task, SOURCE),
        pointer(task, SAVED),
        rows_of(task, SAVED_ROW),
        real(task, SIGN),
        word(task, TIES),
    )


@kernel
def extremum_gradients(task, lo, hi):
    """Short segments whole, long ones to partial extrema. Items are places of the walk."""
    target = pointer(task, TARGET)
    state = gradient_state(task, on_stack(target, tile_elements(target)))
    over_segments(task, lo, hi, lanes(state[0]), gradient_strip, state, over_panels)


@inlined
def combine_holders_strip(task, ties, block, at, along, column, count, n):
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
    put_part(task, PARTS * slot, column, count, best)
    put_part(task, PARTS * slot + 1, column, count, mark)


@kernel
def combine_holders(task, lo, hi):
    """Long segments: extremum and mark of all blocks, left in the place of the first."""
    over_long_segments(task, lo, hi, combine_holders_strip, word(task, TIES))


@inlined
def hand_out_strip(task, state, block, at, along, column, count, n):
    saved, ties = state[4], state[7]
    _, first, start, _, _, slot, _ = block
    # The segment's first block holds what is known of them all.
    part = PARTS * (slot - (start - first) // BLOCK)
    best = as_compute(saved, get_part(task, part, column, count, n))
    mark = get_part(task, part + 1, column, count, n)
    if ties == ALL_HOLDERS:
        to_holders(task, state, block, best, mark, at, along, count, n)
    else:
        mark = mark - like(mark, start - first)
        to_holder(task, state, block, as_compute(saved, mark), at, along, count, n)
    return True


@kernel
def hand_out_long(task, lo, hi):
    """Long segments: the gradient to their rows. Items are block numbers."""
    target = pointer(task, TARGET)
    state = gradient_state(task, on_stack(target, tile_elements(target)))
    over_long_blocks(task, lo, hi, lanes(state[0]), hand_out_strip, state)
