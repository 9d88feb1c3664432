"""Statistics of segments as plain functions."""

from __future__ import annotations

from typing import Literal

from pullback.contract.errors import InvalidProblem
from pullback.contract.kinds import IndexPolicy
from pullback.contract.record import check_extent
from pullback.ops.segment.grouping import (
    GroupedFunction,
    gradient_groups,
    groups_of,
    rows_beside,
)
from pullback.ops.segment_statistics.contract import (
    SegmentLogsumexpBackwardDescriptor,
    SegmentLogsumexpBackwardPlan,
    SegmentLogsumexpDescriptor,
    SegmentLogsumexpPlan,
    SegmentStatisticKind,
    SegmentVarianceBackwardDescriptor,
    SegmentVarianceBackwardPlan,
    SegmentVarianceDescriptor,
    SegmentVariancePlan,
)
from pullback.plan.function import Call, Function, Indices, Tensor


@GroupedFunction
def segment_logsumexp(
    x: Tensor,
    segment_ids: Indices | None = None,
    num_segments: int | None = None,
    *,
    offsets: Indices | None = None,
    axis: int = 0,
    indices_are_sorted: bool = False,
    empty: float | None = None,
    out_of_range: Literal["error", "skip"] | IndexPolicy = "error",
) -> Call:
    """Logarithm of the sum of exponentials over the rows of each segment, -inf where there are
    none. Segments are given by `segment_ids`, or by `offsets` (CSR) in their place."""
    op = "segment_logsumexp"
    groups = groups_of(
        op, "x", x, segment_ids, offsets, num_segments, axis, indices_are_sorted, out_of_range
    )
    desc = SegmentLogsumexpDescriptor(empty=empty, **groups.fields)
    shape = groups.shape(x.shape, desc.num_segments)
    return groups.call(op, SegmentLogsumexpPlan, desc, groups.tensors(x=x), {"y": shape})


@Function
def segment_logsumexp_backward(
    dy: Tensor,
    x: Tensor,
    y: Tensor | None,
    segment_ids: Indices | None = None,
    *,
    offsets: Indices | None = None,
    axis: int = 0,
    indices_are_sorted: bool = False,
    out_of_range: Literal["error", "skip"] | IndexPolicy = "error",
) -> Call:
    """Gradient of `segment_logsumexp`: dy times the softmax of x within the segment. The sum is
    made again from `x`; `y` is never read, and may be None."""
    op = "segment_logsumexp_backward"
    if y is not None and y.shape != dy.shape:
        raise InvalidProblem(op, "y", f"of shape {dy.shape}, as dy", f"shape {y.shape}")
    groups = gradient_groups(op, dy, segment_ids, offsets, axis, indices_are_sorted, out_of_range)
    groups = groups.of_rows(rows_beside(op, groups, dy, x))
    desc = SegmentLogsumexpBackwardDescriptor(**groups.fields)
    tensors = groups.tensors(dy=dy, x=x, y=y)
    return groups.call(op, SegmentLogsumexpBackwardPlan, desc, tensors, {"dx": x.shape})


def _variance(kind: SegmentStatisticKind, what: str) -> Function:
    op = kind.value

    def body(
        x: Tensor,
        segment_ids: Indices | None = None,
        num_segments: int | None = None,
        *,
        offsets: Indices | None = None,
        axis: int = 0,
        ddof: int = 0,
        indices_are_sorted: bool = False,
        empty: float | None = None,
        out_of_range: Literal["error", "skip"] | IndexPolicy = "error",
    ) -> Call:
        groups = groups_of(
            op, "x", x, segment_ids, offsets, num_segments, axis, indices_are_sorted, out_of_range
        )
        fields = {"kind": kind, "ddof": check_extent(op, "ddof", ddof), "empty": empty}
        desc = SegmentVarianceDescriptor(**fields, **groups.fields)
        shape = groups.shape(x.shape, desc.num_segments)
        return groups.call(op, SegmentVariancePlan, desc, groups.tensors(x=x), {"y": shape})

    summary = (
        f"{what} of the rows of each segment, 0 where there are `ddof` or fewer. Segments are "
        "given by `segment_ids`, or by `offsets` (CSR) in their place."
    )
    return GroupedFunction(body, op, summary)


def _variance_backward(kind: SegmentStatisticKind, summary: str) -> Function:
    op = f"{kind.value}_backward"

    def body(
        dy: Tensor,
        x: Tensor,
        segment_ids: Indices | None = None,
        *,
        offsets: Indices | None = None,
        axis: int = 0,
        ddof: int = 0,
        indices_are_sorted: bool = False,
        out_of_range: Literal["error", "skip"] | IndexPolicy = "error",
    ) -> Call:
        groups = gradient_groups(
            op, dy, segment_ids, offsets, axis, indices_are_sorted, out_of_range
        )
        groups = groups.of_rows(rows_beside(op, groups, dy, x))
        fields = {"kind": kind, "ddof": check_extent(op, "ddof", ddof)}
        desc = SegmentVarianceBackwardDescriptor(**fields, **groups.fields)
        tensors = groups.tensors(dy=dy, x=x)
        return groups.call(op, SegmentVarianceBackwardPlan, desc, tensors, {"dx": x.shape})

    return Function(body, op, summary)


segment_var = _variance(SegmentStatisticKind.VAR, "Variance")
segment_std = _variance(SegmentStatisticKind.STD, "Standard deviation")
segment_var_backward = _variance_backward(
    SegmentStatisticKind.VAR, "Gradient of `segment_var`: dy·2·(x - mean) / (rows - ddof)."
)
segment_std_backward = _variance_backward(
    SegmentStatisticKind.STD,
    "Gradient of `segment_std`: dy·(x - mean) / ((rows - ddof)·std), 0 where std is 0.",
)
