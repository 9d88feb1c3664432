"""Segment reductions in Numba: which phases a plan runs, and where their tables live.

Every plan first finds the borders of segments (sorted ids) or sorts (unsorted ids), unless it gets
a prepared index. Then one phase walks segments and rows in pieces of equal work; long segments are
cut at borders counted from their own start, so their blocks leave partial results that a second
phase combines in order, and backwards a third one hands out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from pullback.contract.kinds import SegmentKind, TieRule
from pullback.cpu.program import Phase, Program, bits_of
from pullback.ops.segment import cpu_extremum as extremum
from pullback.ops.segment import cpu_positions as positions
from pullback.ops.segment import cpu_product as product
from pullback.ops.segment import cpu_spread as spread
from pullback.ops.segment import cpu_sum as sums
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.contract import NEUTRAL, Traits
from pullback.ops.segment.cpu_grouping import (
    Values,
    block_phase,
    border_phases,
    check_phases,
    clear_phase,
    gather_phase,
    group_tables,
    id_tables,
    last_id,
    lay_out_groups,
    past_caches,
    skipped_phase,
    sort_phases,
    streaming_of,
    strip_phase,
    walk_phase,
)
from pullback.ops.segment.loops import all_axes, column_loops, row_loops
from pullback.tensor.layout import AxisLoops
from pullback.tensor.rounding import round_to
from pullback.tensor.view import TensorRef

# --- plans --------------------------------------------------------------------------------------

PARTS = {
    "sum": sums.PARTS,
    "mean": sums.PARTS,
    "max": extremum.PARTS,
    "min": extremum.PARTS,
    "prod": product.PARTS,
}
FORWARDS = {
    "sum": (sums.sum_segments, sums.combine_sums),
    "mean": (sums.sum_segments, sums.combine_sums),
    "max": (extremum.extrema, extremum.combine_extrema),
    "min": (extremum.extrema, extremum.combine_extrema),
    "prod": (product.products, product.combine_products),
}
_EXTREMUM_BACKWARD = (
    extremum.extremum_gradients,
    extremum.combine_holders,
    extremum.hand_out_long,
)
BACKWARDS = {
    "max": _EXTREMUM_BACKWARD,
    "min": _EXTREMUM_BACKWARD,
    "prod": (product.product_gradients, product.combine_others, product.hand_out_products),
}
TIES = {
    TieRule.FIRST: extremum.FIRST_HOLDER,
    TieRule.LAST: extremum.LAST_HOLDER,
    TieRule.SPLIT: extremum.ALL_HOLDERS,
}


def _tables(traits: Traits, desc: Any) -> tuple[at.Room, Values]:
    parts = PARTS[traits.reduction]
    if traits.backward and traits.reduction == "prod":
        parts = product.PARTS_BACKWARD
    return group_tables(desc, parts, traits.ascending)


def workspace(traits: Traits, desc: Any) -> int:
    return _tables(traits, desc)[0].bytes


def _layout(traits: Traits, desc: Any, *views: Any) -> Program:
    source, ids, target, order, offsets, *saved = views
    per_row, per_segment = (target, source) if traits.backward else (source, target)
    _, values = _tables(traits, desc)
    phases, rows = lay_out_groups(values, desc, ids, order, offsets, per_row)
    tensors = [view for view in (source, target, *saved) if view is not None]
    has_positions = not traits.backward and len(tensors) > 2
    columns = column_loops(tensors)
    nbytes = desc.element.itemsize * desc.embedding_dim
    values |= {
        at.SEGMENT_ROW: per_segment.strides[0],
        at.SAVED_ROW: tensors[-1].strides[0],
        at.DIVIDE: int(traits.reduction == "mean"),
        at.STREAMING: _alignment(traits, values, nbytes, target.extents[0]),
        at.SIGN: bits_of(-1.0 if traits.reduction == "min" else 1.0),
        at.TIES: TIES[getattr(desc, "ties", TieRule.FIRST)],
        at.WINNERS_ROW: tensors[-1].strides[0],
    }
    if has_positions and desc.ties is TieRule.SPLIT:
        values[at.TIES] = extremum.FIRST_HOLDER
    if not traits.backward:
        empty = NEUTRAL[traits.reduction] if desc.empty is None else desc.empty
        with np.errstate(over="ignore"):
            values[at.EMPTY] = bits_of(float(round_to(empty, desc.element.dtype)))
    if values[at.COLUMNS] and traits.backward and traits.reduction == "sum" and not desc.borders:
        # A row finds its segment by its id alone: nothing is sorted.
        checks = () if offsets is not None else check_phases(values)
        phases = (*checks, gather_phase(values, columns, nbytes))
    elif values[at.COLUMNS]:
        phases += _phases(traits, values, columns, nbytes)
    if values[at.COLUMNS] and has_positions:
        phases += (
            walk_phase(positions.positions_of, values, nbytes),
            strip_phase(extremum.combine_holders, values, columns.extent),
            strip_phase(positions.positions_of_long, values, columns.extent),
        )
    words = at.layout_words(len(views), (values, rows, columns))
    return Program(phases, words, ids.element)


def _alignment(traits: Traits, values: Values, row_bytes: int, rows: int) -> int:
    if traits.backward and traits.reduction != "sum":
        return streaming_of(values, row_bytes, rows)
    return at.IN_ORDER if past_caches(row_bytes, rows) else 0


def _phases(traits: Traits, values: Values, columns: AxisLoops, nbytes: int) -> tuple[Phase, ...]:
    """What follows once the rows of each segment are known."""
    if not traits.backward:
        walk, combine = FORWARDS[traits.reduction]
        return (
            clear_phase(values),
            walk_phase(walk, values, nbytes),
            strip_phase(combine, values, columns.extent),
        )
    if traits.reduction in ("sum", "mean"):
        return skipped_phase(values), walk_phase(spread.share_segments, values, nbytes)
    walk, combine, hand_out = BACKWARDS[traits.reduction]
    return (
        skipped_phase(values),
        clear_phase(values),
        walk_phase(walk, values, 2 * nbytes),
        strip_phase(combine, values, columns.extent),
        block_phase(hand_out, values),
    )


globals().update({kind.value: partial(_layout, Traits.of(kind)) for kind in SegmentKind})


# --- preparing an index -------------------------------------------------------------------------


def preparation(
    ids: TensorRef, extent: int
) -> tuple[Program, Callable[[Any], tuple[int, int]], Callable[..., Program], int]:
    """A program that checks ids, how its findings are read, the program that sorts them, and the
    bytes both need."""
    room = at.Room()
    values = id_tables(room, ids.shape[0], extent, sort=True)
    values |= {at.LAST: last_id(extent, ids), at.STRICT: 1, at.ASCENDING: 1}
    findings_at = values[at.FINDINGS_AT]
    rows, columns = row_loops(all_axes(ids)), column_loops([])
    check = Program(
        check_phases(values)[:1], at.layout_words(5, (values, rows, columns)), ids.element
    )

    def findings(scratch: Any) -> tuple[int, int]:
        begin = -scratch.ctypes.data % 64 + findings_at
        table = scratch[begin : begin + 16 * values[at.CHUNKS]].view(np.int64).reshape(-1, 2)
        first, second = table.min(axis=0, initial=ids.shape[0])
        return int(first), int(second)

    def sort(ordered: bool) -> Program:
        tables = {at.OFFSETS_AT: at.IN_SLOT, at.STRICT: 0}
        tables[at.ORDER_AT] = at.NOWHERE if ordered else at.IN_SLOT
        phases = border_phases(values) if ordered else sort_phases(values)
        words = at.layout_words(5, (values | tables, rows, columns))
        return Program(phases, words, ids.element)

    return check, findings, sort, room.bytes
