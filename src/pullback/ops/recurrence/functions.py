"""The linear recurrence as plain functions."""

from __future__ import annotations

from pullback.ops.recurrence.contract import (
    LinearScanBackwardDescriptor,
    LinearScanBackwardPlan,
    LinearScanDescriptor,
    LinearScanPlan,
)
from pullback.plan.function import Call, Function, Pair, Tensor, axis_of


@Function
def linear_scan(a: Tensor, b: Tensor, axis: int = -1, *, reverse: bool = False) -> Call:
    """h[j] = a[j]·h[j-1] + b[j] along an axis, from h[-1] = 0."""
    desc = LinearScanDescriptor(
        input_shape=a.shape,
        scan_axis=axis_of("linear_scan", axis, len(a.shape)),
        element=a.element,
        reverse=reverse,
    )
    return Call(LinearScanPlan, desc, {"a": a, "b": b}, ("h",))


@Function
def linear_scan_backward(
    dh: Tensor, a: Tensor, h: Tensor, axis: int = -1, *, reverse: bool = False
) -> Pair:
    """Gradients of `linear_scan`: (da, db)."""
    desc = LinearScanBackwardDescriptor(
        input_shape=dh.shape,
        scan_axis=axis_of("linear_scan_backward", axis, len(dh.shape)),
        element=dh.element,
        reverse=reverse,
    )
    return Call(LinearScanBackwardPlan, desc, {"dh": dh, "a": a, "h": h}, ("da", "db"))
