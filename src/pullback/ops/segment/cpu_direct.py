"""Sums of narrow f32 rows in any order, straight into a table of f64: nothing is grouped.

The additions are those of `cpu_sum`: rows of a segment in their order, 256 at a time, then the sums
of these blocks. So the bits are the same, and the layout may decide which of the two a plan takes.

A row of the table has the sums of a segment's latest block and how many rows the segment has; the
sums of its earlier blocks stand behind all rows of the table, where it has any. One thread adds, so
with many threads grouping is faster.
Gain (sums without grouping): segment_sum unsorted 1Mx1 f32 4.40.
"""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from pullback.contract.element import ElementKind
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import index_pointer, kernel, pointer, word
from pullback.cpu.memory import (
    advance,
    filled_wide,
    get,
    get_first,
    get_first_wide,
    get_wide,
    put,
    read_wide,
)
from pullback.cpu.vector import splat
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_engine import write_empty
from pullback.ops.segment.cpu_index import fail, single_step
from pullback.ops.segment.cpu_strip import in_target, sum_lanes
from pullback.ops.segment.cpu_sum import finish
from pullback.ops.segment.cpu_walk import columns_of, over_columns
from pullback.ops.segment.cpu_words import BLOCK, floats, ints

STRIP = 8  # columns that are added at once
WIDEST = 32  # columns: of wider rows, grouping takes a small part of the time
MOST_BYTES = 1 << 23  # of the table: it is read and written at random
MOST_THREADS = 3


# --- the table ----------------------------------------------------------------------------------


@register_jitable
def pitch_of(columns):
    """Words of a row of the table: whole strips, unless that is one number."""
    return 1 if columns == 1 else (columns + STRIP - 1) // STRIP * STRIP


def table_words(desc: Any) -> int:
    """Words of the table, 0 where a plan does without."""
    columns, segments = desc.embedding_dim, desc.num_segments
    words = segments * (pitch_of(columns) + 1)
    narrow = desc.element is ElementKind.F32 and 0 < columns <= WIDEST
    if not narrow or 8 * words > MOST_BYTES or segments > desc.num_inputs:
        return 0
    return words + segments * columns


@inlined
def _tables(task):
    """The sums, how many rows each segment has, and the sums of earlier blocks."""
    sums, segments = floats(task, at.PARTIALS_AT), word(task, at.SEGMENTS)
    end = segments * pitch_of(word(task, at.COLUMNS))
    counts = advance(ints(task, at.PARTIALS_AT), end)
    return sums, counts, advance(sums, end + segments)


@kernel
def clear_sums(task, lo, hi):
    """Items are segments."""
    (sums, counts, _), pitch = _tables(task), pitch_of(word(task, at.COLUMNS))
    for s in range(lo, hi):
        counts[s] = 0
        for c in range(pitch):
            sums[s * pitch + c] = -0.0


# --- adding -------------------------------------------------------------------------------------


@register_jitable
def _end_block(task, s, count):
    """Add the sums of the latest block of a segment to those of the earlier ones."""
    (sums, _, earlier), columns = _tables(task), word(task, at.COLUMNS)
    row, before = s * pitch_of(columns), s * columns
    for c in range(columns):
        latest = sums[row + c]
        earlier[before + c] = latest if count == BLOCK else earlier[before + c] + latest
        sums[row + c] = -0.0


@inlined
def _add(sums, place, v):
    put(sums, place, 1, get(sums, place, 1, STRIP) + v, False)


@kernel
def add_rows(task, lo, hi):
    """One item: all rows, in order."""
    source, ids = pointer(task, at.SOURCE), index_pointer(task, at.IDS)
    sums, counts, _ = _tables(task)
    rows, last, strict = word(task, at.ROWS), word(task, at.LAST), word(task, at.STRICT)
    columns, step, stride = word(task, at.COLUMNS), single_step(task), word(task, at.POSITION_ROW)
    pitch, whole = pitch_of(columns), columns // STRIP * STRIP
    for n in range(rows):
        s = read_wide(ids, n * step)
        if s < 0 or s > last:
            if strict:
                fail(task, at.OUT_OF_RANGE, n, s)
                return
            continue
        count = counts[s]
        if count & (BLOCK - 1) == 0 and count > 0:
            _end_block(task, s, count)
        counts[s] = count + 1
        row, i = s * pitch, n * stride
        if columns == 1:
            sums[row] += read_wide(source, i)
            continue
        for c in range(0, whole, STRIP):
            _add(sums, row + c, get_wide(source, i + c, 1, STRIP))
        if whole < columns:
            none = filled_wide(source, -0.0, STRIP)
            _add(sums, row + whole, get_first_wide(source, i + whole, 1, columns - whole, none))


# --- writing ------------------------------------------------------------------------------------


@inlined
def _write_strip(task, state, block, cols):
    _, _, target, sums, earlier = state
    s, count, columns = block[0], block[7], word(task, at.COLUMNS)
    if count == 0:
        write_empty(task, state, block, cols)
        return
    none = splat(-0.0, cols[4])
    total = get_first(sums, s * pitch_of(columns) + cols[2], 1, cols[3], none)
    if count > BLOCK:
        total = get_first(earlier, s * columns + cols[2], 1, cols[3], none) + total
    finish(task, target, s * word(task, at.SEGMENT_ROW), in_target(cols), total, None, count)


@kernel
def write_sums(task, lo, hi):
    """Items are segments."""
    target, strips = pointer(task, at.TARGET), columns_of(task)
    sums, counts, earlier = _tables(task)
    state = (target, 0, target, sums, earlier)  # `write_empty` wants the target third
    for s in range(lo, hi):
        block = (s, 0, 0, 0, counts[s], -1, 0, counts[s])
        over_columns(task, strips, sum_lanes(target), _write_strip, state, block)
