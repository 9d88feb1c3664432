r"""Softmax within segments: what it computes, what it needs, what it promises.

For each segment s and each column, over its kept rows n:

    softmax        y[n] = e^x[n] / Σ e^x          dx[n] = y[n]·(dy[n] - Σ y·dy)
    log_softmax    y[n] = x[n] - log Σ e^x        dx[n] = dy[n] - e^y[n]·Σ dy

The maximum of the segment is taken off first. Special values are those of `softmax` within the
segment: entries at +inf share the mass, a segment of only -inf has probabilities 0 and gradient 0,
NaN fills its segment. Rows of no segment hold 0 (log_softmax: -inf) and have gradient 0. Segments
are given by ids in any order, by sorted ids, or by their borders; the bits are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import BackendKind, OpCategory, Reproducibility
from pullback.contract.record import PlanRecord, Role, Slot, check_option, resolve
from pullback.ops.segment.grouping import (
    FAILURES,
    IDS,
    PARTS,
    GroupedDescriptor,
    admit,
    check_groups,
    checked_ids,
    rows_of,
)
from pullback.ops.segment_softmax import oracle
from pullback.plan.plan import Plan


class SegmentSoftmaxKind(Enum):
    """Maps onto the probability simplex within segments."""

    SOFTMAX = "segment_softmax"
    LOG_SOFTMAX = "segment_log_softmax"


@dataclass(frozen=True, kw_only=True)
class SegmentSoftmaxDescriptor(GroupedDescriptor):
    kind: SegmentSoftmaxKind


@dataclass(frozen=True, kw_only=True)
class SegmentSoftmaxBackwardDescriptor(GroupedDescriptor):
    kind: SegmentSoftmaxKind


@dataclass(kw_only=True, slots=True)
class SegmentSoftmaxArgs:
    """`segment_ids` may be a prepared `SegmentIndex`."""

    x: Any
    segment_ids: Any
    y: Any


@dataclass(kw_only=True, slots=True)
class SegmentSoftmaxBackwardArgs:
    """`y` is the forward's output."""

    dy: Any
    segment_ids: Any
    dx: Any
    y: Any


def _op(desc: Any) -> str:
    return str(getattr(getattr(desc, "kind", None), "value", "segment_softmax"))


def _op_backward(desc: Any) -> str:
    return f"{_op(desc)}_backward"


def _validate(desc: Any) -> None:
    check_option("segment_softmax", "kind", desc.kind, SegmentSoftmaxKind)
    check_groups(_op(desc), desc)


def _guarantee(desc: Any) -> PrecisionGuarantee:
    return guarantee(desc.element.accumulator, Reproducibility.ANY_MACHINE)


def _workspace(desc: Any) -> int:
    return int(resolve("pullback.ops.segment_softmax.cpu:workspace")(desc))


def _reference(desc: Any, *, x: Any, segment_ids: Any, **_: Any) -> dict[str, Any]:
    ids = checked_ids(_op(desc), desc, segment_ids)
    return {"y": getattr(oracle, _op(desc))(x, ids, desc.num_segments)}


def _reference_backward(
    desc: Any, *, dy: Any, segment_ids: Any, y: Any, **_: Any
) -> dict[str, Any]:
    ids = checked_ids(_op_backward(desc), desc, segment_ids)
    return {"dx": getattr(oracle, _op_backward(desc))(dy, y, ids, desc.num_segments)}


class SegmentSoftmaxPlan(Plan[SegmentSoftmaxDescriptor, SegmentSoftmaxArgs]):
    """softmax or log_softmax within segments."""

    record = PlanRecord(
        name="SegmentSoftmax",
        category=OpCategory.SEGMENT,
        direction="forward",
        descriptor=SegmentSoftmaxDescriptor,
        slots=(Slot("x", rows_of), IDS, Slot("y", rows_of, Role.OUT), *PARTS),
        kind=lambda desc: desc.kind,
        op=_op,
        validate=_validate,
        guarantee=_guarantee,
        backends={
            BackendKind.NUMBA: "pullback.ops.segment_softmax.cpu:forward",
            BackendKind.TRITON: "pullback.ops.segment_softmax.gpu:forward",
        },
        reference=_reference,
        aux=ElementKind.I64,
        workspace=_workspace,
        failures=FAILURES,
        admit=admit,
    )


class SegmentSoftmaxBackwardPlan(
    Plan[SegmentSoftmaxBackwardDescriptor, SegmentSoftmaxBackwardArgs]
):
    """Backward of softmax or log_softmax within segments, from the saved output."""

    record = PlanRecord(
        name="SegmentSoftmaxBackward",
        category=OpCategory.SEGMENT,
        direction="backward",
        descriptor=SegmentSoftmaxBackwardDescriptor,
        slots=(
            Slot("dy", rows_of),
            IDS,
            Slot("dx", rows_of, Role.OUT),
            *PARTS,
            Slot("y", rows_of, why_needed="the saved forward output"),
        ),
        kind=lambda desc: desc.kind,
        op=_op_backward,
        validate=_validate,
        guarantee=_guarantee,
        backends={
            BackendKind.NUMBA: "pullback.ops.segment_softmax.cpu:backward",
            BackendKind.TRITON: "pullback.ops.segment_softmax.gpu:backward",
        },
        reference=_reference_backward,
        aux=ElementKind.I64,
        workspace=_workspace,
        failures=FAILURES,
        admit=admit,
    )
