r"""entmax for any alpha >= 1, and the Fenchel-Young losses of the simplex maps.

Along one axis, for a row x:

    p = max((alpha - 1)·x - τ, 0)^(1/(alpha-1)), Σ p = 1       softmax at alpha = 1, sparsemax at 2
    dx = s·(dy - Σ s·dy / Σ s), s = p^(2-alpha)
    dalpha = Σ dy·∂p/∂alpha
    loss(x, t) = Ω*(x) + Ω(t) - <x, t>,  dx = p - t            Ω the negative Tsallis entropy

alpha is a number, or a tensor that broadcasts over the rows and has a gradient. Special values are
those of the simplex maps; a row of only -inf has no mass, loss 0 and gradient 0. A loss is never
negative, and exactly 0 where the map is the target, a distribution or the number of a class.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf, prod
from operator import attrgetter
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.errors import IndexOutOfRange, InvalidProblem
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import BackendKind, OpCategory, Reproducibility
from pullback.contract.record import (
    INDEX,
    Failure,
    PlanRecord,
    Role,
    Slot,
    check_axis,
    check_element,
    check_flag,
    check_number,
    check_option,
    check_shape,
)
from pullback.ops.entmax import oracle
from pullback.plan.plan import Plan

Shape = tuple[int, ...]


class EntmaxKind(Enum):
    """entmax, and the losses of the simplex maps."""

    ENTMAX = "entmax"
    SOFTMAX_LOSS = "softmax_loss"
    ENTMAX15_LOSS = "entmax15_loss"
    SPARSEMAX_LOSS = "sparsemax_loss"
    ENTMAX_LOSS = "entmax_loss"


# Losses whose name says alpha.
ALPHAS = {
    EntmaxKind.SOFTMAX_LOSS: 1.0,
    EntmaxKind.ENTMAX15_LOSS: 1.5,
    EntmaxKind.SPARSEMAX_LOSS: 2.0,
}


@dataclass(frozen=True, kw_only=True)
class EntmaxDescriptor:
    """`alpha` is a number, or None if it is a tensor, broadcast to the shape of the input."""

    input_shape: Shape
    softmax_axis: int
    element: ElementKind
    alpha: float | None


@dataclass(frozen=True, kw_only=True)
class EntmaxBackwardDescriptor(EntmaxDescriptor):
    """`alpha_shape` is the shape of a tensor alpha before it was broadcast, and of its gradient; by
    default it has a value for each row."""

    alpha_shape: Shape | None = None


@dataclass(kw_only=True, slots=True)
class EntmaxArgs:
    """`y` may be the very buffer of `x`."""

    x: Any
    y: Any
    alpha: Any = None


@dataclass(kw_only=True, slots=True)
class EntmaxBackwardArgs:
    """A tensor `alpha` needs `x`, and has a gradient; `dx` may be the buffer of `dy` or `y`."""

    dy: Any
    y: Any
    dx: Any
    alpha: Any = None
    x: Any = None
    dalpha: Any = None


@dataclass(frozen=True, kw_only=True)
class SimplexLossDescriptor:
    """`alpha` is None where the kind says it. `labels`: the target holds classes, not a
    distribution. `keep`: the map is written too."""

    kind: EntmaxKind
    input_shape: Shape
    softmax_axis: int
    element: ElementKind
    alpha: float | None
    labels: bool = False
    keep: bool = False


@dataclass(frozen=True, kw_only=True)
class SimplexLossBackwardDescriptor(SimplexLossDescriptor):
    """All fields are the forward's."""


@dataclass(kw_only=True, slots=True)
class SimplexLossArgs:
    x: Any
    loss: Any
    target: Any = None
    classes: Any = None
    p: Any = None


@dataclass(kw_only=True, slots=True)
class SimplexLossBackwardArgs:
    """`p` is the map of the forward's input; `dx` may be its buffer."""

    dy: Any
    p: Any
    dx: Any
    target: Any = None
    classes: Any = None


def check_alpha(op: str, alpha: Any) -> float:
    value = check_number(op, "alpha", alpha)
    if not 1 <= value < inf:
        raise InvalidProblem(op, "alpha", "at least 1, and finite", repr(alpha))
    return value


def row_shape(desc: Any) -> Shape:
    """Of what has one value for each row."""
    shape: Shape = desc.input_shape
    return shape[: desc.softmax_axis] + shape[desc.softmax_axis + 1 :]


def _check(op: str, desc: Any) -> None:
    check_element(op, desc.element)
    check_shape(op, "input_shape", desc.input_shape)
    check_axis(op, "softmax_axis", desc.softmax_axis, len(desc.input_shape))
    if desc.alpha is not None:
        check_alpha(op, desc.alpha)


