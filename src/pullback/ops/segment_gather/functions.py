"""Gathered rows reduced by segment, as plain functions."""

from __future__ import annotations

from typing import Any, Literal

from pullback.contract.errors import InvalidProblem
from pullback.contract.kinds import IndexPolicy, TieRule
from pullback.contract.record import check_extent, check_flag
from pullback.ops.segment.grouping import GroupedFunction, Groups, ids_or_borders
from pullback.ops.segment_gather.contract import (
    GatherReduceKind,
    GatherSegmentReduceBackwardDescriptor,
    GatherSegmentReduceBackwardPlan,
    GatherSegmentReduceDescriptor,
    GatherSegmentReducePlan,
    check_weights,
)
from pullback.plan.function import Call, Function, Indices, Tensor, option


def _check_rank(op: str, argument: str, view: Any, rank: int) -> None:
    if len(view.shape) != rank:
        raise InvalidProblem(op, argument, f"of rank {rank}", f"shape {view.shape}")


def _groups(
    op: str,
    x: Tensor,
    gather_ids: Any,
    ids: Any,
    offsets: Any,
    num_segments: Any,
    ascending: Any,
    out_of_range: Any,
) -> Groups:
    """What a descriptor says of rows and segments."""
    _check_rank(op, "x", x, 2)
    _check_rank(op, "gather_ids", gather_ids, 1)
    check_flag(op, "indices_are_sorted", ascending)
    given, count = ids_or_borders(op, ids, offsets, num_segments)
    columns = x.shape[1]
    fields = {
        "num_rows": x.shape[0],
        "num_inputs": gather_ids.shape[0],
        "embedding_dim": columns,
        "num_segments": check_extent(op, "num_segments", count, columns * x.element.itemsize),
        "element": x.element,
        "policy": option(op, "out_of_range", out_of_range, IndexPolicy),
        "ascending": ascending and offsets is None,
        "borders": offsets is not None,
    }
    return Groups(given, 0, fields)


def _extra(**views: Any) -> dict[str, Any]:
    return {name: view for name, view in views.items() if view is not None}


@GroupedFunction
def gather_segment_reduce(
    x: Tensor,
    gather_ids: Indices,
    segment_ids: Indices | None = None,
    num_segments: int | None = None,
    *,
    reduce: Literal["sum", "mean", "max", "min"] | GatherReduceKind = "sum",
    weights: Tensor | None = None,
    offsets: Indices | None = None,
    indices_are_sorted: bool = False,
    ties: Literal["first", "last", "split"] | TieRule = "first",
    out_of_range: Literal["error", "skip"] | IndexPolicy = "error",
) -> Call:
    """Rows of `x` at `gather_ids`, reduced by segment ("sum", "mean", "max", "min"), with nothing
    made for each of them: `embedding` and a segment reduction in one. `weights`, one for each
    position, go with sums. `ties` matters to gradients only."""
    op = "gather_segment_reduce"
    option(op, "ties", ties, TieRule)
    groups = _groups(
        op, x, gather_ids, segment_ids, offsets, num_segments, indices_are_sorted, out_of_range
    )
    kind = option(op, "reduce", reduce, GatherReduceKind)
    desc = GatherSegmentReduceDescriptor(reduce=kind, **groups.fields)
    check_weights(op, desc, weights)
    tensors = {**groups.tensors(x=x), **_extra(gather_ids=gather_ids, weights=weights)}
    shape = (desc.num_segments, desc.embedding_dim)
    return groups.call(op, GatherSegmentReducePlan, desc, tensors, {"out": shape})


def _backward(
    op: str,
    dy: Tensor,
    x: Tensor,
    gather_ids: Any,
    ids: Any,
    offsets: Any,
    ascending: Any,
    out_of_range: Any,
    weights: Any = None,
    **fields: Any,
) -> tuple[Groups, Any, dict[str, Any]]:
    _check_rank(op, "dy", dy, 2)
    _check_rank(op, "x", x, 2)
    if dy.shape[1] != x.shape[1]:
        raise InvalidProblem(op, "dy", f"of {x.shape[1]} columns, as x", f"shape {dy.shape}")
    count = dy.shape[0]
    if offsets is not None and ids is None and tuple(offsets.shape) != (count + 1,):
        got = f"shape {tuple(offsets.shape)}"
        raise InvalidProblem(op, "offsets", f"of shape {(count + 1,)}, for the rows of dy", got)
    groups = _groups(op, x, gather_ids, ids, offsets, count, ascending, out_of_range)
    desc = GatherSegmentReduceBackwardDescriptor(**groups.fields, **fields)
    check_weights(op, desc, weights)
    extra = _extra(gather_ids=gather_ids, weights=weights)
    return groups, desc, {**groups.tensors(dy=dy, x=x), **extra}


@Function
def gather_segment_reduce_backward(
    dy: Tensor,
    x: Tensor,
    gather_ids: Indices,
    segment_ids: Indices | None = None,
    *,
    reduce: Literal["sum", "mean", "max", "min"] | GatherReduceKind = "sum",
    weights: Tensor | None = None,
    offsets: Indices | None = None,
    indices_are_sorted: bool = False,
    ties: Literal["first", "last", "split"] | TieRule = "first",
    out_of_range: Literal["error", "skip"] | IndexPolicy = "error",
) -> Call:
    """Gradient of `gather_segment_reduce` with respect to `x`. Of a sum or mean only the number of
    its rows matters."""
    op = "gather_segment_reduce_backward"
    fields = {
        "reduce": option(op, "reduce", reduce, GatherReduceKind),
        "ties": option(op, "ties", ties, TieRule),
    }
    groups, desc, tensors = _backward(
        op,
        dy,
        x,
        gather_ids,
        segment_ids,
        offsets,
        indices_are_sorted,
        out_of_range,
        weights,
        **fields,
    )
    return groups.call(op, GatherSegmentReduceBackwardPlan, desc, tensors, {"dx": x.shape})


@Function
def gather_segment_reduce_weights_backward(
    dy: Tensor,
    x: Tensor,
    gather_ids: Indices,
    segment_ids: Indices | None = None,
    *,
    offsets: Indices | None = None,
    indices_are_sorted: bool = False,
    out_of_range: Literal["error", "skip"] | IndexPolicy = "error",
) -> Call:
    """Gradient of `gather_segment_reduce` (sums) with respect to the weights: one number for each
    position, 0 where it is skipped."""
    op = "gather_segment_reduce_weights_backward"
    groups, desc, tensors = _backward(
        op, dy, x, gather_ids, segment_ids, offsets, indices_are_sorted, out_of_range
    )
    shapes = {"dweights": (desc.num_inputs,)}
    return groups.call(op, GatherSegmentReduceBackwardPlan, desc, tensors, shapes)
