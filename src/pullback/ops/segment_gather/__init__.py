"""Gathered rows reduced by segment: message passing."""

from pullback.ops.segment_gather.contract import (
    GatherReduceKind,
    GatherSegmentReduceArgs,
    GatherSegmentReduceBackwardArgs,
    GatherSegmentReduceBackwardDescriptor,
    GatherSegmentReduceBackwardPlan,
    GatherSegmentReduceDescriptor,
    GatherSegmentReducePlan,
)
from pullback.ops.segment_gather.functions import (
    gather_segment_reduce,
    gather_segment_reduce_backward,
    gather_segment_reduce_weights_backward,
)

__all__ = [
    "GatherReduceKind",
    "GatherSegmentReduceArgs",
    "GatherSegmentReduceBackwardArgs",
    "GatherSegmentReduceBackwardDescriptor",
    "GatherSegmentReduceBackwardPlan",
    "GatherSegmentReduceDescriptor",
    "GatherSegmentReducePlan",
    "gather_segment_reduce",
    "gather_segment_reduce_backward",
    "gather_segment_reduce_weights_backward",
]