def check_broadcast(op: str, shape: Shape, full: Shape, axis: int) -> None:
    """That alpha broadcasts over rows: the same shape, extents of 1, or fewer axes."""
    check_shape(op, "alpha", shape)
    padded = (1,) * (len(full) - len(shape)) + tuple(shape)
    fits = len(padded) == len(full) and all(
        n == 1 or (n == extent and k != axis)
        for k, (n, extent) in enumerate(zip(padded, full, strict=True))
    )
    if not fits:
        expected = f"of a shape that broadcasts to {full} and has extent 1 on axis {axis}"
        raise InvalidProblem(op, "alpha", expected, f"shape {shape}")


def _check_backward(desc: EntmaxBackwardDescriptor) -> None:
    _check("entmax_backward", desc)
    if desc.alpha is None and desc.alpha_shape is not None:
        shape = desc.alpha_shape
        check_broadcast("entmax_backward", shape, desc.input_shape, desc.softmax_axis)


def _check_loss(desc: SimplexLossDescriptor) -> None:
    check_option("simplex_loss", "kind", desc.kind, EntmaxKind)
    if desc.kind is EntmaxKind.ENTMAX:
        raise InvalidProblem("simplex_loss", "kind", "that of a loss", repr(desc.kind))
    _check(_op(desc), desc)
    if desc.kind not in ALPHAS:
        check_alpha(_op(desc), desc.alpha)
    elif desc.alpha is not None:
        expected = f"None, being {ALPHAS[desc.kind]}"
        raise InvalidProblem(_op(desc), "alpha", expected, repr(desc.alpha))
    check_flag(_op(desc), "labels", desc.labels)
    check_flag(_op(desc), "keep", desc.keep)


def alpha_shape(desc: Any) -> Shape:
    """Of the gradient of a tensor alpha."""
    if desc.alpha_shape is not None:
        return tuple(desc.alpha_shape)
    return tuple(1 if k == desc.softmax_axis else n for k, n in enumerate(desc.input_shape))


def loss_alpha(desc: Any) -> float:
    """The alpha of a loss."""
    alpha: float | None = ALPHAS.get(desc.kind, desc.alpha)
    assert alpha is not None  # validated
    return alpha


def _op(desc: Any) -> str:
    return str(getattr(kind_of(desc), "value", "simplex_loss"))


def _op_backward(desc: Any) -> str:
    return f"{_op(desc)}_backward"


def kind_of(desc: Any) -> EntmaxKind:
    return getattr(desc, "kind", EntmaxKind.ENTMAX)


def has_tensor(desc: Any) -> bool:
    """Whether alpha is a tensor."""
    return desc.alpha is None


_shape, _has_labels, _keeps = map(attrgetter, ("input_shape", "labels", "keep"))


def _has_distribution(desc: Any) -> bool:
    return not desc.labels


def _guarantee(desc: Any) -> PrecisionGuarantee:
    return guarantee(ElementKind.F64, Reproducibility.ANY_MACHINE)


def _workspace(desc: Any) -> int:
    """The gradient of each row's alpha, and two sums for each alpha."""
    if desc.alpha is not None:
        return 0
    return 8 * prod(row_shape(desc)) + 16 * prod(alpha_shape(desc))


def _reference(desc: Any, x: Any, y: Any, alpha: Any = None) -> dict[str, Any]:
    chosen = desc.alpha if alpha is None else alpha
    return {"y": oracle.entmax(x, chosen, desc.softmax_axis)}


def _reference_backward(
    desc: Any, dy: Any, y: Any, alpha: Any = None, x: Any = None, **_: Any
) -> dict[str, Any]:
    if alpha is None:
        return {"dx": oracle.entmax_backward(dy, y, desc.alpha, desc.softmax_axis)}
    # The plan sees alpha broadcast; its gradient has the shape it had before.
    shape = alpha_shape(desc)
    small = (1,) * (len(desc.input_shape) - len(shape)) + shape
    own = alpha[tuple(slice(n) for n in small)].reshape(shape)
    dx, dalpha = oracle.entmax_backward(dy, y, own, desc.softmax_axis, x)
    return {"dx": dx, "dalpha": dalpha}


def _reference_loss(
    desc: Any, x: Any, loss: Any, target: Any = None, classes: Any = None, p: Any = None
) -> dict[str, Any]:
    chosen = classes if desc.labels else target
    loss, p = oracle.entmax_loss(x, chosen, loss_alpha(desc), desc.softmax_axis, True)
    return {"loss": loss, "p": p} if desc.keep else {"loss": loss}


