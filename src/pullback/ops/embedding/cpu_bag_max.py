"""Maxima of bags, who won them, and where their gradients go; the gradient of sample weights."""

from __future__ import annotations

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import index_pointer, kernel, pointer, real, set_word, word, words
from pullback.cpu.loops import extent, step
from pullback.cpu.memory import (
    as_f64_pointer,
    as_i64_pointer,
    filled,
    filled_wide,
    get_first,
    get_wide,
    put_first,
    read_wide,
    write,
)
from pullback.cpu.vector import lane, lane_at, like, reduce_add, select, splat, to_f64
from pullback.ops.embedding.cpu_bag import D_WEIGHTS, TABLE, WINNERS, row_of
from pullback.ops.segment.cpu_extremum import beats
from pullback.ops.segment.cpu_index import id_at, limit
from pullback.ops.segment.cpu_strip import (
    NARROW,
    as_compute,
    as_wide,
    lanes,
    load,
    load_wide,
    store,
)
from pullback.ops.segment.cpu_sum import plus, summed
from pullback.ops.segment.cpu_words import (
    ACCUMULATE,
    BAG_OF_AT,
    BAGS,
    BLOCK,
    COLUMN_LOOPS,
    COLUMNS,
    EMPTY,
    FIRST,
    FREQUENCIES_AT,
    IDS,
    LONG_AT,
    LOOPS,
    NOWHERE,
    OFFSETS,
    OFFSETS_AT,
    ORDER,
    ORDER_AT,
    OTHER_WORDS,
    PARTIALS_AT,
    POSITION_ROW,
    ROWS,
    SEGMENT_ROW,
    SEGMENTS,
    SOURCE,
    D_WEIGHTS_STEP,
    TABLE_ROW,
    TABLE_STEP,
    TARGET,
    VOCABULARY,
    WINNERS_ROW,
    WINNERS_STEP,
    begins_before,
    first_block,
    long_slot,
    next_block,
    scratch,
    table,
)

PARTS = 2  # a maximum, and the number of the position that holds it
DOT_LANES = 16


@inlined
def write_maximum(task, ids, target, s, first, c, along, count, n, best, mark):
    """A strip of a bag: its maxima, and the rows of the table they came from."""
    at = s * word(task, SEGMENT_ROW) + c * along
    best = select(mark < 0, like(best, real(task, EMPTY)), best)
    store(target, at, along, count, n, best, False)
    if word(task, WINNERS) == 0:
        return
    winners = as_i64_pointer(word(task, WINNERS))
    for j in range(count):
        position = int(lane_at(mark, j))
        row = id_at(task, ids, first + position) if position >= 0 else -1
        winners[s * word(task, WINNERS_ROW) + (c + j) * word(task, WINNERS_STEP)] = row


@inlined
def maximum_strip(task, ids, source, target, block, c, along, count, n):
    start, end, first, s, slot = block
    best, stride = filled(source, 0.0, n), word(task, POSITION_ROW)
    mark = like(best, -1.0)
    for i in range(start, end):
        row = row_of(task, ids, i)
        if row < 0:
            continue
        v = load(source, row * stride + c * along[0], along[0], count, n)
        better = (mark < 0) | beats(v, best)
        mark = select(better, like(mark, i - start), mark)
        best = select(better, v, best)
    marks = to_f64(mark)
    marks = select(marks < 0, marks, marks + like(marks, start - first))
    if slot < 0:
        write_maximum(task, ids, target, s, first, c, along[1], count, n, best, marks)
    else:
        partials, columns = as_f64_pointer(scratch(task, PARTIALS_AT)), word(task, COLUMNS)
        put_first(partials, PARTS * slot * columns + c, 1, count, to_f64(best))
        put_first(partials, (PARTS * slot + 1) * columns + c, 1, count, marks)


@kernel
def bag_maxima(task, lo, hi):
    """Items are places of the walk over bags and their positions."""
    source, target, ids = pointer(task, SOURCE), pointer(task, TARGET), index_pointer(task, IDS)
    offsets, w = table(task, OFFSETS_AT, OFFSETS), words(task, word(task, COLUMN_LOOPS))
    owners, wide = as_i64_pointer(scratch(task, LONG_AT)), lanes(source)
    inner, along = extent(w), (step(w, 0), step(w, 1))
    s, k = first_block(task, offsets, lo)
    while begins_before(task, offsets, s, k, hi):
        start, past = offsets[s] + k * BLOCK, offsets[s + 1]
        slot = -1
        if past - offsets[s] > BLOCK:
            slot = long_slot(offsets, s, k)
            owners[slot] = s
        block = (start, min(start + BLOCK, past), offsets[s], s, slot)
        c = 0
        while c < inner:
            if c + wide <= inner:
                maximum_strip(task, ids, source, target, block, c, along, wide, wide)
                c += wide
            else:
                left = min(inner - c, NARROW)
                maximum_strip(task, ids, source, target, block, c, along, left, NARROW)
                c += NARROW
        s, k = next_block(task, offsets, s, k)


