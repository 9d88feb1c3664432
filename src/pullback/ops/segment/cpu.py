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
from pullback.cpu.pool import get_num_threads
from pullback.cpu.program import Phase, Program, bits_of, grain_for
from pullback.ops.segment import cpu_direct as direct
from pullback.ops.segment import cpu_extremum as extremum
from pullback.ops.segment import cpu_gather as gather
from pullback.ops.segment import cpu_product as product
from pullback.ops.segment import cpu_sum as sums
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.contract import NEUTRAL, Traits
from pullback.ops.segment.cpu_grouping import (
    ANY,
    NONE,
    border_phases,
    check_phases,
    gather_phase,
    group_tables,
    id_tables,
    last_id,
    lay_out_groups,
    past_caches,
    reduced,
    skipped_phase,
    sort_phases,
    spread_out,
    streaming_of,
    walk_phase,
    word_of,
)
from pullback.ops.segment.loops import all_axes, column_loops, row_loops
from pullback.tensor.view import TensorRef

MOST_ADDED = 1 << 27  # numbers that one thread adds without looking for signals: half a second

# --- plans --------------------------------------------------------------------------------------

# What a block of a long segment leaves, forward and backward; the kernels.
_SUM = sums.PARTS, sums.PARTS, sums.SUMS, ()
_EXTREMUM = extremum.PARTS, extremum.PARTS, extremum.EXTREMA, extremum.GRADIENTS
_PRODUCT = product.PARTS, product.PARTS_BACKWARD, product.PRODUCTS, product.GRADIENTS
_KERNELS: dict[str, Any] = {
    "sum": _SUM,
    "mean": _SUM,
    "max": _EXTREMUM,
    "min": _EXTREMUM,
    "prod": _PRODUCT,
}
TIES = {
    TieRule.FIRST: extremum.FIRST_HOLDER,
    TieRule.LAST: extremum.LAST_HOLDER,
    TieRule.SPLIT: extremum.ALL_HOLDERS,
}


def workspace(traits: Traits, desc: Any) -> int:
    parts = _KERNELS[traits.reduction][traits.backward]
    room = group_tables(desc, parts, traits.ascending)[0]
    room.take(_direct_words(traits, desc))
    return room.bytes


def _direct_words(traits: Traits, desc: Any) -> int:
    """Words of the table of sums of rows that are not grouped, 0 if they are."""
    summed = traits.reduction in ("sum", "mean") and not traits.backward
    short = desc.num_inputs * desc.embedding_dim <= MOST_ADDED
    unsorted = not (traits.ascending or desc.borders)
    return direct.table_words(desc) if summed and unsorted and short else 0


def _direct(traits: Traits, desc: Any, *views: Any) -> Program | None:
    """Sums of rows that are not grouped, where the layout allows it and nothing is prepared."""
    source, ids, target, _, offsets, *_ = views
    words = _direct_words(traits, desc)
    if not words or offsets is not None or get_num_threads() > direct.MOST_THREADS:
        return None
    room, values = group_tables(desc, sums.PARTS, traits.ascending)
    _, rows = lay_out_groups(values, desc, ids, None, None, source)
    columns = column_loops([source, target])
    if columns.rest.extents or columns.steps[0] != 1:
        return None
    values |= {
        at.PARTIALS_AT: room.take(words),
        at.SEGMENT_ROW: target.strides[0],
        at.DIVIDE: int(traits.reduction == "mean"),
        at.EMPTY: word_of(0.0 if desc.empty is None else desc.empty, desc),
    }
    clear_bytes = 8 * words // desc.num_segments
    phases = (
        Phase(direct.clear_sums, desc.num_segments, grain_for(clear_bytes), **ANY, **NONE),
        Phase(direct.add_rows, 1, 1),
        Phase(direct.write_sums, desc.num_segments, grain_for(2 * clear_bytes), **NONE),
    )
    return Program(phases, at.layout_words(len(views), (values, rows, columns)), ids.element)


def _forward(traits: Traits, desc: Any, *views: Any) -> Program:
    if (program := _direct(traits, desc, *views)) is not None:
        return program
    parts, _, kernels, _ = _KERNELS[traits.reduction]
    words = {
        at.DIVIDE: int(traits.reduction == "mean"),
        at.SIGN: bits_of(-1.0 if traits.reduction == "min" else 1.0),
    }
    if len(views) > 5 and (positions := views[5]) is not None:
        # Of all holders the first is reported. The value is always that of the first.
        last = desc.ties is TieRule.LAST
        kernels = (*kernels, *extremum.HELD) if last else extremum.HELD
        words |= {
            at.TIES: TIES[TieRule.LAST if last else TieRule.FIRST],
            at.WINNERS_AT: at.IN_SLOT,
            at.WINNERS_SLOT: at.SAVED,
            at.WINNERS_ROW: positions.strides[0],
        }
    empty = NEUTRAL[traits.reduction] if desc.empty is None else desc.empty
    return reduced(desc, parts, traits.ascending, kernels, empty, views, words)


def _backward(traits: Traits, desc: Any, *views: Any) -> Program:
    _, parts, _, kernels = _KERNELS[traits.reduction]
    words = {
        at.SIGN: bits_of(-1.0 if traits.reduction == "min" else 1.0),
        at.TIES: TIES[getattr(desc, "ties", TieRule.FIRST)],
    }
    return spread_out(desc, parts, traits.ascending, kernels, 0.0, views, words)


def _shared(traits: Traits, desc: Any, *views: Any) -> Program:
    """Gradients of sums and means: to each row that of its segment, or a share of it."""
    source, ids, target, order, offsets, _ = views
    _, values = group_tables(desc, sums.PARTS, traits.ascending)
    phases, rows = lay_out_groups(values, desc, ids, order, offsets, target)
    columns = column_loops([source, target])
    nbytes = desc.element.itemsize * desc.embedding_dim
    by_id = traits.reduction == "sum" and not desc.borders
    values |= {
        at.SEGMENT_ROW: source.strides[0],
        at.DIVIDE: int(traits.reduction == "mean"),
        at.STREAMING: streaming_of(values, nbytes, desc.num_inputs),
    }
    if traits.reduction == "sum":
        values[at.STREAMING] = at.IN_ORDER if past_caches(nbytes, desc.num_inputs) else 0
    if desc.embedding_dim and by_id:
        # A row finds its segment by its id alone: nothing is sorted.
        checks = () if offsets is not None else check_phases(values)
        phases = (*checks, gather_phase(values, columns, nbytes))
    elif desc.embedding_dim:
        phases += (skipped_phase(values), walk_phase(gather.share_segments, values, nbytes))
    return Program(phases, at.layout_words(len(views), (values, rows, columns)), ids.element)


def _program(traits: Traits) -> Callable[..., Program]:
    if not traits.backward:
        return _forward
    return _shared if traits.reduction in ("sum", "mean") else _backward


for _kind in SegmentKind:
    globals()[_kind.value] = partial(_program(Traits.of(_kind)), Traits.of(_kind))


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
