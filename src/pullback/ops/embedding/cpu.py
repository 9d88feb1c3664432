"""Embeddings in Numba: which phases a plan runs, and where their tables live.

A lookup copies rows; its gradient is a segment sum over positions sorted by index. A bag's sum is a
segment sum of looked-up rows; its gradient sorts positions by index and sums rows of bags.
"""

from __future__ import annotations

from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.errors import InvalidProblem
from pullback.contract.kinds import IndexPolicy
from pullback.cpu.program import TENSORS, Phase, Program, bits_of, grain_for
from pullback.ops.embedding import cpu_bag as bag
from pullback.ops.embedding import cpu_rows as found
from pullback.ops.embedding.contract import bag_length, check_bags, row_capacity
from pullback.ops.segment import cpu_extremum as extremum
from pullback.ops.segment import cpu_sum as sums
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_borders import BORDER_CHUNK, NO_OFFSETS
from pullback.ops.segment.cpu_grouping import (
    Values,
    check_phases,
    fill_phase,
    gather_phase,
    given,
    id_tables,
    last_id,
    long_tables,
    past_caches,
    piece,
    position_row,
    reduce_phases,
    sort_phases,
    step_of,
    take_phases,
    turn_phase,
    value_rows,
    with_index,
)
from pullback.ops.segment.loops import all_axes, all_but_last, last_axis, row_loops
from pullback.tensor.view import TensorRef

_I64 = ElementKind.I64
_ANY = {"element": ElementKind.F32}


def _common(desc: Any) -> Values:
    padding = -1 if desc.padding_idx is None else desc.padding_idx
    return {
        at.STRICT: int(desc.policy is IndexPolicy.ERROR),
        at.PADDING: padding,
        at.PADDING_ROW: padding,
        at.VOCABULARY: desc.num_embeddings,
        at.COLUMNS: desc.embedding_dim,
        at.EMPTY: bits_of(0.0),
        at.ACCUMULATE: int(getattr(desc, "accumulate", False)),
        at.DIVIDE: int(getattr(desc, "scale_grad_by_freq", False)),
        at.BAG_SIZES_AT: at.NOWHERE,
        at.FREQUENCIES_AT: at.NOWHERE,
    }


def _row_bytes(desc: Any) -> int:
    return int(desc.element.itemsize * desc.embedding_dim)


# --- lookups ------------------------------------------------------------------------------------


def _lookup_tables(desc: Any, *, sort: bool) -> tuple[at.Room, Values]:
    room = at.Room()
    borders = sort and not desc.sparse
    values = id_tables(room, desc.num_indices, desc.num_embeddings, sort=sort, borders=borders)
    if sort:
        values |= long_tables(room, desc.num_indices, desc.embedding_dim, sums.PARTS)
    return room, values | _common(desc)


def embedding_workspace(desc: Any) -> int:
    return _lookup_tables(desc, sort=False)[0].bytes


def embedding(
    desc: Any, weight: TensorRef, ids: TensorRef, out: TensorRef, order: Any, offsets: Any
) -> Program:
    _, values = _lookup_tables(desc, sort=False)
    rows = row_loops(all_axes(ids), all_but_last(out))
    nbytes = _row_bytes(desc)
    values |= {
        at.LAST: last_id(desc.num_embeddings, ids),
        at.POSITION_ROW: position_row(rows),
        at.SEGMENT_ROW: weight.strides[0],
        at.STREAMING: at.IN_ORDER if past_caches(nbytes, desc.num_indices) else 0,
    }
    check = check_phases(values) if values[at.STRICT] and offsets is None else ()
    columns = last_axis([weight, out])
    gather = (gather_phase(values, columns, nbytes),) if desc.embedding_dim else ()
    words = at.layout_words(5, (values, rows, columns))
    return Program((*check, *gather), words, ids.element)


def embedding_backward_workspace(desc: Any) -> int:
    room, values = _lookup_tables(desc, sort=True)
    _row_tables(room, values, desc)
    return room.bytes


def _row_tables(room: at.Room, values: Values, desc: Any) -> None:
    """What finding the rows that receive something needs; no table of all rows."""
    if not desc.sparse:
        return
    capacity = row_capacity(desc)
    values |= {
        found.CAPACITY: capacity,
        found.COUNTS_AT: room.take(values[at.BUCKETS]),
        at.OFFSETS_AT: room.take(capacity + 2),
    }


