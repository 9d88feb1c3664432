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

from pullback.contract.element import ElementKind
from pullback.contract.kinds import IndexPolicy, SegmentKind, TieRule
from pullback.cpu.kernel import Kernel
from pullback.cpu.program import Phase, Program, bits_of, grain_for, streams
from pullback.ops.segment import cpu_extremum as extremum
from pullback.ops.segment import cpu_gather as gather
from pullback.ops.segment import cpu_index as index
from pullback.ops.segment import cpu_product as product
from pullback.ops.segment import cpu_spread as spread
from pullback.ops.segment import cpu_sum as sums
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.contract import NEUTRAL, Traits
from pullback.ops.segment.cpu_strip import MANY_LOOPS
from pullback.ops.segment.cpu_walk import NARROW
from pullback.ops.segment.loops import all_axes, column_loops, first_axis, row_loops
from pullback.tensor.layout import AxisLoops, Loops
from pullback.tensor.rounding import round_to
from pullback.tensor.view import TensorRef

Values = dict[int, int]

SMALLEST_CHUNK, MOST_CHUNKS = 1 << 13, 256
MOST_BUCKETS, WIDEST_BUCKET = 1 << 10, 23
# Of rows that make a piece of the walk: a core that stays with its rows for long finds them faster,
# but there must be pieces enough to share.
LEAST_PIECE, LARGEST_PIECE, PIECES = 1 << 17, 1 << 21, 64
LINE_BYTES = 64  # of the caches
LEAST_COPIED = 1 << 21  # of a piece of rows that are only copied: fewer take longer by two threads

_ANY = {"element": ElementKind.F32}  # kernels that look at ids only are compiled for one element
_NONE = {"index": ElementKind.I64}  # and kernels that look at none, for one index type


# --- tables -------------------------------------------------------------------------------------


