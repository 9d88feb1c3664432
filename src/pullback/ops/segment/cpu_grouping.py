"""From ids or borders to sorted rows: the phases that plans of segments and embeddings share, and
where their tables live."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from pullback.contract.element import ElementKind
from pullback.contract.kinds import IndexPolicy
from pullback.cpu.kernel import Kernel
from pullback.cpu.program import Phase, Program, bits_of, grain_for, streams
from pullback.ops.segment import cpu_borders as borders_of
from pullback.ops.segment import cpu_gather as gather
from pullback.ops.segment import cpu_index as index
from pullback.ops.segment import cpu_words as at
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

ANY = {"element": ElementKind.F32}  # kernels that look at ids only are compiled for one element
NONE = {"index": ElementKind.I64}  # and kernels that look at none, for one index type


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
        Phase(index.check_ids, values[at.CHUNKS], 1, **ANY),
        Phase(index.judge, 1, 1, **ANY),
    )


def turn_phase() -> Phase:
    """From here on kernels read the next set of words."""
    return Phase(index.turn, 1, 1, **ANY, **NONE)


def with_index(phases: Iterable[Phase], index: ElementKind) -> tuple[Phase, ...]:
    """The same phases for ids of another type than the program's."""
    return tuple(replace(phase, index=phase.index or index) for phase in phases)


def fill_phase(values: Values) -> Phase:
    """The bag of each position, from borders."""
    return Phase(borders_of.fill_bags, values[at.BAGS] + 1, grain_for(400), **ANY)


def take_phases(values: Values, index: ElementKind) -> tuple[Phase, ...]:
    """Borders that are given."""
    return (
        Phase(borders_of.take_borders, values[at.BORDER_CHUNKS], 1, **ANY, index=index),
        Phase(borders_of.judge_borders, 1, 1, **ANY, **NONE),
    )


def border_phases(values: Values) -> tuple[Phase, ...]:
    return (Phase(index.find_borders, values[at.ROWS] + 1, 1 << 15, **ANY),)


def sort_phases(values: Values) -> tuple[Phase, ...]:
    chunks, buckets = values[at.CHUNKS], values[at.BUCKETS]
    per_bucket = 32 * (values[at.ROWS] + values[at.SEGMENTS]) // buckets
    return (
        Phase(index.count_ids, chunks, 1, **ANY),
        Phase(index.place_chunks, 1, 1, **ANY),
        Phase(index.spread_ids, chunks, 1, **ANY),
        Phase(index.sort_buckets, buckets, grain_for(per_bucket), **ANY, **NONE),
    )


def clear_phase(values: Values) -> Phase:
    slots = at.long_slots(values[at.ROWS])
    return Phase(index.clear_long, slots, grain_for(8), **ANY, **NONE)


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


def walk_phase(
    kernel: Kernel, values: Values, row_bytes: int, index: ElementKind = ElementKind.I64
) -> Phase:
    places = values[at.ROWS] + values[at.SEGMENTS]
    return Phase(kernel, places, piece(places, row_bytes), index=index)


def strip_phase(
    kernel: Kernel, values: Values, inner: int, index: ElementKind = ElementKind.I64
) -> Phase:
    """Over strips of all blocks of long segments: most have nothing to do."""
    strips = values[at.COLUMNS] // inner * -(-inner // NARROW)
    slots = at.long_slots(values[at.ROWS])
    return Phase(kernel, slots * strips, min(slots, 256), index=index)


# --- grouped rows --------------------------------------------------------------------------------


def value_rows(ids: TensorRef, *others: TensorRef | None) -> Loops:
    """The loops over ids, and over tensors with a value for each."""
    return row_loops(all_axes(ids), *(all_axes(ids if view is None else view) for view in others))


def step_of(view: TensorRef | None, axis: int = 0) -> int:
    return 0 if view is None else view.strides[axis]


def position_row(loops: Loops, tensor: int = 1) -> int:
    """The one stride between the rows of a tensor, if there is one."""
    if len(loops.extents) > 1:
        return MANY_LOOPS
    return loops.strides[tensor][0] if loops.extents else 0


