"""Bags in Numba: their borders, and sums of mapped rows.

A bag's sum and a row's gradient have the same form: over the sorted rows i of a segment, the sum of
source[r] times a coefficient. Forward the segments are bags and r is an index; backward they are
rows of the table and r is a bag. What differs is the function that finds r, and the position whose
weight counts; a negative r is left out.
"""

from __future__ import annotations

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import index_pointer, kernel, pointer, real, set_word, word, words
from pullback.cpu.loops import extent, step
from pullback.cpu.memory import (
    as_f64_pointer,
    as_i64_pointer,
    filled_wide,
    get_first,
    prefetch,
    put_first,
    read_wide,
)
from pullback.cpu.program import DETAIL, STATUS, TENSORS
from pullback.cpu.vector import like, splat, to_f64
from pullback.ops.segment.cpu_index import id_at
from pullback.ops.segment.cpu_strip import AHEAD, NARROW, as_wide, load_wide, store, sum_lanes
from pullback.ops.segment.cpu_sum import finish, plus, summed
from pullback.ops.segment.cpu_words import (
    ACCUMULATE,
    BAD_OFFSETS,
    BAG_CHUNKS,
    BAG_FINDINGS_AT,
    BAG_OF_AT,
    BAG_SIZES_AT,
    BAGS,
    BLOCK,
    BORDERS_AT,
    COLUMN_LOOPS,
    COLUMNS,
    EMPTY,
    IDS,
    LONG_AT,
    NOWHERE,
    OFFSETS,
    OFFSETS_AT,
    OFFSETS_COUNT,
    OFFSETS_STEP,
    ORDER,
    ORDER_AT,
    PADDING_ROW,
    PARTIALS_AT,
    POSITION_ROW,
    ROWS,
    SEGMENT_ROW,
    SEGMENTS,
    SOURCE,
    TARGET,
    VOCABULARY,
    WEIGHTS_STEP,
    begins_before,
    first_block,
    has_order,
    long_slot,
    next_block,
    scratch,
    segment_end,
    table,
)

BAG_OFFSETS, WEIGHTS, WINNERS, TABLE, D_WEIGHTS = range(TENSORS + 5, TENSORS + 10)
PARTS = 3  # a partial sum, its correction, how many rows were kept
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
    order, bag_of, indirect = maps
    n = order[i] if indirect else i
    return bag_of[n], n


@inlined
def sum_mapped(task, find, maps, source, weights, start, end, last, at, along, count, n):
    """The sum of the mapped rows start..end in one strip, and how many were kept."""
    total, rest, kept = filled_wide(source, -0.0, n), filled_wide(source, -0.0, n), 0
    stride, weighted = word(task, POSITION_ROW), word(task, WEIGHTS) != 0
    weights_step, divided = word(task, WEIGHTS_STEP), word(task, BAG_SIZES_AT) != NOWHERE
    sizes = as_i64_pointer(scratch(task, BAG_SIZES_AT))
    for i in range(start, end):
        ahead, _ = find(task, maps, min(i + AHEAD, last))
        prefetch(source, ahead * stride + at)
        prefetch(source, ahead * stride + at + 16)
        row, position = find(task, maps, i)
        if row < 0:
            continue
        kept += 1
        v = load_wide(source, row * stride + at, along, count, n)
        if weighted:
            v = v * like(v, read_wide(weights, position * weights_step))
        if divided:
            v = v / like(v, sizes[row])
        total, rest = plus(source, total, rest, v)
    return total, rest, kept


@inlined
def write_sum(task, target, at, along, count, n, total, kept):
    """A finished strip; a segment that kept nothing is empty."""
    if kept > 0:
        finish(task, target, at, along, count, n, total, kept)
    elif word(task, ACCUMULATE) == 0:
        empty = filled_wide(target, real(task, EMPTY), n)
        store(target, at, along, count, n, empty, False)


