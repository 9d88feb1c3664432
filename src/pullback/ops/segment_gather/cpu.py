"""Gathered rows reduced by segment in Numba: which phases a plan runs, and where their tables live.

The row and the segment of each position are written to two tables first, and checked there. Sorted
by segment they give the reduction; sorted by row, the gradient.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.kinds import IndexPolicy, TieRule
from pullback.cpu.program import Phase, Program, bits_of, grain_for
from pullback.ops.segment import cpu_borders as borders
from pullback.ops.segment import cpu_extremum as extremum
from pullback.ops.segment import cpu_sum as sums
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_grouping import (
    Values,
    border_phases,
    clear_phase,
    id_tables,
    long_tables,
    past_caches,
    sort_phases,
    strip_phase,
    walk_phase,
)
from pullback.ops.segment.loops import all_axes, last_axis, row_loops
from pullback.ops.segment_gather import cpu_reduce as reduce
from pullback.ops.segment_gather import cpu_resolve as resolve
from pullback.ops.segment_gather.contract import EXTREMA, GatherReduceKind, check_weights
from pullback.tensor.layout import AxisLoops, Loops
from pullback.tensor.view import TensorRef

_ANY = {"element": ElementKind.F32}
_I64 = {"index": ElementKind.I64}
_TIES = {
    TieRule.FIRST: extremum.FIRST_HOLDER,
    TieRule.LAST: extremum.LAST_HOLDER,
    TieRule.SPLIT: extremum.ALL_HOLDERS,
}


def _step(view: TensorRef | None, axis: int = 0) -> int:
    return 0 if view is None else view.strides[axis]


def _strict(desc: Any) -> bool:
    return desc.policy is IndexPolicy.ERROR


def _in_order(desc: Any) -> bool:
    """Whether positions lie in the order of segments: nothing is dropped between them."""
    return _strict(desc) and (desc.ascending or desc.borders)


# --- tables -------------------------------------------------------------------------------------


def _common(room: at.Room, desc: Any, values: Values) -> Values:
    """The tables of positions, and what all kernels are told."""
    rows, count = desc.num_inputs, desc.num_segments + 1
    border_chunks = -(-count // borders.BORDER_CHUNK) if desc.borders else 0
    return {
        resolve.SEGMENT_OF_AT: room.take(rows),
        resolve.ROW_OF_AT: room.take(rows),
        # Of borders first, then of rows.
        resolve.GATHER_FINDINGS_AT: room.take(max(values[at.CHUNKS], border_chunks)),
        at.OFFSETS_COUNT: count,
        at.BAG_CHUNKS: border_chunks,
        at.STRICT: int(_strict(desc)),
        at.ASCENDING: int(desc.ascending),
        at.VOCABULARY: desc.num_rows,
        at.BAGS: desc.num_segments,
        at.COLUMNS: desc.embedding_dim,
        at.EMPTY: bits_of(0.0),
        at.SIGN: bits_of(-1.0 if desc.reduce is GatherReduceKind.MIN else 1.0),
    }


def _by_segment(room: at.Room, desc: Any, parts: int) -> Values:
    """Positions sorted by segment, and what blocks of long ones leave."""
    rows, extent = desc.num_inputs, desc.num_segments
    values = id_tables(room, rows, extent, sort=not _in_order(desc))
    return values | long_tables(room, rows, desc.embedding_dim, parts)


def _by_row(room: at.Room, desc: Any) -> Values:
    rows, extent = desc.num_inputs, desc.num_rows
    values = id_tables(room, rows, extent, sort=True)
    return values | long_tables(room, rows, desc.embedding_dim, sums.PARTS)


def _tables(desc: Any) -> tuple[at.Room, Values]:
    room = at.Room()
    parts = max(sums.PARTS, extremum.PARTS)
    values = _by_segment(room, desc, parts)
    values |= _common(room, desc, values)
    return room, values


def workspace(desc: Any) -> int:
    return _tables(desc)[0].bytes


def _backward_tables(desc: Any) -> tuple[at.Room, Values, Values]:
    """Words for positions by segment, which extrema need, and for positions by row."""
    room = at.Room()
    values = _by_segment(room, desc, extremum.PARTS)
    common = _common(room, desc, values)
    others = _by_row(room, desc)
    if desc.reduce is GatherReduceKind.MEAN:
        common[at.BAG_SIZES_AT] = room.take(desc.num_segments)
    if desc.reduce in EXTREMA:
        common[reduce.WINNERS_AT] = room.take(desc.num_segments * desc.embedding_dim)
        if desc.ties is TieRule.SPLIT:
            common[reduce.BEST_AT] = room.take(desc.num_segments * desc.embedding_dim)
    return room, values | common, common | others


def workspace_backward(desc: Any) -> int:
    return _backward_tables(desc)[0].bytes


# --- phases -------------------------------------------------------------------------------------


def _resolving(values: Values, desc: Any, ids: TensorRef, gather: TensorRef) -> tuple[Phase, ...]:
    """The row and the segment of each position, checked."""
    chunks = values[at.CHUNKS]
    values[resolve.GATHER_STEP] = gather.strides[0]
    if desc.borders:
        values[at.OFFSETS_STEP] = ids.strides[0]
        first: tuple[Phase, ...] = (
            Phase(borders.take_borders, values[at.BAG_CHUNKS], 1, **_ANY, index=ids.element),
            Phase(borders.judge_borders, 1, 1, **_ANY, **_I64),
            Phase(resolve.spread_borders, desc.num_segments, grain_for(64), **_ANY, **_I64),
        )
    else:
        first = (
            Phase(resolve.resolve_ids, chunks, 1, **_ANY, index=ids.element),
            Phase(resolve.judge_ids, 1, 1, **_ANY, index=ids.element),
        )
    return (
        *first,
        Phase(resolve.resolve_rows, chunks, 1, **_ANY, index=gather.element),
        Phase(resolve.judge_rows, 1, 1, **_ANY, index=gather.element),
    )


def _sorted(values: Values) -> tuple[Phase, ...]:
    return tuple(replace(phase, index=ElementKind.I64) for phase in sort_phases(values))


def _grouped(values: Values, desc: Any) -> tuple[Phase, ...]:
    """Positions by segment, from the table of segments."""
    take = Phase(resolve.turn_to_segments, 1, 1, **_ANY, **_I64)
    if not _in_order(desc):
        return take, *_sorted(values)
    if desc.borders:
        return (take,)  # whose borders are known
    return take, *(replace(phase, index=ElementKind.I64) for phase in border_phases(values))


def _contiguous(count: int) -> Loops:
    """Loops over positions in a table of their own."""
    return row_loops(((count,), (1,)))


def _walked(kernel: Any, combine: Any, values: Values, nbytes: int) -> tuple[Phase, ...]:
    return (
        clear_phase(values),
        walk_phase(kernel, values, nbytes),
        strip_phase(combine, values, max(values[at.COLUMNS], 1)),
    )


# --- plans --------------------------------------------------------------------------------------


def forward(desc: Any, *views: Any) -> Program:
    x, ids, out, _, _, gather, weights = views
    check_weights("gather_segment_reduce", desc, weights)
    _, values = _tables(desc)
    nbytes = desc.element.itemsize * desc.embedding_dim
    values |= {
        at.MAPPING: reduce.BY_ROW,
        at.SCALING: at.UNSCALED if weights is None else at.BY_WEIGHT,
        at.WEIGHTS_STEP: _step(weights),
        at.POSITION_ROW: x.strides[0],
        at.SEGMENT_ROW: out.strides[0],
        at.DIVIDE: int(desc.reduce is GatherReduceKind.MEAN),
        at.STREAMING: at.IN_ORDER if past_caches(nbytes, desc.num_segments) else 0,
    }
    phases = _resolving(values, desc, ids, gather)
    if desc.embedding_dim:
        extrema = desc.reduce in EXTREMA
        walk = reduce.gathered_extrema if extrema else reduce.gathered_sums
        combine = extremum.combine_extrema if extrema else sums.combine_sums
        phases += (*_grouped(values, desc), *_walked(walk, combine, values, nbytes))
    return _program(phases, len(views), ids, desc, last_axis([x, out]), values, values)


def _program(
    phases: Any, slots: int, ids: TensorRef, desc: Any, columns: AxisLoops, *sets: Values
) -> Program:
    """Ids are walked as they lie with the first set of words; with the others, in tables, where
    those that are out of range are -1."""
    first, *later = sets
    table = _contiguous(desc.num_inputs)
    own = table if desc.borders else row_loops(all_axes(ids))
    others = [({**values, at.STRICT: 0, at.ASCENDING: 0}, table, columns) for values in later]
    words = at.layout_words(slots, (first, own, columns), *others)
    return Program(phases, words, ElementKind.I64)


def backward(desc: Any, *views: Any) -> Program:
    dy, ids, dx, _, _, gather, weights, x, dweights = views
    check_weights("gather_segment_reduce_backward", desc, weights)
    _, values, others = _backward_tables(desc)
    nbytes = desc.element.itemsize * desc.embedding_dim
    shared = {
        at.WEIGHTS_STEP: _step(weights),
        at.TABLE_ROW: _step(x),
        at.TABLE_STEP: _step(x, 1),
        at.D_WEIGHTS_STEP: _step(dweights),
        at.TIES: _TIES[desc.ties],
    }
    values |= {**shared, at.MAPPING: reduce.BY_ROW, at.SCALING: at.UNSCALED}
    values |= {at.POSITION_ROW: _step(x), at.SEGMENT_ROW: dy.strides[0]}
    scaling = at.BY_SIZE if desc.reduce is GatherReduceKind.MEAN else at.UNSCALED
    others |= {
        **shared,
        at.MAPPING: reduce.BY_SEGMENT,
        at.SCALING: scaling if weights is None else at.BY_WEIGHT,
        at.POSITION_ROW: dy.strides[0],
        at.SEGMENT_ROW: _step(dx),
    }
    if dx is not None and past_caches(nbytes, desc.num_rows):
        others[at.STREAMING] = at.IN_ORDER
    phases = _resolving(values, desc, ids, gather)
    if dweights is not None:
        grain = grain_for(2 * nbytes)
        phases += (Phase(reduce.weight_gradients, desc.num_inputs, grain, **_I64),)
    if dx is not None and desc.embedding_dim:
        phases += _gradient_phases(values, others, desc, nbytes)
    columns = last_axis([dy, dy if dx is None else dx])
    sets = (values, values, others) if desc.reduce in EXTREMA else (values, others)
    return _program(phases, len(views), ids, desc, columns, *sets)


def _gradient_phases(values: Values, others: Values, desc: Any, nbytes: int) -> tuple[Phase, ...]:
    turn = Phase(resolve.turn_to_rows, 1, 1, **_ANY, **_I64)
    by_row = (turn, *_sorted(others))
    if desc.reduce not in EXTREMA:
        mean = desc.reduce is GatherReduceKind.MEAN
        count = (Phase(resolve.count_rows, 1, 1, **_ANY, **_I64),) if mean else ()
        return (*count, *by_row, *_walked(reduce.gathered_sums, sums.combine_sums, others, nbytes))
    winners = (
        *_grouped(values, desc),
        *_walked(reduce.find_winners, extremum.combine_holders, values, nbytes),
        strip_phase(reduce.find_long_winners, values, max(values[at.COLUMNS], 1)),
    )
    walk = _walked(reduce.winner_gradients, sums.combine_sums, others, nbytes)
    return (*winners, *by_row, *walk)
