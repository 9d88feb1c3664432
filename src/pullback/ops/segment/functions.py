"""Segment reductions as plain functions."""

from __future__ import annotations

from math import prod
from typing import Any

from pullback.contract.element import INDICES, kind_of_dtype
from pullback.contract.errors import InvalidProblem
from pullback.contract.kinds import IndexPolicy, TieRule
from pullback.contract.record import check_extent, check_flag
from pullback.ops.segment.contract import plan_of
from pullback.ops.segment.index import SegmentIndex, index_tensors
from pullback.plan.function import Call, Function, Indices, Tensor, option
from pullback.tensor.adapters import family_of, is_traced
from pullback.tensor.view import TensorRef, as_numpy


class SizedFunction(Function):
    """A function that counts the segments itself where nobody says how many there are."""

    def answer(self, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> Any:
        x, ids, count = args
        extent = segments_in(ids) if count is None else None
        if extent is None:
            return super().answer(args, options, out)
        return self(x, ids, extent, out=out, **options)

    def completed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments["num_segments"] is None:
            return {**arguments, "num_segments": segments_in(arguments["segment_ids"])}
        return arguments


def segments_in(ids: Any) -> int | None:
    """One past the largest id; None for what holds no ids, which binding then explains."""
    if isinstance(ids, SegmentIndex):
        return ids.num_segments
    if family_of(ids) is None or is_traced(ids) or kind_of_dtype(ids.dtype) not in INDICES:
        return None
    view = TensorRef(ids)
    # The framework's own maximum: it waits for the device, and looks into what wraps a tensor.
    if view.device != "cpu" or not view.address:
        return max(int(ids.max()) + 1, 0) if view.size else 0
    return max(int(as_numpy(view).max(initial=-1)) + 1, 0)


def _folded(view: Tensor) -> Tensor:
    """Rows and columns: all axes but the first are columns."""
    return view.folded((view.shape[0], prod(view.shape[1:])))


def _check_rank(op: str, argument: str, view: Tensor) -> None:
    if not view.shape:
        raise InvalidProblem(op, argument, "of rank 1 or more", "rank 0")


def _call(
    op: str,
    backward: bool,
    ids: Any,
    ascending: Any,
    out_of_range: Any,
    tensors: dict[str, Tensor],
    shapes: dict[str, tuple[int, ...]],
    **fields: Any,
) -> Call:
    check_flag(op, "indices_are_sorted", ascending)
    plan = plan_of(op.split("_")[1], backward, ascending)
    (shape,) = shapes.values()
    desc = plan.record.descriptor(
        embedding_dim=prod(shape[1:]),
        policy=option(op, "out_of_range", out_of_range, IndexPolicy),
        **fields,
    )
    if isinstance(ids, SegmentIndex):
        plan.record.admit(op, desc, ids)
    folded = {name: _folded(view) for name, view in tensors.items()}
    return Call(plan, desc, {**folded, **index_tensors("segment_ids", ids)}, (*shapes,), shapes)


def _forward(
    op: str,
    x: Tensor,
    ids: Any,
    num_segments: int | None,
    indices_are_sorted: bool,
    empty: float | None,
    ties: str | TieRule,
    out_of_range: str | IndexPolicy,
) -> Call:
    _check_rank(op, "x", x)
    option(op, "ties", ties, TieRule)
    if num_segments is None:
        raise InvalidProblem(op, "num_segments", "given where the ids are not at hand", "None")
    row = prod(x.shape[1:]) * x.element.itemsize
    num_segments = check_extent(op, "num_segments", num_segments, row)
    return _call(
        op,
        False,
        ids,
        indices_are_sorted,
        out_of_range,
        {"input": x},
        {"output": (num_segments, *x.shape[1:])},
        num_inputs=x.shape[0],
        num_segments=num_segments,
        element=x.element,
        empty=empty,
    )


def _backward(
    op: str,
    dy: Tensor,
    x: Tensor | None,
    ids: Any,
    indices_are_sorted: bool,
    out_of_range: str | IndexPolicy,
    **fields: Any,
) -> Call:
    _check_rank(op, "dy", dy)
    tensors = {"d_output": dy}
    rows = ids.shape[0] if ids.shape else 0
    if x is not None:
        _check_rank(op, "x", x)
        if x.shape[1:] != dy.shape[1:]:
            raise InvalidProblem(op, "x", f"of rows {dy.shape[1:]}, as dy", f"shape {x.shape}")
        tensors["input"], rows = x, x.shape[0]
    return _call(
        op,
        True,
        ids,
        indices_are_sorted,
        out_of_range,
        tensors,
        {"d_input": (rows, *dy.shape[1:])},
        num_inputs=rows,
        num_segments=dy.shape[0],
        element=dy.element,
        **fields,
    )


def _reduction(name: str, summary: str) -> Function:
    def body(
        x: Tensor,
        segment_ids: Indices,
        num_segments: int | None = None,
        *,
        indices_are_sorted: bool = False,
        empty: float | None = None,
        ties: str | TieRule = "first",
        out_of_range: str | IndexPolicy = "error",
    ) -> Call:
        return _forward(
            name, x, segment_ids, num_segments, indices_are_sorted, empty, ties, out_of_range
        )

    return SizedFunction(body, name, summary)


def _gradient_of_sums(name: str, summary: str) -> Function:
    def body(
        dy: Tensor,
        segment_ids: Indices,
        *,
        indices_are_sorted: bool = False,
        out_of_range: str | IndexPolicy = "error",
    ) -> Call:
        return _backward(name, dy, None, segment_ids, indices_are_sorted, out_of_range)

    return Function(body, name, summary)


def _gradient_at_rows(name: str, summary: str, tied: bool) -> Function:
    """Gradients that depend on the rows themselves; `tied` ones ask who of equals receives it."""

    def body(
        dy: Tensor,
        x: Tensor,
        segment_ids: Indices,
        *,
        indices_are_sorted: bool = False,
        ties: str | TieRule = "first",
        out_of_range: str | IndexPolicy = "error",
    ) -> Call:
        rule = option(name, "ties", ties, TieRule)
        fields = {"ties": rule} if tied else {}
        return _backward(name, dy, x, segment_ids, indices_are_sorted, out_of_range, **fields)

    return Function(body, name, summary)


segment_sum = _reduction("segment_sum", "Sum of the rows of each segment.")
segment_mean = _reduction(
    "segment_mean",
    "Mean of the rows of each segment: their sum divided by how many were kept.",
)
segment_max = _reduction(
    "segment_max", "Maximum of the rows of each segment; `ties` matters to its gradient only."
)
segment_min = _reduction(
    "segment_min", "Minimum of the rows of each segment; `ties` matters to its gradient only."
)
segment_prod = _reduction("segment_prod", "Product of the rows of each segment.")

segment_sum_backward = _gradient_of_sums(
    "segment_sum_backward", "Gradient of `segment_sum`: each row receives its segment's gradient."
)
segment_mean_backward = _gradient_of_sums(
    "segment_mean_backward",
    "Gradient of `segment_mean`: each row receives its share of the segment's gradient.",
)
segment_max_backward = _gradient_at_rows(
    "segment_max_backward",
    "Gradient of `segment_max`: it goes to the row that holds the maximum, by `ties`.",
    tied=True,
)
segment_min_backward = _gradient_at_rows(
    "segment_min_backward",
    "Gradient of `segment_min`: it goes to the row that holds the minimum, by `ties`.",
    tied=True,
)
segment_prod_backward = _gradient_at_rows(
    "segment_prod_backward",
    "Gradient of `segment_prod`, exact with any number of zeros.",
    tied=False,
)
