"""Gradients of gathered rows reduced by segment, in Numba: nothing is made for each position and
column. The reductions themselves, and the gradients of sums, are those of bags.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import index_pointer, kernel, pointer, real, word
from pullback.cpu.memory import filled_wide, get_first, put_first
from pullback.cpu.program import TENSORS
from pullback.cpu.vector import like, select, splat, to_f64
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_dot import weight_gradients
from pullback.ops.segment.cpu_engine import reduction
from pullback.ops.segment.cpu_extremum import (
    ALL_HOLDERS,
    PARTS,
    all_holders,
    equals,
    held,
    held_parts,
    joined_holders,
    own_ties,
    put_winners,
)
from pullback.ops.segment.cpu_index import id_by_step, single_step
from pullback.ops.segment.cpu_list import fetch_listed, over_listed, row_of
from pullback.ops.segment.cpu_strip import as_wide, in_source, load, load_wide
from pullback.ops.segment.cpu_sum import PARTS as SUM_PARTS
from pullback.ops.segment.cpu_sum import join_sums, nothing, plus, sum_parts, write_sum
from pullback.ops.segment.cpu_words import floats, ints, order_of

GATHER, X, D_WEIGHTS = TENSORS + 5, TENSORS + 7, TENSORS + 8
BEST_AT = at.FREQUENCIES_AT  # a word of bags, for a table of segments x columns

# --- who holds the extrema ------------------------------------------------------------------------


@inlined
def _held(task, state, block, cols):
    source, (places, _), _, _, sign, ties = state
    if ties == ALL_HOLDERS and block[7] > 0:
        return all_holders(source, places, block[7], in_source(cols), sign)
    return held(task, state, block, cols)


@inlined
def _put(task, s, cols, best, mark):
    """The positions that hold the extrema of a segment; or the extrema, and how many hold them."""
    if word(task, at.TIES) == ALL_HOLDERS:
        here = s * word(task, at.COLUMNS) + cols[2]
        put_first(floats(task, at.WINNERS_AT), here, 1, cols[3], mark)
        put_first(floats(task, BEST_AT), here, 1, cols[3], to_f64(best))
    else:
        put_winners(task, s, cols, mark)


@inlined
def _join(task, target, block, cols):
    best, mark = joined_holders(task, block, cols)
    _put(task, block[0], cols, best, mark)


WINNERS = reduction(
    __name__,
    ("find_winners", "find_long_winners"),
    total=_held,
    write=inlined(
        lambda task, state, block, cols, found: _put(task, block[0], cols, found[0], found[1])
    ),
    parts=held_parts,
    join=_join,
    many=PARTS,
    empty=inlined(lambda task, state, block, cols: None),
    own=own_ties,
    over=over_listed,
    source=X,
)

# --- gradients of extrema -------------------------------------------------------------------------


@inlined
def _won(task, source, here, position, g, count, n):
    """The gradient of a segment where this position holds the extremum."""
    won = get_first(ints(task, at.WINNERS_AT), here, 1, count, splat(-1, n))
    return select(won == like(won, position), g, filled_wide(source, 0.0, n))


@inlined
def _shared(task, source, here, v, g, count, n):
    """A share of it where the row of this position holds the extremum."""
    best = get_first(floats(task, BEST_AT), here, 1, count, splat(0.0, n))
    holders = get_first(floats(task, at.WINNERS_AT), here, 1, count, splat(1.0, n))
    share = g / as_wide(source, holders)
    return select(equals(v, best), share, filled_wide(source, 0.0, n))


@inlined
def _total(task, state, block, cols):
    source, (places, numbers), _, _, x, sign, ties = state
    _, _, column, count, n = cols
    (total, rest), view = nothing(source, n), in_source(cols)
    step, order, segment_of = word(task, at.TABLE_STEP), order_of(task), ints(task, at.BAG_OF_AT)
    v = to_f64(load(x, block[0] * word(task, at.TABLE_ROW), (column * step, step, count, n)))
    v = v * like(v, sign)
    for j in range(block[7]):
        fetch_listed(source, places, j, view)
        g = load_wide(source, places[j], view)
        position = order[block[2] + int(numbers[j])]
        here = segment_of[position] * word(task, at.COLUMNS) + column
        if ties == ALL_HOLDERS:
            g = _shared(task, source, here, v, g, count, n)
        else:
            g = _won(task, source, here, position, g, count, n)
        total, rest = plus(source, total, rest, g)
    return total, rest, None


# Each row receives the gradients of the segments it holds the extremum of.
GRADIENTS = reduction(
    __name__,
    ("winner_gradients", "combine_winner_gradients"),
    total=_total,
    write=write_sum,
    parts=sum_parts,
    join=join_sums,
    many=SUM_PARTS,
    own=inlined(lambda task, p, kept: (pointer(task, X), real(task, at.SIGN), word(task, at.TIES))),
    over=over_listed,
)

# --- gradients of weights -----------------------------------------------------------------------


WEIGHTS = weight_gradients(__name__, slots=(X, D_WEIGHTS), lanes=8)

# --- segments of positions ------------------------------------------------------------------------


@kernel
def resolve_ids(task, lo, hi):
    """The segment of each position, -1 out of range. Items are positions."""
    ids, step = index_pointer(task, at.IDS), single_step(task)
    segment_of = ints(task, at.BAG_OF_AT)
    for n in range(lo, hi):
        s = id_by_step(task, ids, n, step)
        segment_of[n] = s if 0 <= s < word(task, at.SEGMENTS) else -1


@kernel
def count_rows(task, lo, hi):
    """How many kept positions each segment has. One item."""
    ids, step = index_pointer(task, at.IDS), single_step(task)
    segment_of, sizes = ints(task, at.BAG_OF_AT), ints(task, at.BAG_SIZES_AT)
    for s in range(word(task, at.BAGS)):
        sizes[s] = 0
    for n in range(word(task, at.ROWS)):
        if segment_of[n] >= 0 and row_of(task, ids, n, step) >= 0:
            sizes[segment_of[n]] += 1
