"""Which rows of a table received something: positions sorted by row, without a table of all rows.

Positions are spread over buckets of neighbouring rows, as `segment.cpu_index` does it; each bucket
is then sorted by itself, and the rows in it are numbered. Segments are those rows from then on.
"""

from __future__ import annotations

from numba.extending import register_jitable

from pullback.cpu.kernel import kernel, set_word, word
from pullback.cpu.memory import as_i64_pointer, on_stack
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_index import POSITION, POSITION_BITS
from pullback.ops.segment.cpu_words import ints

# Words that sums have no other use for: the slot of the rows found, and how many there may be.
ROWS_SLOT, CAPACITY = at.WINNERS_ROW, at.WINNERS_STEP
COUNTS_AT = at.FREQUENCIES_AT  # rows in each bucket, then the number of its first
FEW = 48  # entries that are sorted by insertion
DIGIT_BITS = 8  # of a pass over more
DIGITS = 1 << DIGIT_BITS


@register_jitable
def bucket_of(task, b):
    """Where the entries of a bucket begin and end: the last row of the histogram has the ends."""
    ends = ints(task, at.HISTOGRAM_AT)
    last = word(task, at.CHUNKS) * word(task, at.BUCKETS)
    return ends[last + b - 1] if b > 0 else 0, ends[last + b]


@register_jitable
def insert_all(packed, begin, end):
    for i in range(begin + 1, end):
        entry, j = packed[i], i
        while j > begin and packed[j - 1] > entry:
            packed[j] = packed[j - 1]
            j -= 1
        packed[j] = entry


@register_jitable
def sort_by_digits(packed, spare, begin, end, bits):
    """Sort entries by the lowest `bits` of their rows, the lowest digit first. Entries are in order
    of positions, and stay so among equals."""
    places = on_stack(as_i64_pointer(0), DIGITS)
    for low in range(0, bits, DIGIT_BITS):
        shift = POSITION_BITS + low
        for d in range(DIGITS):
            places[d] = 0
        for i in range(begin, end):
            places[(packed[i] >> shift) & (DIGITS - 1)] += 1
        total = begin
        for d in range(DIGITS):
            count = places[d]
            places[d] = total
            total += count
        for i in range(begin, end):
            d = (packed[i] >> shift) & (DIGITS - 1)
            spare[places[d]] = packed[i]
            places[d] += 1
        for i in range(begin, end):
            packed[i] = spare[i]


@register_jitable
def kept_end(task, packed, begin, end, b):
    """Where the entries of a bucket end that are of rows: what is skipped stands behind them."""
    skipped = word(task, at.VOCABULARY) - (b << word(task, at.SHIFT))
    while end > begin and packed[end - 1] >> POSITION_BITS == skipped:
        end -= 1
    return end


@kernel
def sort_rows(task, lo, hi):
    """Sort each bucket and count its rows. Items are buckets."""
    packed, spare = ints(task, at.PACKED_AT), ints(task, at.ORDER_AT)
    counts, bits = ints(task, COUNTS_AT), word(task, at.SHIFT)
    for b in range(lo, hi):
        begin, end = bucket_of(task, b)
        if end - begin <= FEW:
            insert_all(packed, begin, end)
        else:
            sort_by_digits(packed, spare, begin, end, bits)
        count, before = 0, -1
        for i in range(begin, kept_end(task, packed, begin, end, b)):
            row = packed[i] >> POSITION_BITS
            count += row != before
            before = row
        counts[b] = count


@kernel
def place_rows(task, lo, hi):
    """Number the first row of each bucket; segments are as many as there are rows. One item."""
    counts, total = ints(task, COUNTS_AT), 0
    packed, offsets = ints(task, at.PACKED_AT), ints(task, at.OFFSETS_AT)
    buckets, rows = word(task, at.BUCKETS), as_i64_pointer(word(task, word(task, ROWS_SLOT)))
    for b in range(buckets):
        count = counts[b]
        counts[b] = total
        total += count
    begin, end = bucket_of(task, buckets - 1)
    offsets[total] = kept_end(task, packed, begin, end, buckets - 1)
    offsets[total + 1] = end
    rows[word(task, CAPACITY)] = total
    set_word(task, at.SEGMENTS, total)
    set_word(task, at.PADDING, -1)  # a row that nothing is sorted into


@kernel
def number_rows(task, lo, hi):
    """Where the positions of each row begin, and which they are. Items are buckets."""
    packed, order = ints(task, at.PACKED_AT), ints(task, at.ORDER_AT)
    counts, offsets = ints(task, COUNTS_AT), ints(task, at.OFFSETS_AT)
    rows, shift = as_i64_pointer(word(task, word(task, ROWS_SLOT))), word(task, at.SHIFT)
    for b in range(lo, hi):
        begin, end = bucket_of(task, b)
        number, before = counts[b] - 1, -1
        past = kept_end(task, packed, begin, end, b)
        for i in range(begin, past):
            row = packed[i] >> POSITION_BITS
            if row != before:
                number += 1
                rows[number], offsets[number] = (b << shift) + row, i
                before = row
            order[i] = packed[i] & POSITION
        for i in range(past, end):
            order[i] = packed[i] & POSITION
