"""From ids to sorted rows: checks, the borders of segments, a stable counting sort.

The sort spreads positions over buckets of neighbouring ids, chunk by chunk, then sorts each bucket
by counting. Chunks and buckets follow from the problem alone, so threads change nothing.
"""

from __future__ import annotations

from numba.extending import register_jitable

from pullback.cpu.kernel import index_pointer, kernel, set_word, word, words
from pullback.cpu.memory import advance, as_i64_pointer, get, on_stack, read_wide
from pullback.cpu.program import DETAIL, STATUS
from pullback.cpu.vector import any_lane
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_words import ints, offsets_of, order_of, position_offset

LANES = 8
MANY = 4 * LANES  # rows of a segment, on average, from which on not every id is looked at
LOOKED_AT = 256  # ids that are looked at for borders in one go
POSITION_BITS = 40  # of a packed entry; the id within its bucket stands above them
POSITION = (1 << POSITION_BITS) - 1


@register_jitable
def chunk_of(task, c):
    first = c * word(task, at.CHUNK)
    return first, min(first + word(task, at.CHUNK), word(task, at.ROWS))


@register_jitable
def findings(task):
    """Two words for each chunk: the first id out of range, the first below the one before."""
    return ints(task, at.FINDINGS_AT)


@register_jitable
def id_at(task, ids, n):
    return read_wide(ids, position_offset(task, 0, n))


@register_jitable
def single_step(task):
    """The stride of ids that one loop walks, else 0."""
    w = words(task, word(task, at.ROW_LOOPS))
    if w[1] > 1:
        return 0
    return position_offset(task, 0, 1)


@register_jitable
def id_by_step(task, ids, n, step):
    """The id at n, quickly where `single_step` has found a stride."""
    return read_wide(ids, n * step) if step != 0 else id_at(task, ids, n)


@register_jitable
def first_outside(task, ids, first, end):
    n, last, step = first, word(task, at.LAST), single_step(task)
    if step != 0:
        while n + LANES <= end:
            v = get(ids, n * step, step, LANES)
            if any_lane((v < 0) | (v > last)):
                break
            n += LANES
    while n < end:
        found = id_at(task, ids, n)
        if found < 0 or found > last:
            return n
        n += 1
    return word(task, at.ROWS)


@register_jitable
def first_descent(task, ids, first, end):
    n, step = max(first, 1), single_step(task)
    if step != 0:
        while n + LANES <= end:
            if any_lane(get(ids, n * step, step, LANES) < get(ids, (n - 1) * step, step, LANES)):
                break
            n += LANES
    while n < end:
        if id_at(task, ids, n) < id_at(task, ids, n - 1):
            return n
        n += 1
    return word(task, at.ROWS)


@kernel
def check_ids(task, lo, hi):
    """Items are chunks of ids."""
    ids, found, rows = index_pointer(task, at.IDS), findings(task), word(task, at.ROWS)
    for c in range(lo, hi):
        first, end = chunk_of(task, c)
        outside = descent = rows
        if word(task, at.ASCENDING):
            descent = first_descent(task, ids, first, end)
        if word(task, at.STRICT):
            # Where no id is below the one before, the ends speak for all.
            ends = id_at(task, ids, first), id_at(task, ids, end - 1)
            ordered = word(task, at.ASCENDING) and descent == rows
            if not ordered or ends[0] < 0 or ends[1] > word(task, at.LAST):
                outside = first_outside(task, ids, first, end)
        found[2 * c], found[2 * c + 1] = outside, descent


@register_jitable
def first_found(found, step, chunks, none):
    """The first of the findings of all chunks that is less than `none`, or `none`."""
    for c in range(chunks):
        if found[c * step] < none:
            return found[c * step]
    return none


@register_jitable
def fail(task, status, n, value):
    """End the program: what is wrong is number n, and its value."""
    set_word(task, DETAIL, n)
    set_word(task, DETAIL + 1, value)
    set_word(task, STATUS, status)


@register_jitable
def report(task, kind, status):
    """Raise the first finding of a kind, if there is one."""
    n = first_found(advance(findings(task), kind), 2, word(task, at.CHUNKS), word(task, at.ROWS))
    if n < word(task, at.ROWS):
        fail(task, status, n, id_at(task, index_pointer(task, at.IDS), n))
        return True
    return False


@kernel
def judge(task, lo, hi):
    """One item. Range comes before order."""
    if not report(task, 0, at.OUT_OF_RANGE + word(task, at.RANGE_STATUS)):
        report(task, 1, at.NOT_ASCENDING)


@register_jitable
def changes(task, ids, step, n, end, places):
    """The places from n on, before `end`, whose id is not the one before, and how many they are: a
    branch for each would have to guess."""
    count, before = 0, id_by_step(task, ids, n - 1, step)
    for k in range(n, end):
        after = id_by_step(task, ids, k, step)
        places[count] = k
        count += after != before
        before = after
    return count


@kernel
def find_borders(task, lo, hi):
    """offsets[s] = the first position whose id is s or more. Items are the places between ids,
    both ends included. Where segments are long, ids that are as one further on are passed over."""
    ids, offsets = index_pointer(task, at.IDS), offsets_of(task)
    rows, segments, step = word(task, at.ROWS), word(task, at.SEGMENTS), single_step(task)
    places, before, n = on_stack(as_i64_pointer(0), LOOKED_AT), -1, lo
    long = rows > MANY * segments
    if lo > 0:
        before = min(max(id_at(task, ids, lo - 1), -1), segments)
    while n < hi:
        while long and n + LANES < hi and id_by_step(task, ids, n + LANES - 1, step) == before:
            n += LANES
        count, end = 1, n + 1
        places[0] = n
        if 0 < n < rows:
            end = min(n + (LANES if long else LOOKED_AT), hi, rows)
            count = changes(task, ids, step, n, end, places)
        for k in range(count):
            after = segments
            if places[k] < rows:
                after = min(max(id_by_step(task, ids, places[k], step), -1), segments)
            for s in range(before + 1, after + 1):
                offsets[s] = places[k]
            before = after
        n = end


