"""Rows handed out: each position receives the row its id names (sums backward, lookups), or each
segment hands its gradient, or a share of it, to its rows (means backward, sums of CSR rows)."""

from __future__ import annotations

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, real, word
from pullback.cpu.memory import as_i64_pointer, fence, filled_wide, on_stack
from pullback.cpu.vector import like
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_panel import over_panels, write_row
from pullback.ops.segment.cpu_strip import (
    lanes,
    load_wide,
    store,
    tile_elements,
)
from pullback.ops.segment.cpu_walk import columns_of, over_columns, over_segments
from pullback.ops.segment.cpu_words import LISTED, has_order, offsets_of, order_of, position_offset


@inlined
def share_strip(task, state, block, base, along, column, count, n):
    """source, or source / size, to each of the rows."""
    _, _, sheet, source = state
    s, _, start, end, size, _, _ = block
    v = load_wide(source, s * word(task, at.SEGMENT_ROW) + base[0], along[0], count, n)
    if word(task, at.DIVIDE):
        v = v / like(v, size)
    for j in range(end - start):
        write_row(sheet, j, base, count, n, v)
    return end > start


@kernel
def share_segments(task, lo, hi):
    """target[n] = source[s], or that over how many rows s has. Items are places of the walk over
    segments."""
    source, target = pointer(task, at.SOURCE), pointer(task, at.TARGET)
    places = on_stack(as_i64_pointer(0), LISTED)
    state = (places, target, on_stack(target, tile_elements(target)), source)
    over_segments(task, lo, hi, lanes(source), share_strip, state, over_panels)


@inlined
def clear_strip(task, target, where, base, along, column, count, n):
    skipped = filled_wide(target, real(task, at.EMPTY), n)
    store(task, target, where + base[1], along[1], count, n, skipped)


@kernel
def clear_skipped(task, lo, hi):
    """target[n] = EMPTY, mostly 0, where n belongs to no segment: the rows before the first and
    after the last. Items are sorted rows."""
    target, offsets = pointer(task, at.TARGET), offsets_of(task)
    order, indirect = order_of(task), has_order(task)
    first, past, columns = offsets[0], offsets[word(task, at.SEGMENTS)], columns_of(task)
    for i in range(lo, hi):
        if i < first or i >= past:
            where = position_offset(task, 1, order[i] if indirect else i)
            over_columns(task, columns, lanes(target), clear_strip, target, where)
    if word(task, at.STREAMING):
        fence()
