"""The rows of a block, found once: where each one lies, and what it is multiplied by.

All reductions have one form: over the sorted rows i of a segment, something of source[r]. For
segments r is the position behind i; for bags it is the index at position i, and for their gradients
the bag of the position behind i. A list of offsets hides the difference from the loops over
columns, which are left with nothing to decide. Rows that are not kept are not listed. Behind the
rows of a block stand the first ones after it, so that a strip can ask for every row some time
before it is needed: its last rows ask for the first ones of the same strip of the next block. Of
those only the ones that are asked for are listed: as many as the block has rows, FAR after them.
"""

from __future__ import annotations

from numba.extending import register_jitable

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import index_pointer, pointer, word
from pullback.cpu.memory import read_wide
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_index import id_by_step, single_step
from pullback.ops.segment.cpu_strip import MANY_LOOPS, fetch_strip
from pullback.ops.segment.cpu_walk import over_columns
from pullback.ops.segment.cpu_words import has_order, ints, order_of, position_offset


@register_jitable
def row_of(task, ids, n, step):
    """The row of the table at position n, or -1 where it is not kept; `step` is `single_step`."""
    found = id_by_step(task, ids, n, step)
    if found < 0 or found >= word(task, at.VOCABULARY) or found == word(task, at.PADDING_ROW):
        return -1
    return found


@register_jitable
def list_rows(task, stride_at, block, places):
    """Every row of a block, at its position, in a tensor with the row stride of word `stride_at`;
    and as many rows after it as are asked for ahead."""
    _, _, start, end, _, _, last = block
    list_part(task, stride_at, start, end - 1, 0, end - start, places)
    list_part(task, stride_at, start, last, max(end - start, at.FAR), end - start + at.FAR, places)


@register_jitable
def list_part(task, stride_at, start, last, first, past, places):
    """The places from `first` to `past` of a list that begins with row `start`; none is after row
    `last`."""
    order, stride, indirect = order_of(task), word(task, stride_at), has_order(task)
    there = max(min(past, last + 1 - start), first)
    if stride == MANY_LOOPS:
        for j in range(first, past):
            i = min(start + j, last)
            places[j] = position_offset(task, 1, order[i] if indirect else i)
        return
    if indirect:
        for j in range(first, there):
            places[j] = order[start + j] * stride
    else:
        for j in range(first, there):
            places[j] = (start + j) * stride
    final = (order[last] if indirect else last) * stride
    for j in range(there, past):
        places[j] = final


@register_jitable
def mapped_row(task, ids, bag_of, order, by_bag, indirect, step, i):
    """The row behind sorted row i, and the position it comes from."""
    n = order[i] if indirect else i
    return bag_of[n] if by_bag else id_by_step(task, ids, n, step), n


@register_jitable
def list_mapped(task, block, places, scales):
    """The rows that are kept, each where its index or its bag says, and as many places after them
    as are asked for ahead. The place of a row that is not kept goes to the next one: a branch
    would have to guess."""
    _, _, start, end, _, _, last = block
    ids, step, stride = index_pointer(task, at.IDS), single_step(task), word(task, at.POSITION_ROW)
    order, bag_of = order_of(task), ints(task, at.BAG_OF_AT)
    by_bag, scaling, kept = word(task, at.MAPPING) == at.BY_BAG, word(task, at.SCALING), 0
    indirect = has_order(task)
    past, padding = word(task, at.VOCABULARY), word(task, at.PADDING_ROW)
    if by_bag:
        past, padding = word(task, at.BAGS), -1
    if scaling == at.UNSCALED:
        for i in range(start, end):
            row, _ = mapped_row(task, ids, bag_of, order, by_bag, indirect, step, i)
            places[kept] = row * stride
            kept += (row >= 0) & (row < past) & (row != padding)
    else:
        for i in range(start, end):
            row, n = mapped_row(task, ids, bag_of, order, by_bag, indirect, step, i)
            if (row >= 0) & (row < past) & (row != padding):
                places[kept] = row * stride
                scales[kept] = scale_of(task, scaling, row, n, i - start)
                kept += 1
    for j in range(max(at.FAR - kept, 0), at.FAR):
        i = min(end + j, last)
        row, _ = mapped_row(task, ids, bag_of, order, by_bag, indirect, step, i)
        places[kept + j] = row * stride
    return kept


@register_jitable
def scale_of(task, scaling, row, n, number):
    """What comes with a row: a weight, the size of its bag, or its number in the block."""
    if scaling == at.BY_WEIGHT:
        step = word(task, at.WEIGHTS_STEP)
        where = n * step if step != MANY_LOOPS else position_offset(task, 1, n)
        return read_wide(pointer(task, at.WEIGHTS), where)
    if scaling == at.BY_SIZE:
        return ints(task, at.BAG_SIZES_AT)[row]
    return number


@inlined
def fetch_listed(source, places, j, view):
    """Ask for a strip of a row that is soon needed."""
    fetch_strip(source, places[j + at.FAR] + view[0], view[3])


@register_jitable
def list_block(task, block, lists):
    """List the rows of a block as the plan says; gives how many are kept."""
    (places, scales), slot = lists, block[5]
    kept = max(block[3] - block[2], 0)
    if kept > 0:
        if word(task, at.MAPPING) == at.BY_POSITION:
            list_rows(task, at.POSITION_ROW, block, places)
        else:
            kept = list_mapped(task, block, places, scales)
    if slot >= 0:
        ints(task, at.KEPT_AT)[slot] = kept
    return kept


@inlined
def over_listed(task, columns, wide, strip, state, block):
    """All strips of a block. The state begins with the source and the lists; a strip is given how
    many rows are listed as the last of the block."""
    kept = list_block(task, block, state[1])
    over_columns(task, columns, wide, strip, state, (*block, kept))


@inlined
def over_positions(task, columns, wide, strip, state, block):
    """All strips of a block whose rows lie at their positions."""
    if block[2] < block[3]:
        list_rows(task, at.POSITION_ROW, block, state[1][0])
    over_columns(task, columns, wide, strip, state, (*block, max(block[3] - block[2], 0)))
