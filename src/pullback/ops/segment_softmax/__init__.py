"""Softmax within segments."""

from pullback.ops.segment_softmax.contract import (
    SegmentSoftmaxArgs,
    SegmentSoftmaxBackwardArgs,
    SegmentSoftmaxBackwardDescriptor,
    SegmentSoftmaxBackwardPlan,
    SegmentSoftmaxDescriptor,
    SegmentSoftmaxKind,
    SegmentSoftmaxPlan,
)
from pullback.ops.segment_softmax.functions import (
    segment_log_softmax,
    segment_log_softmax_backward,
    segment_softmax,
    segment_softmax_backward,
)

__all__ = [
    "SegmentSoftmaxArgs",
    "SegmentSoftmaxBackwardArgs",
    "SegmentSoftmaxBackwardDescriptor",
    "SegmentSoftmaxBackwardPlan",
    "SegmentSoftmaxDescriptor",
    "SegmentSoftmaxKind",
    "SegmentSoftmaxPlan",
    "segment_log_softmax",
    "segment_log_softmax_backward",
    "segment_softmax",
    "segment_softmax_backward",
]