@inlined
def mapped_strip(task, find, maps, tensors, block, i, at, along, column, count, n):
    source, target, weights = tensors
    start, end, last, slot = block
    total, rest, kept = sum_mapped(
        task, find, maps, source, weights, start, end, last, i, along[0], count, n
    )
    if slot < 0:
        write_sum(task, target, at, along[1], count, n, summed(source, total, rest), kept)
    else:
        partials, columns = as_f64_pointer(scratch(task, PARTIALS_AT)), word(task, COLUMNS)
        here = PARTS * slot * columns + column
        put_first(partials, here, 1, count, to_f64(total))
        put_first(partials, here + columns, 1, count, to_f64(rest))
        put_first(partials, here + 2 * columns, 1, count, like(to_f64(total), kept))


@inlined
def mapped_sums(task, find, maps, lo, hi):
    """Items are places of the walk over segments and their rows."""
    source, target = pointer(task, SOURCE), pointer(task, TARGET)
    tensors, offsets = (source, target, pointer(task, WEIGHTS)), table(task, OFFSETS_AT, OFFSETS)
    owners, w = as_i64_pointer(scratch(task, LONG_AT)), words(task, word(task, COLUMN_LOOPS))
    inner, along, wide = extent(w), (step(w, 0), step(w, 1)), sum_lanes(source)
    last = offsets[word(task, SEGMENTS)] - 1
    s, k = first_block(task, offsets, lo)
    while begins_before(task, offsets, s, k, hi):
        start, past = offsets[s] + k * BLOCK, segment_end(task, offsets, s)
        slot = -1
        if past - offsets[s] > BLOCK:
            slot = long_slot(offsets, s, k)
            owners[slot] = s
        block = (start, min(start + BLOCK, past), last, slot)
        at = s * word(task, SEGMENT_ROW)
        c = 0
        while c < inner:
            a, b = c * along[0], at + c * along[1]
            if c + wide <= inner:
                mapped_strip(task, find, maps, tensors, block, a, b, along, c, wide, wide)
                c += wide
            else:
                left = min(inner - c, NARROW)
                mapped_strip(task, find, maps, tensors, block, a, b, along, c, left, NARROW)
                c += NARROW
        s, k = next_block(task, offsets, s, k)


@kernel
def bag_sums(task, lo, hi):
    """Segments are bags, rows are rows of the table."""
    mapped_sums(task, find_index, (index_pointer(task, IDS),), lo, hi)


@kernel
def bag_gradients(task, lo, hi):
    """Segments are rows of the table, rows are rows of the gradient of bags."""
    bag_of = as_i64_pointer(scratch(task, BAG_OF_AT))
    mapped_sums(task, find_bag, (table(task, ORDER_AT, ORDER), bag_of, has_order(task)), lo, hi)


@kernel
def combine_mapped(task, lo, hi):
    """Long segments: the partial sums of their blocks, in order. Items are strips of block
    numbers."""
    target, offsets = pointer(task, TARGET), table(task, OFFSETS_AT, OFFSETS)
    owners, w = as_i64_pointer(scratch(task, LONG_AT)), words(task, word(task, COLUMN_LOOPS))
    partials, columns = as_f64_pointer(scratch(task, PARTIALS_AT)), word(task, COLUMNS)
    along, zero = step(w, 1), splat(-0.0, NARROW)
    strips = (columns + NARROW - 1) // NARROW
    for item in range(lo, hi):
        slot = item // strips
        s = owners[slot]
        if s < 0 or slot != long_slot(offsets, s, 0):
            continue
        c = (item - slot * strips) * NARROW
        count, kept = min(columns - c, NARROW), 0
        total, rest = zero, zero
        for block in range(slot, slot + (offsets[s + 1] - offsets[s] + BLOCK - 1) // BLOCK):
            here = PARTS * block * columns + c
            total, rest = plus(target, total, rest, get_first(partials, here, 1, count, zero))
            total, rest = plus(
                target, total, rest, get_first(partials, here + columns, 1, count, zero)
            )
            kept += int(partials[here + 2 * columns])
        at = s * word(task, SEGMENT_ROW) + c * along
        whole = as_wide(target, summed(target, total, rest))
        write_sum(task, target, at, along, count, NARROW, whole, kept)
