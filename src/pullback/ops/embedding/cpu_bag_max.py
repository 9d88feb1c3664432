"""Maxima of bags, who won them, and where their gradients go; the gradient of sample weights."""

from __future__ import annotations

from numba.extending import register_jitable

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import index_pointer, kernel, pointer, real, set_word, word
from pullback.cpu.memory import (
    advance,
    as_f64_pointer,
    as_i64_pointer,
    filled,
    filled_wide,
    get,
    get_wide,
    on_stack,
    put,
    write,
)
from pullback.cpu.program import DETAIL, STATUS
from pullback.cpu.vector import any_lane, lane, like, select, splat, to_f64
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_dot import row_product
from pullback.ops.segment.cpu_extremum import beats, get_part, put_part
from pullback.ops.segment.cpu_index import chunk_of, findings, id_by_step, limit, single_step
from pullback.ops.segment.cpu_list import fetch_listed, over_listed, row_of
from pullback.ops.segment.cpu_strip import MANY_LOOPS, as_compute, lanes, load, store
from pullback.ops.segment.cpu_sum import nothing, plus, summed
from pullback.ops.segment.cpu_walk import (
    columns_of,
    over_columns,
    over_long_segments,
    over_segments,
)
from pullback.ops.segment.cpu_words import (
    BLOCK,
    LISTED,
    ints,
    offsets_of,
    order_of,
    position_offset,
)

PARTS = 2  # a maximum, and the number of the position that holds it
DOT_LANES = 16
LANES = 8  # winners that are checked at once
STRIP_AT_MOST = 32
NUMBERS = BLOCK + STRIP_AT_MOST  # of listed rows, and behind them marks


@register_jitable
def write_winners(task, ids, s, first, column, count, marks):
    """The rows of the table that the marked positions hold; -1 where none is marked."""
    winners, step = as_i64_pointer(word(task, at.WINNERS)), single_step(task)
    along = word(task, at.WINNERS_STEP)
    where = s * word(task, at.WINNERS_ROW) + column * along
    for j in range(count):
        row = -1
        if marks[j] >= 0:
            row = id_by_step(task, ids, first + int(marks[j]), step)
        winners[where + j * along] = row


@inlined
def write_maximum(task, state, s, first, base, along, column, count, n, best, mark):
    """A strip of a bag: its maxima, and the rows of the table they came from."""
    _, (_, marks), target, ids = state
    best = select(mark < 0, like(best, real(task, at.EMPTY)), best)
    store(task, target, s * word(task, at.SEGMENT_ROW) + base[1], along[1], count, n, best)
    if word(task, at.WINNERS) != 0:
        put(marks, BLOCK, 1, mark, False)
        write_winners(task, ids, s, first, column, count, advance(marks, BLOCK))


@inlined
def maximum_strip(task, state, block, base, along, column, count, n):
    """The maximum of the listed rows, and the number in the block of the first that holds it."""
    source, (places, numbers), _, _ = state
    s, first, start, _, _, slot, _, kept = block
    best = filled(source, 0.0, n)
    mark = like(best, -1.0)
    if kept > 0:
        best = load(source, places[0] + base[0], along[0], count, n)
        mark = like(mark, numbers[0])
    for j in range(1, kept):
        fetch_listed(source, places, j, base[0], n)
        v = load(source, places[j] + base[0], along[0], count, n)
        better = beats(v, best)
        mark = select(better, like(mark, numbers[j]), mark)
        best = select(better, v, best)
    marks = to_f64(mark)
    marks = select(marks < 0, marks, marks + like(marks, start - first))
    if slot < 0:
        write_maximum(task, state, s, first, base, along, column, count, n, best, marks)
    else:
        put_part(task, PARTS * slot, column, count, best)
        put_part(task, PARTS * slot + 1, column, count, marks)


@inlined
def maximum_state(task, rows):
    return pointer(task, at.SOURCE), rows, pointer(task, at.TARGET), index_pointer(task, at.IDS)


@kernel
def bag_maxima(task, lo, hi):
    """Items are places of the walk over bags and their positions."""
    rows = (on_stack(as_i64_pointer(0), LISTED), on_stack(as_f64_pointer(0), NUMBERS))
    state = maximum_state(task, rows)
    over_segments(task, lo, hi, lanes(state[0]), maximum_strip, state, over_listed)


@inlined
def combine_strip(task, state, block, base, along, column, count, n):
    s, slot, blocks, _ = block
    best, mark = splat(0.0, n), splat(-1.0, n)
    for k in range(slot, slot + blocks):
        v = get_part(task, PARTS * k, column, count, n)
        m = get_part(task, PARTS * k + 1, column, count, n)
        better = (m >= 0) & ((mark < 0) | beats(v, best))
        best, mark = select(better, v, best), select(better, m, mark)
    first = offsets_of(task)[s]
    values = as_compute(state[2], best)
    write_maximum(task, state, s, first, base, along, column, count, n, values, mark)


@kernel
def combine_maxima(task, lo, hi):
    """Long bags: the maximum of their blocks."""
    rows = (on_stack(as_i64_pointer(0), LISTED), on_stack(as_f64_pointer(0), NUMBERS))
    over_long_segments(task, lo, hi, combine_strip, maximum_state(task, rows))


# --- backward -----------------------------------------------------------------------------------