def id_tables(room: at.Room, rows: int, extent: int, *, sort: bool, borders: bool = True) -> Values:
    """Where everything about the ids lives in the workspace."""
    chunk = max(SMALLEST_CHUNK, -(-rows // MOST_CHUNKS))
    chunks = -(-rows // chunk)
    values = {
        at.ROWS: rows,
        at.SEGMENTS: extent,
        at.PADDING: -1,
        at.LIMIT_AT: -1,
        at.CHUNK: chunk,
        at.CHUNKS: chunks,
        at.FINDINGS_AT: room.take(2 * chunks),
        at.OFFSETS_AT: room.take(extent + 2) if borders else at.NOWHERE,
        at.ORDER_AT: at.NOWHERE,
    }
    if sort:
        shift = next(k for k in range(64) if extent >> k < MOST_BUCKETS or k == WIDEST_BUCKET)
        buckets = (extent >> shift) + 1
        values |= {
            at.SHIFT: shift,
            at.BUCKETS: buckets,
            at.HISTOGRAM_AT: room.take((chunks + 1) * buckets),
            at.PACKED_AT: room.take(rows),
            at.ORDER_AT: room.take(rows),
        }
    return values


def long_tables(room: at.Room, rows: int, columns: int, parts: int) -> Values:
    """Where the blocks of long segments leave their partial results."""
    slots = at.long_slots(rows)
    return {
        at.LONG_AT: room.take(slots),
        at.KEPT_AT: room.take(slots),
        at.PARTIALS_AT: room.take(slots * columns * parts),
        at.COLUMNS: columns,
    }


def given(values: Values, order: TensorRef | None, offsets: TensorRef | None) -> bool:
    """Take the tables of a prepared index, if there is one."""
    if offsets is None:
        return False
    values[at.OFFSETS_AT] = at.IN_SLOT
    values[at.ORDER_AT] = at.NOWHERE if order is None else at.IN_SLOT
    return True


def last_id(extent: int, ids: TensorRef) -> int:
    return min(extent - 1, at.INDEX_MAX[ids.element])


# --- phases over ids ----------------------------------------------------------------------------


def check_phases(values: Values) -> tuple[Phase, ...]:
    return (
        Phase(index.check_ids, values[at.CHUNKS], 1, **_ANY),
        Phase(index.judge, 1, 1, **_ANY),
    )


def border_phases(values: Values) -> tuple[Phase, ...]:
    return (Phase(index.find_borders, values[at.ROWS] + 1, 1 << 15, **_ANY),)


def sort_phases(values: Values) -> tuple[Phase, ...]:
    chunks, buckets = values[at.CHUNKS], values[at.BUCKETS]
    per_bucket = 32 * (values[at.ROWS] + values[at.SEGMENTS]) // buckets
    return (
        Phase(index.count_ids, chunks, 1, **_ANY),
        Phase(index.place_chunks, 1, 1, **_ANY),
        Phase(index.spread_ids, chunks, 1, **_ANY),
        Phase(index.sort_buckets, buckets, grain_for(per_bucket), **_ANY, **_NONE),
    )


def clear_phase(values: Values) -> Phase:
    slots = at.long_slots(values[at.ROWS])
    return Phase(index.clear_long, slots, grain_for(8), **_ANY, **_NONE)


def piece(count: int, row_bytes: int, least: int = LEAST_PIECE) -> int:
    """How many of so many rows are walked in one go."""
    nbytes = min(max(count * row_bytes // PIECES, least), LARGEST_PIECE)
    return grain_for(row_bytes, nbytes)


def past_caches(row_bytes: int, rows: int) -> bool:
    """Whether rows written in order go past the caches: only where they are whole lines. What a row
    has besides is written the usual way, and a line that is written both ways takes longest."""
    return streams(row_bytes * rows) and row_bytes % LINE_BYTES == 0


def gather_phase(values: Values, columns: AxisLoops, row_bytes: int) -> Phase:
    """Each position receives the row its id names."""
    gapless = not columns.rest.extents and set(columns.steps) == {1}
    streaming, count = values.get(at.STREAMING, 0), values[at.ROWS]
    plain = gapless and not streaming and values[at.POSITION_ROW] != MANY_LOOPS
    kernel = gather.copy_rows if plain else gather.gather_rows
    return Phase(kernel, count, piece(count, 2 * row_bytes, LEAST_COPIED))


def walk_phase(kernel: Kernel, values: Values, row_bytes: int) -> Phase:
    places = values[at.ROWS] + values[at.SEGMENTS]
    return Phase(kernel, places, piece(places, row_bytes), **_NONE)


def strip_phase(kernel: Kernel, values: Values, inner: int) -> Phase:
    """Over strips of all blocks of long segments: most have nothing to do."""
    strips, slots = (
        values[at.COLUMNS] // inner * -(-inner // NARROW),
        at.long_slots(values[at.ROWS]),
    )
    return Phase(kernel, slots * strips, min(slots, 256), **_NONE)


def block_phase(kernel: Kernel, values: Values) -> Phase:
    return Phase(kernel, at.long_slots(values[at.ROWS]), 1, **_NONE)


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
    room, rows = at.Room(), desc.num_inputs
    values = id_tables(room, rows, desc.num_segments, sort=not traits.ascending)
    parts = PARTS[traits.reduction]
    if traits.backward and traits.reduction == "prod":
        parts = product.PARTS_BACKWARD
    values |= long_tables(room, rows, desc.embedding_dim, parts)
    values[at.STRICT] = int(desc.policy is IndexPolicy.ERROR)
    values[at.ASCENDING] = int(traits.ascending)
    return room, values


def workspace(traits: Traits, desc: Any) -> int:
    return _tables(traits, desc)[0].bytes


def _id_phases(traits: Traits, values: Values) -> tuple[Phase, ...]:
    if traits.ascending:
        return (*check_phases(values), *border_phases(values))
    return sort_phases(values)


def position_row(loops: Loops, tensor: int = 1) -> int:
    """The one stride between the rows of a tensor, if there is one."""
    if len(loops.extents) > 1:
        return MANY_LOOPS
    return loops.strides[tensor][0] if loops.extents else 0


def _layout(traits: Traits, desc: Any, *views: Any) -> Program:
    source, ids, target, order, offsets, *saved = views
    positions, per_segment = (target, source) if traits.backward else (source, target)
    _, values = _tables(traits, desc)
    prepared = given(values, order, offsets)
    tensors = [view for view in (source, target, *saved) if view is not None]
    columns = column_loops(tensors)
    rows = row_loops(all_axes(ids), first_axis(positions))
    nbytes = desc.element.itemsize * desc.embedding_dim
    values |= {
        at.LAST: last_id(desc.num_segments, ids),
        at.POSITION_ROW: position_row(rows),
        at.SEGMENT_ROW: per_segment.strides[0],
        at.SAVED_ROW: tensors[-1].strides[0],
        at.DIVIDE: int(traits.reduction == "mean"),
        at.STREAMING: _alignment(traits, values, nbytes, target.extents[0]),
        at.SIGN: bits_of(-1.0 if traits.reduction == "min" else 1.0),
        at.TIES: TIES[getattr(desc, "ties", TieRule.FIRST)],
    }
    if not traits.backward:
        empty = NEUTRAL[traits.reduction] if desc.empty is None else desc.empty
        with np.errstate(over="ignore"):
            values[at.EMPTY] = bits_of(float(round_to(empty, desc.element.dtype)))
    phases = _phases(traits, values, columns, nbytes, prepared)
    words = at.layout_words(len(views), (values, rows, columns))
    return Program(phases, words, ids.element)


def _alignment(traits: Traits, values: Values, row_bytes: int, rows: int) -> int:
    scattered = traits.backward and traits.reduction != "sum" and values[at.ORDER_AT] != at.NOWHERE
    if scattered:
        return at.AT_RANDOM if streams(row_bytes * rows) else 0
    return at.IN_ORDER if past_caches(row_bytes, rows) else 0


def _phases(
    traits: Traits, values: Values, columns: AxisLoops, nbytes: int, prepared: bool
) -> tuple[Phase, ...]:
    ids = () if prepared else _id_phases(traits, values)
    skipped = Phase(spread.clear_skipped, values[at.ROWS], grain_for(8), **_NONE)
    if not values[at.COLUMNS]:
        return ids
    if not traits.backward:
        walk, combine = FORWARDS[traits.reduction]
        return (
            *ids,
            clear_phase(values),
            walk_phase(walk, values, nbytes),
            strip_phase(combine, values, columns.extent),
        )
    if traits.reduction == "sum":
        checks = () if prepared else check_phases(values)
        return (*checks, gather_phase(values, columns, nbytes))
    if traits.reduction == "mean":
        return (*ids, skipped, walk_phase(spread.share_segments, values, nbytes))
    walk, combine, hand_out = BACKWARDS[traits.reduction]
    return (
        *ids,
        skipped,
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
