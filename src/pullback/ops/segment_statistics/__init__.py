"""Statistics of the rows of each segment."""

from pullback.ops.segment_statistics.contract import (
    SegmentLogsumexpArgs,
    SegmentLogsumexpBackwardArgs,
    SegmentLogsumexpBackwardDescriptor,
    SegmentLogsumexpBackwardPlan,
    SegmentLogsumexpDescriptor,
    SegmentLogsumexpPlan,
    SegmentStatisticKind,
    SegmentVarianceArgs,
    SegmentVarianceBackwardArgs,
    SegmentVarianceBackwardDescriptor,
    SegmentVarianceBackwardPlan,
    SegmentVarianceDescriptor,
    SegmentVariancePlan,
)
from pullback.ops.segment_statistics.functions import (
    segment_logsumexp,
    segment_logsumexp_backward,
    segment_std,
    segment_std_backward,
    segment_var,
    segment_var_backward,
)

__all__ = [
    "SegmentLogsumexpArgs",
    "SegmentLogsumexpBackwardArgs",
    "SegmentLogsumexpBackwardDescriptor",
    "SegmentLogsumexpBackwardPlan",
    "SegmentLogsumexpDescriptor",
    "SegmentLogsumexpPlan",
    "SegmentStatisticKind",
    "SegmentVarianceArgs",
    "SegmentVarianceBackwardArgs",
    "SegmentVarianceBackwardDescriptor",
    "SegmentVarianceBackwardPlan",
    "SegmentVarianceDescriptor",
    "SegmentVariancePlan",
    "segment_logsumexp",
    "segment_logsumexp_backward",
    "segment_std",
    "segment_std_backward",
    "segment_var",
    "segment_var_backward",
]