@kernel
def turn(task, lo, hi):
    """To the next set of words, and to the ids it is about. One item."""
    other = word(task, at.OTHER_WORDS)
    for k in range(at.FIRST, at.LOOPS):
        set_word(task, k, word(task, other + k - at.FIRST))
    set_word(task, at.IDS, word(task, word(task, at.IDS_SLOT)))


@kernel
def clear_long(task, lo, hi):
    """No block belongs to a long segment, until one says so. Items are block numbers."""
    owners = ints(task, at.LONG_AT)
    for block in range(lo, hi):
        owners[block] = -1


# --- the sort -----------------------------------------------------------------------------------


@register_jitable
def limit(task):
    """Positions from here on are left out."""
    if word(task, at.LIMIT_AT) < 0:
        return word(task, at.ROWS)
    return ints(task, at.LIMIT_AT)[0]


@register_jitable
def sort_key(found, segments, padding, left_out):
    """What is skipped sorts behind the last segment."""
    if found < 0 or found >= segments or found == padding or left_out:
        return segments
    return found


@kernel
def count_ids(task, lo, hi):
    """How many ids of each chunk fall into each bucket. Items are chunks."""
    ids, found = index_pointer(task, at.IDS), findings(task)
    segments, padding, shift = word(task, at.SEGMENTS), word(task, at.PADDING), word(task, at.SHIFT)
    buckets, end_of_all, strict = word(task, at.BUCKETS), limit(task), word(task, at.STRICT) != 0
    step, rows = single_step(task), word(task, at.ROWS)
    counts = ints(task, at.HISTOGRAM_AT)
    for c in range(lo, hi):
        first, end = chunk_of(task, c)
        for b in range(buckets):
            counts[c * buckets + b] = 0
        outside = rows
        for n in range(first, end):
            i = id_by_step(task, ids, n, step)
            if strict and (i < 0 or i >= segments) and outside == rows:
                outside = n
            counts[c * buckets + (sort_key(i, segments, padding, n >= end_of_all) >> shift)] += 1
        found[2 * c] = outside
        found[2 * c + 1] = rows


@kernel
def place_chunks(task, lo, hi):
    """Counts become places: buckets in order, and in each bucket chunks in order. One item."""
    if report(task, 0, at.OUT_OF_RANGE + word(task, at.RANGE_STATUS)):
        return
    counts, buckets = ints(task, at.HISTOGRAM_AT), word(task, at.BUCKETS)
    chunks = word(task, at.CHUNKS)
    # A last row of the table holds where each bucket begins, and finally where it ends.
    for b in range(buckets):
        counts[chunks * buckets + b] = 0
    for c in range(chunks):
        for b in range(buckets):
            counts[chunks * buckets + b] += counts[c * buckets + b]
    total = 0
    for b in range(buckets):
        begin = total
        total += counts[chunks * buckets + b]
        counts[chunks * buckets + b] = begin
    for c in range(chunks):
        for b in range(buckets):
            count = counts[c * buckets + b]
            counts[c * buckets + b] = counts[chunks * buckets + b]
            counts[chunks * buckets + b] += count


@kernel
def spread_ids(task, lo, hi):
    """Each position into its bucket. Items are chunks."""
    ids, packed = index_pointer(task, at.IDS), ints(task, at.PACKED_AT)
    segments, padding, shift = word(task, at.SEGMENTS), word(task, at.PADDING), word(task, at.SHIFT)
    buckets, end_of_all, step = word(task, at.BUCKETS), limit(task), single_step(task)
    places = ints(task, at.HISTOGRAM_AT)
    low_bits = (1 << shift) - 1
    for c in range(lo, hi):
        first, end = chunk_of(task, c)
        for n in range(first, end):
            key = sort_key(id_by_step(task, ids, n, step), segments, padding, n >= end_of_all)
            base = c * buckets + (key >> shift)
            packed[places[base]] = ((key & low_bits) << POSITION_BITS) | n
            places[base] += 1


@kernel
def sort_buckets(task, lo, hi):
    """Order and offsets of the ids in each bucket. Items are buckets."""
    packed, order = ints(task, at.PACKED_AT), order_of(task)
    offsets, shift = offsets_of(task), word(task, at.SHIFT)
    # The last row of places holds the ends of buckets.
    ends = word(task, at.CHUNKS) * word(task, at.BUCKETS)
    places = ints(task, at.HISTOGRAM_AT)
    if lo == 0:
        offsets[0] = 0
    for b in range(lo, hi):
        begin = places[ends + b - 1] if b > 0 else 0
        end = places[ends + b]
        first = b << shift
        past = min(first + (1 << shift), word(task, at.SEGMENTS) + 1)
        # offsets[s + 1] counts segment s, then runs from its begin to its end, where s + 1 begins.
        for s in range(first, past):
            offsets[s + 1] = 0
        for i in range(begin, end):
            offsets[first + (packed[i] >> POSITION_BITS) + 1] += 1
        total = begin
        for s in range(first, past):
            count = offsets[s + 1]
            offsets[s + 1] = total
            total += count
        for i in range(begin, end):
            s = first + (packed[i] >> POSITION_BITS)
            order[offsets[s + 1]] = packed[i] & POSITION
            offsets[s + 1] += 1
