"""The linear recurrence as plain functions."""

from __future__ import annotations

from typing import Any

from pullback.contract.errors import Unsupported
from pullback.ops.recurrence.contract import (
    LinearScanBackwardDescriptor,
    LinearScanBackwardPlan,
    LinearScanDescriptor,
    LinearScanPlan,
)
from pullback.plan.function import (
    Call,
    Function,
    Indices,
    Number,
    PairAndInitial,
    Tensor,
    axis_of,
    pieces_of,
)


def _described(
    kind: Any, op: str, a: Tensor, b: Tensor, axis: int, initial: Any, offsets: Any, **options: Any
) -> Any:
    if a.element is not b.element:  # of which a number has become one
        wanted, found = b.element.row.long_name, a.element.row.long_name
        raise Unsupported(op, "a", f"{wanted}, as the others", f"an array of {found}")
    return kind(
        input_shape=b.shape,
        scan_axis=axis_of(op, axis, len(b.shape)),
        element=b.element,
        a_shape=None if a.shape == b.shape else a.shape,
        initial_shape=None if initial is None else initial.shape,
        num_pieces=pieces_of(op, offsets),
        **options,
    )


@Function
def linear_scan(
    a: Tensor | Number,
    b: Tensor,
    axis: int = -1,
    *,
    reverse: bool = False,
    exclusive: bool = False,
    initial: Tensor | Number | None = None,
    offsets: Indices | None = None,
) -> Call:
    """h[j] = a[j]·h[j-1] + b[j] along an axis, from h[-1] = 0 or `initial`. `a` may broadcast."""
    desc = _described(
        LinearScanDescriptor,
        "linear_scan",
        a,
        b,
        axis,
        initial,
        offsets,
        reverse=reverse,
        exclusive=exclusive,
    )
    tensors = {"a": a, "b": b, "initial": initial, "offsets": offsets}
    return Call(LinearScanPlan, desc, tensors, ("h",))


@Function
def linear_scan_backward(
    dh: Tensor,
    a: Tensor | Number,
    h: Tensor,
    axis: int = -1,
    *,
    reverse: bool = False,
    exclusive: bool = False,
    initial: Tensor | Number | None = None,
    offsets: Indices | None = None,
) -> PairAndInitial:
    """Gradients of `linear_scan`: (da, db), and that of `initial` if it is given."""
    desc = _described(
        LinearScanBackwardDescriptor,
        "linear_scan_backward",
        a,
        dh,
        axis,
        initial,
        offsets,
        reverse=reverse,
        exclusive=exclusive,
    )
    tensors = {"dh": dh, "a": a, "h": h, "initial": initial, "offsets": offsets}
    returns = ("da", "db") if initial is None else ("da", "db", "d_initial")
    return Call(LinearScanBackwardPlan, desc, tensors, returns)


@Function
def discounted_sum(
    x: Tensor,
    discount: Tensor | Number,
    axis: int = -1,
    *,
    reverse: bool = True,
    initial: Tensor | Number | None = None,
    offsets: Indices | None = None,
) -> Call:
    """h[j] = x[j] + discount·h[j+1] along an axis, from its far end and from 0 or `initial`: the
    returns of rewards. `discount` may broadcast."""
    desc = _described(
        LinearScanDescriptor,
        "discounted_sum",
        discount,
        x,
        axis,
        initial,
        offsets,
        reverse=reverse,
    )
    tensors = {"a": discount, "b": x, "initial": initial, "offsets": offsets}
    return Call(LinearScanPlan, desc, tensors, ("h",))
