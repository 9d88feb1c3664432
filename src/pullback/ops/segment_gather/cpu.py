"""Gathered rows reduced by segment in Numba: which phases a plan runs, and where their tables live.

Positions are grouped by segment, and the rows they gather are listed, as those of bags: that is the
reduction. Grouped by row, with the rows of their segments listed, they give the gradient. Words
come in sets: the first is about the ids of segments, the others are about those of rows.
"""

from __future__ import annotations

from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.kinds import TieRule
from pullback.cpu.program import Phase, Program, bits_of, grain_for
from pullback.ops.segment import cpu_extremum as extremum
from pullback.ops.segment import cpu_sum as sums
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu import TIES
from pullback.ops.segment.cpu_grouping import (
    Values,
    check_phases,
    fill_phase,
    group_tables,
    id_tables,
    last_id,
    lay_out_groups,
    long_tables,
    past_caches,
    position_row,
    reduce_phases,
    sort_phases,
    step_of,
    turn_phase,
    value_rows,
    with_index,
)
from pullback.ops.segment.loops import last_axis
from pullback.ops.segment_gather import cpu_reduce as reduce
from pullback.ops.segment_gather.contract import EXTREMA, GatherReduceKind, check_weights
from pullback.tensor.layout import AxisLoops
from pullback.tensor.view import TensorRef

_ANY = {"element": ElementKind.F32}
_PARTS = max(sums.PARTS, extremum.PARTS)
_WRONG_ROW = 3  # from the status of an id out of range to that of a row


def workspace(desc: Any) -> int:
    return group_tables(desc, _PARTS, desc.ascending)[0].bytes


def workspace_backward(desc: Any) -> int:
    return _backward_tables(desc)[0].bytes


def _about_rows(desc: Any, gather: TensorRef, weights: TensorRef | None) -> Values:
    """Words about the ids of rows."""
    return {
        at.IDS_SLOT: reduce.GATHER,
        at.LAST: last_id(desc.num_rows, gather),
        at.RANGE_STATUS: _WRONG_ROW,
        at.ASCENDING: 0,
        at.VOCABULARY: desc.num_rows,
        at.BAGS: desc.num_segments,
        at.PADDING_ROW: -1,
        at.EMPTY: bits_of(0.0),
        at.SIGN: bits_of(-1.0 if desc.reduce is GatherReduceKind.MIN else 1.0),
        at.SCALING: at.UNSCALED if weights is None else at.BY_WEIGHT,
        at.WEIGHTS_STEP: position_row(value_rows(gather, weights)),
    }


def forward(desc: Any, *views: Any) -> Program:
    x, ids, out, order, offsets, gather, weights = views
    check_weights("gather_segment_reduce", desc, weights)
    _, values = group_tables(desc, _PARTS, desc.ascending)
    phases, rows = lay_out_groups(values, desc, ids, order, offsets, gather)
    nbytes = desc.element.itemsize * desc.embedding_dim
    others = values | _about_rows(desc, gather, weights)
    others |= {
        at.MAPPING: at.BY_INDEX,
        at.WINNERS_AT: at.NOWHERE,
        at.POSITION_ROW: x.strides[0],
        at.SEGMENT_ROW: out.strides[0],
        at.DIVIDE: int(desc.reduce is GatherReduceKind.MEAN),
        at.STREAMING: at.IN_ORDER if past_caches(nbytes, desc.num_segments) else 0,
    }
    later = check_phases(others) if others[at.STRICT] else ()
    if desc.embedding_dim:
        kernels = extremum.HELD if desc.reduce in EXTREMA else sums.SUMS
        later += reduce_phases(kernels, others, nbytes, desc.embedding_dim, gather.element)
    phases += (turn_phase(), *with_index(later, gather.element))
    columns = last_axis([x, out])
    sets = (values, rows, columns), (others, value_rows(gather, weights), columns)
    return Program(phases, at.layout_words(len(views), *sets), ids.element)


