"""Gathered rows reduced by segment, and their gradients, in Numba: nothing is made for each
position and column.

A block of sorted positions is listed once: where the row of each lies, what it is multiplied by.
For the gradient the roles are exchanged: positions are sorted by row, and rows of dy are listed.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from numba.extending import register_jitable

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, real, word
from pullback.cpu.memory import (
    as_f64_pointer,
    as_i64_pointer,
    filled_wide,
    get_first,
    on_stack,
    put_first,
    read_wide,
    write,
)
from pullback.cpu.program import TENSORS
from pullback.cpu.vector import lane, lane_at, like, select, splat, to_f64
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_dot import row_product
from pullback.ops.segment.cpu_extremum import (
    ALL_HOLDERS,
    LAST_HOLDER,
    PARTS,
    all_holders,
    equals,
    extremum_strip,
    first_holder,
    get_part,
    keep_holder,
)
from pullback.ops.segment.cpu_list import fetch_listed
from pullback.ops.segment.cpu_strip import as_wide, lanes, load, load_wide, sum_lanes
from pullback.ops.segment.cpu_sum import PARTS as SUM_PARTS
from pullback.ops.segment.cpu_sum import (
    in_part,
    keep_partial,
    nothing,
    plus,
    sum_strip,
    summed,
    write_sum,
)
from pullback.ops.segment.cpu_walk import (
    columns_of,
    over_columns,
    over_long_segments,
    over_segments,
)
from pullback.ops.segment.cpu_words import (
    BLOCK,
    LISTED,
    floats,
    has_order,
    ints,
    offsets_of,
    order_of,
)
from pullback.ops.segment_gather.cpu_resolve import ROW_OF_AT, SEGMENT_OF_AT

X, D_WEIGHTS = TENSORS + 7, TENSORS + 8
WINNERS_AT, BEST_AT = at.FREQUENCIES_AT, at.WINNERS_ROW
BY_ROW, BY_SEGMENT = 0, 1  # what is listed for a position
DOT_LANES = 8


@register_jitable
def list_gathered(task, block, lists):
    """Of each position of a block: where its row lies, what that is multiplied by, the position and
    the row itself; and where as many rows after them lie as are asked for ahead."""
    places, scales, positions, rows = lists
    _, _, start, end, _, _, last = block
    order, indirect, stride = order_of(task), has_order(task), word(task, at.POSITION_ROW)
    base = SEGMENT_OF_AT if word(task, at.MAPPING) == BY_SEGMENT else ROW_OF_AT
    listed, sizes = ints(task, base), ints(task, at.BAG_SIZES_AT)
    scaling, weights = word(task, at.SCALING), pointer(task, at.WEIGHTS)
    for j in range(end - start):
        n = order[start + j] if indirect else start + j
        row = listed[n]
        places[j], positions[j], rows[j] = row * stride, n, row
        if scaling == at.BY_WEIGHT:
            scales[j] = read_wide(weights, n * word(task, at.WEIGHTS_STEP))
        elif scaling == at.BY_SIZE:
            scales[j] = sizes[row]
    for j in range(max(end - start, at.FAR), end - start + at.FAR):
        i = min(start + j, last)
        places[j] = listed[order[i] if indirect else i] * stride


@inlined
def _over_listed(task, columns, wide, strip, state, block):
    """All strips of a block; the state begins with the lists, and a block ends with how many rows
    they have."""
    rows, slot = max(block[3] - block[2], 0), block[5]
    if rows > 0:
        list_gathered(task, block, state[0])
    if slot >= 0:
        ints(task, at.KEPT_AT)[slot] = rows
    over_columns(task, columns, wide, strip, state, (*block, rows))


# --- forward ------------------------------------------------------------------------------------


@inlined
def _sum_strip(task, state, block, base, along, column, count, n):
    (places, scales, _, _), source, target, scaling = state
    known = (source, (places, scales), target, scaling)
    sum_strip(task, known, block, base, along, column, count, n)


@kernel
def gathered_sums(task, lo, hi):
    """Items are places of the walk over segments and their positions."""
    source, places = pointer(task, at.SOURCE), on_stack(as_i64_pointer(0), LISTED)
    scales = on_stack(as_f64_pointer(0), BLOCK)
    lists = (places, scales, on_stack(places, BLOCK), on_stack(places, BLOCK))
    state = (lists, source, pointer(task, at.TARGET), word(task, at.SCALING))
    over_segments(task, lo, hi, sum_lanes(source), _sum_strip, state, _over_listed)


@inlined
def _extremum_strip(task, state, block, base, along, column, count, n):
    lists, source, target, sign = state
    s, first, start, end, size, slot, last, _ = block
    known, rows = (lists[0], source, target, sign, 0), (s, first, start, end, size, slot, last)
    extremum_strip(task, known, rows, base, along, column, count, n)


@kernel
def gathered_extrema(task, lo, hi):
    """Items are places of the walk over segments and their positions."""
    source, places = pointer(task, at.SOURCE), on_stack(as_i64_pointer(0), LISTED)
    scales = on_stack(as_f64_pointer(0), BLOCK)
    lists = (places, scales, on_stack(places, BLOCK), on_stack(places, BLOCK))
    state = (lists, source, pointer(task, at.TARGET), real(task, at.SIGN))
    over_segments(task, lo, hi, sum_lanes(source), _extremum_strip, state, _over_listed)


# --- gradients of extrema -----------------------------------------------------------------------


@inlined
def _put_winners(task, s, column, count, best, mark, first):
    """The positions that hold the extrema of a segment, `mark` after `first`."""
    winners, order = ints(task, WINNERS_AT), order_of(task)
    here, indirect = s * word(task, at.COLUMNS) + column, has_order(task)
    for k in range(count):
        i = first + int(lane_at(mark, k))
        winners[here + k] = order[i] if indirect else i


@inlined
def _put_holders(task, s, column, count, best, mark):
    """The extrema of a segment, and how many positions hold them."""
    here = s * word(task, at.COLUMNS) + column
    put_first(floats(task, WINNERS_AT), here, 1, count, mark)
    put_first(floats(task, BEST_AT), here, 1, count, best)


@inlined
def _winner_strip(task, state, block, base, along, column, count, n):
    lists, source, sign, ties = state
    s, _, start, end, size, slot, _, _ = block
    if size == 0:
        return
    rows, step = end - start, word(task, at.TABLE_STEP)
    if ties == ALL_HOLDERS:
        best, mark = all_holders(source, lists[0], rows, column * step, step, count, n, sign)
        if slot < 0:
            _put_holders(task, s, column, count, to_f64(best), to_f64(mark))
    else:
        turn = ties == LAST_HOLDER
        best, mark = first_holder(source, lists[0], rows, turn, column * step, step, count, n, sign)
        if slot < 0:
            _put_winners(task, s, column, count, best, to_f64(mark), start)
    if slot >= 0:
        keep_holder(task, slot, column, count, best, mark)


@kernel
def find_winners(task, lo, hi):
    """Who holds the extremum of each segment. Items are places of the walk."""
    source, places = pointer(task, X), on_stack(as_i64_pointer(0), LISTED)
    scales = on_stack(as_f64_pointer(0), BLOCK)
    lists = (places, scales, on_stack(places, BLOCK), on_stack(places, BLOCK))
    state = (lists, source, real(task, at.SIGN), word(task, at.TIES))
    over_segments(task, lo, hi, lanes(source), _winner_strip, state, _over_listed)


@inlined
def _long_winner_strip(task, ties, block, base, along, column, count, n):
    s, slot, _, _ = block
    best = get_part(task, PARTS * slot, column, count, n)
    mark = get_part(task, PARTS * slot + 1, column, count, n)
    if ties == ALL_HOLDERS:
        _put_holders(task, s, column, count, best, mark)
    else:
        _put_winners(task, s, column, count, best, mark, offsets_of(task)[s])


@kernel
def find_long_winners(task, lo, hi):
    """Long segments: what their first blocks hold of them all."""
    over_long_segments(task, lo, hi, _long_winner_strip, word(task, at.TIES))


@inlined
def _won(task, source, here, position, g, count, n):
    """The gradient of a segment where this position holds the extremum."""
    winners = ints(task, WINNERS_AT)
    won = get_first(winners, here, 1, count, splat(-1, n))
    return select(won == like(won, position), g, filled_wide(source, 0.0, n))


@inlined
def _shared(task, source, here, v, g, count, n):
    """A share of it where the row of this position holds the extremum."""
    best = get_first(floats(task, BEST_AT), here, 1, count, splat(0.0, n))
    holders = get_first(floats(task, WINNERS_AT), here, 1, count, splat(1.0, n))
    share = g / as_wide(source, holders)
    return select(equals(v, best), share, filled_wide(source, 0.0, n))


@inlined
def _gradient_strip(task, state, block, base, along, column, count, n):
    lists, source, target, x, sign, ties = state
    places, _, positions, rows = lists
    s, _, _, _, _, slot, _, kept = block
    total, rest = nothing(source, n)
    columns, step = word(task, at.COLUMNS), word(task, at.TABLE_STEP)
    v = to_f64(load(x, s * word(task, at.TABLE_ROW) + column * step, step, count, n))
    v = v * like(v, sign)
    for j in range(kept):
        fetch_listed(source, places, j, base[0], n)
        g = load_wide(source, places[j] + base[0], along[0], count, n)
        here = rows[j] * columns + column
        if ties == ALL_HOLDERS:
            g = _shared(task, source, here, v, g, count, n)
        else:
            g = _won(task, source, here, positions[j], g, count, n)
        total, rest = plus(source, total, rest, g)
    if slot < 0:
        write_sum(task, target, s, base, along, count, n, summed(source, total, rest), None, kept)
    else:
        keep_partial(task, SUM_PARTS * slot, column, count, *in_part(source, total, rest, None))


@kernel
def winner_gradients(task, lo, hi):
    """Each row receives the gradients of the segments it holds the extremum of. Items are places of
    the walk over rows and their positions."""
    source, places = pointer(task, at.SOURCE), on_stack(as_i64_pointer(0), LISTED)
    scales = on_stack(as_f64_pointer(0), BLOCK)
    lists = (places, scales, on_stack(places, BLOCK), on_stack(places, BLOCK))
    signs = real(task, at.SIGN), word(task, at.TIES)
    state = (lists, source, pointer(task, at.TARGET), pointer(task, X), *signs)
    over_segments(task, lo, hi, lanes(source), _gradient_strip, state, _over_listed)


# --- gradients of weights -----------------------------------------------------------------------


@kernel
def weight_gradients(task, lo, hi):
    """Each kept position gets the product of its row with its segment's gradient. Items are
    positions."""
    source, rows, target = pointer(task, at.SOURCE), pointer(task, X), pointer(task, D_WEIGHTS)
    segment_of = ints(task, SEGMENT_OF_AT)
    row_of, columns = ints(task, ROW_OF_AT), word(task, at.COLUMNS)
    stride, along = word(task, at.SEGMENT_ROW), columns_of(task)[3][0]
    table_row, table_step = word(task, at.TABLE_ROW), word(task, at.TABLE_STEP)
    for i in range(lo, hi):
        value = filled_wide(target, 0.0, 1)
        if row_of[i] >= 0:
            u, v = segment_of[i] * stride, row_of[i] * table_row
            value = row_product(source, u, along, rows, v, table_step, columns, DOT_LANES)
        write(target, i * word(task, at.D_WEIGHTS_STEP), lane(value, 0))
