"""Bags in Numba: their borders, and sums of mapped rows.

A bag's sum and a row's gradient have the same form: over the sorted rows i of a segment, the sum of
source[r] times a coefficient. Forward the segments are bags and r is an index; backward they are
rows of the table and r is a bag. What differs is the function that finds r, and the position whose
weight counts; a negative r is left out.
"""

from __future__ import annotations

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import index_pointer, kernel, pointer, set_word, word
from pullback.cpu.memory import as_f64_pointer, as_i64_pointer, prefetch, read_wide
from pullback.cpu.program import DETAIL, STATUS, TENSORS
from pullback.cpu.vector import like, splat
from pullback.ops.segment.cpu_index import id_at
from pullback.ops.segment.cpu_strip import AHEAD, as_wide, load_wide, sum_lanes
from pullback.ops.segment.cpu_sum import (
    add_partial,
    finish,
    finish_empty,
    keep_partial,
    nothing,
    plus,
    summed,
)
from pullback.ops.segment.cpu_walk import over_columns, over_long_segments, over_segments
from pullback.ops.segment.cpu_words import (
    BAD_OFFSETS,
    BAG_CHUNKS,
    BAG_FINDINGS_AT,
    BAG_OF_AT,
    BAG_SIZES_AT,
    BAGS,
    BORDERS_AT,
    COLUMNS,
    IDS,
    NOWHERE,
    OFFSETS_COUNT,
    OFFSETS_STEP,
    ORDER,
    ORDER_AT,
    PADDING_ROW,
    PARTIALS_AT,
    POSITION_ROW,
    ROWS,
    SEGMENT_ROW,
    SOURCE,
    TARGET,
    VOCABULARY,
    WEIGHTS_STEP,
    has_order,
    scratch,
    table,
)

BAG_OFFSETS, WEIGHTS, WINNERS, TABLE, D_WEIGHTS = range(TENSORS + 5, TENSORS + 10)
PARTS = 4  # a partial sum and its correction, how many rows were kept, and nothing
BAG_CHUNK = 1 << 13  # offsets per item of the phases that look at them


# --- borders ------------------------------------------------------------------------------------


@inlined
def border(task, offsets, b):
    """Where bag b begins. Unless offsets say it, the last one ends with the positions."""
    if b >= word(task, OFFSETS_COUNT):
        return word(task, ROWS) if b > 0 else 0
    return read_wide(offsets, b * word(task, OFFSETS_STEP))


@kernel
def find_bags(task, lo, hi):
    """Borders in one table, checked. Items are chunks of them."""
    offsets, borders = index_pointer(task, BAG_OFFSETS), as_i64_pointer(scratch(task, BORDERS_AT))
    found, past, rows = findings(task), word(task, BAGS) + 1, word(task, ROWS)
    for c in range(lo, hi):
        wrong = past
        before = 0
        if c > 0:
            before = border(task, offsets, c * BAG_CHUNK - 1)
        for b in range(c * BAG_CHUNK, min((c + 1) * BAG_CHUNK, past)):
            here = border(task, offsets, b)
            if wrong == past and (here < before or here > rows or (b == 0 and here != 0)):
                wrong = b
            borders[b] = here
            before = here
        found[c] = wrong


@inlined
def findings(task):
    return as_i64_pointer(scratch(task, BAG_FINDINGS_AT))


@kernel
def judge_bags(task, lo, hi):
    """One item: the first border that is wrong."""
    found, borders = findings(task), as_i64_pointer(scratch(task, BORDERS_AT))
    for c in range(word(task, BAG_CHUNKS)):
        b = found[c]
        if b <= word(task, BAGS):
            set_word(task, DETAIL, b)
            set_word(task, DETAIL + 1, borders[b])
            set_word(task, STATUS, BAD_OFFSETS)
            return


@inlined
def row_of(task, ids, n):
    """The row of the table at position n, or -1 where it is not kept."""
    found = id_at(task, ids, n)
    if found < 0 or found >= word(task, VOCABULARY) or found == word(task, PADDING_ROW):
        return -1
    return found


@kernel
def fill_bags(task, lo, hi):
    """The bag of each position, -1 after the last bag, and how many positions of each bag are
    kept. Items are bags, and one more for the positions after them."""
    ids, borders = index_pointer(task, IDS), as_i64_pointer(scratch(task, BORDERS_AT))
    bag_of, bags = as_i64_pointer(scratch(task, BAG_OF_AT)), word(task, BAGS)
    sizes, wanted = as_i64_pointer(scratch(task, BAG_SIZES_AT)), word(task, BAG_SIZES_AT) != NOWHERE
    for b in range(lo, hi):
        past = borders[b + 1] if b < bags else word(task, ROWS)
        for n in range(borders[b], past):
            bag_of[n] = b if b < bags else -1
        if wanted and b < bags:
            kept = 0
            for n in range(borders[b], past):
                if row_of(task, ids, n) >= 0:
                    kept += 1
            sizes[b] = kept