def group_tables(desc: Any, parts: int, ascending: bool) -> tuple[at.Room, Values]:
    """The workspace of a plan: its ids, and `parts` results for each block of a long segment."""
    room, rows, extent = at.Room(), desc.num_inputs, desc.num_segments
    values = id_tables(room, rows, extent, sort=not (ascending or desc.borders))
    values |= long_tables(room, rows, desc.embedding_dim, parts)
    values[at.STRICT] = int(desc.policy is IndexPolicy.ERROR)
    values[at.ASCENDING] = int(ascending)
    if desc.borders:
        chunks = -(-(extent + 1) // borders_of.BORDER_CHUNK)
        findings = room.take(chunks)
        values |= {at.OFFSETS_COUNT: extent + 1, at.BORDER_CHUNKS: chunks, at.BAGS: extent}
        values |= {at.BORDERS_AT: values[at.OFFSETS_AT], at.BORDERS_SLOT: at.IDS, at.COVERING: 1}
        values[at.BORDER_FINDINGS_AT] = findings
    return room, values


def lay_out_groups(
    values: Values, desc: Any, ids: TensorRef, order: Any, offsets: Any, positions: TensorRef
) -> tuple[tuple[Phase, ...], Loops]:
    """Phases that find the borders of segments, and the loops over rows; `positions` is the tensor
    with a row for each id that kernels find by its position."""
    prepared = given(values, order, offsets)
    own = first_axis(positions)
    rows = row_loops(own if desc.borders else all_axes(ids), own)
    values[at.POSITION_ROW] = position_row(rows)
    values[at.LAST] = last_id(desc.num_segments, ids)
    if prepared:
        return (), rows
    if desc.borders:
        values[at.OFFSETS_STEP] = ids.strides[0]
        return take_phases(values, ids.element), rows
    if values[at.ASCENDING]:
        return (*check_phases(values), *border_phases(values)), rows
    return sort_phases(values), rows


def reduce_phases(
    kernels: tuple[Kernel, ...],
    values: Values,
    row_bytes: int,
    inner: int,
    index: ElementKind = ElementKind.I64,
) -> tuple[Phase, ...]:
    """Segments whole or block by block, then what the blocks of long ones left. `index`: of the ids
    that say where rows are, if they do."""
    walk, combine = kernels
    return (
        clear_phase(values),
        walk_phase(walk, values, row_bytes, index),
        strip_phase(combine, values, inner, index),
    )


def spread_phases(
    kernels: tuple[Kernel, ...], values: Values, row_bytes: int, inner: int
) -> tuple[Phase, ...]:
    """The same, and then the rows of long segments. Rows of none hold what word EMPTY says."""
    walk, combine, hand_out = kernels
    return (
        skipped_phase(values),
        *reduce_phases((walk, combine), values, 2 * row_bytes, inner),
        Phase(hand_out, at.long_slots(values[at.ROWS]), 1, **NONE),
    )


def skipped_phase(values: Values) -> Phase:
    """Rows in no segment receive what word EMPTY holds."""
    return Phase(gather.clear_skipped, values[at.ROWS], grain_for(8), **NONE)


def streaming_of(values: Values, row_bytes: int, rows: int) -> int:
    """How rows that are written at their positions go past the caches, if they do."""
    if values[at.ORDER_AT] != at.NOWHERE:
        return at.AT_RANDOM if streams(row_bytes * rows) else 0
    return at.IN_ORDER if past_caches(row_bytes, rows) else 0


# --- programs -------------------------------------------------------------------------------------


def word_of(value: float, desc: Any) -> int:
    """A float, rounded to the element, as a word."""
    with np.errstate(over="ignore"):
        return bits_of(float(round_to(value, desc.element.dtype)))


def reduced(
    desc: Any,
    parts: int,
    ascending: bool,
    kernels: tuple[Kernel, ...],
    empty: float,
    views: Any,
    words: Values,
) -> Program:
    """A row for each segment: `empty` without rows. Views end with the output that says which rows
    those are, if it is wanted."""
    source, ids, target, order, offsets, *others = views
    _, values = group_tables(desc, parts, ascending)
    phases, rows = lay_out_groups(values, desc, ids, order, offsets, source)
    columns = column_loops([source, target, *(view for view in others if view is not None)])
    nbytes = desc.element.itemsize * desc.embedding_dim
    values |= {at.SEGMENT_ROW: target.strides[0], at.EMPTY: word_of(empty, desc), **words}
    values[at.STREAMING] = at.IN_ORDER if past_caches(nbytes, desc.num_segments) else 0
    for first in range(0, len(kernels) if desc.embedding_dim else 0, 2):
        pair = kernels[first : first + 2]
        phases += reduce_phases(pair, values, nbytes, columns.extent)
    return Program(phases, at.layout_words(len(views), (values, rows, columns)), ids.element)


def spread_out(
    desc: Any,
    parts: int,
    ascending: bool,
    kernels: tuple[Kernel, ...],
    skipped: float,
    views: Any,
    words: Values,
) -> Program:
    """A row for each row, `skipped` in no segment. The sixth view, if there is one, is read too."""
    source, ids, target, order, offsets, *_ = views
    saved = views[5] if len(views) > 5 else source
    _, values = group_tables(desc, parts, ascending)
    phases, rows = lay_out_groups(values, desc, ids, order, offsets, target)
    columns = column_loops([source, target, saved])
    nbytes = desc.element.itemsize * desc.embedding_dim
    values |= {
        at.SEGMENT_ROW: source.strides[0],
        at.SAVED_ROW: saved.strides[0],
        at.EMPTY: bits_of(skipped),
        at.STREAMING: streaming_of(values, nbytes, desc.num_inputs),
        **words,
    }
    if desc.embedding_dim:
        phases += spread_phases(kernels, values, nbytes, columns.extent)
    return Program(phases, at.layout_words(len(views), (values, rows, columns)), ids.element)
