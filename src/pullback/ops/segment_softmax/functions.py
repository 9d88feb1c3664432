"""Softmax within segments as plain functions."""

from __future__ import annotations

from typing import Literal

from pullback.contract.errors import InvalidProblem
from pullback.contract.kinds import IndexPolicy
from pullback.ops.segment.grouping import GroupedFunction, groups_of
from pullback.ops.segment_softmax.contract import (
    SegmentSoftmaxBackwardDescriptor,
    SegmentSoftmaxBackwardPlan,
    SegmentSoftmaxDescriptor,
    SegmentSoftmaxKind,
    SegmentSoftmaxPlan,
)
from pullback.plan.function import Call, Function, Indices, Tensor


def _forward(kind: SegmentSoftmaxKind, summary: str) -> Function:
    op = kind.value

    def body(
        x: Tensor,
        segment_ids: Indices | None = None,
        num_segments: int | None = None,
        *,
        offsets: Indices | None = None,
        axis: int = 0,
        indices_are_sorted: bool = False,
        out_of_range: Literal["error", "skip"] | IndexPolicy = "error",
    ) -> Call:
        groups = groups_of(
            op, "x", x, segment_ids, offsets, num_segments, axis, indices_are_sorted, out_of_range
        )
        desc = SegmentSoftmaxDescriptor(kind=kind, **groups.fields)
        return groups.call(op, SegmentSoftmaxPlan, desc, groups.tensors(x=x), {"y": x.shape})

    return GroupedFunction(body, op, summary)


def _backward(kind: SegmentSoftmaxKind, summary: str) -> Function:
    op = f"{kind.value}_backward"

    def body(
        dy: Tensor,
        y: Tensor,
        segment_ids: Indices | None = None,
        num_segments: int | None = None,
        *,
        offsets: Indices | None = None,
        axis: int = 0,
        indices_are_sorted: bool = False,
        out_of_range: Literal["error", "skip"] | IndexPolicy = "error",
    ) -> Call:
        if y.shape != dy.shape:
            raise InvalidProblem(op, "y", f"of shape {dy.shape}, as dy", f"shape {y.shape}")
        groups = groups_of(
            op, "dy", dy, segment_ids, offsets, num_segments, axis, indices_are_sorted, out_of_range
        )
        desc = SegmentSoftmaxBackwardDescriptor(kind=kind, **groups.fields)
        tensors = groups.tensors(dy=dy, y=y)
        return groups.call(op, SegmentSoftmaxBackwardPlan, desc, tensors, {"dx": dy.shape})

    return GroupedFunction(body, op, summary)


_IDS = "Segments are given by `segment_ids`, or by `offsets` (CSR) in their place."

segment_softmax = _forward(
    SegmentSoftmaxKind.SOFTMAX,
    f"Softmax over the rows of each segment, 0 in rows of none. {_IDS}",
)
segment_log_softmax = _forward(
    SegmentSoftmaxKind.LOG_SOFTMAX,
    f"Logarithm of the softmax over the rows of each segment, -inf in rows of none. {_IDS}",
)
segment_softmax_backward = _backward(
    SegmentSoftmaxKind.SOFTMAX,
    "Gradient of `segment_softmax` from its output `y`: y·(dy - Σ y·dy) in each segment.",
)
segment_log_softmax_backward = _backward(
    SegmentSoftmaxKind.LOG_SOFTMAX,
    "Gradient of `segment_log_softmax` from its output `y`: dy - e^y·Σ dy in each segment.",
)
