"""entmax and the Fenchel-Young losses as plain functions."""

from __future__ import annotations

from typing import Any

from pullback.contract.element import INDICES
from pullback.contract.errors import InvalidProblem
from pullback.contract.kinds import SoftmaxKind
from pullback.contract.record import check_flag
from pullback.ops.entmax.contract import (
    ALPHAS,
    EntmaxBackwardDescriptor,
    EntmaxBackwardPlan,
    EntmaxDescriptor,
    EntmaxKind,
    EntmaxPlan,
    SimplexLossBackwardDescriptor,
    SimplexLossBackwardPlan,
    SimplexLossDescriptor,
    SimplexLossPlan,
    check_alpha,
    check_broadcast,
)
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
from pullback.plan.function import AndAlpha, Call, Function, Indices, Tensor, axis_of
from pullback.plan.launch import check_tensor

# Maps that have plans of their own; entmax of that alpha is theirs, to the bit.
_OWN = {1.0: SoftmaxKind.SOFTMAX, 1.5: SoftmaxKind.ENTMAX15}


@Function
def entmax(x: Tensor, alpha: Tensor | float, axis: int = -1) -> Call:
    """Sparse probabilities, from `softmax` (alpha 1) to `sparsemax` (2) and beyond. `alpha` is a
    number, or an array that broadcasts over the rows and has a gradient."""
    at = axis_of("entmax", axis, len(x.shape))
    common: dict[str, Any] = {
        "input_shape": x.shape,
        "softmax_axis": at,
        "element": x.element,
    }
    if isinstance(alpha, Tensor):
        check_broadcast("entmax", alpha.shape, x.shape, at)
        tensors = {"x": x, "alpha": alpha.broadcast_to(x.shape)}
        return Call(EntmaxPlan, EntmaxDescriptor(alpha=None, **common), tensors, ("y",))
    value = check_alpha("entmax", alpha)
    if value in _OWN:
        return Call(SoftmaxPlan, SoftmaxDescriptor(kind=_OWN[value], **common), {"x": x}, ("y",))
    if value == 2:
        return Call(SparsemaxPlan, SparsemaxDescriptor(**common), {"x": x}, ("y",))
    return Call(EntmaxPlan, EntmaxDescriptor(alpha=value, **common), {"x": x}, ("y",))


@Function
def entmax_backward(
    dy: Tensor, y: Tensor, alpha: Tensor | float, axis: int = -1, *, x: Tensor | None = None
) -> AndAlpha:
    """Gradient of `entmax` from its output `y`: dx, or (dx, dalpha) if alpha is an array, which
    needs the input `x`. Where alpha > 1 and `y` is 0, `dy` is not read."""
    op = "entmax_backward"
    at = axis_of(op, axis, len(dy.shape))
    common: dict[str, Any] = {
        "input_shape": dy.shape,
        "softmax_axis": at,
        "element": dy.element,
    }
    tensors: dict[str, Any] = {"dy": dy, "y": y}
    if isinstance(alpha, Tensor):
        if x is None:
            raise InvalidProblem(op, "x", "given where alpha is an array with a gradient", "None")
        check_broadcast(op, alpha.shape, dy.shape, at)
        desc = EntmaxBackwardDescriptor(alpha=None, alpha_shape=alpha.shape, **common)
        tensors |= {"alpha": alpha.broadcast_to(dy.shape), "x": x}
        return Call(EntmaxBackwardPlan, desc, tensors, ("dx", "dalpha"))
    value = check_alpha(op, alpha)
    if x is not None:  # held to the same as where it is read
        slot = next(slot for slot in EntmaxBackwardPlan.record.slots if slot.name == "x")
        check_tensor(op, slot, EntmaxBackwardDescriptor(alpha=value, **common), x, dy.device)
    if value in _OWN:
        own = SoftmaxBackwardDescriptor(kind=_OWN[value], **common)
        return Call(SoftmaxBackwardPlan, own, tensors, ("dx",))
    if value == 2:
        return Call(SparsemaxBackwardPlan, SparsemaxBackwardDescriptor(**common), tensors, ("dx",))
    desc = EntmaxBackwardDescriptor(alpha=value, **common)
    return Call(EntmaxBackwardPlan, desc, tensors, ("dx",))


# --- losses -------------------------------------------------------------------------------------


