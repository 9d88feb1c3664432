"""The simplex maps as plain functions."""

from __future__ import annotations

from pullback.contract.kinds import SoftmaxKind
from pullback.ops.simplex.contract import (
    SoftmaxBackwardDescriptor,
    SoftmaxBackwardPlan,
    SoftmaxDescriptor,
    SoftmaxPlan,
    SparsemaxBackwardDescriptor,
    SparsemaxBackwardPlan,
    SparsemaxDescriptor,
    SparsemaxPlan,
)
from pullback.plan.function import Call, Function, Tensor, axis_of


def _forward(kind: SoftmaxKind, x: Tensor, axis: int) -> Call:
    desc = SoftmaxDescriptor(
        kind=kind,
        input_shape=x.shape,
        softmax_axis=axis_of(kind.value, axis, len(x.shape)),
        element=x.element,
    )
    return Call(SoftmaxPlan, desc, {"x": x}, ("y",))


def _backward(kind: SoftmaxKind, dy: Tensor, y: Tensor, axis: int) -> Call:
    desc = SoftmaxBackwardDescriptor(
        kind=kind,
        input_shape=dy.shape,
        softmax_axis=axis_of(f"{kind.value}_backward", axis, len(dy.shape)),
        element=dy.element,
    )
    return Call(SoftmaxBackwardPlan, desc, {"dy": dy, "y": y}, ("dx",))


@Function
def softmax(x: Tensor, axis: int = -1) -> Call:
    """Exponentials along an axis, divided by their sum."""
    return _forward(SoftmaxKind.SOFTMAX, x, axis)


@Function
def softmax_backward(dy: Tensor, y: Tensor, axis: int = -1) -> Call:
    """Gradient of `softmax` from its output `y`."""
    return _backward(SoftmaxKind.SOFTMAX, dy, y, axis)


@Function
def log_softmax(x: Tensor, axis: int = -1) -> Call:
    """Logarithm of `softmax`, exact where that would round to 0 or 1."""
    return _forward(SoftmaxKind.LOG_SOFTMAX, x, axis)


@Function
def log_softmax_backward(dy: Tensor, y: Tensor, axis: int = -1) -> Call:
    """Gradient of `log_softmax` from its output `y`."""
    return _backward(SoftmaxKind.LOG_SOFTMAX, dy, y, axis)


@Function
def sparsemax(x: Tensor, axis: int = -1) -> Call:
    """Euclidean projection of each row onto the simplex: sparse probabilities."""
    desc = SparsemaxDescriptor(
        input_shape=x.shape,
        softmax_axis=axis_of("sparsemax", axis, len(x.shape)),
        element=x.element,
    )
    return Call(SparsemaxPlan, desc, {"x": x}, ("y",))


@Function
def sparsemax_backward(dy: Tensor, y: Tensor, axis: int = -1) -> Call:
    """Gradient of `sparsemax` from its output `y`; `dy` is not read where `y` is 0."""
    desc = SparsemaxBackwardDescriptor(
        input_shape=dy.shape,
        softmax_axis=axis_of("sparsemax_backward", axis, len(dy.shape)),
        element=dy.element,
    )
    return Call(SparsemaxBackwardPlan, desc, {"dy": dy, "y": y}, ("dx",))


@Function
def entmax15(x: Tensor, axis: int = -1) -> Call:
    """1.5-entmax: sparse probabilities between `softmax` and `sparsemax`."""
    return _forward(SoftmaxKind.ENTMAX15, x, axis)


@Function
def entmax15_backward(dy: Tensor, y: Tensor, axis: int = -1) -> Call:
    """Gradient of `entmax15` from its output `y`; `dy` is not read where `y` is 0."""
    return _backward(SoftmaxKind.ENTMAX15, dy, y, axis)
