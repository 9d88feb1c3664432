"""Segment reductions as plain functions."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from pullback.contract.element import INDICES, kind_of_dtype
from pullback.contract.errors import InvalidProblem
from pullback.contract.kinds import IndexPolicy, TieRule
from pullback.contract.record import check_extent, check_flag
from pullback.ops.segment.contract import plan_of
from pullback.ops.segment.grouping import (
    GroupedFunction,
    Groups,
    gradient_groups,
    groups_of,
    rows_beside,
)
from pullback.ops.segment.index import SegmentIndex
from pullback.plan.function import Call, Function, Indices, Tensor, option
from pullback.tensor.adapters import family_of, is_traced


class SpreadFunction(Function):
    """A function with a row for each position, which offsets alone know the number of."""

    def dispatch(self, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> Any:
        rows = _rows_in(options.get("offsets")) if "num_inputs" not in options else None
        if rows is not None:
            return self(*args, num_inputs=rows, out=out, **options)
        return super().dispatch(args, options, out)

    def completed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments["num_inputs"] is None:
            return {**arguments, "num_inputs": _rows_in(arguments["offsets"])}
        return arguments


def _rows_in(offsets: Any) -> int | None:
    """The last of them; None for what holds none."""
    if offsets is None or isinstance(offsets, SegmentIndex) or len(np.shape(offsets)) != 1:
        return None
    at_hand = family_of(offsets) is not None and not is_traced(offsets)
    if not at_hand or kind_of_dtype(offsets.dtype) not in INDICES or not offsets.shape[0]:
        return None
    return max(int(offsets[-1]), 0)


def _call(
    op: str,
    backward: bool,
    groups: Groups,
    tensors: dict[str, Tensor | None],
    shapes: dict[str, tuple[int, ...]],
    **fields: Any,
) -> Call:
    known = dict(groups.fields)
    plan = plan_of(op.split("_")[1], backward, known.pop("ascending") or known["borders"])
    desc = plan.record.descriptor(**known, **fields)
    return groups.call(op, plan, desc, groups.tensors(**tensors), shapes)


def _reduction(name: str, summary: str) -> Function:
    def body(
        x: Tensor,
        segment_ids: Indices | None = None,
        num_segments: int | None = None,
        *,
        offsets: Indices | None = None,
        axis: int = 0,
        indices_are_sorted: bool = False,
        empty: float | None = None,
        ties: Literal["first", "last", "split"] | TieRule = "first",
        out_of_range: Literal["error", "skip"] | IndexPolicy = "error",
    ) -> Call:
        option(name, "ties", ties, TieRule)
        groups = groups_of(
            name, "x", x, segment_ids, offsets, num_segments, axis, indices_are_sorted, out_of_range
        )
        shape = groups.shape(x.shape, groups.fields["num_segments"])
        return _call(name, False, groups, {"input": x}, {"output": shape}, empty=empty)

    return GroupedFunction(body, name, summary)


def _extremum(name: str, summary: str) -> Function:
    def body(
        x: Tensor,
        segment_ids: Indices | None = None,
        num_segments: int | None = None,
        *,
        offsets: Indices | None = None,
        axis: int = 0,
        indices_are_sorted: bool = False,
        empty: float | None = None,
        ties: Literal["first", "last", "split"] | TieRule = "first",
        out_of_range: Literal["error", "skip"] | IndexPolicy = "error",
        return_indices: bool = False,
    ) -> Call:
        rule = option(name, "ties", ties, TieRule)
        check_flag(name, "return_indices", return_indices)
        groups = groups_of(
            name, "x", x, segment_ids, offsets, num_segments, axis, indices_are_sorted, out_of_range
        )
        shape = groups.shape(x.shape, groups.fields["num_segments"])
        shapes = {"output": shape, "indices": shape} if return_indices else {"output": shape}
        # Values do not depend on the rule, and neither should the plan.
        fields = {"empty": empty, "ties": rule if return_indices else TieRule.FIRST}
        return _call(name, False, groups, {"input": x}, shapes, **fields)

    return GroupedFunction(body, name, summary)


def _gradient_of_sums(name: str, summary: str) -> Function:
    def body(
        dy: Tensor,
        segment_ids: Indices | None = None,
        *,
        num_inputs: int | None = None,
        offsets: Indices | None = None,
        axis: int = 0,
        indices_are_sorted: bool = False,
        out_of_range: Literal["error", "skip"] | IndexPolicy = "error",
    ) -> Call:
        groups = gradient_groups(
            name, dy, segment_ids, offsets, axis, indices_are_sorted, out_of_range
        )
        rows = num_inputs
        if offsets is None:
            rows = segment_ids.shape[0] if segment_ids.shape else 0  # type: ignore[union-attr]
            if num_inputs is not None and num_inputs != rows:
                expected = f"{rows}, as there are ids, or None"
                raise InvalidProblem(name, "num_inputs", expected, repr(num_inputs))
        if rows is None:
            expected = "given where the offsets are not at hand"
            raise InvalidProblem(name, "num_inputs", expected, "None")
        row = groups.fields["embedding_dim"] * dy.element.itemsize
        rows = check_extent(name, "num_inputs", rows, row)
        groups = groups.of_rows(rows)
        shape = groups.shape(dy.shape, rows)
        return _call(name, True, groups, {"d_output": dy}, {"d_input": shape})

    return SpreadFunction(body, name, summary)


def _gradient_at_rows(name: str, summary: str, tied: bool) -> Function:
    """Gradients that depend on the rows themselves; `tied` ones ask who of equals receives it."""

    def body(
        dy: Tensor,
        x: Tensor,
        segment_ids: Indices | None = None,
        *,
        offsets: Indices | None = None,
        axis: int = 0,
        indices_are_sorted: bool = False,
        ties: Literal["first", "last", "split"] | TieRule = "first",
        out_of_range: Literal["error", "skip"] | IndexPolicy = "error",
    ) -> Call:
        rule = option(name, "ties", ties, TieRule)
        groups = gradient_groups(
            name, dy, segment_ids, offsets, axis, indices_are_sorted, out_of_range
        )
        rows = rows_beside(name, groups, dy, x)
        tensors: dict[str, Tensor | None] = {"d_output": dy, "input": x}
        fields = {"ties": rule} if tied else {}
        return _call(name, True, groups.of_rows(rows), tensors, {"d_input": x.shape}, **fields)

    return Function(body, name, summary)


segment_sum = _reduction("segment_sum", "Sum of the rows of each segment.")
segment_mean = _reduction(
    "segment_mean",
    "Mean of the rows of each segment: their sum divided by how many were kept.",
)
segment_max = _extremum(
    "segment_max",
    "Maximum of the rows of each segment; with `return_indices`, (values, positions), -1 where a "
    "segment has no rows. `ties` matters to positions and gradients only.",
)
segment_min = _extremum(
    "segment_min",
    "Minimum of the rows of each segment; with `return_indices`, (values, positions), -1 where a "
    "segment has no rows. `ties` matters to positions and gradients only.",
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
