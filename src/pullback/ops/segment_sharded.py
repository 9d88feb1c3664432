"""Segments whose rows are spread over ranks.

A rank reduces its own rows to a state for each segment that it has rows of, in float64; one
all-gather exchanges these states with the ids of their segments, and every rank reduces all of them
once more, in the order of ranks. Nothing but what a rank's segments amount to is exchanged, whether
ids are sorted or not. Where extents of parts are free (PyTorch), one small all-gather before it
tells how many segments each rank has, and what is wrong with its ids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pullback.contract.errors import IndexOutOfRange, InvalidProblem, Unsupported
from pullback.ops.segment.functions import segment_min, segment_sum, segment_sum_backward
from pullback.ops.sharding import Arguments, Array, Form, Sends, Spread, State
from pullback.plan.function import axis_of

Found = tuple[tuple[Array, ...], State]
_RANGE, _ORDER = 1.0, 2.0  # what may be wrong with ids
_SURVEY = 8  # what ranks tell of their ids before anything else


def sends(columns: int, segments: int = 1, wide: Sends | None = None) -> Sends:
    """So many numbers for each column of a segment, and so many for each segment."""
    return Sends(columns, _SURVEY, 2, wide=wide, segments=segments)


def is_strict(arguments: Arguments) -> bool:
    policy = arguments["out_of_range"]
    return bool(getattr(policy, "value", policy) == "error")


@dataclass(frozen=True)
class Groups:
    """The segments of one call. Rows are those of this rank, the axis first, others folded."""

    s: Spread
    op: str
    axis: int
    given: Array
    asked: int | None
    strict: bool
    ascending: bool

    # --- what all ranks know ----------------------------------------------------------------------

    @cached_property
    def table(self) -> list[list[float]]:
        """Of each rank how many rows it has, and what a survey of its ids says."""
        s = self.s
        *about, bad, value, broken, lower = s.survey(self.given, self.asked)
        fault = [0.0, -1.0, 0.0]
        if self.strict and bad >= 0:  # range comes before order
            fault = [_RANGE, bad, value]
        elif self.ascending and broken >= 0:
            fault = [_ORDER, broken, lower]
        told = [float(self.given.shape[0]), *about, *fault]
        own = s.xp.stack([s.filled((), number, self.given) for number in told])
        return [row.tolist() for row in s.gather(own)[0]]

    @cached_property
    def common(self) -> tuple[int, Any, Any]:
        """How many segments there are, where this rank's rows begin, and how many segments each
        rank has rows of. What one rank finds wrong with its ids, all raise."""
        s = self.s
        if s.fixed:
            if self.asked is None:
                raise InvalidProblem(self.op, "num_segments", "given over ranks", "None")
            return self.asked, s.rank * self.given.shape[0], None
        count = self.asked
        if count is None:
            count = int(max(row[1] for row in self.table)) + 1
        self._raise_alike(count)
        begin = sum(int(row[0]) for row in self.table[: s.rank])
        return count, begin, [int(row[4]) for row in self.table]

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        """Of each rank how many rows it has, and their first and last id."""
        return [(int(row[0]), int(row[2]), int(row[3])) for row in self.table]

    def _raise_alike(self, count: int) -> None:
        before = None
        for rank, (rows, _, first, last, _, kind, at, value) in enumerate(self.table):
            if kind != _RANGE and self.ascending and rows and before is not None and first < before:
                kind, at, value = _ORDER, 0, first
            got = f"{int(value)} at position {int(at)} of rank {rank}"
            if kind == _RANGE:
                raise IndexOutOfRange(self.op, "segment_ids", f"in [0, {count})", got)
            if kind == _ORDER:
                expected = "in ascending order"
                raise InvalidProblem(self.op, "segment_ids", expected, f"{got}, after a larger id")
            before = last if rows else before

    @property
    def count(self) -> int:
        return self.common[0]

    @property
    def begin(self) -> Any:
        return self.common[1]

    # --- this rank's rows -------------------------------------------------------------------------

    @cached_property
    def ids(self) -> Array:
        """Ids of rows, `count` for those of none. In a program that cannot raise by itself, the
        kernel looks at them that a plain call would run."""
        ids, count = self.given, self.count
        if self.s.fixed and (self.strict or self.ascending):
            zeros = self.s.filled((count, 1), 0.0, ids)
            policy = "error" if self.strict else "skip"
            checked = segment_sum_backward(
                zeros, ids, indices_are_sorted=self.ascending, out_of_range=policy
            )
            ids = ids + self.s.like(checked[:, 0], ids)
        return self.s.xp.where((ids >= 0) & (ids < count), ids, count)

    @cached_property
    def _touched(self) -> tuple[Array, Array]:
        return self.s.distinct(self.ids, self.count)

    def rows(self, x: Array) -> Array:
        moved = self.s.xp.moveaxis(x, self.axis, 0)
        columns = 1
        for extent in moved.shape[1:]:
            columns *= extent
        return moved.reshape((moved.shape[0], columns))

    def restored(self, rows: Array, like: Array) -> Array:
        """In the shape of a tensor, but for how many rows there are."""
        shape = tuple(like.shape)
        first = (rows.shape[0], *shape[: self.axis], *shape[self.axis + 1 :])
        return self.s.xp.moveaxis(rows.reshape(first), 0, self.axis)

    def partial(self, reduce: Any, rows: Array, **options: Any) -> Any:
        """Of each segment that this rank has rows of."""
        touched, places = self._touched
        return reduce(rows, places, touched.shape[0], **options)

    def beside(self, values: Array) -> Array:
        """To each row that of its segment among those this rank has rows of."""
        return values[self._touched[1]]

    def at_rows(self, values: Array) -> Array:
        """To each row that of its segment among all; 0 to rows of none."""
        return segment_sum_backward(values, self.ids, out_of_range="skip")

    # --- over ranks -------------------------------------------------------------------------------

    def exchanged(self, *states: Array) -> Gathered:
        """States of this rank's segments as all ranks have them."""
        s, ids = self.s, self._touched[0]
        joined = s.xp.concatenate([s.wide(ids)[:, None], *map(s.wide, states)], 1)
        found = s.stacked(joined, self.common[2], float(self.count))
        parts, at = [], 1
        for state in states:
            parts.append(found[:, at : at + state.shape[1]])
            at += state.shape[1]
        return Gathered(self, s.as_index(found[:, 0]), parts)


