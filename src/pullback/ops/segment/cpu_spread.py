"""Rows handed out: each position receives the row its id names (sums backward, lookups), or each
segment hands its share to its rows (means backward)."""

from __future__ import annotations

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import index_pointer, kernel, pointer, word
from pullback.cpu.memory import as_i64_pointer, fence, filled, filled_wide, on_stack, prefetch
from pullback.cpu.vector import like
from pullback.ops.segment.cpu_index import id_by_step, single_step
from pullback.ops.segment.cpu_panel import over_panels, write_tile
from pullback.ops.segment.cpu_strip import (
    MANY_LOOPS,
    copy_half_line,
    fetch_strip,
    half_line_elements,
    lanes,
    line_elements,
    load,
    load_wide,
    store,
    stream_line,
    streams_lines,
    tile_elements,
)
from pullback.ops.segment.cpu_walk import columns_of, over_columns, over_segments
from pullback.ops.segment.cpu_words import (
    FAR,
    IDS,
    LISTED,
    OFFSETS,
    OFFSETS_AT,
    ORDER,
    ORDER_AT,
    PADDING,
    POSITION_ROW,
    ROWS,
    SEGMENT_ROW,
    SEGMENTS,
    SOURCE,
    STREAMING,
    TARGET,
    has_order,
    position_offset,
    table,
)

NO_ROW = MANY_LOOPS  # no offset is that low, whichever way the rows run


@inlined
def copy_strip(task, state, block, at, along, column, count, n):
    source, target = state
    row, ahead, where = block
    v = filled(source, 0.0, n)
    if row != NO_ROW:
        v = load(source, row + at[0], along[0], count, n)
    fetch_strip(source, ahead + at[0], n)
    store(task, target, where + at[1], along[1], count, n, v)


@inlined
def copy_lines(source, row, ahead, target, where, count):
    """A row of whole cache lines."""
    line = line_elements(source)
    for c in range(0, count, line):
        prefetch(source, ahead + c)
        stream_line(target, where + c, source, row + c)
    prefetch(source, ahead + count - 1)


@inlined
def copy_row(source, row, ahead, target, where, count):
    """A row without gaps, by half lines; the last of them overlaps the one before."""
    n = half_line_elements(source)
    for c in range(0, count, 2 * n):
        prefetch(source, ahead + c)
    if count < n:
        for c in range(count):
            target[where + c] = source[row + c]
    else:
        for c in range(0, count - n, n):
            copy_half_line(target, where + c, source, row + c)
        copy_half_line(target, where + count - n, source, row + count - n)


@kernel
def gather_rows(task, lo, hi):
    """target[n] = source[ids[n]], zeros where that is no row. Items are positions."""
    source, target, ids = pointer(task, SOURCE), pointer(task, TARGET), index_pointer(task, IDS)
    stride, segments, padding = word(task, SEGMENT_ROW), word(task, SEGMENTS), word(task, PADDING)
    rows, one_stride, columns = word(task, ROWS), word(task, POSITION_ROW), columns_of(task)
    step, (_, inner, runs, _, unit) = single_step(task), columns
    along = 1 if unit and runs == 1 else 0
    for n in range(lo, hi):
        s = id_by_step(task, ids, n, step)
        # Only asked for, never read: any address will do.
        ahead = id_by_step(task, ids, min(n + FAR, rows - 1), step) * stride
        inside = s >= 0 and s < segments and s != padding
        row = s * stride if inside else NO_ROW
        where = n * one_stride if one_stride != MANY_LOOPS else position_offset(task, 1, n)
        if inside and streams_lines(task, target, where, along, inner):
            copy_lines(source, row, ahead, target, where, inner)
        elif inside and along:
            copy_row(source, row, ahead, target, where, inner)
        else:
            block = (row, ahead, where)
            over_columns(task, columns, lanes(source), copy_strip, (source, target), block)
    if word(task, STREAMING):
        fence()


@inlined
def share_strip(task, state, block, at, along, column, count, n):
    """source / size to each of the rows."""
    _, _, tile, source = state
    s, _, start, end, size, _, _ = block
    v = load_wide(source, s * word(task, SEGMENT_ROW) + at[0], along[0], count, n)
    v = v / like(v, size)
    for j in range(end - start):
        write_tile(tile, j, at, count, n, v)
    return end > start


@kernel
def share_segments(task, lo, hi):
    """target[n] = source[s] / how many rows s has. Items are places of the walk over segments."""
    source, target = pointer(task, SOURCE), pointer(task, TARGET)
    places = on_stack(as_i64_pointer(0), LISTED)
    state = (places, target, on_stack(target, tile_elements(target)), source)
    over_segments(task, lo, hi, lanes(source), share_strip, state, over_panels)


@inlined
def clear_strip(task, target, where, at, along, column, count, n):
    store(task, target, where + at[1], along[1], count, n, filled_wide(target, 0.0, n))


@kernel
def clear_skipped(task, lo, hi):
    """target[n] = 0 where n belongs to no segment: the rows before the first and after the last.
    Items are sorted rows."""
    target, offsets = pointer(task, TARGET), table(task, OFFSETS_AT, OFFSETS)
    order, indirect = table(task, ORDER_AT, ORDER), has_order(task)
    first, past, columns = offsets[0], offsets[word(task, SEGMENTS)], columns_of(task)
    for i in range(lo, hi):
        if i < first or i >= past:
            where = position_offset(task, 1, order[i] if indirect else i)
            over_columns(task, columns, lanes(target), clear_strip, target, where)
    if word(task, STREAMING):
        fence()
