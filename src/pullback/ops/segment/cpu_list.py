"""The rows of a block, found once: where each one lies, and what it is multiplied by.

All reductions have one form: over the sorted rows i of a segment, something of source[r]. For
segments r is the position behind i; for bags it is the index at position i, and for their gradients
the bag of the position behind i. A list of offsets hides the difference from the loops over
columns, which are left with nothing to decide. Rows that are not kept are not listed. Behind the
rows of a block stand the first ones after it, so that a strip can ask for every row some time
before it is needed: its last rows ask for the first ones of the same strip of the next block.
"""

from __future__ import annotations

from numba.extending import register_jitable

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import index_pointer, pointer, word
from pullback.cpu.memory import as_i64_pointer, read_wide
from pullback.ops.segment.cpu_index import id_by_step, single_step
from pullback.ops.segment.cpu_strip import MANY_LOOPS, fetch_strip
from pullback.ops.segment.cpu_walk import over_columns
from pullback.ops.segment.cpu_words import (
    BAG_OF_AT,
    BAG_SIZES_AT,
    BY_BAG,
    BY_POSITION,
    BY_SIZE,
    BY_WEIGHT,
    FAR,
    IDS,
    KEPT_AT,
    MAPPING,
    NUMBERED,
    ORDER,
    ORDER_AT,
    PADDING_ROW,
    POSITION_ROW,
    SCALING,
    VOCABULARY,
    WEIGHTS,
    WEIGHTS_STEP,
    has_order,
    position_offset,
    scratch,
    table,
)


@register_jitable
def row_of(task, ids, n, step):
    """The row of the table at position n, or -1 where it is not kept; `step` is `single_step`."""
    found = id_by_step(task, ids, n, step)
    if found < 0 or found >= word(task, VOCABULARY) or found == word(task, PADDING_ROW):
        return -1
    return found


@register_jitable
def list_rows(task, stride_at, block, places):
    """Every row of a block, at its position, in a tensor with the row stride of word `stride_at`;
    and as many rows after it as are asked for ahead."""
    _, _, start, end, _, _, last = block
    order, indirect = table(task, ORDER_AT, ORDER), has_order(task)
    stride = word(task, stride_at)
    for j in range(end - start + FAR):
        i = min(start + j, last)
        n = order[i] if indirect else i
        places[j] = n * stride if stride != MANY_LOOPS else position_offset(task, 1, n)


@register_jitable
def list_mapped(task, block, places, scales):
    """The rows that are kept, each where its index or its bag says."""
    _, _, start, end, _, _, last = block
    ids, step = index_pointer(task, IDS), single_step(task)
    order, indirect = table(task, ORDER_AT, ORDER), has_order(task)
    bag_of = as_i64_pointer(scratch(task, BAG_OF_AT))
    sizes = as_i64_pointer(scratch(task, BAG_SIZES_AT))
    weights, weights_step = pointer(task, WEIGHTS), word(task, WEIGHTS_STEP)
    by_bag, scaling = word(task, MAPPING) == BY_BAG, word(task, SCALING)
    kept, stride = 0, word(task, POSITION_ROW)
    for i in range(start, end):
        n = order[i] if by_bag and indirect else i
        row = bag_of[n] if by_bag else row_of(task, ids, n, step)
        if row >= 0:
            places[kept] = row * stride
            if scaling == BY_WEIGHT:
                scales[kept] = read_wide(weights, n * weights_step)
            elif scaling == BY_SIZE:
                scales[kept] = sizes[row]
            elif scaling == NUMBERED:
                scales[kept] = i - start
            kept += 1
    for j in range(FAR):
        n = min(end + j, last)
        n = order[n] if by_bag and indirect else n
        places[kept + j] = stride * (bag_of[n] if by_bag else id_by_step(task, ids, n, step))
    return kept


@inlined
def fetch_listed(source, places, j, at, n):
    """Ask for a strip of a row that is soon needed."""
    fetch_strip(source, places[j + FAR] + at, n)


@inlined
def over_listed(task, columns, wide, strip, state, block):
    """All strips of a block. The state begins with the source and the lists; a strip is given how
    many rows are listed as the last of the block."""
    (places, scales), slot = state[1], block[5]
    kept = 0
    if block[2] < block[3]:
        if word(task, MAPPING) == BY_POSITION:
            kept = block[3] - block[2]
            list_rows(task, POSITION_ROW, block, places)
        else:
            kept = list_mapped(task, block, places, scales)
    if slot >= 0:
        as_i64_pointer(scratch(task, KEPT_AT))[slot] = kept
    over_columns(task, columns, wide, strip, state, (*block, kept))


@inlined
def over_positions(task, columns, wide, strip, state, block):
    """All strips of a block whose rows lie at their positions: the state begins with their list."""
    if block[2] < block[3]:
        list_rows(task, POSITION_ROW, block, state[0])
    over_columns(task, columns, wide, strip, state, block)
