"""Gradients of bags in Numba: of their maxima, and of sample weights. The sums of bags, and the
maxima themselves, are those of segments, over listed rows."""

from __future__ import annotations

from numba.extending import register_jitable

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import index_pointer, kernel, pointer, word
from pullback.cpu.memory import as_i64_pointer, filled_wide, get, get_wide, write
from pullback.cpu.vector import any_lane, lane, like
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_dot import weight_gradients
from pullback.ops.segment.cpu_index import (
    chunk_of,
    fail,
    findings,
    first_found,
    limit,
    single_step,
)
from pullback.ops.segment.cpu_list import row_of
from pullback.ops.segment.cpu_strip import in_target, lanes, store
from pullback.ops.segment.cpu_sum import nothing, plus, summed
from pullback.ops.segment.cpu_walk import columns_of, over_columns
from pullback.ops.segment.cpu_words import ints, offsets_of, order_of

LANES = 8  # winners that are checked at once


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
    n = first_found(findings(task), 2, word(task, at.CHUNKS), word(task, at.ROWS))
    if n < word(task, at.ROWS):
        fail(task, at.BAD_WINNER, n, winner_at(task, as_i64_pointer(word(task, at.WINNERS)), n))


@inlined
def clear_strip(task, target, where, cols):
    store(task, target, where, in_target(cols), filled_wide(target, 0.0, cols[4]))


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


WEIGHTS = weight_gradients(__name__, slots=(at.TABLE, at.D_WEIGHTS), lanes=16)