def _backward_tables(desc: Any) -> tuple[at.Room, Values, Values]:
    """Of positions by segment, which extrema need, and of positions by row."""
    room, values = group_tables(desc, _PARTS, desc.ascending)
    values[at.BAG_OF_AT] = room.take(desc.num_inputs)
    by_row = id_tables(room, desc.num_inputs, desc.num_rows, sort=True)
    by_row |= long_tables(room, desc.num_inputs, desc.embedding_dim, sums.PARTS)
    mean, cells = desc.reduce is GatherReduceKind.MEAN, desc.num_segments * desc.embedding_dim
    values[at.BAG_SIZES_AT] = room.take(desc.num_segments) if mean else at.NOWHERE
    if desc.reduce in EXTREMA:
        values[at.WINNERS_AT] = room.take(cells)
        if desc.ties is TieRule.SPLIT:
            values[reduce.BEST_AT] = room.take(cells)
    return room, values, by_row


def backward(desc: Any, *views: Any) -> Program:
    dy, ids, dx, order, offsets, gather, weights, x, dweights = views
    check_weights("gather_segment_reduce_backward", desc, weights)
    _, values, by_row = _backward_tables(desc)
    phases, rows = lay_out_groups(values, desc, ids, order, offsets, gather)
    loops = value_rows(gather, weights, dweights)
    wanted, extrema = dx is not None and desc.embedding_dim > 0, desc.reduce in EXTREMA
    nbytes = desc.element.itemsize * desc.embedding_dim
    shared = values | _about_rows(desc, gather, weights)
    shared |= {
        at.TABLE_ROW: step_of(x),
        at.TABLE_STEP: step_of(x, 1),
        at.D_WEIGHTS_STEP: position_row(loops, 2),
        at.TIES: TIES[desc.ties],
        at.WINNERS_ROW: desc.embedding_dim,
    }
    others = {**shared, **by_row, at.MAPPING: at.BY_BAG}
    others |= {at.POSITION_ROW: dy.strides[0], at.SEGMENT_ROW: step_of(dx)}
    if desc.reduce is not GatherReduceKind.SUM:
        others[at.SCALING] = at.NUMBERED if extrema else at.BY_SIZE
    if dx is not None and past_caches(nbytes, desc.num_rows):
        others[at.STREAMING] = at.IN_ORDER
    columns = last_axis([dy, dy if dx is None else dx])
    sets = [(values, rows, columns)]
    if not desc.borders:
        if not (extrema and wanted) and offsets is None:
            phases = check_phases(values)
        phases += (Phase(reduce.resolve_ids, desc.num_inputs, grain_for(16), **_ANY),)
    later = check_phases(others) if others[at.STRICT] else ()
    if desc.borders:
        later += (fill_phase(others),)
    elif desc.reduce is GatherReduceKind.MEAN:
        later += (Phase(reduce.count_rows, 1, 1, **_ANY),)
    if wanted and extrema:
        held = {**shared, at.MAPPING: at.BY_INDEX, at.SCALING: at.NUMBERED}
        held[at.POSITION_ROW], step = step_of(x), step_of(x, 1)
        places = AxisLoops(desc.embedding_dim, (step, step, 1), columns.rest, False)
        sets.append((held, loops, places))
        later += reduce_phases(reduce.WINNERS, held, nbytes, desc.embedding_dim, gather.element)
        later += (turn_phase(),)
    if wanted:
        kernels = reduce.GRADIENTS if extrema else sums.SUMS
        later += (*sort_phases(others), *reduce_phases(kernels, others, nbytes, desc.embedding_dim))
    if dweights is not None:
        later += (Phase(reduce.WEIGHTS, desc.num_inputs, grain_for(2 * nbytes)),)
    phases += (turn_phase(), *with_index(later, gather.element))
    words = at.layout_words(len(views), *sets, (others, loops, columns))
    return Program(phases, words, ids.element)
