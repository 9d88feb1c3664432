r"""Lerp: what it computes, what it needs, what it promises.

    y = a + w·(b - a)          where |w| < 0.5
    y = b - (b - a)·(1 - w)    elsewhere
    da = (1 - w)·dy    db = w·dy    dw = dy·(b - a)

Exact at w = 0 and 1 for finite a and b; lerp(a, a, w) = a. A weight that is a number is a constant
kept in double (`BinaryParam`); a weight that is a tensor has a gradient (`Lerp`). The gradients of
operands that were broadcast are summed back to their shapes, in f64 and in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.contract.element import ElementKind
from pullback.contract.errors import InvalidProblem
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import BackendKind, BinaryKind, OpCategory, Reproducibility
from pullback.contract.record import (
    PlanRecord,
    Role,
    Slot,
    check_element,
    check_number,
    check_option,
    check_shape,
)
from pullback.ops.lerp import oracle
from pullback.plan.plan import Plan


@dataclass(frozen=True, kw_only=True)
class BinaryParamDescriptor:
    """An elementwise op of two tensors and a constant, which is kept in double."""

    kind: BinaryKind
    shape: tuple[int, ...]
    element: ElementKind
    param: float


@dataclass(frozen=True, kw_only=True)
class BinaryParamBackwardDescriptor(BinaryParamDescriptor):
    """The backward of the same op."""


@dataclass(kw_only=True, slots=True)
class BinaryParamArgs:
    a: Any
    b: Any
    y: Any


@dataclass(kw_only=True, slots=True)
class BinaryParamBackwardArgs:
    dy: Any
    da: Any
    db: Any


@dataclass(frozen=True, kw_only=True)
class LerpDescriptor:
    """Lerp with a tensor of weights; all operands broadcast to `shape` already."""

    shape: tuple[int, ...]
    element: ElementKind


@dataclass(kw_only=True, slots=True)
class LerpArgs:
    a: Any
    b: Any
    weight: Any
    y: Any


@dataclass(frozen=True, kw_only=True)
class LerpBackwardDescriptor:
    """The backward of a broadcast lerp: each gradient has its operand's own shape. `param` is the
    constant weight, None if the weight is a tensor of shape `weight_shape`."""

    shape: tuple[int, ...]
    a_shape: tuple[int, ...]
    b_shape: tuple[int, ...]
    weight_shape: tuple[int, ...] | None
    element: ElementKind
    param: float | None = None


@dataclass(kw_only=True, slots=True)
class LerpBackwardArgs:
    dy: Any
    da: Any
    db: Any
    weight: Any = None
    a: Any = None
    b: Any = None
    dweight: Any = None


def _validate(desc: Any, op: str) -> None:
    check_element(op, desc.element)
    check_shape(op, "shape", desc.shape)


def _validate_param(desc: BinaryParamDescriptor, op: str) -> None:
    check_option("binary_param", "kind", desc.kind, BinaryKind)
    _validate(desc, op)
    check_number(op, "param", desc.param)


def _validate_lerp_backward(desc: LerpBackwardDescriptor) -> None:
    _validate(desc, "lerp_backward")
    shapes = {"a": desc.a_shape, "b": desc.b_shape, "weight": desc.weight_shape or ()}
    for name, shape in shapes.items():
        check_shape("lerp_backward", name, shape)
        fits = len(shape) <= len(desc.shape) and all(
            n in (1, full) for n, full in zip(reversed(shape), reversed(desc.shape), strict=False)
        )
        if not fits:
            expected = f"of a shape that broadcasts to {desc.shape}, the shape of dy"
            raise InvalidProblem("lerp_backward", name, expected, f"shape {shape}")


def _guarantee(desc: Any) -> PrecisionGuarantee:
    return guarantee(desc.element.accumulator, Reproducibility.ANY_MACHINE)


def _guarantee_sums(desc: LerpBackwardDescriptor) -> PrecisionGuarantee:
    if desc.a_shape == desc.b_shape == desc.weight_shape == desc.shape:
        return _guarantee(desc)
    return guarantee(ElementKind.F64, Reproducibility.ANY_MACHINE)


def _shape(desc: Any) -> tuple[int, ...]:
    return desc.shape  # type: ignore[no-any-return]


def _has_weights(desc: LerpBackwardDescriptor) -> bool:
    return desc.weight_shape is not None


def _kind(_: Any) -> BinaryKind:
    return BinaryKind.LERP


def _reference(desc: BinaryParamDescriptor, a: Any, b: Any, y: Any) -> dict[str, Any]:
    return {"y": oracle.lerp(a, b, float(desc.param))}


def _reference_backward(desc: BinaryParamDescriptor, dy: Any, da: Any, db: Any) -> dict[str, Any]:
    return dict(zip(("da", "db"), oracle.lerp_backward(dy, float(desc.param)), strict=True))


def _reference_lerp(desc: LerpDescriptor, a: Any, b: Any, weight: Any, y: Any) -> dict[str, Any]:
    return {"y": oracle.lerp(a, b, weight)}


def _reference_lerp_backward(
    desc: LerpBackwardDescriptor,
    dy: Any,
    weight: Any = None,
    a: Any = None,
    b: Any = None,
    **_: Any,
) -> dict[str, Any]:
    if weight is not None:
        grads = oracle.lerp_backward(dy, weight, a, b)
    else:
        shapes = (np.zeros(shape, dy.dtype) for shape in (desc.a_shape, desc.b_shape))
        grads = oracle.lerp_backward(dy, float(desc.param or 0.0), *shapes)
    return dict(zip(("da", "db", "dweight"), grads, strict=False))


class BinaryParamPlan(Plan[BinaryParamDescriptor, BinaryParamArgs]):
    """Lerp with a constant weight."""

    record = PlanRecord(
        name="BinaryParam",
        category=OpCategory.BINARY_ELEMENTWISE,
        direction="forward",
        descriptor=BinaryParamDescriptor,
        slots=(
            Slot("a", _shape),
            Slot("b", _shape),
            Slot("y", _shape, Role.OUT, in_place_of=("a", "b")),
        ),
        kind=_kind,
        op=lambda _: "lerp",
        validate=lambda desc: _validate_param(desc, "lerp"),
        guarantee=_guarantee,
        backends={
            BackendKind.NUMBA: "pullback.ops.lerp.cpu:forward",
            BackendKind.TRITON: "pullback.ops.lerp.gpu:forward",
        },
        reference=_reference,
    )


class BinaryParamBackwardPlan(Plan[BinaryParamBackwardDescriptor, BinaryParamBackwardArgs]):
    """Backward of lerp with a constant weight."""

    record = PlanRecord(
        name="BinaryParamBackward",
        category=OpCategory.BINARY_ELEMENTWISE,
        direction="backward",
        descriptor=BinaryParamBackwardDescriptor,
        slots=(
            Slot("dy", _shape),
            Slot("da", _shape, Role.OUT, in_place_of=("dy",)),
            Slot("db", _shape, Role.OUT, in_place_of=("dy",)),
        ),
        kind=_kind,
        op=lambda _: "lerp_backward",
        validate=lambda desc: _validate_param(desc, "lerp_backward"),
        guarantee=_guarantee,
        backends={
            BackendKind.NUMBA: "pullback.ops.lerp.cpu:backward",
            BackendKind.TRITON: "pullback.ops.lerp.gpu:backward",
        },
        reference=_reference_backward,
    )


class LerpPlan(Plan[LerpDescriptor, LerpArgs]):
    """Lerp with a tensor of weights."""

    record = PlanRecord(
        name="Lerp",
        category=OpCategory.BINARY_ELEMENTWISE,
        direction="forward",
        descriptor=LerpDescriptor,
        slots=(
            Slot("a", _shape),
            Slot("b", _shape),
            Slot("weight", _shape),
            Slot("y", _shape, Role.OUT, in_place_of=("a", "b", "weight")),
        ),
        kind=_kind,
        op=lambda _: "lerp",
        validate=lambda desc: _validate(desc, "lerp"),
        guarantee=_guarantee,
        backends={
            BackendKind.NUMBA: "pullback.ops.lerp.cpu:forward_weights",
            BackendKind.TRITON: "pullback.ops.lerp.gpu:forward_weights",
        },
        reference=_reference_lerp,
    )


class LerpBackwardPlan(Plan[LerpBackwardDescriptor, LerpBackwardArgs]):
    """Backward of a broadcast lerp: gradients summed back to the shapes of the operands."""

    record = PlanRecord(
        name="LerpBackward",
        category=OpCategory.BINARY_ELEMENTWISE,
        direction="backward",
        descriptor=LerpBackwardDescriptor,
        slots=(
            Slot("dy", _shape),
            Slot("da", lambda desc: desc.a_shape, Role.OUT),
            Slot("db", lambda desc: desc.b_shape, Role.OUT),
            Slot("weight", lambda desc: desc.weight_shape, needed=_has_weights, used=_has_weights),
            Slot("a", lambda desc: desc.a_shape, needed=_has_weights, used=_has_weights),
            Slot("b", lambda desc: desc.b_shape, needed=_has_weights, used=_has_weights),
            Slot(
                "dweight",
                lambda desc: desc.weight_shape,
                Role.OUT,
                needed=_has_weights,
                used=_has_weights,
            ),
        ),
        kind=_kind,
        op=lambda _: "lerp_backward",
        validate=_validate_lerp_backward,
        guarantee=_guarantee_sums,
        backends={
            BackendKind.NUMBA: "pullback.ops.lerp.cpu:backward_summed",
            BackendKind.TRITON: "pullback.ops.lerp.gpu:backward_summed",
        },
        reference=_reference_lerp_backward,
    )