@dataclass(frozen=True)
class Gathered:
    """States of segments, one after the other in the order of ranks."""

    groups: Groups
    ids: Array
    states: list[Array]

    def merged(self, reduce: Any, state: Array, **options: Any) -> Any:
        """Of each segment, what its states amount to."""
        return reduce(state, self.ids, self.groups.count, out_of_range="skip", **options)

    def beside(self, values: Array) -> Array:
        """To each state that of its segment."""
        return segment_sum_backward(values, self.ids, out_of_range="skip")

    def held(self) -> Array:
        """Of each segment whether some rank has rows of it."""
        ones = self.groups.s.filled((self.ids.shape[0], 1), 1.0, self.ids)
        return self.merged(segment_sum, ones) > 0

    def is_first(self) -> Array:
        """Of each state whether it is the first of its segment."""
        steps = self.groups.s.steps(self.ids.shape[0], self.ids)[:, None]
        return self.beside(self.merged(segment_min, steps)) == steps


def groups_over(s: Spread, function: Any, arguments: Arguments, count: Any) -> Groups:
    ids = arguments["segment_ids"]
    if not hasattr(ids, "shape") or not hasattr(ids, "dtype"):
        raise Unsupported(function.name, "segment_ids", "an array of ids over ranks", repr(ids))
    like = next(arguments[n] for n in ("x", "dy") if arguments.get(n) is not None)
    axis = axis_of(function.name, arguments["axis"], len(like.shape))
    ascending = bool(arguments["indices_are_sorted"]) or s.by == "borders"
    return Groups(s, function.name, axis, ids, count, is_strict(arguments), ascending)


@dataclass(frozen=True)
class Family:
    """A function of segments over ranks: the state of all segments, the result of it, and the
    gradient. States are [segments, columns], the same on all ranks."""

    state: Callable[[Groups, Array, Arguments], State]
    finish: Callable[[Groups, State, Arguments], tuple[Array, ...]]
    gradient: Callable[[Groups, State, Arguments], Array]
    needs_state: bool = True

    def forward(self) -> Form:
        def form(s: Spread, function: Any, arguments: Arguments) -> Found:
            g = groups_over(s, function, arguments, arguments["num_segments"])
            state = self.state(g, arguments["x"], arguments)
            kept = (*state, s.as_index(s.filled((), 0.0, arguments["x"]) + g.begin))
            results = tuple(s.part_of_segments(r, g.axis) for r in self.finish(g, state, arguments))
            return results, kept

        return form

    def backward(self) -> Form:
        def form(s: Spread, function: Any, arguments: Arguments) -> Found:
            dy = arguments["dy"]
            axis = axis_of(function.name, arguments["axis"], len(dy.shape))
            dy = s.all_segments(dy, axis)
            given = {**arguments, "dy": dy}
            g = groups_over(s, function, given, dy.shape[axis])
            kept = arguments.get("kept")
            if kept:
                # What was agreed upon forward needs no collective now.
                g.__dict__["common"] = (dy.shape[axis], kept[-1], None)
                state = kept[:-1]
            elif self.needs_state:
                state = self.state(g, arguments.get("x"), given)
            else:
                g.__dict__["common"], state = (dy.shape[axis], 0, None), ()
            dx = self.gradient(g, state, given)
            model = dy if arguments.get("x") is None else arguments["x"]
            return (s.like(g.restored(dx, model), dy),), ()

        return form
