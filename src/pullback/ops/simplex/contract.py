r"""Maps onto the probability simplex: what they compute, what they need, what they promise.

Along one axis, for a row x with maximum m:

    softmax      y = e^(x-m) / Σ e^(x-m)         dx = y·(dy - Σ y·dy)
    log_softmax  y = x - m - log Σ e^(x-m)       dx = dy - e^y·Σ dy
    sparsemax    y = max(x - τ, 0), Σ y = 1      dx = dy - mean of dy over the support, on it
    entmax15     y = max(x/2 - τ, 0)², Σ y = 1   dx = s·(dy - Σ s·dy / Σ s) with s = √y

The last two are sparse: where y = 0, dy is not read and dx is 0. A NaN fills its row, in y as in
dx. Entries at +inf share the mass equally and the rest gets none. A row of only -inf is fully
masked: it has no mass, log-probabilities -inf, and gradient 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.errors import Unsupported
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import BackendKind, OpCategory, Reproducibility, SoftmaxKind
from pullback.contract.record import (
    PlanRecord,
    Role,
    Slot,
    check_axis,
    check_element,
    check_option,
    check_shape,
)
from pullback.ops.simplex import oracle
from pullback.plan.plan import Plan


@dataclass(frozen=True, kw_only=True)
class SoftmaxDescriptor:
    """A forward map: softmax, log_softmax or entmax15."""

    kind: SoftmaxKind
    input_shape: tuple[int, ...]
    softmax_axis: int
    element: ElementKind


@dataclass(frozen=True, kw_only=True)
class SoftmaxBackwardDescriptor(SoftmaxDescriptor):
    """The backward of such a map; all fields are the forward's."""


@dataclass(frozen=True, kw_only=True)
class SparsemaxDescriptor:
    """Sparsemax, forward."""

    input_shape: tuple[int, ...]
    softmax_axis: int
    element: ElementKind


@dataclass(frozen=True, kw_only=True)
class SparsemaxBackwardDescriptor(SparsemaxDescriptor):
    """Sparsemax, backward; all fields are the forward's."""


@dataclass(kw_only=True, slots=True)
class SoftmaxArgs:
    """`y` may be the very buffer of `x`."""

    x: Any
    y: Any


@dataclass(kw_only=True, slots=True)
class SoftmaxBackwardArgs:
    """`y` is the forward's result; `dx` may be the very buffer of `dy` or of `y`."""

    dy: Any
    y: Any
    dx: Any


class SparsemaxArgs(SoftmaxArgs):
    """`y` may be the very buffer of `x`."""

    __slots__ = ()


class SparsemaxBackwardArgs(SoftmaxBackwardArgs):
    """`y` is the forward's result; `dx` may be the very buffer of `dy` or of `y`."""

    __slots__ = ()


def kind_of(desc: Any) -> SoftmaxKind:
    """The map of any of the four descriptors."""
    return getattr(desc, "kind", SoftmaxKind.SPARSEMAX)


def _op(desc: Any) -> str:
    return str(getattr(kind_of(desc), "value", "softmax"))


def _op_backward(desc: Any) -> str:
    return f"{_op(desc)}_backward"


def _check(op: str, desc: Any) -> None:
    check_element(op, desc.element)
    check_shape(op, "input_shape", desc.input_shape)
    check_axis(op, "softmax_axis", desc.softmax_axis, len(desc.input_shape))


def _check_kind(op: str, desc: SoftmaxDescriptor, instead: str) -> None:
    check_option(op, "kind", desc.kind, SoftmaxKind)
    if desc.kind is SoftmaxKind.SPARSEMAX:
        raise Unsupported(op, "kind", f"another one: {instead} has its own plan", "SPARSEMAX")
    _check(op, desc)


def _shape(desc: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = desc.input_shape
    return shape


def _guarantee(desc: Any) -> PrecisionGuarantee:
    # Terms are added in f64, or four by four in the type of the arithmetic and then in f64.
    return guarantee(desc.element.accumulator, Reproducibility.ANY_MACHINE)


def _reference(desc: Any, x: Any, y: Any) -> dict[str, Any]:
    return {"y": getattr(oracle, _op(desc))(x, axis=desc.softmax_axis)}


def _reference_backward(desc: Any, dy: Any, y: Any, dx: Any) -> dict[str, Any]:
    return {"dx": getattr(oracle, _op_backward(desc))(dy, y, axis=desc.softmax_axis)}


_FORWARD: dict[str, Any] = {
    "category": OpCategory.SOFTMAX,
    "direction": "forward",
    "slots": (Slot("x", _shape), Slot("y", _shape, Role.OUT, in_place_of=("x",))),
    "kind": kind_of,
    "op": _op,
    "guarantee": _guarantee,
    "backends": {
        BackendKind.NUMBA: "pullback.ops.simplex.cpu:forward",
        BackendKind.TRITON: "pullback.ops.simplex.gpu:forward",
    },
    "reference": _reference,
}
_BACKWARD: dict[str, Any] = {
    "category": OpCategory.SOFTMAX,
    "direction": "backward",
    "slots": (
        Slot("dy", _shape),
        Slot("y", _shape, why_needed="the saved forward output"),
        Slot("dx", _shape, Role.OUT, in_place_of=("dy", "y")),
    ),
    "kind": kind_of,
    "op": _op_backward,
    "guarantee": _guarantee,
    "backends": {
        BackendKind.NUMBA: "pullback.ops.simplex.cpu:backward",
        BackendKind.TRITON: "pullback.ops.simplex.gpu:backward",
    },
    "reference": _reference_backward,
}


class SoftmaxPlan(Plan[SoftmaxDescriptor, SoftmaxArgs]):
    """softmax, log_softmax and entmax15 along one axis."""

    record = PlanRecord(
        name="Softmax",
        descriptor=SoftmaxDescriptor,
        validate=lambda desc: _check_kind(_op(desc), desc, "SparsemaxPlan"),
        **_FORWARD,
    )


class SoftmaxBackwardPlan(Plan[SoftmaxBackwardDescriptor, SoftmaxBackwardArgs]):
    """Backward of softmax, log_softmax and entmax15, from the saved output."""

    record = PlanRecord(
        name="SoftmaxBackward",
        descriptor=SoftmaxBackwardDescriptor,
        validate=lambda desc: _check_kind(_op_backward(desc), desc, "SparsemaxBackwardPlan"),
        **_BACKWARD,
    )


class SparsemaxPlan(Plan[SparsemaxDescriptor, SparsemaxArgs]):
    """Euclidean projection onto the simplex along one axis, without a sort."""

    record = PlanRecord(
        name="Sparsemax",
        descriptor=SparsemaxDescriptor,
        validate=lambda desc: _check("sparsemax", desc),
        **_FORWARD,
    )


class SparsemaxBackwardPlan(Plan[SparsemaxBackwardDescriptor, SparsemaxBackwardArgs]):
    """Backward of sparsemax, from the saved output."""

    record = PlanRecord(
        name="SparsemaxBackward",
        descriptor=SparsemaxBackwardDescriptor,
        validate=lambda desc: _check("sparsemax_backward", desc),
        **_BACKWARD,
    )
