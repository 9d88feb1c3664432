"""The walk over segments and their rows that all reductions share.

It visits each segment once for itself and once for each of its rows, so that equal pieces of it are
equal work, however the rows are spread. Segments of more than BLOCK rows are cut into blocks there,
counted from their own start: the cuts follow the data, and threads change nothing. A strip is as
many neighbouring columns as a kernel keeps in registers.

A driver gets a function `strip(task, state, block, cols)`. `state` is its own; `block` is (segment,
first, start, end, size, slot, last, kept): where the segment begins, the sorted rows of the block,
how many rows the segment has, the number of the block among those of long segments or -1, the last
of all sorted rows, and how many rows of the block are listed. For `cols` see `cpu_strip`.
"""

from __future__ import annotations

from numba.extending import register_jitable

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import word, words
from pullback.cpu.loops import extent, offset, step
from pullback.cpu.memory import fence
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_words import BLOCK, ints, long_slots, offsets_of

NARROW = 16  # columns that do not fill a wide strip go in narrow ones, the last of them masked
# And if no more are left, in half of one.
# Gain (strips of 8 columns): segment_prod sorted 1Mx5 f32 1.36.
SLIM = 8


@register_jitable
def segment_end(task, offsets, s):
    """One past the last sorted row of segment s; a padding segment has no rows."""
    return offsets[s + 1 if s != word(task, at.PADDING) else s]


@register_jitable
def first_block(task, offsets, lo):
    """The first block that begins at or after place `lo` of the walk: its segment and number."""
    low, high, base = 0, word(task, at.SEGMENTS), offsets[0]
    while high - low > 1:
        middle = (low + high) >> 1
        if offsets[middle] - base + middle <= lo:
            low = middle
        else:
            high = middle
    k = (lo - (offsets[low] - base + low) + BLOCK - 1) // BLOCK
    if k > 0 and offsets[low] + k * BLOCK >= segment_end(task, offsets, low):
        return low + 1, 0
    return low, k


@register_jitable
def long_slot(offsets, s, k):
    """The number of block k among the blocks of long segments. Those have at least two blocks, so
    twice the start of one is past the last block of the one before."""
    return 2 * ((offsets[s] - offsets[0]) // BLOCK) + k


@inlined
def columns_of(task):
    """What `over_columns` needs to know, read once: words may alias what a kernel writes."""
    w = words(task, word(task, at.COLUMN_LOOPS))
    inner, steps = extent(w), (step(w, 0), step(w, 1), step(w, 2))
    unit = steps[0] == 1 and steps[1] == 1 and steps[2] == 1
    return w, inner, word(task, at.COLUMNS) // inner, steps, unit


@inlined
def run_starts(w, outer):
    """Where a run of inner columns begins in each tensor; the first one, mostly the only one, at
    the beginning."""
    if outer == 0:
        return 0, 0, 0
    return offset(w, 0, outer), offset(w, 1, outer), offset(w, 2, outer)


@inlined
def over_columns(task, columns, wide, strip, state, block):
    """All strips of a block. Wide ones are full and contiguous in every tensor, which the compiler
    sees: steps and counts are constants there."""
    w, inner, outers, steps, unit = columns
    for outer in range(outers):
        (i, j, k), column = run_starts(w, outer), outer * inner
        c = 0
        while unit and c + wide <= inner:
            base = (i + c, j + c, k + c)
            strip(task, state, block, (base, (1, 1, 1), column + c, wide, wide))
            c += wide
        while c < inner:
            base, left = (i + c * steps[0], j + c * steps[1], k + c * steps[2]), inner - c
            if left <= SLIM:
                strip(task, state, block, (base, steps, column + c, left, SLIM))
            else:
                cols = (base, steps, column + c, min(left, NARROW), NARROW)
                strip(task, state, block, cols)
            c += NARROW


@inlined
def over_segments(task, lo, hi, wide, strip, state, block_strips):
    """All blocks that begin in places lo..hi of the walk. `block_strips` takes each of them: one
    of `cpu_list`, or of `cpu_panel` where rows are written."""
    offsets, segments = offsets_of(task), word(task, at.SEGMENTS)
    owners, last = ints(task, at.LONG_AT), offsets[segments] - 1
    base, s, k, columns = offsets[0], segments, 0, columns_of(task)
    if segments > 0:
        s, k = first_block(task, offsets, lo)
    while s < segments and offsets[s] - base + s + k * BLOCK < hi:
        start, past = offsets[s] + k * BLOCK, segment_end(task, offsets, s)
        size, slot = past - offsets[s], -1
        if size > BLOCK:
            slot = long_slot(offsets, s, k)
            owners[slot] = s
        block = (s, offsets[s], start, min(start + BLOCK, past), size, slot, last)
        block_strips(task, columns, wide, strip, state, block)
        if start + BLOCK < past:
            k += 1
        else:
            s, k = s + 1, 0
    if word(task, at.STREAMING):
        fence()


@inlined
def over_long_segments(task, lo, hi, strip, state):
    """Narrow strips of long segments, to combine their blocks: numbers `slot` to `slot + blocks`.
    Items are block numbers, once for each strip, and the first block stands for its segment. Here
    `strip` is called with (segment, slot, blocks, size) in place of a block."""
    offsets, w = offsets_of(task), words(task, word(task, at.COLUMN_LOOPS))
    owners, inner = ints(task, at.LONG_AT), extent(w)
    steps, strips = (step(w, 0), step(w, 1), step(w, 2)), (inner + NARROW - 1) // NARROW
    slots = long_slots(word(task, at.ROWS))
    for item in range(lo, hi):
        slot = item % slots
        s = owners[slot]
        if s < 0 or slot != long_slot(offsets, s, 0):
            continue
        outer = item // slots // strips
        c = (item // slots - outer * strips) * NARROW
        i, j, k = run_starts(w, outer)
        base = (i + c * steps[0], j + c * steps[1], k + c * steps[2])
        size, count = offsets[s + 1] - offsets[s], min(inner - c, NARROW)
        block = (s, slot, (size + BLOCK - 1) // BLOCK, size)
        strip(task, state, block, (base, steps, outer * inner + c, count, NARROW))


@inlined
def over_long_blocks(task, lo, hi, wide, strip, state, block_strips):
    """All blocks of long segments, by their numbers."""
    offsets, owners = offsets_of(task), ints(task, at.LONG_AT)
    last, columns = offsets[word(task, at.SEGMENTS)] - 1, columns_of(task)
    for slot in range(lo, hi):
        s = owners[slot]
        if s < 0:
            continue
        start = offsets[s] + (slot - long_slot(offsets, s, 0)) * BLOCK
        past = offsets[s + 1]
        end = min(start + BLOCK, past)
        block = (s, offsets[s], start, end, past - offsets[s], slot, last)
        block_strips(task, columns, wide, strip, state, block)
    if word(task, at.STREAMING):
        fence()
