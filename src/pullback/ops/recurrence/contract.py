r"""The linear recurrence: what it computes, what it needs, what it promises.

Along one axis of n elements, in the order of the scan (`reverse` walks it from the far end, and in
the backward it is the forward's flag):

    h[j] = a[j]·h[j-1] + b[j]                h[-1] = 0
    g[j] = dh[j] + a[j+1]·g[j+1]             g[n] = 0
    da[j] = g[j]·h[j-1]                      db[j] = g[j]

`a` broadcasts to the shape of `b`, and its gradient is summed back. `exclusive`, `initial` and
`offsets` are those of the scans (contract/extension); an initial value is h[-1], as is the state
that a `stateful` plan takes (contract/state).

The backward is a linear recurrence again, so this op is closed under differentiation. The
derivatives of derivatives of products and log-sum-exps are made of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.errors import InvalidProblem
from pullback.contract.extension import (
    D_INITIAL,
    FAILURES,
    INITIAL_VALUE,
    OFFSETS,
    TOTAL,
    Extension,
    Staged,
    arena,
    broadcasts,
    check_extension,
)
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
from pullback.contract.state import (
    FINAL_STATE,
    STATE,
    check_stateful,
    gives_results,
    state_bytes,
)
from pullback.ops.recurrence import oracle
from pullback.ops.scan_oracle import last_of
from pullback.plan.plan import Plan


class RecurrenceKind(Enum):
    """Recurrences along an axis."""

    LINEAR_SCAN = "linear_scan"


@dataclass(frozen=True, kw_only=True)
class LinearScanDescriptor:
    """A linear recurrence along one axis. `a_shape` is that of the factors, None if they have the
    shape of the input. A `stateful` plan takes a state and leaves one; without `results` that is
    all it does."""

    input_shape: tuple[int, ...]
    scan_axis: int
    element: ElementKind
    reverse: bool = False
    a_shape: tuple[int, ...] | None = None
    exclusive: bool = False
    initial_shape: tuple[int, ...] | None = None
    num_pieces: int | None = None
    stateful: bool = False
    results: bool = True


@dataclass(frozen=True, kw_only=True)
class LinearScanBackwardDescriptor(LinearScanDescriptor):
    """Its backward; all fields are the forward's."""


@dataclass(kw_only=True, slots=True)
class LinearScanArgs:
    """`state`, float64 without the axis, is h[-1] of a stateful plan, None at the beginning;
    `final_state` is written, and may be the same memory."""

    a: Any
    b: Any
    h: Any = None
    initial: Any = None
    offsets: Any = None
    state: Any = None
    final_state: Any = None


@dataclass(kw_only=True, slots=True)
class LinearScanBackwardArgs:
    dh: Any
    a: Any
    h: Any
    da: Any
    db: Any
    initial: Any = None
    offsets: Any = None
    d_initial: Any = None


def _shape(desc: LinearScanDescriptor) -> tuple[int, ...]:
    return desc.input_shape


def _validate(desc: LinearScanDescriptor, op: str, backward: bool = False) -> None:
    check_element(op, desc.element)
    check_shape(op, "input_shape", desc.input_shape)
    check_axis(op, "scan_axis", desc.scan_axis, len(desc.input_shape))
    check_flag(op, "reverse", desc.reverse)
    if desc.a_shape is not None:
        check_shape(op, "a", desc.a_shape)
        if not broadcasts(desc.a_shape, desc.input_shape):
            expected = f"of a shape that broadcasts to {desc.input_shape}"
            raise InvalidProblem(op, "a", expected, f"shape {desc.a_shape}")
    check_extension(op, desc)
    check_stateful(op, desc, backward)


def _factors(desc: LinearScanDescriptor) -> tuple[int, ...]:
    return desc.input_shape if desc.a_shape is None else desc.a_shape


def sums_factors(desc: LinearScanDescriptor) -> tuple[str, ...]:
    """Gradients that are summed to the shape of what was broadcast."""
    return () if _factors(desc) == desc.input_shape else ("da",)


