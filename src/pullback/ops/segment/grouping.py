"""How rows are grouped into segments: by ids or by offsets (CSR), along any axis.

What descriptors, records and functions of several families share. A plan sees the axis of the
segments first and all others folded into columns; `borders` says that `segment_ids` holds the
num_segments + 1 borders of segments instead of an id for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from pullback.contract.element import INDICES, ElementKind, kind_of_dtype
from pullback.contract.errors import IndexOutOfRange, InvalidProblem
from pullback.contract.kinds import IndexPolicy
from pullback.contract.record import (
    Failure,
    Slot,
    check_element,
    check_extent,
    check_flag,
    check_option,
)
from pullback.gpu.errors import check
from pullback.ops.segment.index import SegmentIndex, admit_index, check_ids, index_tensors
from pullback.plan.function import Call, Function, Tensor, axis_of, option
from pullback.tensor.adapters import family_of, is_traced
from pullback.tensor.view import TensorRef, as_numpy

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class GroupedDescriptor:
    """`num_inputs` rows of `embedding_dim` columns in `num_segments` segments. `ascending`: ids
    must be sorted. `borders`: `segment_ids` holds borders."""

    num_inputs: int
    embedding_dim: int
    num_segments: int
    element: ElementKind
    policy: IndexPolicy = IndexPolicy.SKIP
    ascending: bool = False
    borders: bool = False


# --- contract -----------------------------------------------------------------------------------


def rows_of(desc: Any) -> Shape:
    return desc.num_inputs, desc.embedding_dim


def segments_of(desc: Any) -> Shape:
    return desc.num_segments, desc.embedding_dim


def _ids_of(desc: Any) -> Shape:
    return (desc.num_segments + 1 if desc.borders else desc.num_inputs,)


def _part(field: str, shape: Callable[[Any], Shape]) -> Slot:
    return Slot(
        f"segment_ids_{field}",
        shape,
        holds=(ElementKind.I64,),
        needed=lambda _: False,
        part=field,
        part_of="segment_ids",
    )


IDS = Slot("segment_ids", _ids_of, holds=INDICES, part="ids")
PARTS = (
    _part("order", lambda desc: (desc.num_inputs,)),
    _part("offsets", lambda desc: (desc.num_segments + 2,)),
)


def check_groups(op: str, desc: Any) -> None:
    """What is wrong with the fields above."""
    check_element(op, desc.element)
    for name in ("num_inputs", "embedding_dim", "num_segments"):
        check_extent(op, name, getattr(desc, name))
    check_option(op, "policy", desc.policy, IndexPolicy)
    check_flag(op, "ascending", desc.ascending)
    check_flag(op, "borders", desc.borders)


FAILURES = {
    1: Failure(
        IndexOutOfRange,
        "segment_ids",
        lambda desc: f"in [0, {desc.num_segments})",
        "{value} at position {position}",
    ),
    2: Failure(
        InvalidProblem,
        "segment_ids",
        lambda _: (
            "in ascending order (unsorted ids have plans of their own; in functions, "
            "indices_are_sorted=False)"
        ),
        "{value} at position {position}, after a larger id",
    ),
    3: Failure(
        InvalidProblem,
        "offsets",
        lambda desc: f"from 0 to {desc.num_inputs}, never decreasing",
        "{value} at position {position}",
    ),
}


def checked_ids(op: str, desc: Any, given: Any, ascending: bool | None = None) -> Any:
    """Ids of all rows, for an oracle: the errors that kernels find, without one."""
    if not desc.borders:
        strict = desc.policy is IndexPolicy.ERROR
        ordered = desc.ascending if ascending is None else ascending
        check_ids(op, desc, FAILURES, given, desc.num_segments, strict, ordered)
        return given
    borders = given.astype(np.int64)
    before = np.concatenate([[0], borders[:-1]])
    wrong = (borders < before) | (borders > desc.num_inputs)
    wrong[:1] |= borders[:1] != 0
    wrong[-1:] |= borders[-1:] != desc.num_inputs
    for position in np.flatnonzero(wrong)[:1]:
        raise FAILURES[3].raised(op, desc, int(position), int(borders[position]))
    return np.repeat(np.arange(desc.num_segments), np.diff(borders))


def admit(op: str, desc: Any, index: SegmentIndex, ascending: bool | None = None) -> None:
    """What is wrong with a prepared index."""
    if desc.borders:
        raise InvalidProblem(op, "segment_ids", "borders, an array", "a SegmentIndex")
    strict, extent = desc.policy is IndexPolicy.ERROR, ("num_segments", desc.num_segments)
    ordered = desc.ascending if ascending is None else ascending
    admit_index(op, desc, FAILURES, index, extent, strict, ordered)


# --- functions ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Groups:
    """The segments that a call speaks of: where its ids or borders are, and what a descriptor says
    of them."""

    given: Any
    axis: int
    fields: Mapping[str, Any]

    def tensors(self, **views: Tensor | None) -> dict[str, Any]:
        """Tensors by slot, with the axis first and the others folded."""
        found = {name: self._folded(view) for name, view in views.items() if view is not None}
        return {**found, **index_tensors("segment_ids", self.given)}

    def _folded(self, view: Tensor) -> Tensor:
        moved = view.axis_first(self.axis) if self.axis else view
        return moved.folded((moved.shape[0], prod(moved.shape[1:])))

    def shape(self, like: Shape, extent: int) -> Shape:
        """A shape with another extent along the axis."""
        return (*like[: self.axis], extent, *like[self.axis + 1 :])

    def of_rows(self, count: int) -> Groups:
        """The same for so many rows: of a backward, which is given a row for each segment."""
        return replace(self, fields={**self.fields, "num_inputs": count})

    def call(
        self, op: str, plan: Any, desc: Any, tensors: dict[str, Any], shapes: Mapping[str, Shape]
    ) -> Call:
        if isinstance(self.given, SegmentIndex):
            plan.record.admit(op, desc, self.given)
        axes = dict.fromkeys(shapes, self.axis)
        return Call(plan, desc, tensors, (*shapes,), shapes, axes)


def groups_of(
    op: str,
    argument: str,
    rows: Tensor,
    ids: Any,
    offsets: Any,
    num_segments: Any,
    axis: Any,
    ascending: Any,
    out_of_range: Any,
) -> Groups:
    """The segments of `rows`, the tensor with a row for each id."""
    if not rows.shape:
        raise InvalidProblem(op, argument, "of rank 1 or more", "rank 0")
    at = axis_of(op, axis, len(rows.shape))
    check_flag(op, "indices_are_sorted", ascending)
    columns = prod(rows.shape[:at]) * prod(rows.shape[at + 1 :])
    given, count = ids_or_borders(op, ids, offsets, num_segments)
    return Groups(
        given,
        at,
        {
            "num_inputs": rows.shape[at],
            "embedding_dim": columns,
            "num_segments": check_extent(
                op, "num_segments", count, columns * rows.element.itemsize
            ),
            "element": rows.element,
            "policy": option(op, "out_of_range", out_of_range, IndexPolicy),
            "ascending": ascending and offsets is None,
            "borders": offsets is not None,
        },
    )


def gradient_groups(
    op: str,
    dy: Tensor,
    ids: Any,
    offsets: Any,
    axis: Any,
    ascending: Any,
    out_of_range: Any,
) -> Groups:
    """The segments of a backward: `dy` has a row for each of them."""
    count = dy.shape[axis_of(op, axis, len(dy.shape))] if dy.shape else 0
    if offsets is not None and ids is None and offsets.shape != (count + 1,):
        got = f"shape {tuple(offsets.shape)}"
        raise InvalidProblem(op, "offsets", f"of shape {(count + 1,)}, for the rows of dy", got)
    return groups_of(op, "dy", dy, ids, offsets, count, axis, ascending, out_of_range)


def rows_beside(op: str, groups: Groups, dy: Tensor, x: Tensor) -> int:
    """How many rows x has, which agrees with dy in all axes but that of the segments."""
    at = groups.axis
    if len(x.shape) != len(dy.shape) or groups.shape(x.shape, dy.shape[at]) != dy.shape:
        rows = dy.shape[:at] + dy.shape[at + 1 :]
        raise InvalidProblem(op, "x", f"of rows {rows}, as dy", f"shape {x.shape}")
    return x.shape[at]


def ids_or_borders(op: str, ids: Any, offsets: Any, num_segments: Any) -> tuple[Any, Any]:
    """Which of the two is given, and how many segments there are."""
    if (ids is None) == (offsets is None):
        got = "neither" if ids is None else "both"
        raise InvalidProblem(op, "segment_ids", "given, or `offsets` in its place", got)
    if ids is not None:
        if num_segments is None:
            raise InvalidProblem(op, "num_segments", "given where the ids are not at hand", "None")
        return ids, num_segments
    if isinstance(offsets, SegmentIndex) or len(offsets.shape) != 1 or not offsets.shape[0]:
        got = repr(offsets) if isinstance(offsets, SegmentIndex) else f"shape {offsets.shape}"
        raise InvalidProblem(op, "offsets", "of rank 1, one more than there are segments", got)
    count = offsets.shape[0] - 1
    if num_segments is not None and num_segments != count:
        expected = f"{count}, one less than there are offsets, or None"
        raise InvalidProblem(op, "num_segments", expected, repr(num_segments))
    return offsets, count


class GroupedFunction(Function):
    """A function that counts the segments itself where nobody says how many there are."""

    def dispatch(self, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> Any:
        *before, ids, count = args
        extent = _segments_in(ids) if count is None and ids is not None else None
        if extent is None:
            return super().dispatch(args, options, out)
        return self(*before, ids, extent, out=out, **options)

    def completed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        ids = arguments["segment_ids"]
        if arguments["num_segments"] is None and ids is not None:
            return {**arguments, "num_segments": _segments_in(ids)}
        return arguments


def _segments_in(ids: Any) -> int | None:
    """One past the largest id; None for what holds no ids, which binding then explains."""
    if isinstance(ids, SegmentIndex):
        return ids.num_segments
    if family_of(ids) is None or is_traced(ids) or kind_of_dtype(ids.dtype) not in INDICES:
        return None
    view = TensorRef(ids)
    # The framework's own maximum: it waits for the device, and looks into what wraps a tensor.
    if view.device != "cpu" or not view.address:
        largest = int(ids.max()) if view.size else -1
        check()
        return max(largest + 1, 0)
    return max(int(as_numpy(view).max(initial=-1)) + 1, 0)
