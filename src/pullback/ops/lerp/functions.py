"""Lerp as plain functions: numbers and tensors as weights, broadcasting."""

from __future__ import annotations

from collections.abc import Sequence

from pullback.contract.errors import InvalidProblem, Unsupported
from pullback.contract.kinds import BinaryKind
from pullback.contract.record import check_number
from pullback.ops.lerp.contract import (
    BinaryParamBackwardDescriptor,
    BinaryParamBackwardPlan,
    BinaryParamDescriptor,
    BinaryParamPlan,
    LerpBackwardDescriptor,
    LerpBackwardPlan,
    LerpDescriptor,
    LerpPlan,
)
from pullback.plan.function import Call, Function, PairAndWeight, Tensor
from pullback.tensor.layout import broadcast


def _common_shape(op: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return broadcast(shapes)
    except ValueError:
        listed = " and ".join(str(shape) for shape in shapes)
        raise InvalidProblem(op, "shapes", "shapes that broadcast together", listed) from None


@Function
def lerp(a: Tensor, b: Tensor, weight: Tensor | float) -> Call:
    """Linear interpolation from `a` (weight 0) to `b` (weight 1), broadcasting."""
    weights = (weight,) if isinstance(weight, Tensor) else ()
    shape = _common_shape("lerp", [tensor.shape for tensor in (a, b, *weights)])
    operands = {"a": a.broadcast_to(shape), "b": b.broadcast_to(shape)}
    if isinstance(weight, Tensor):
        tensors = {**operands, "weight": weight.broadcast_to(shape)}
        return Call(LerpPlan, LerpDescriptor(shape=shape, element=a.element), tensors, ("y",))
    desc = BinaryParamDescriptor(
        kind=BinaryKind.LERP,
        shape=shape,
        element=a.element,
        param=check_number("lerp", "weight", weight),
    )
    return Call(BinaryParamPlan, desc, operands, ("y",))


@Function
def lerp_backward(
    dy: Tensor, weight: Tensor | float, a: Tensor | None = None, b: Tensor | None = None
) -> PairAndWeight:
    """Gradients of `lerp`: (da, db), and dweight if the weight is a tensor, which needs `a`, `b`.
    With `a` and `b` given, gradients are summed back to their shapes."""
    # With a number as weight only their shapes are used, but one call has one dtype.
    for name, operand in (("a", a), ("b", b)):
        if operand is not None and operand.element is not dy.element:
            wanted, found = dy.element.row.long_name, operand.element.row.long_name
            raise Unsupported("lerp_backward", name, f"{wanted}, as dy", f"an array of {found}")
    a_shape = dy.shape if a is None else a.shape
    b_shape = dy.shape if b is None else b.shape
    if not isinstance(weight, Tensor):
        param = check_number("lerp_backward", "weight", weight)
        if a_shape == b_shape == dy.shape:
            desc = BinaryParamBackwardDescriptor(
                kind=BinaryKind.LERP, shape=dy.shape, element=dy.element, param=param
            )
            return Call(BinaryParamBackwardPlan, desc, {"dy": dy}, ("da", "db"))
        return _summed(dy, a_shape, b_shape, None, param)
    for name, operand in (("a", a), ("b", b)):
        if operand is None:
            raise InvalidProblem(
                "lerp_backward", name, "given when the weight is a tensor with a gradient", "None"
            )
    call = _summed(dy, a_shape, b_shape, weight.shape, None)
    tensors = {"dy": dy, "weight": weight, "a": a, "b": b}
    return Call(call.plan, call.descriptor, tensors, ("da", "db", "dweight"))


def _summed(
    dy: Tensor,
    a_shape: tuple[int, ...],
    b_shape: tuple[int, ...],
    weight_shape: tuple[int, ...] | None,
    param: float | None,
) -> Call:
    shapes = [a_shape, b_shape, *([weight_shape] if weight_shape is not None else [])]
    common = _common_shape("lerp_backward", [*shapes, dy.shape])
    if common != dy.shape:
        raise InvalidProblem(
            "lerp_backward", "dy", f"of the broadcast shape {common}", f"shape {dy.shape}"
        )
    desc = LerpBackwardDescriptor(
        shape=dy.shape,
        a_shape=a_shape,
        b_shape=b_shape,
        weight_shape=weight_shape,
        element=dy.element,
        param=param,
    )
    return Call(LerpBackwardPlan, desc, {"dy": dy}, ("da", "db"))
