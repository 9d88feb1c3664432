"""Softmax within segments in Numba: which phases a plan runs, and where their tables live."""

from __future__ import annotations

from typing import Any

from pullback.cpu.program import Program, bits_of
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_grouping import (
    Values,
    block_phase,
    clear_phase,
    group_tables,
    lay_out_groups,
    skipped_phase,
    streaming_of,
    strip_phase,
    walk_phase,
)
from pullback.ops.segment.loops import column_loops
from pullback.ops.segment_softmax import cpu_gradients as gradients
from pullback.ops.segment_softmax import cpu_maps as maps
from pullback.ops.segment_softmax.contract import SegmentSoftmaxKind
from pullback.ops.segment_softmax.cpu_powers import PARTS

# Short segments, how the blocks of long ones are combined, and these.
_FORWARD = {
    SegmentSoftmaxKind.SOFTMAX: (maps.softmax_segments, maps.combine_powers, maps.softmax_long),
    SegmentSoftmaxKind.LOG_SOFTMAX: (
        maps.log_softmax_segments,
        maps.combine_powers,
        maps.log_softmax_long,
    ),
}
_BACKWARD = {
    SegmentSoftmaxKind.SOFTMAX: (
        gradients.softmax_gradients,
        gradients.combine_gradients,
        gradients.softmax_gradients_long,
    ),
    SegmentSoftmaxKind.LOG_SOFTMAX: (
        gradients.log_softmax_gradients,
        gradients.combine_gradients,
        gradients.log_softmax_gradients_long,
    ),
}
_SKIPPED = {SegmentSoftmaxKind.SOFTMAX: 0.0, SegmentSoftmaxKind.LOG_SOFTMAX: float("-inf")}


def workspace(desc: Any) -> int:
    return _tables(desc)[0].bytes


def _tables(desc: Any) -> tuple[at.Room, Values]:
    return group_tables(desc, max(PARTS, gradients.PARTS), desc.ascending)


def _laid_out(desc: Any, kernels: Any, skipped: float, views: Any, read: Any) -> Program:
    """A program that writes a row for each row; `read` are the tensors with such rows that it
    reads: the source, and what is saved."""
    source, ids, target, order, offsets, *_ = views
    _, values = _tables(desc)
    phases, rows = lay_out_groups(values, desc, ids, order, offsets, target)
    columns = column_loops([source, target, read[-1]])
    nbytes = desc.element.itemsize * desc.embedding_dim
    values |= {
        at.SEGMENT_ROW: source.strides[0],
        at.SAVED_ROW: read[-1].strides[0],
        at.EMPTY: bits_of(skipped),
        at.STREAMING: streaming_of(values, nbytes, desc.num_inputs),
    }
    if desc.embedding_dim:
        walk, combine, hand_out = kernels
        phases += (
            skipped_phase(values),
            clear_phase(values),
            walk_phase(walk, values, 2 * nbytes),
            strip_phase(combine, values, columns.extent),
            block_phase(hand_out, values),
        )
    return Program(phases, at.layout_words(len(views), (values, rows, columns)), ids.element)


def forward(desc: Any, *views: Any) -> Program:
    return _laid_out(desc, _FORWARD[desc.kind], _SKIPPED[desc.kind], views, views[:1])


def backward(desc: Any, *views: Any) -> Program:
    return _laid_out(desc, _BACKWARD[desc.kind], 0.0, views, (views[0], views[5]))
