r"""Statistics of the rows of each segment: what they compute, what they need, what they promise.

For segment s with kept rows n:

    logsumexp   out[s] = log Σ e^x[n]              dx[n] = dout[s]·e^x[n] / Σ e^x
    var         out[s] = Σ (x[n] - mean)² / d      dx[n] = dout[s]·2·(x[n] - mean) / d
    std         out[s] = √var                      dx[n] = dout[s]·(x[n] - mean) / (d·std)

d is the number of its rows less ddof; where that is 0 or less, var and std are 0, and so is the
gradient, as it is where std is 0. Variances take two passes, relative to a row of the segment:
equal rows have exactly 0, and none is negative.

Of logsumexp the maximum of the segment is taken off first, and the backward makes the sum again
from x: a rounded y has lost digits that its exponential needs, so `y` is never read and may be
None. +inf gives +inf and shares the gradient among its holders, a segment of only -inf gives -inf
and gradient 0, NaN gives NaN. A segment without rows is `empty`: -inf (logsumexp) or 0 unless a
value is given.
Segments are given by ids in any order, by sorted ids, or by their borders; the bits are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.errors import InvalidProblem
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import BackendKind, OpCategory, Reproducibility
from pullback.contract.record import PlanRecord, Role, Slot, check_extent, is_number, resolve
from pullback.ops.segment.grouping import (
    FAILURES,
    IDS,
    PARTS,
    GroupedDescriptor,
    admit,
    check_groups,
    checked_ids,
    rows_of,
    segments_of,
)
from pullback.ops.segment_statistics import oracle
from pullback.plan.plan import Plan


class SegmentStatisticKind(Enum):
    """Statistics of the rows of a segment."""

    LOGSUMEXP = "segment_logsumexp"
    VAR = "segment_var"
    STD = "segment_std"


VARIANCES = (SegmentStatisticKind.VAR, SegmentStatisticKind.STD)


@dataclass(frozen=True, kw_only=True)
class SegmentLogsumexpDescriptor(GroupedDescriptor):
    """`empty` is what a segment without rows gets, in place of -inf."""

    empty: float | None = None


@dataclass(frozen=True, kw_only=True)
class SegmentLogsumexpBackwardDescriptor(GroupedDescriptor):
    """All fields are the forward's."""


@dataclass(frozen=True, kw_only=True)
class SegmentVarianceBackwardDescriptor(GroupedDescriptor):
    """`ddof` is taken off the number of rows; `kind` is VAR or STD."""

    kind: SegmentStatisticKind
    ddof: int = 0


@dataclass(frozen=True, kw_only=True)
class SegmentVarianceDescriptor(SegmentVarianceBackwardDescriptor):
    """`empty` is what a segment without rows gets, in place of 0."""

    empty: float | None = None


@dataclass(kw_only=True, slots=True)
class SegmentLogsumexpArgs:
    """`segment_ids` may be a prepared `SegmentIndex`."""

    x: Any
    segment_ids: Any
    y: Any


@dataclass(kw_only=True, slots=True)
class SegmentLogsumexpBackwardArgs:
    """`y` is never read."""

    dy: Any
    segment_ids: Any
    dx: Any
    x: Any
    y: Any = None


@dataclass(kw_only=True, slots=True)
class SegmentVarianceArgs:
    """`segment_ids` may be a prepared `SegmentIndex`."""

    x: Any
    segment_ids: Any
    y: Any


@dataclass(kw_only=True, slots=True)
class SegmentVarianceBackwardArgs:
    """`x` is the forward's input."""

    dy: Any
    segment_ids: Any
    dx: Any
    x: Any


def kind_of(desc: Any) -> SegmentStatisticKind:
    return getattr(desc, "kind", SegmentStatisticKind.LOGSUMEXP)


def _op(desc: Any) -> str:
    return str(getattr(kind_of(desc), "value", "segment_var"))


def _op_backward(desc: Any) -> str:
    return f"{_op(desc)}_backward"


def _validate(op: str, desc: Any) -> None:
    check_groups(op, desc)
    empty = getattr(desc, "empty", None)
    if empty is not None and not is_number(empty):
        raise InvalidProblem(op, "empty", "a number or None", repr(empty))


def _validate_variance(desc: Any) -> None:
    if desc.kind not in VARIANCES:
        expected = "SegmentStatisticKind VAR or STD"
        raise InvalidProblem("segment_var", "kind", expected, repr(desc.kind))
    _validate(_op(desc), desc)
    check_extent(_op(desc), "ddof", desc.ddof)