# --- sums of mapped rows ------------------------------------------------------------------------


@inlined
def find_index(task, maps, i):
    """Forward: sorted row i is a position, and its row of the table is mapped."""
    return row_of(task, maps[0], i), i


@inlined
def find_bag(task, maps, i):
    """Backward: sorted row i is found through the order, and its bag is mapped."""
    order, indirect, bag_of = maps
    n = order[i] if indirect else i
    return bag_of[n], n


@inlined
def mapped_strip(task, find, state, block, at, along, column, count, n):
    """One strip of one block: to its place in the target, or to the partial sums."""
    source, target, weights, sizes, maps = state
    s, _, start, end, _, slot, last = block
    stride, weights_step = word(task, POSITION_ROW), word(task, WEIGHTS_STEP)
    weighted, divided = word(task, WEIGHTS) != 0, word(task, BAG_SIZES_AT) != NOWHERE
    (total, rest), kept = nothing(source, n), 0
    for i in range(start, end):
        ahead, _ = find(task, maps, min(i + AHEAD, last))
        prefetch(source, ahead * stride + at[0])
        prefetch(source, ahead * stride + at[0] + 16)
        row, position = find(task, maps, i)
        if row >= 0:
            kept += 1
            v = load_wide(source, row * stride + at[0], along[0], count, n)
            if weighted:
                v = v * like(v, read_wide(weights, position * weights_step))
            if divided:
                v = v / like(v, sizes[row])
            total, rest = plus(source, total, rest, v)
    if slot < 0:
        whole = summed(source, total, rest)
        write_sum(task, target, s, at, along, count, n, whole, kept)
    else:
        keep_partial(task, PARTS * slot, column, count, total, rest)
        keep_partial(task, PARTS * slot + 2, column, count, like(total, kept), rest)


@inlined
def write_sum(task, target, s, at, along, count, n, total, kept):
    """A finished strip; a segment that kept nothing is empty."""
    where = s * word(task, SEGMENT_ROW) + at[1]
    if kept > 0:
        finish(task, target, where, along[1], count, n, total, kept)
    else:
        finish_empty(task, target, where, along[1], count, n)


@inlined
def bag_strip(task, state, block, at, along, column, count, n):
    mapped_strip(task, find_index, state, block, at, along, column, count, n)


@inlined
def row_strip(task, state, block, at, along, column, count, n):
    mapped_strip(task, find_bag, state, block, at, along, column, count, n)


@inlined
def mapped_state(task, maps):
    sizes = as_i64_pointer(scratch(task, BAG_SIZES_AT))
    return pointer(task, SOURCE), pointer(task, TARGET), pointer(task, WEIGHTS), sizes, maps


@kernel
def bag_sums(task, lo, hi):
    """Segments are bags, rows are rows of the table."""
    state = mapped_state(task, (index_pointer(task, IDS),))
    over_segments(task, lo, hi, sum_lanes(state[0]), bag_strip, state, over_columns)


@kernel
def bag_gradients(task, lo, hi):
    """Segments are rows of the table, rows are rows of the gradient of bags."""
    bag_of = as_i64_pointer(scratch(task, BAG_OF_AT))
    state = mapped_state(task, (table(task, ORDER_AT, ORDER), has_order(task), bag_of))
    over_segments(task, lo, hi, sum_lanes(state[0]), row_strip, state, over_columns)


@inlined
def combine_strip(task, target, block, at, along, column, count, n):
    s, slot, blocks, _ = block
    total, rest, kept = splat(-0.0, n), splat(-0.0, n), 0
    partials, columns = as_f64_pointer(scratch(task, PARTIALS_AT)), word(task, COLUMNS)
    for k in range(slot, slot + blocks):
        total, rest = add_partial(task, target, PARTS * k, column, count, n, total, rest)
        kept += int(partials[(PARTS * k + 2) * columns + column])
    whole = as_wide(target, summed(target, total, rest))
    write_sum(task, target, s, at, along, count, n, whole, kept)


@kernel
def combine_mapped(task, lo, hi):
    """Long segments: the partial sums of their blocks, in order."""
    over_long_segments(task, lo, hi, combine_strip, pointer(task, TARGET))
