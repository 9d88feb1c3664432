"""What the calculus of all segment functions shares: sums over segments, batches, free axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pullback.ops.axes import Axes, Rule, Shapes
from pullback.ops.calculus import Array, Arrays, Options
from pullback.ops.segment.functions import segment_sum, segment_sum_backward
from pullback.plan.function import axis_of

# What all segment functions take of each other's options.
_SHARED = ("axis", "indices_are_sorted", "out_of_range")


def shared(options: Options, *names: str) -> Options:
    return {name: options[name] for name in (*_SHARED, *names)}


@dataclass(frozen=True, slots=True)
class Grouped:
    """The segments of a call: a sum over each, and the spreading of a row over its members."""

    segment_ids: Any
    offsets: Any
    options: Options

    def total(self, rows: Array, count: int | None) -> Array:
        """Of each of so many segments."""
        return segment_sum(
            rows, self.segment_ids, count, offsets=self.offsets, **shared(self.options)
        )

    def spread(self, sums: Array, like: Array) -> Array:
        """To each row that of its segment; 0 to rows of none."""
        rows = None if self.offsets is None else like.shape[self.options["axis"]]
        return segment_sum_backward(
            sums, self.segment_ids, num_inputs=rows, offsets=self.offsets, **shared(self.options)
        )

    def kept(self, ones: Array, rows: Array) -> Array | float:
        """1 for rows of a segment, 0 for those of none; `ones` are a row for each segment."""
        if self.offsets is not None or self.options["out_of_range"] == "error":
            return 1.0
        return self.spread(ones, rows)

    def summed(self, rows: Array) -> Array:
        """To each row the sum of its segment."""
        return self.spread(self.total(rows, self.options["num_segments"]), rows)


def batched(
    xp: Arrays, function: Any, size: int, mapped: frozenset[str], arguments: dict[str, Any]
) -> Any:
    """With segments in common a batch is one more axis; with segments of their own, one by one."""
    if mapped & function.indices:
        return None
    rank = 0
    for name in function.tensors.keys() - function.indices:
        x = arguments[name]
        if x is not None:
            x = x if name in mapped else xp.broadcast_to(x, (size, *x.shape))
            arguments[name], rank = x, len(x.shape) - 1
    axis = axis_of(function.name, arguments["axis"], rank) + 1
    return function(**{**arguments, "axis": axis})


_OTHERS = {"segment_ids": "n", "offsets": "border"}


def free_axes(result: str, **tensors: str) -> Rule:
    """All axes but that of the segments are free. Tensors and the result have a row for each
    position, "n", or for each segment, "s"."""

    def rule(shapes: Shapes, options: Mapping[str, Any]) -> Axes | None:
        ranks = {len(shape) for name, shape in shapes.items() if name in tensors}
        if len(ranks) != 1 or not (rank := ranks.pop()):
            return None
        at = axis_of("segments", options["axis"], rank)
        columns = [f"d{axis}" for axis in range(rank)]

        def names(kind: str) -> tuple[str, ...]:
            return (*columns[:at], kind, *columns[at + 1 :])

        arguments = {
            name: names(tensors[name]) if name in tensors else (_OTHERS.get(name, name),)
            for name, shape in shapes.items()
        }
        return Axes(arguments, (names(result),), frozenset(columns) - {columns[at]}, "n")

    return rule