def _target(op: str, target: Tensor, shape: tuple[int, ...], at: int) -> dict[str, Any]:
    """The slots of a target, and whether it holds classes."""
    labels = target.element in INDICES
    wanted = shape[:at] + shape[at + 1 :] if labels else shape
    if target.shape != wanted:
        holds = "classes" if labels else "a distribution"
        raise InvalidProblem(op, "target", f"{holds} of shape {wanted}", f"shape {target.shape}")
    return {"classes" if labels else "target": target}


def _loss(
    kind: EntmaxKind,
    alpha: float | None,
    x: Tensor,
    target: Any,
    axis: int,
    return_probabilities: bool,
) -> Call:
    check_flag(kind.value, "return_probabilities", return_probabilities)
    at = axis_of(kind.value, axis, len(x.shape))
    targets = _target(kind.value, target, x.shape, at)
    desc = SimplexLossDescriptor(
        kind=kind,
        input_shape=x.shape,
        softmax_axis=at,
        element=x.element,
        alpha=None if kind in ALPHAS else check_alpha(kind.value, alpha),
        labels="classes" in targets,
        keep=return_probabilities,
    )
    returns = ("loss", "p") if return_probabilities else ("loss",)
    return Call(SimplexLossPlan, desc, {"x": x, **targets}, returns)


def _loss_backward(
    kind: EntmaxKind, alpha: float | None, dy: Tensor, p: Tensor, target: Any, axis: int
) -> Call:
    op = f"{kind.value}_backward"
    at = axis_of(op, axis, len(p.shape))
    targets = _target(op, target, p.shape, at)
    desc = SimplexLossBackwardDescriptor(
        kind=kind,
        input_shape=p.shape,
        softmax_axis=at,
        element=p.element,
        alpha=None if kind in ALPHAS else check_alpha(op, alpha),
        labels="classes" in targets,
    )
    return Call(SimplexLossBackwardPlan, desc, {"dy": dy, "p": p, **targets}, ("dx",))


def _losses(kind: EntmaxKind, name: str) -> tuple[Function, Function]:
    def loss(
        x: Tensor, target: Tensor | Indices, axis: int = -1, *, return_probabilities: bool = False
    ) -> Call:
        return _loss(kind, None, x, target, axis, return_probabilities)

    def backward(dy: Tensor, p: Tensor, target: Tensor | Indices, axis: int = -1) -> Call:
        return _loss_backward(kind, None, dy, p, target, axis)

    summary = (
        f"Fenchel-Young loss of `{name}`: a value for each row, 0 where the map is the target. "
        "`target` holds classes (i32, i64) or a distribution of x's shape. `return_probabilities` "
        f"gives (loss, {name} of x); the second counts as a constant."
    )
    adjoint = f"Gradient of `{kind.value}`: (p - target)·dy, with `p` the {name} of its input."
    return Function(loss, kind.value, summary), Function(
        backward, f"{kind.value}_backward", adjoint
    )


softmax_loss, softmax_loss_backward = _losses(EntmaxKind.SOFTMAX_LOSS, "softmax")
entmax15_loss, entmax15_loss_backward = _losses(EntmaxKind.ENTMAX15_LOSS, "entmax15")
sparsemax_loss, sparsemax_loss_backward = _losses(EntmaxKind.SPARSEMAX_LOSS, "sparsemax")


@Function
def entmax_loss(
    x: Tensor,
    target: Tensor | Indices,
    alpha: float,
    axis: int = -1,
    *,
    return_probabilities: bool = False,
) -> Call:
    """Fenchel-Young loss of `entmax` for a number `alpha`: a value for each row, 0 where the map is
    the target. `target` holds classes (i32, i64) or a distribution of x's shape.
    `return_probabilities` gives (loss, entmax of x); the second counts as a constant."""
    return _loss(EntmaxKind.ENTMAX_LOSS, alpha, x, target, axis, return_probabilities)


@Function
def entmax_loss_backward(
    dy: Tensor, p: Tensor, target: Tensor | Indices, alpha: float, axis: int = -1
) -> Call:
    """Gradient of `entmax_loss`: (p - target)·dy, with `p` the entmax of its input."""
    return _loss_backward(EntmaxKind.ENTMAX_LOSS, alpha, dy, p, target, axis)
