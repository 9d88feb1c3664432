"""Which row holds the maximum or minimum of a segment: its position, or -1 where there is none.

The values are written by `cpu_extremum`; here only positions are, by the rule for ties. What the
blocks of a long segment hold is combined as for gradients.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, real, word
from pullback.cpu.memory import as_i64_pointer, on_stack
from pullback.cpu.vector import lane_at, to_f64
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_extremum import (
    LAST_HOLDER,
    PARTS,
    first_holder,
    get_part,
    keep_holder,
)
from pullback.ops.segment.cpu_list import over_positions
from pullback.ops.segment.cpu_strip import sum_lanes
from pullback.ops.segment.cpu_walk import over_long_segments, over_segments
from pullback.ops.segment.cpu_words import LISTED, has_order, offsets_of, order_of

POSITIONS = at.SAVED  # the slot of the positions, which forwards have no other tensor in


@inlined
def _put(task, positions, s, first, mark, base, along, count):
    """The positions of the rows that are `mark` rows after `first`, of each lane."""
    order, indirect = order_of(task), has_order(task)
    where = s * word(task, at.WINNERS_ROW) + base[2]
    for k in range(count):
        i = first + int(lane_at(mark, k))
        positions[where + k * along[2]] = order[i] if indirect else i


@inlined
def _strip(task, state, block, base, along, column, count, n):
    places, source, positions, sign, turn = state
    s, _, start, end, size, slot, _ = block
    if size == 0:
        for k in range(count):
            positions[s * word(task, at.WINNERS_ROW) + base[2] + k * along[2]] = -1
        return
    best, mark = first_holder(source, places, end - start, turn, base[0], along[0], count, n, sign)
    if slot < 0:
        _put(task, positions, s, start, to_f64(mark), base, along, count)
    else:
        keep_holder(task, slot, column, count, best, mark)


@kernel
def positions_of(task, lo, hi):
    """Items are places of the walk over segments and their rows."""
    source, positions = pointer(task, at.SOURCE), as_i64_pointer(word(task, POSITIONS))
    places, turn = on_stack(as_i64_pointer(0), LISTED), word(task, at.TIES) == LAST_HOLDER
    state = (places, source, positions, real(task, at.SIGN), turn)
    over_segments(task, lo, hi, sum_lanes(source), _strip, state, over_positions)


@inlined
def _long_strip(task, positions, block, base, along, column, count, n):
    s, slot, _, _ = block
    mark = get_part(task, PARTS * slot + 1, column, count, n)
    first = offsets_of(task)[s]
    _put(task, positions, s, first, mark, base, along, count)


@kernel
def positions_of_long(task, lo, hi):
    """Long segments: what their first blocks hold of them all."""
    positions = as_i64_pointer(word(task, POSITIONS))
    over_long_segments(task, lo, hi, _long_strip, positions)