@kernel
def combine_maxima(task, lo, hi):
    """Long bags: the maximum of their blocks. Items are strips of block numbers."""
    target, ids = pointer(task, TARGET), index_pointer(task, IDS)
    offsets, w = table(task, OFFSETS_AT, OFFSETS), words(task, word(task, COLUMN_LOOPS))
    owners, columns = as_i64_pointer(scratch(task, LONG_AT)), word(task, COLUMNS)
    partials, none = as_f64_pointer(scratch(task, PARTIALS_AT)), splat(-1.0, NARROW)
    strips = (columns + NARROW - 1) // NARROW
    for item in range(lo, hi):
        slot = item // strips
        s = owners[slot]
        if s < 0 or slot != long_slot(offsets, s, 0):
            continue
        c = (item - slot * strips) * NARROW
        count = min(columns - c, NARROW)
        best, mark = none, none
        for block in range(slot, slot + (offsets[s + 1] - offsets[s] + BLOCK - 1) // BLOCK):
            v = get_first(partials, PARTS * block * columns + c, 1, count, none)
            m = get_first(partials, (PARTS * block + 1) * columns + c, 1, count, none)
            better = (m >= 0) & ((mark < 0) | beats(v, best))
            best, mark = select(better, v, best), select(better, m, mark)
        values = as_compute(target, best)
        write_maximum(
            task, ids, target, s, offsets[s], c, step(w, 1), count, NARROW, values, mark
        )


# --- backward -----------------------------------------------------------------------------------


@kernel
def count_holders(task, lo, hi):
    """How many kept positions hold each row of the table. One item: the counts are shared."""
    ids, counts = index_pointer(task, IDS), as_i64_pointer(scratch(task, FREQUENCIES_AT))
    for row in range(word(task, VOCABULARY)):
        counts[row] = 0
    for n in range(limit(task)):
        row = row_of(task, ids, n)
        if row >= 0:
            counts[row] += 1


@kernel
def turn_to_winners(task, lo, hi):
    """From here on ids are the winners: their words replace those of the indices. One item."""
    other = word(task, OTHER_WORDS)
    for at in range(FIRST, LOOPS):
        set_word(task, at, word(task, other + at - FIRST))
    set_word(task, IDS, word(task, WINNERS))


@kernel
def winner_gradients(task, lo, hi):
    """Each row of the table gets, in each column, the sum over the bags it won there. Winners were
    sorted column by column, so those sums lie side by side. Items are places of the walk; a row is
    never cut, since its columns are sums of their own."""
    source, target = pointer(task, SOURCE), pointer(task, TARGET)
    offsets, order = table(task, OFFSETS_AT, OFFSETS), table(task, ORDER_AT, ORDER)
    w, bags, counts = words(task, word(task, COLUMN_LOOPS)), word(task, BAGS), word(task, FREQUENCIES_AT)
    inner, along, stride = extent(w), (step(w, 0), step(w, 1)), word(task, POSITION_ROW)
    frequencies, accumulate = as_i64_pointer(scratch(task, FREQUENCIES_AT)), word(task, ACCUMULATE) != 0
    s, k = first_block(task, offsets, lo)
    while begins_before(task, offsets, s, k, hi):
        at = s * word(task, SEGMENT_ROW)
        if k == 0 and not accumulate:
            for c in range(0, inner, NARROW):
                zero = filled_wide(target, 0.0, NARROW)
                store(target, at + c * along[1], along[1], min(inner - c, NARROW), NARROW, zero, False)
        i = offsets[s] if k == 0 else offsets[s + 1]
        while i < offsets[s + 1]:
            c = order[i] // bags
            total, rest = filled_wide(source, -0.0, 1), filled_wide(source, -0.0, 1)
            while i < offsets[s + 1] and order[i] < (c + 1) * bags:
                b = order[i] - c * bags
                v = get_wide(source, b * stride + c * along[0], 1, 1)
                total, rest = plus(source, total, rest, v)
                i += 1
            whole = summed(source, total, rest)
            if counts != NOWHERE:
                # Winners need not be among the indices; a row that no position holds is not scaled.
                whole = whole / like(whole, max(frequencies[s], 1))
            if accumulate:
                whole = get_wide(target, at + c * along[1], 1, 1) + whole
            write(target, at + c * along[1], lane(whole, 0))
        s, k = next_block(task, offsets, s, k)


@kernel
def weight_gradients(task, lo, hi):
    """Each kept position gets the product of its row with its bag's gradient. Items are
    positions."""
    source, rows, target = pointer(task, SOURCE), pointer(task, TABLE), pointer(task, D_WEIGHTS)
    ids, bag_of = index_pointer(task, IDS), as_i64_pointer(scratch(task, BAG_OF_AT))
    w, columns = words(task, word(task, COLUMN_LOOPS)), word(task, COLUMNS)
    along = step(w, 0)
    for n in range(lo, hi):
        row, bag = row_of(task, ids, n), bag_of[n]
        total, rest = filled_wide(source, -0.0, DOT_LANES), filled_wide(source, -0.0, DOT_LANES)
        if row >= 0 and bag >= 0:
            i, j = bag * word(task, POSITION_ROW), row * word(task, TABLE_ROW)
            for c in range(0, columns, DOT_LANES):
                count = min(columns - c, DOT_LANES)
                u = load_wide(source, i + c * along, along, count, DOT_LANES)
                v = load_wide(rows, j + c * word(task, TABLE_STEP), word(task, TABLE_STEP), count, DOT_LANES)
                total, rest = plus(source, total, rest, u * v)
            whole = reduce_add(summed(source, total, rest))
            write(target, n * word(task, D_WEIGHTS_STEP), whole)
        else:
            write(target, n * word(task, D_WEIGHTS_STEP), lane(filled_wide(target, 0.0, 1), 0))
