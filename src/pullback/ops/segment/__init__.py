"""Reductions over rows that share an id."""

from pullback.ops.segment.contract import TRIPLES
from pullback.ops.segment.functions import (
    segment_max,
    segment_max_backward,
    segment_mean,
    segment_mean_backward,
    segment_min,
    segment_min_backward,
    segment_prod,
    segment_prod_backward,
    segment_sum,
    segment_sum_backward,
)
from pullback.ops.segment.index import SegmentIndex, prepare_segments

globals().update(TRIPLES)

__all__ = [
    "SegmentIndex",
    "prepare_segments",
    "segment_max",
    "segment_max_backward",
    "segment_mean",
    "segment_mean_backward",
    "segment_min",
    "segment_min_backward",
    "segment_prod",
    "segment_prod_backward",
    "segment_sum",
    "segment_sum_backward",
    *TRIPLES,
]
