r"""Gathered rows reduced by segment: what that computes, what it needs, what it promises.

With g the row and s the segment of position n, over the kept positions of a segment:

    sum     out[s] = Σ w[n]·x[g]     dx[g] = Σ w[n]·dout[s]     dw[n] = <dout[s], x[g]>
    mean    out[s] = Σ x[g] / c      dx[g] = Σ dout[s] / c
    max     out[s] = max x[g]        dx[g] = Σ of the dout[s] whose extremum this position holds
    min     the mirror image of max

This is `embedding` followed by a segment reduction, with its bits, but nothing is made that has a
row for each position: neither forward nor backward. Positions whose row or segment is out of range
are dropped, or an error. Ties and NaN are those of `segment_max`. A segment without positions is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from pullback.contract.element import INDICES, ElementKind
from pullback.contract.errors import IndexOutOfRange, InvalidProblem
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import BackendKind, OpCategory, Reproducibility, TieRule
from pullback.contract.record import (
    Failure,
    PlanRecord,
    Role,
    Slot,
    check_extent,
    check_option,
    resolve,
)
from pullback.ops.segment.grouping import (
    FAILURES,
    IDS,
    PARTS,
    GroupedDescriptor,
    admit,
    check_groups,
    checked_ids,
    segments_of,
)
from pullback.ops.segment.index import check_ids
from pullback.ops.segment_gather import oracle
from pullback.plan.plan import Plan


class GatherReduceKind(Enum):
    """What becomes of the gathered rows of a segment."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"


EXTREMA = (GatherReduceKind.MAX, GatherReduceKind.MIN)


@dataclass(frozen=True, kw_only=True)
class GatherSegmentReduceDescriptor(GroupedDescriptor):
    """`num_inputs` positions that gather from `num_rows` rows."""

    num_rows: int
    reduce: GatherReduceKind = GatherReduceKind.SUM


@dataclass(frozen=True, kw_only=True)
class GatherSegmentReduceBackwardDescriptor(GatherSegmentReduceDescriptor):
    """`ties` says which of equal extrema receive the gradient."""

    ties: TieRule = TieRule.FIRST


@dataclass(kw_only=True, slots=True)
class GatherSegmentReduceArgs:
    """`weights` go with sums only; `segment_ids` may be a prepared `SegmentIndex`."""

    x: Any
    segment_ids: Any
    out: Any
    gather_ids: Any
    weights: Any = None


@dataclass(kw_only=True, slots=True)
class GatherSegmentReduceBackwardArgs:
    """The gradient of x, that of the weights, or both; maxima, minima and weights need `x`."""

    dy: Any
    segment_ids: Any
    dx: Any = None
    gather_ids: Any
    weights: Any = None
    x: Any = None
    dweights: Any = None


OP = "gather_segment_reduce"


def check_weights(op: str, desc: Any, weights: Any) -> None:
    if weights is not None and desc.reduce is not GatherReduceKind.SUM:
        raise InvalidProblem(op, "weights", "None unless reduce is 'sum'", "an array")


def _validate(op: str, desc: Any) -> None:
    check_groups(op, desc)
    check_extent(op, "num_rows", desc.num_rows)
    check_option(op, "reduce", desc.reduce, GatherReduceKind)


def _validate_backward(desc: Any) -> None:
    _validate(f"{OP}_backward", desc)
    check_option(f"{OP}_backward", "ties", desc.ties, TieRule)


def _table(desc: Any) -> tuple[int, ...]:
    return desc.num_rows, desc.embedding_dim


def _positions(desc: Any) -> tuple[int, ...]:
    return (desc.num_inputs,)


def _guarantee(desc: Any) -> PrecisionGuarantee:
    return guarantee(desc.element.accumulator, Reproducibility.ANY_MACHINE)


_FAILURES = {
    **FAILURES,
    4: Failure(
        IndexOutOfRange,
        "gather_ids",
        lambda desc: f"in [0, {desc.num_rows})",
        "{value} at position {position}",
    ),
}


def _resolved(op: str, desc: Any, segment_ids: Any, gather_ids: Any) -> Any:
    """Ids for an oracle: those that kernels refuse raise, skipped ones stay."""
    ids, strict = checked_ids(op, desc, segment_ids), desc.policy.value == "error"
    rows = {1: _FAILURES[4]}
    check_ids(op, desc, rows, gather_ids, desc.num_rows, strict, ascending=False)
    return ids