@kernel
def count_holders(task, lo, hi):
    """How many kept positions hold each row of the table. One item: the counts are shared."""
    ids, counts = index_pointer(task, at.IDS), ints(task, at.FREQUENCIES_AT)
    for row in range(word(task, at.VOCABULARY)):
        counts[row] = 0
    step = single_step(task)
    for n in range(limit(task)):
        row = row_of(task, ids, n, step)
        if row >= 0:
            counts[row] += 1


@kernel
def turn_to_winners(task, lo, hi):
    """From here on ids are the winners: their words replace those of the indices. One item."""
    other = word(task, at.OTHER_WORDS)
    for base in range(at.FIRST, at.LOOPS):
        set_word(task, base, word(task, other + base - at.FIRST))
    set_word(task, at.IDS, word(task, at.WINNERS))


@register_jitable
def winner_at(task, winners, n):
    """The winner at position n of output_index, bag by bag."""
    bag = n // word(task, at.COLUMNS)
    column = n - bag * word(task, at.COLUMNS)
    return winners[bag * word(task, at.WINNERS_ROW) + column * word(task, at.WINNERS_STEP)]


@register_jitable
def first_bad_winner(task, winners, first, end):
    """The first position whose winner is neither a row of the table nor -1."""
    n, last = first, word(task, at.VOCABULARY) - 1
    if word(task, at.WINNERS_STEP) == 1 and word(task, at.WINNERS_ROW) == word(task, at.COLUMNS):
        while n + LANES <= end:
            v = get(winners, n, 1, LANES)
            if any_lane((v < -1) | (v > last)):
                break
            n += LANES
    while n < end:
        if winner_at(task, winners, n) < -1 or winner_at(task, winners, n) > last:
            return n
        n += 1
    return word(task, at.ROWS)


@kernel
def check_winners(task, lo, hi):
    """Items are chunks of winners."""
    winners, found = as_i64_pointer(word(task, at.WINNERS)), findings(task)
    for c in range(lo, hi):
        first, end = chunk_of(task, c)
        found[2 * c] = first_bad_winner(task, winners, first, end)


@kernel
def judge_winners(task, lo, hi):
    """One item: the first winner that is wrong."""
    winners, found = as_i64_pointer(word(task, at.WINNERS)), findings(task)
    for c in range(word(task, at.CHUNKS)):
        n = found[2 * c]
        if n < word(task, at.ROWS):
            set_word(task, DETAIL, n)
            set_word(task, DETAIL + 1, winner_at(task, winners, n))
            set_word(task, STATUS, at.BAD_WINNER)
            return


@inlined
def clear_strip(task, target, where, base, along, column, count, n):
    store(task, target, where + base[1], along[1], count, n, filled_wide(target, 0.0, n))


@kernel
def winner_gradients(task, lo, hi):
    """Each row of the table gets, in each column, the sum over the bags it won there. Winners were
    sorted column by column, so those sums lie side by side. Items are rows of the table."""
    source, target = pointer(task, at.SOURCE), pointer(task, at.TARGET)
    offsets, order = offsets_of(task), order_of(task)
    frequencies, scaled = ints(task, at.FREQUENCIES_AT), word(task, at.FREQUENCIES_AT)
    columns, bags = columns_of(task), word(task, at.BAGS)
    accumulate = word(task, at.ACCUMULATE) != 0
    along, stride = columns[3], word(task, at.POSITION_ROW)
    for s in range(lo, hi):
        base = s * word(task, at.SEGMENT_ROW)
        if not accumulate:
            over_columns(task, columns, lanes(target), clear_strip, target, base)
        i, past = offsets[s], offsets[s + 1]
        while i < past:
            c = order[i] // bags
            total, rest = nothing(source, 1)
            while i < past and order[i] < (c + 1) * bags:
                b = order[i] - c * bags
                v = get_wide(source, b * stride + c * along[0], 1, 1)
                total, rest = plus(source, total, rest, v)
                i += 1
            whole = summed(source, total, rest)
            if scaled != at.NOWHERE:
                # Winners need not be among the indices: a row no position holds is not scaled.
                whole = whole / like(whole, max(frequencies[s], 1))
            if accumulate:
                whole = get_wide(target, base + c * along[1], 1, 1) + whole
            write(target, base + c * along[1], lane(whole, 0))


@kernel
def weight_gradients(task, lo, hi):
    """Each kept position gets the product of its row with its bag's gradient. Items are
    positions."""
    source, rows = pointer(task, at.SOURCE), pointer(task, at.TABLE)
    target = pointer(task, at.D_WEIGHTS)
    ids, bag_of = index_pointer(task, at.IDS), ints(task, at.BAG_OF_AT)
    columns, stride = word(task, at.COLUMNS), word(task, at.POSITION_ROW)
    table_row = word(task, at.TABLE_ROW)
    along, table_step = columns_of(task)[3][0], word(task, at.TABLE_STEP)
    target_step = word(task, at.D_WEIGHTS_STEP)
    ids_step = single_step(task)
    for n in range(lo, hi):
        row, bag = row_of(task, ids, n, ids_step), bag_of[n]
        where = n * target_step if target_step != MANY_LOOPS else position_offset(task, 2, n)
        if row < 0 or bag < 0:
            write(target, where, lane(filled_wide(target, 0.0, 1), 0))
            continue
        of_bag, of_row = bag * stride, row * table_row
        value = row_product(source, of_bag, along, rows, of_row, table_step, columns, DOT_LANES)
        write(target, where, lane(value, 0))
