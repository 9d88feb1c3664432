"""Statistics of segments in Numba: which phases a plan runs, and where their tables live."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.cpu.program import Program, bits_of
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_grouping import (
    Values,
    block_phase,
    clear_phase,
    group_tables,
    lay_out_groups,
    past_caches,
    skipped_phase,
    streaming_of,
    strip_phase,
    walk_phase,
)
from pullback.ops.segment.loops import column_loops
from pullback.ops.segment_softmax.cpu_powers import PARTS
from pullback.ops.segment_statistics import cpu_logsumexp as exponentials
from pullback.ops.segment_statistics import cpu_variance as variances
from pullback.ops.segment_statistics.contract import VARIANCES, SegmentStatisticKind, kind_of
from pullback.tensor.rounding import round_to

_LOGSUMEXP = exponentials.logsumexp_segments, exponentials.combine_logsumexp
_VARIANCE = variances.variances, variances.combine_variances
_VARIANCE_BACKWARD = (
    variances.variance_gradients,
    variances.combine_means,
    variances.variance_gradients_long,
)
_LOGSUMEXP_BACKWARD = (
    exponentials.logsumexp_gradients,
    exponentials.combine_shares,
    exponentials.logsumexp_gradients_long,
)


def _tables(desc: Any) -> tuple[at.Room, Values]:
    parts = variances.PARTS if kind_of(desc) in VARIANCES else PARTS
    return group_tables(desc, parts, desc.ascending)


def workspace(desc: Any) -> int:
    return _tables(desc)[0].bytes


def _options(desc: Any) -> Values:
    """What the kernels of variances are told."""
    if kind_of(desc) not in VARIANCES:
        return {}
    root = int(desc.kind is SegmentStatisticKind.STD)
    return {variances.ROOT: root, variances.DDOF: bits_of(float(desc.ddof))}


def _reduced(desc: Any, kernels: Any, empty: float, views: Any) -> Program:
    """A row for each segment: short ones whole, then the blocks of long ones."""
    source, ids, target, order, offsets, *_ = views
    _, values = _tables(desc)
    phases, rows = lay_out_groups(values, desc, ids, order, offsets, source)
    columns, nbytes = column_loops([source, target]), desc.element.itemsize * desc.embedding_dim
    with np.errstate(over="ignore"):
        values[at.EMPTY] = bits_of(float(round_to(empty, desc.element.dtype)))
    values |= {at.SEGMENT_ROW: target.strides[0], **_options(desc)}
    values[at.STREAMING] = at.IN_ORDER if past_caches(nbytes, desc.num_segments) else 0
    if desc.embedding_dim:
        walk, combine = kernels
        phases += (
            clear_phase(values),
            walk_phase(walk, values, nbytes),
            strip_phase(combine, values, columns.extent),
        )
    return Program(phases, at.layout_words(len(views), (values, rows, columns)), ids.element)


def _spread(desc: Any, kernels: Any, views: Any) -> Program:
    """A row for each row of the saved input, from one for each segment."""
    source, ids, target, order, offsets, saved, *_ = views
    _, values = _tables(desc)
    phases, rows = lay_out_groups(values, desc, ids, order, offsets, target)
    columns = column_loops([source, target, saved])
    nbytes = desc.element.itemsize * desc.embedding_dim
    values |= {
        at.SEGMENT_ROW: source.strides[0],
        at.SAVED_ROW: saved.strides[0],
        at.STREAMING: streaming_of(values, nbytes, desc.num_inputs),
        **_options(desc),
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


def logsumexp(desc: Any, *views: Any) -> Program:
    empty = float("-inf") if desc.empty is None else desc.empty
    return _reduced(desc, _LOGSUMEXP, empty, views)


def logsumexp_backward(desc: Any, *views: Any) -> Program:
    return _spread(desc, _LOGSUMEXP_BACKWARD, views)


def variance(desc: Any, *views: Any) -> Program:
    return _reduced(desc, _VARIANCE, 0.0 if desc.empty is None else desc.empty, views)


def variance_backward(desc: Any, *views: Any) -> Program:
    return _spread(desc, _VARIANCE_BACKWARD, views)