def _reference_loss_backward(
    desc: Any, dy: Any, p: Any, dx: Any, target: Any = None, classes: Any = None
) -> dict[str, Any]:
    chosen = classes if desc.labels else target
    return {"dx": oracle.entmax_loss_backward(dy, p, chosen, loss_alpha(desc), desc.softmax_axis)}


FAILURES = {
    1: Failure(
        IndexOutOfRange,
        "target",
        lambda desc: f"in [0, {(desc.input_shape or (1,))[desc.softmax_axis]})",
        "{value} at position {position}",
    ),
    2: Failure(
        InvalidProblem,
        "alpha",
        lambda _: "at least 1 and finite in every row",
        "a row where it is not",
    ),
}


def _everywhere(function: str) -> dict[BackendKind, str]:
    backends = {BackendKind.NUMBA: "cpu", BackendKind.TRITON: "gpu"}
    return {kind: f"pullback.ops.entmax.{name}:{function}" for kind, name in backends.items()}


class EntmaxPlan(Plan[EntmaxDescriptor, EntmaxArgs]):
    """entmax along one axis, for any alpha."""

    record = PlanRecord(
        name="Entmax",
        category=OpCategory.SOFTMAX,
        direction="forward",
        descriptor=EntmaxDescriptor,
        slots=(
            Slot("x", _shape),
            Slot("alpha", _shape, needed=has_tensor, used=has_tensor),
            Slot("y", _shape, Role.OUT, in_place_of=("x",)),
        ),
        kind=kind_of,
        op=_op,
        validate=lambda desc: _check("entmax", desc),
        guarantee=_guarantee,
        backends=_everywhere("forward"),
        reference=_reference,
        failures=FAILURES,
    )


class EntmaxBackwardPlan(Plan[EntmaxBackwardDescriptor, EntmaxBackwardArgs]):
    """Backward of entmax from the saved output; the gradient of a tensor alpha needs the input."""

    record = PlanRecord(
        name="EntmaxBackward",
        category=OpCategory.SOFTMAX,
        direction="backward",
        descriptor=EntmaxBackwardDescriptor,
        slots=(
            Slot("dy", _shape),
            Slot("y", _shape, why_needed="the saved forward output"),
            Slot("alpha", _shape, needed=has_tensor, used=has_tensor),
            Slot("x", _shape, needed=has_tensor, used=has_tensor),
            Slot("dx", _shape, Role.OUT, in_place_of=("dy", "y")),
            Slot("dalpha", alpha_shape, Role.OUT, needed=has_tensor, used=has_tensor),
        ),
        kind=kind_of,
        op=_op_backward,
        validate=_check_backward,
        guarantee=_guarantee,
        backends=_everywhere("backward"),
        reference=_reference_backward,
        workspace=_workspace,
        failures=FAILURES,
    )


class SimplexLossPlan(Plan[SimplexLossDescriptor, SimplexLossArgs]):
    """The Fenchel-Young loss of a simplex map: a value for each row."""

    record = PlanRecord(
        name="SimplexLoss",
        category=OpCategory.SOFTMAX,
        direction="forward",
        descriptor=SimplexLossDescriptor,
        slots=(
            Slot("x", _shape),
            Slot("target", _shape, needed=_has_distribution, used=_has_distribution),
            Slot("classes", row_shape, holds=INDEX, needed=_has_labels, used=_has_labels),
            Slot("loss", row_shape, Role.OUT),
            Slot("p", _shape, Role.OUT, needed=_keeps, used=_keeps, in_place_of=("x",)),
        ),
        kind=kind_of,
        op=_op,
        validate=_check_loss,
        guarantee=_guarantee,
        backends=_everywhere("loss"),
        reference=_reference_loss,
        aux=ElementKind.I64,
        failures=FAILURES,
    )


class SimplexLossBackwardPlan(Plan[SimplexLossBackwardDescriptor, SimplexLossBackwardArgs]):
    """Backward of such a loss: (p - target)·dy."""

    record = PlanRecord(
        name="SimplexLossBackward",
        category=OpCategory.SOFTMAX,
        direction="backward",
        descriptor=SimplexLossBackwardDescriptor,
        slots=(
            Slot("dy", row_shape),
            Slot("target", _shape, needed=_has_distribution, used=_has_distribution),
            Slot("classes", row_shape, holds=INDEX, needed=_has_labels, used=_has_labels),
            Slot("p", _shape, why_needed="the saved map"),
            Slot("dx", _shape, Role.OUT, in_place_of=("p", "target")),
        ),
        kind=kind_of,
        op=_op_backward,
        validate=_check_loss,
        guarantee=_guarantee,
        backends=_everywhere("loss_backward"),
        reference=_reference_loss_backward,
        aux=ElementKind.I64,
        failures=FAILURES,
    )