STAGED = (
    Staged("a", first=1.0),
    Staged("b"),
    Staged("h", results=True, written=True, over="b"),
)
STAGED_BACKWARD = (
    Staged("dh", results=True, first=-0.0),
    Staged("a", first=1.0),
    Staged("h", results=True),
    Staged("da", written=True),
    Staged("db", written=True, gives=True, over="dh"),
)


def _extension(desc: LinearScanDescriptor) -> Extension:
    return Extension.of(desc, own=True)


def _workspace(desc: LinearScanDescriptor) -> int:
    if desc.stateful:
        return state_bytes(desc, STAGED, own=True)
    return arena(_extension(desc), STAGED, desc.element.itemsize)[TOTAL]


def _workspace_backward(desc: LinearScanDescriptor) -> int:
    size, summed = desc.element.itemsize, sums_factors(desc)
    return arena(_extension(desc), STAGED_BACKWARD, size, summed=summed)[TOTAL]


def _guarantee(desc: LinearScanDescriptor) -> PrecisionGuarantee:
    return guarantee(desc.element.accumulator, Reproducibility.ANY_MACHINE)


def _kind(_: LinearScanDescriptor) -> RecurrenceKind:
    return RecurrenceKind.LINEAR_SCAN


def _options(desc: LinearScanDescriptor, initial: Any, offsets: Any) -> dict[str, Any]:
    return {
        "axis": desc.scan_axis,
        "reverse": desc.reverse,
        "exclusive": desc.exclusive,
        "initial": initial,
        "offsets": offsets,
    }


def _reference(
    desc: LinearScanDescriptor,
    a: Any,
    b: Any,
    initial: Any = None,
    offsets: Any = None,
    state: Any = None,
    **_: Any,
) -> dict[str, Any]:
    options = _options(desc, initial if state is None else state, offsets)
    found = {"h": oracle.linear_scan(a, b, **options)}
    if desc.stateful:
        whole = oracle.linear_scan(a, b, **{**options, "exclusive": False})
        found["final_state"] = last_of(whole, desc, state, 0.0)
    return found


def _reference_backward(
    desc: LinearScanDescriptor,
    dh: Any,
    a: Any,
    h: Any,
    da: Any,
    db: Any,
    initial: Any = None,
    offsets: Any = None,
    d_initial: Any = None,
) -> dict[str, Any]:
    grads = oracle.linear_scan_backward(dh, a, h, **_options(desc, initial, offsets))
    return dict(zip(("da", "db", "d_initial"), grads, strict=False))


class LinearScanPlan(Plan[LinearScanDescriptor, LinearScanArgs]):
    """The linear recurrence along one axis."""

    record = PlanRecord(
        name="LinearScan",
        category=OpCategory.SCAN,
        direction="forward",
        descriptor=LinearScanDescriptor,
        slots=(
            Slot("a", _factors),
            Slot("b", _shape),
            Slot("h", _shape, Role.OUT, used=gives_results, in_place_of=("a", "b")),
            INITIAL_VALUE,
            OFFSETS,
            STATE,
            FINAL_STATE,
        ),
        kind=_kind,
        op=lambda _: "linear_scan",
        validate=lambda desc: _validate(desc, "linear_scan"),
        guarantee=_guarantee,
        backends={
            BackendKind.NUMBA: "pullback.ops.recurrence.cpu:forward",
            BackendKind.TRITON: "pullback.ops.recurrence.gpu:forward",
        },
        workspace=_workspace,
        failures=FAILURES,
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
            Slot("a", _factors),
            Slot("h", _shape),
            Slot("da", _factors, Role.OUT, in_place_of=("dh", "a", "h")),
            Slot("db", _shape, Role.OUT, in_place_of=("dh", "a", "h")),
            INITIAL_VALUE,
            OFFSETS,
            D_INITIAL,
        ),
        kind=_kind,
        op=lambda _: "linear_scan_backward",
        validate=lambda desc: _validate(desc, "linear_scan_backward", True),
        guarantee=_guarantee,
        backends={
            BackendKind.NUMBA: "pullback.ops.recurrence.cpu:backward",
            BackendKind.TRITON: "pullback.ops.recurrence.gpu:backward",
        },
        workspace=_workspace_backward,
        failures=FAILURES,
        reference=_reference_backward,
    )