def _row_phases(
    op: str, values: Values, desc: Any, rows: TensorRef, slot: int
) -> tuple[Phase, ...]:
    """Segments are the rows that receive something."""
    if rows.strides != (1,) and rows.size > 1:
        raise InvalidProblem(op, "rows", "contiguous", f"element strides {rows.strides}")
    values[found.ROWS_SLOT] = slot
    buckets = values[at.BUCKETS]
    grain = grain_for(32 * (desc.num_indices // buckets + 1))
    return (
        *sort_phases(values)[:-1],
        Phase(found.sort_rows, buckets, grain, **_ANY, index=_I64),
        Phase(found.place_rows, 1, 1, **_ANY, index=_I64),
        Phase(found.number_rows, buckets, grain, **_ANY, index=_I64),
    )


def _table_sums(values: Values, desc: Any) -> tuple[Phase, ...]:
    """Over the rows of the table or, if it is sparse, over those of the gradient."""
    segments = row_capacity(desc) if desc.sparse else values[at.SEGMENTS]
    values = {**values, at.SEGMENTS: segments}
    return reduce_phases(sums.SUMS, values, _row_bytes(desc), desc.embedding_dim)


def embedding_backward(
    desc: Any,
    dout: TensorRef,
    ids: TensorRef,
    dweight: TensorRef,
    order: Any,
    offsets: Any,
    received: Any,
) -> Program:
    room, values = _lookup_tables(desc, sort=True)
    _row_tables(room, values, desc)
    prepared = not desc.sparse and given(values, order, offsets)
    rows = row_loops(all_axes(ids), all_but_last(dout))
    nbytes = _row_bytes(desc)
    values |= {
        at.LAST: last_id(desc.num_embeddings, ids),
        at.POSITION_ROW: position_row(rows),
        at.SEGMENT_ROW: dweight.strides[0],
    }
    if past_caches(nbytes, dweight.shape[0]) and not desc.accumulate:
        values[at.STREAMING] = at.IN_ORDER
    phases = () if prepared else sort_phases(values)
    if desc.sparse:
        phases = _row_phases("embedding_backward", values, desc, received, TENSORS + 5)
    if desc.embedding_dim:
        phases += _table_sums(values, desc)
    words = at.layout_words(6, (values, rows, last_axis([dout, dweight])))
    return Program(phases, words, ids.element)


# --- bags ---------------------------------------------------------------------------------------


def _bag_tables(room: at.Room, desc: Any) -> Values:
    chunks = -(-(desc.num_bags + 1) // BORDER_CHUNK)
    borders = room.take(desc.num_bags + 1)
    return {
        at.BAGS: desc.num_bags,
        at.BORDER_CHUNKS: chunks,
        at.BORDER_FINDINGS_AT: room.take(chunks),
        at.BORDERS_AT: borders,
        at.BORDERS_SLOT: at.BAG_OFFSETS,
        at.OFFSETS_COUNT: desc.num_bags + int(desc.include_last_offset),
    }


def _bag_phases(values: Values, desc: Any, offsets: TensorRef | None) -> tuple[Phase, ...]:
    if offsets is None:
        values |= {at.OFFSETS_COUNT: NO_OFFSETS, at.OFFSETS_STEP: bag_length(desc)}
        return take_phases(values, _I64)[:1]
    values[at.OFFSETS_STEP] = offsets.strides[0]
    return take_phases(values, offsets.element)


def _forward_tables(desc: Any) -> tuple[at.Room, Values]:
    """Segments are bags, and their borders are given."""
    room = at.Room()
    values = id_tables(room, desc.num_indices, 0, sort=False)
    values |= _common(desc) | _bag_tables(room, desc)
    parts = max(extremum.PARTS, sums.PARTS)
    values |= long_tables(room, desc.num_indices, desc.embedding_dim, parts)
    values |= {
        at.MAPPING: at.BY_INDEX,
        at.SEGMENTS: desc.num_bags,
        at.PADDING: -1,
        at.OFFSETS_AT: values[at.BORDERS_AT],
        at.DIVIDE: int(desc.mode == "mean"),
        at.SIGN: bits_of(1.0),
        at.WINNERS_SLOT: at.WINNERS,
        at.NAMED: 1,
    }
    return room, values


def embedding_bag_workspace(desc: Any) -> int:
    return _forward_tables(desc)[0].bytes


def embedding_bag(desc: Any, *views: Any) -> Program:
    weight, ids, out, _, prepared, offsets, weights, winners = views
    check_bags("embedding_bag", desc, offsets, weights)
    _, values = _forward_tables(desc)
    rows = value_rows(ids, weights)
    values |= {
        at.LAST: last_id(desc.num_embeddings, ids),
        at.POSITION_ROW: weight.strides[0],
        at.SEGMENT_ROW: out.strides[0],
        at.WEIGHTS_STEP: position_row(rows),
        at.WINNERS_AT: at.NOWHERE if winners is None else at.IN_SLOT,
        at.WINNERS_ROW: step_of(winners),
    }
    is_max = desc.mode == "max"
    values[at.SCALING] = at.NUMBERED if is_max else _scaling(weights)
    phases = _bag_phases(values, desc, offsets)
    if values[at.STRICT] and prepared is None:
        phases += check_phases(values)
    if desc.embedding_dim:
        # Maxima look at ids again, to say which rows they came from.
        kernels = extremum.HELD if is_max else sums.SUMS
        phases += reduce_phases(kernels, values, _row_bytes(desc), desc.embedding_dim, ids.element)
    columns = last_axis([weight, out, out if winners is None else winners])
    words = at.layout_words(len(views), (values, rows, columns))
    return Program(phases, words, ids.element)


def _scaling(weights: TensorRef | None) -> int:
    return at.UNSCALED if weights is None else at.BY_WEIGHT


def _backward_tables(desc: Any) -> tuple[at.Room, Values, Values]:
    """What the indices need and, for maxima, what the winners need."""
    room, is_max = at.Room(), desc.mode == "max"
    rows, columns, extent = desc.num_indices, desc.embedding_dim, desc.num_embeddings
    values = id_tables(room, rows, extent, sort=not is_max, borders=not desc.sparse)
    values |= _common(desc) | _bag_tables(room, desc)
    values[at.LIMIT_AT] = values[at.BORDERS_AT] + 8 * desc.num_bags
    values[at.BAG_OF_AT] = room.take(rows)
    if desc.mode == "mean":
        values[at.BAG_SIZES_AT] = room.take(desc.num_bags)
    if not is_max:
        _row_tables(room, values, desc)
        return room, values | long_tables(room, rows, columns, sums.PARTS), {}
    if desc.scale_grad_by_freq:
        values[at.FREQUENCIES_AT] = room.take(extent)
    winners = values | id_tables(room, desc.num_bags * columns, extent, sort=True)
    winners |= {at.STRICT: 0, at.PADDING: values[at.PADDING_ROW]}
    return room, values, winners


def embedding_bag_backward_workspace(desc: Any) -> int:
    return _backward_tables(desc)[0].bytes


def embedding_bag_backward(desc: Any, *views: Any) -> Program:
    *_, offsets, weights, _, weight, d_weights, _ = views
    check_bags("embedding_bag_backward", desc, offsets, weights, weight, d_weights)
    return (_max_backward if desc.mode == "max" else _sum_backward)(desc, *views)


def _sum_backward(desc: Any, *views: Any) -> Program:
    dout, ids, dweight, order, tables, offsets, weights, _, weight, d_weights, received = views
    _, values, _ = _backward_tables(desc)
    rows = value_rows(ids, weights, d_weights)
    values |= {
        at.LAST: last_id(desc.num_embeddings, ids),
        at.MAPPING: at.BY_BAG,
        at.SCALING: at.BY_SIZE if desc.mode == "mean" else _scaling(weights),
        at.POSITION_ROW: dout.strides[0],
        at.SEGMENT_ROW: step_of(dweight),
        at.WEIGHTS_STEP: position_row(rows),
        at.TABLE_ROW: step_of(weight),
        at.TABLE_STEP: step_of(weight, 1),
        at.D_WEIGHTS_STEP: position_row(rows, 2),
    }
    prepared, nbytes = not desc.sparse and given(values, order, tables), _row_bytes(desc)
    phases = _bag_phases(values, desc, offsets)
    if desc.sparse:
        phases += _row_phases("embedding_bag_backward", values, desc, received, TENSORS + 10)
    elif not prepared:
        phases += check_phases(values) if dweight is None else sort_phases(values)
    phases += (fill_phase(values),)
    if d_weights is not None:
        phases += (Phase(bag.WEIGHTS, desc.num_indices, grain_for(2 * nbytes)),)
    if dweight is not None and desc.embedding_dim:
        phases += _table_sums(values, desc)
    columns = last_axis([dout, dout if dweight is None else dweight])
    return Program(phases, at.layout_words(len(views), (values, rows, columns)), ids.element)


def _winner_phases(others: Values) -> tuple[Phase, ...]:
    return (
        Phase(bag.check_winners, others[at.CHUNKS], 1, **_ANY, index=_I64),
        Phase(bag.judge_winners, 1, 1, **_ANY, index=_I64),
    )


def _max_backward(desc: Any, *views: Any) -> Program:
    dout, ids, dweight, _, tables, offsets, _, winners, _, _, _ = views
    _, values, others = _backward_tables(desc)
    values[at.LAST] = last_id(desc.num_embeddings, ids)
    phases = _bag_phases(values, desc, offsets)
    phases += () if tables is not None else check_phases(values)
    others |= {
        at.IDS_SLOT: at.WINNERS,
        at.LAST: last_id(desc.num_embeddings, winners),
        at.POSITION_ROW: dout.strides[0],
        at.SEGMENT_ROW: step_of(dweight),
        at.WINNERS_ROW: step_of(winners),
        at.WINNERS_STEP: step_of(winners, 1),
    }
    if dweight is not None and desc.embedding_dim:
        if desc.scale_grad_by_freq:
            phases += (Phase(bag.count_holders, 1, 1, **_ANY),)
        phases += (
            turn_phase(),
            *(_winner_phases(others) if values[at.STRICT] else ()),
            *with_index(sort_phases(others), _I64),
            Phase(
                bag.winner_gradients,
                desc.num_embeddings,
                piece(desc.num_embeddings, _row_bytes(desc)),
                index=_I64,
            ),
        )
    columns = last_axis([dout, dout if dweight is None else dweight])
    # Column by column, so that what a row of the table won in one of them lies side by side.
    turned = row_loops((winners.extents[::-1], winners.strides[::-1]))
    rows = row_loops(all_axes(ids))
    words = at.layout_words(len(views), (values, rows, columns), (others, turned, columns))
    return Program(phases, words, ids.element)
