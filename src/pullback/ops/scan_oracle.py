"""Scans that are exclusive, start from an initial value or anew at borders, by definition: each
piece by itself, the initial value as one more element before it. Pieces of one length are scanned
side by side: there may be millions.

    elements    x, and gradients of it: the initial value stands before them, and if the scan is
                exclusive the last of them does not count
    results     y, and what comes in for it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.ops.oracle import Array, Ints, Wide, wide


@dataclass(frozen=True)
class Elements:
    """An array by element; `first` stands before it instead of the initial value."""

    array: npt.ArrayLike
    first: float | None = None


@dataclass(frozen=True)
class Outcomes(Elements):
    """An array by result."""


@dataclass(frozen=True)
class Group:
    """Pieces of one length, which are scanned side by side: each is a row of the leading axis."""

    numbers: Ints  # which pieces
    begins: Ints  # where they begin
    count: int  # how long they are

    @property
    def steps(self) -> Ints:
        """The positions of each piece along the axis."""
        return self.begins[:, None] + np.arange(self.count)


class Pieces:
    """What an inclusive scan is run on. Arrays are in the order of memory; first and last are those
    of the scan. `axis` counts from the end, so that it is the same beside a leading axis."""

    def __init__(
        self,
        like: npt.ArrayLike,
        axis: int,
        reverse: bool,
        exclusive: bool = False,
        initial: npt.ArrayLike | None = None,
        offsets: npt.ArrayLike | None = None,
    ) -> None:
        self.like, self.shape = like, np.atleast_1d(np.asarray(like)).shape
        rank = len(self.shape)
        self.axis, self.reverse, self.exclusive = axis % rank - rank, reverse, exclusive
        n = self.shape[self.axis]
        borders = np.array([0, n] if offsets is None else offsets, np.int64)
        self.count, lengths = len(borders) - 1, np.diff(borders)
        self.groups = [
            Group(numbers, borders[numbers], int(length))
            for length in np.unique(lengths)
            for numbers in [np.flatnonzero(lengths == length)]
        ]
        self.initial, self.by_pieces = initial, offsets is not None
        if initial is not None:
            free = list(self.shape)
            free[self.axis] = self.count
            if not self.by_pieces:
                del free[self.axis]
            full = np.broadcast_to(wide(initial), free)
            self._firsts = full if self.by_pieces else np.expand_dims(full, self.axis)

    @property
    def leads(self) -> bool:
        return self.initial is not None

    def constant(self, group: Group, value: float, count: int = 1) -> Wide:
        shape = [len(group.numbers), *self.shape]
        shape[self.axis] = count
        return np.full(shape, value, np.longdouble)

    def taken(self, array: Array, places: Ints) -> Array:
        """What stands at places, those of a piece in a row, along the axis: pieces lead."""
        found = np.moveaxis(array, self.axis, 0)[places]
        return np.moveaxis(found, 1, self.axis)

    def before(self, first: Array, rest: Array) -> Array:
        parts = [rest, first] if self.reverse else [first, rest]
        return np.concatenate(parts, self.axis)

    def after(self, rest: Array, last: Array) -> Array:
        parts = [last, rest] if self.reverse else [rest, last]
        return np.concatenate(parts, self.axis)

    def without(self, rows: Array, first: int = 0, last: int = 0) -> Array:
        low, high = (last, first) if self.reverse else (first, last)
        n = rows.shape[self.axis]
        return np.take(rows, range(low, max(n - high, low)), self.axis)

    def staged(self, given: Elements, whole: Wide, group: Group) -> Array:
        """What is scanned of an array."""
        rows = self.taken(whole, group.steps)
        by_result = isinstance(given, Outcomes)
        if not self.leads:
            skipped = int(self.exclusive)
            return self.without(rows, skipped * by_result, skipped * (not by_result))
        if by_result and self.exclusive:
            return rows
        if given.first is None:
            first = self.taken(self._firsts, group.numbers[:, None])
        else:
            first = self.constant(group, given.first)
        return self.without(self.before(first, rows), last=int(self.exclusive))

    def outcome(self, rows: Array, group: Group, identity: float) -> Array:
        """Results of pieces."""
        if self.leads:
            return rows if self.exclusive else self.without(rows, first=1)
        if self.exclusive and group.count:
            return self.before(self.constant(group, identity), rows)
        return rows

    def gradient(self, rows: Array, group: Group) -> Array:
        """Gradients of the elements of pieces."""
        rows = self.without(rows, first=1) if self.leads else rows
        if self.exclusive and group.count:
            return self.after(rows, self.constant(group, 0.0))
        return rows

    def position(self, rows: Array, group: Group) -> Array:
        """Positions within what was scanned as positions along the axis."""
        count = group.count + self.leads - self.exclusive
        own = count - 1 if self.reverse else 0
        begins = group.begins.reshape(-1, *[1] * len(self.shape))
        ahead = begins + group.count - count + self.leads if self.reverse else begins - self.leads
        return np.asarray(np.where(self.leads & (rows == own), -1, rows + ahead))

    def whole(self, parts: Sequence[Array]) -> Array:
        """All pieces, in the shape of what was given."""
        whole = np.zeros(self.shape, np.longdouble)
        axis_first = np.moveaxis(whole, self.axis, 0)
        for group, rows in zip(self.groups, parts, strict=True):
            axis_first[group.steps] = np.moveaxis(rows, self.axis, 1)
        return whole.reshape(np.shape(self.like))

    def d_initial(self, staged: Sequence[Array]) -> Array:
        """The gradient of the initial value: what each piece has for it, summed to its shape."""
        shape = list(self.shape)
        shape[self.axis] = self.count
        full = np.zeros(shape, np.longdouble)
        axis_first = np.moveaxis(full, self.axis, 0)
        for group, rows in zip(self.groups, staged, strict=True):
            if rows.shape[self.axis]:
                axis_first[group.numbers] = np.take(rows, -1 if self.reverse else 0, self.axis)
        full = full if self.by_pieces else np.squeeze(full, self.axis)
        wanted = np.asarray(self.initial).shape
        full = full.sum(axis=tuple(range(full.ndim - len(wanted))))
        stretched = tuple(k for k, n in enumerate(wanted) if n == 1 and full.shape[k] != 1)
        return np.asarray(full.sum(axis=stretched, keepdims=True))

    def each(self, scan: Callable[..., Any], *given: Elements) -> list[tuple[Group, Any]]:
        """What an inclusive scan gives of the pieces of each length."""
        wholes = [wide(one.array).reshape(self.shape) for one in given]
        pairs = list(zip(given, wholes, strict=True))
        return [
            (group, scan(*(self.staged(*pair, group) for pair in pairs))) for group in self.groups
        ]


def results(about: Pieces, identity: float, scan: Callable[..., Any], *given: Elements) -> Array:
    """The results of a scan."""
    found = about.each(scan, *given)
    return about.whole([about.outcome(rows, group, identity) for group, rows in found])


def gradients(about: Pieces, backward: Callable[..., Any], *given: Elements) -> Any:
    """The gradient of the elements, and of the initial value if there is one."""
    found = about.each(backward, *given)
    dx = about.whole([about.gradient(rows, group) for group, rows in found])
    return (dx, about.d_initial([rows for _, rows in found])) if about.leads else dx


def last_of(results: Array, desc: Any, state: Array | None, identity: float) -> Array:
    """The state that an inclusive scan leaves: its last result, or what it started from."""
    axis, shape = desc.scan_axis, desc.input_shape or (1,)
    if shape[axis]:
        return np.asarray(np.take(results.reshape(shape), 0 if desc.reverse else -1, axis))
    rest = shape[:axis] + shape[axis + 1 :]
    return np.full(rest, identity) if state is None else np.array(state)


def in_sequence(
    desc: Any,
    positions: Array,
    state: Array | None,
    identity: float,
    indices: Array,
    inclusive: Array,
) -> tuple[Array, Array]:
    """Indices of a window as the whole sequence counts, and positions after the window. A state
    that stands for nothing is no rival of the first element."""
    axis, shape = desc.scan_axis, desc.input_shape or (1,)
    steps = shape[axis]
    begin = positions[1] - steps if desc.reverse else positions[1]
    held = np.full_like(positions[0], -1) if state is None else positions[0]

    none = np.zeros(held.shape, bool) if state is None else (held < 0) & (state == identity)
    order = np.arange(steps)[::-1] if desc.reverse else np.arange(steps)
    order = order.reshape(-1, *(1,) * (len(shape) - 1 - axis))

    def counted(found: Array, late: int) -> Array:
        """`late`: a result knows of elements before its own only."""
        first = np.expand_dims(none, axis) & (found.reshape(shape) < 0) & (order >= late)
        found = np.where(first, steps - 1 if desc.reverse else 0, found.reshape(shape))
        shifted = found + np.expand_dims(begin, axis)
        return np.where(found < 0, np.expand_dims(held, axis), shifted)

    last = np.take(counted(inclusive, 0), 0 if desc.reverse else -1, axis) if steps else held
    after = begin if desc.reverse else begin + steps
    found = counted(indices, int(desc.exclusive)).reshape(indices.shape)
    return found, np.stack([last, after])