def _reference(
    desc: Any, *, x: Any, segment_ids: Any, gather_ids: Any, weights: Any = None, **_: Any
) -> dict[str, Any]:
    check_weights(OP, desc, weights)
    ids = _resolved(OP, desc, segment_ids, gather_ids)
    known = {"reduce": desc.reduce.value, "weights": weights}
    return {"out": oracle.gather_segment_reduce(x, gather_ids, ids, desc.num_segments, **known)}


def _reference_backward(
    desc: Any,
    *,
    dy: Any,
    segment_ids: Any,
    gather_ids: Any,
    weights: Any = None,
    x: Any = None,
    **_: Any,
) -> dict[str, Any]:
    check_weights(f"{OP}_backward", desc, weights)
    ids = _resolved(f"{OP}_backward", desc, segment_ids, gather_ids)
    if x is None:
        x = oracle.blank(desc.num_rows, desc.embedding_dim)
    known = {"reduce": desc.reduce.value, "weights": weights, "ties": desc.ties.value}
    dx = oracle.gather_segment_reduce_backward(dy, x, gather_ids, ids, **known)
    dw = oracle.gather_segment_reduce_weights_backward(dy, x, gather_ids, ids)
    return {"dx": dx, "dweights": dw}


def _workspace(function: str) -> Any:
    path = f"pullback.ops.segment_gather.cpu:{function}"
    return lambda desc: int(resolve(path)(desc))


_GATHER = Slot("gather_ids", _positions, holds=INDICES)
_WEIGHTS = Slot("weights", _positions, needed=lambda _: False)


class GatherSegmentReducePlan(Plan[GatherSegmentReduceDescriptor, GatherSegmentReduceArgs]):
    """Gathered rows reduced by segment."""

    record = PlanRecord(
        name="GatherSegmentReduce",
        category=OpCategory.SEGMENT,
        direction="forward",
        descriptor=GatherSegmentReduceDescriptor,
        slots=(
            Slot("x", _table),
            IDS,
            Slot("out", segments_of, Role.OUT),
            *PARTS,
            _GATHER,
            _WEIGHTS,
        ),
        kind=lambda desc: desc.reduce,
        op=lambda _: OP,
        validate=lambda desc: _validate(OP, desc),
        guarantee=_guarantee,
        backends={
            BackendKind.NUMBA: "pullback.ops.segment_gather.cpu:forward",
            BackendKind.TRITON: "pullback.ops.segment_gather.gpu:forward",
        },
        reference=_reference,
        aux=ElementKind.I64,
        workspace=_workspace("workspace"),
        failures=_FAILURES,
        admit=admit,
    )


class GatherSegmentReduceBackwardPlan(
    Plan[GatherSegmentReduceBackwardDescriptor, GatherSegmentReduceBackwardArgs]
):
    """Backward of gathered rows reduced by segment."""

    record = PlanRecord(
        name="GatherSegmentReduceBackward",
        category=OpCategory.SEGMENT,
        direction="backward",
        descriptor=GatherSegmentReduceBackwardDescriptor,
        slots=(
            Slot("dy", segments_of),
            IDS,
            Slot("dx", _table, Role.OUT, needed=lambda _: False),
            *PARTS,
            _GATHER,
            _WEIGHTS,
            Slot(
                "x",
                _table,
                needed=lambda desc: desc.reduce in EXTREMA,
                why_needed="the forward's input",
            ),
            Slot("dweights", _positions, Role.OUT, needed=lambda _: False),
        ),
        kind=lambda desc: desc.reduce,
        op=lambda _: f"{OP}_backward",
        validate=_validate_backward,
        guarantee=_guarantee,
        backends={
            BackendKind.NUMBA: "pullback.ops.segment_gather.cpu:backward",
            BackendKind.TRITON: "pullback.ops.segment_gather.gpu:backward",
        },
        reference=_reference_backward,
        aux=ElementKind.I64,
        workspace=_workspace("workspace_backward"),
        failures=_FAILURES,
        admit=admit,
    )