def _guarantee(desc: Any) -> PrecisionGuarantee:
    variance = kind_of(desc) in VARIANCES
    wide = ElementKind.F64 if variance else desc.element.accumulator
    return guarantee(wide, Reproducibility.ANY_MACHINE)


def _workspace(desc: Any) -> int:
    return int(resolve("pullback.ops.segment_statistics.cpu:workspace")(desc))


def _reference(desc: Any, *, x: Any, segment_ids: Any, **_: Any) -> dict[str, Any]:
    ids, options = checked_ids(_op(desc), desc, segment_ids), _options(desc)
    found = getattr(oracle, _op(desc))(x, ids, desc.num_segments, empty=desc.empty, **options)
    return {"y": found}


def _reference_backward(
    desc: Any, *, dy: Any, segment_ids: Any, x: Any, **_: Any
) -> dict[str, Any]:
    ids, options = checked_ids(_op_backward(desc), desc, segment_ids), _options(desc)
    back = getattr(oracle, _op_backward(desc))
    return {"dx": back(dy, x, segment_ids=ids, **options)}


def _options(desc: Any) -> dict[str, Any]:
    return {"ddof": desc.ddof} if kind_of(desc) in VARIANCES else {}


def _record(name: str, descriptor: type, backward: bool, **more: Any) -> PlanRecord:
    """What the plans have in common: names, slots, promises."""
    segments = Slot("dy" if backward else "y", segments_of, Role.IN if backward else Role.OUT)
    rows = Slot("dx" if backward else "x", rows_of, Role.OUT if backward else Role.IN)
    slots = (segments, IDS, rows, *PARTS) if backward else (rows, IDS, segments, *PARTS)
    saved = (Slot("x", rows_of, why_needed="the forward's input"),) if backward else ()
    return PlanRecord(
        name=name,
        category=OpCategory.SEGMENT,
        direction="backward" if backward else "forward",
        descriptor=descriptor,
        slots=(*slots, *saved, *more.pop("unread", ())),
        kind=kind_of,
        op=_op_backward if backward else _op,
        guarantee=_guarantee,
        reference=_reference_backward if backward else _reference,
        aux=ElementKind.I64,
        workspace=_workspace,
        failures=FAILURES,
        admit=admit,
        **more,
    )


def _everywhere(function: str) -> dict[BackendKind, str]:
    return {
        BackendKind.NUMBA: f"pullback.ops.segment_statistics.cpu:{function}",
        BackendKind.TRITON: f"pullback.ops.segment_statistics.gpu:{function}",
    }


class SegmentLogsumexpPlan(Plan[SegmentLogsumexpDescriptor, SegmentLogsumexpArgs]):
    """log Σ e^x over the rows of each segment."""

    record = _record(
        "SegmentLogsumexp",
        SegmentLogsumexpDescriptor,
        False,
        validate=lambda desc: _validate("segment_logsumexp", desc),
        backends=_everywhere("logsumexp"),
    )


class SegmentLogsumexpBackwardPlan(
    Plan[SegmentLogsumexpBackwardDescriptor, SegmentLogsumexpBackwardArgs]
):
    """Backward of log Σ e^x over the rows of each segment."""

    record = _record(
        "SegmentLogsumexpBackward",
        SegmentLogsumexpBackwardDescriptor,
        True,
        unread=(Slot("y", segments_of, needed=lambda _: False, used=lambda _: False),),
        validate=lambda desc: _validate("segment_logsumexp_backward", desc),
        backends=_everywhere("logsumexp_backward"),
    )


class SegmentVariancePlan(Plan[SegmentVarianceDescriptor, SegmentVarianceArgs]):
    """Variance or standard deviation of the rows of each segment."""

    record = _record(
        "SegmentVariance",
        SegmentVarianceDescriptor,
        False,
        validate=_validate_variance,
        backends=_everywhere("variance"),
    )


class SegmentVarianceBackwardPlan(
    Plan[SegmentVarianceBackwardDescriptor, SegmentVarianceBackwardArgs]
):
    """Backward of the variance or standard deviation of the rows of each segment."""

    record = _record(
        "SegmentVarianceBackward",
        SegmentVarianceBackwardDescriptor,
        True,
        validate=_validate_variance,
        backends=_everywhere("variance_backward"),
    )
