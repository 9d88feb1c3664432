r"""The linear recurrence: what it computes, what it needs, what it promises.

Along one axis of n elements, in the order of the scan (`reverse` walks it from the far end, and in
the backward it is the forward's flag):

    h[j] = a[j]·h[j-1] + b[j]                h[-1] = 0
    g[j] = dh[j] + a[j+1]·g[j+1]             g[n] = 0
    da[j] = g[j]·h[j-1]                      db[j] = g[j]

The backward is a linear recurrence again, so this op is closed under differentiation. The
derivatives of derivatives of products and log-sum-exps are made of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import BackendKind, OpCategory, Reproducibility
from pullback.contract.record import (
    PlanRecord,
    Role,
    Slot,
    check_axis,
    check_element,
    check_flag,
    check_shape,
)
from pullback.ops.recurrence import oracle
from pullback.plan.plan import Plan


class RecurrenceKind(Enum):
    """Recurrences along an axis."""

    LINEAR_SCAN = "linear_scan"


@dataclass(frozen=True, kw_only=True)
class LinearScanDescriptor:
    """A linear recurrence along one axis."""

    input_shape: tuple[int, ...]
    scan_axis: int
    element: ElementKind
    reverse: bool = False


@dataclass(frozen=True, kw_only=True)
class LinearScanBackwardDescriptor(LinearScanDescriptor):
    """Its backward; all fields are the forward's."""


@dataclass(kw_only=True, slots=True)
class LinearScanArgs:
    a: Any
    b: Any
    h: Any


@dataclass(kw_only=True, slots=True)
class LinearScanBackwardArgs:
    dh: Any
    a: Any
    h: Any
    da: Any
    db: Any


def _shape(desc: LinearScanDescriptor) -> tuple[int, ...]:
    return desc.input_shape


def _validate(desc: LinearScanDescriptor, op: str) -> None:
    check_element(op, desc.element)
    check_shape(op, "input_shape", desc.input_shape)
    check_axis(op, "scan_axis", desc.scan_axis, len(desc.input_shape))
    check_flag(op, "reverse", desc.reverse)


def _guarantee(desc: LinearScanDescriptor) -> PrecisionGuarantee:
    return guarantee(desc.element.accumulator, Reproducibility.ANY_MACHINE)


def _kind(_: LinearScanDescriptor) -> RecurrenceKind:
    return RecurrenceKind.LINEAR_SCAN


def _reference(desc: LinearScanDescriptor, a: Any, b: Any, h: Any) -> dict[str, Any]:
    return {"h": oracle.linear_scan(a, b, desc.scan_axis, reverse=desc.reverse)}


def _reference_backward(
    desc: LinearScanDescriptor, dh: Any, a: Any, h: Any, da: Any, db: Any
) -> dict[str, Any]:
    grads = oracle.linear_scan_backward(dh, a, h, desc.scan_axis, reverse=desc.reverse)
    return dict(zip(("da", "db"), grads, strict=True))


class LinearScanPlan(Plan[LinearScanDescriptor, LinearScanArgs]):
    """The linear recurrence along one axis."""

    record = PlanRecord(
        name="LinearScan",
        category=OpCategory.SCAN,
        direction="forward",
        descriptor=LinearScanDescriptor,
        slots=(
            Slot("a", _shape),
            Slot("b", _shape),
            Slot("h", _shape, Role.OUT, in_place_of=("a", "b")),
        ),
        kind=_kind,
        op=lambda _: "linear_scan",
        validate=lambda desc: _validate(desc, "linear_scan"),
        guarantee=_guarantee,
        backends={
            BackendKind.NUMBA: "pullback.ops.recurrence.cpu:forward",
            BackendKind.TRITON: "pullback.ops.recurrence.gpu:forward",
        },
        reference=_reference,
    )


class LinearScanBackwardPlan(Plan[LinearScanBackwardDescriptor, LinearScanBackwardArgs]):
    """The backward of the linear recurrence: the recurrence the other way, and a product."""

    record = PlanRecord(
        name="LinearScanBackward",
        category=OpCategory.SCAN,
        direction="backward",
        descriptor=LinearScanBackwardDescriptor,
        slots=(
            Slot("dh", _shape),
            Slot("a", _shape),
            Slot("h", _shape),
            Slot("da", _shape, Role.OUT, in_place_of=("dh", "a", "h")),
            Slot("db", _shape, Role.OUT, in_place_of=("dh", "a", "h")),
        ),
        kind=_kind,
        op=lambda _: "linear_scan_backward",
        validate=lambda desc: _validate(desc, "linear_scan_backward"),
        guarantee=_guarantee,
        backends={
            BackendKind.NUMBA: "pullback.ops.recurrence.cpu:backward",
            BackendKind.TRITON: "pullback.ops.recurrence.gpu:backward",
        },
        reference=_reference_backward,
    )
