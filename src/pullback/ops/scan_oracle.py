"""Scans that are exclusive, start from an initial value or anew at borders, by definition: each
piece by itself, the initial value as one more element before it.

    elements    x, and gradients of it: the initial value stands before them, and if the scan is
                exclusive the last of them does not count
    results     y, and what comes in for it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.ops.oracle import Array, Wide, wide


@dataclass(frozen=True)
class Elements:
    """An array by element; `first` stands before it instead of the initial value."""

    array: npt.ArrayLike
    first: float | None = None


@dataclass(frozen=True)
class Outcomes(Elements):
    """An array by result."""


class Pieces:
    """What an inclusive scan is run on. Arrays are in the order of memory; first and last are those
    of the scan."""

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
        self.axis, self.reverse, self.exclusive = axis % len(self.shape), reverse, exclusive
        n = self.shape[self.axis]
        borders = [0, n] if offsets is None else [int(v) for v in np.asarray(offsets)]
        self.borders = list(pairwise(borders))
        self.initial, self.by_pieces = initial, offsets is not None
        self.firsts: list[Wide] = []
        if initial is not None:
            middle = (len(self.borders),) if self.by_pieces else ()
            rest = self.shape[: self.axis], self.shape[self.axis + 1 :]
            full = np.broadcast_to(wide(initial), (*rest[0], *middle, *rest[1]))
            full = full if self.by_pieces else np.expand_dims(full, self.axis)
            self.firsts = [np.take(full, [p], self.axis) for p in range(len(self.borders))]

    @property
    def leads(self) -> bool:
        return self.initial is not None

    def constant(self, value: float, count: int = 1) -> Wide:
        shape = (*self.shape[: self.axis], count, *self.shape[self.axis + 1 :])
        return np.full(shape, value, np.longdouble)

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

    def staged(self, given: Elements, number: int) -> Array:
        """What is scanned of an array."""
        rows = wide(given.array).reshape(self.shape)
        rows = np.take(rows, range(*self.borders[number]), self.axis)
        by_result = isinstance(given, Outcomes)
        if not self.leads:
            skipped = int(self.exclusive)
            return self.without(rows, skipped * by_result, skipped * (not by_result))
        if by_result and self.exclusive:
            return rows
        first = self.firsts[number] if given.first is None else self.constant(given.first)
        return self.without(self.before(first, rows), last=int(self.exclusive))

    def outcome(self, rows: Array, number: int, identity: float) -> Array:
        """Results of a piece."""
        begin, end = self.borders[number]
        if self.leads:
            return rows if self.exclusive else self.without(rows, first=1)
        if self.exclusive and end > begin:
            return self.before(self.constant(identity), rows)
        return rows

    def gradient(self, rows: Array, number: int) -> Array:
        """Gradients of the elements of a piece."""
        begin, end = self.borders[number]
        rows = self.without(rows, first=1) if self.leads else rows
        if self.exclusive and end > begin:
            return self.after(rows, self.constant(0.0))
        return rows

    def position(self, rows: Array, number: int) -> Array:
        """Positions within what was scanned as positions along the axis."""
        begin, end = self.borders[number]
        count = end - begin + self.leads - self.exclusive
        own = count - 1 if self.reverse else 0
        ahead = end - count + self.leads if self.reverse else begin - self.leads
        return np.asarray(np.where(self.leads & (rows == own), -1, rows + ahead))

    def whole(self, parts: Sequence[Array]) -> Array:
        """All pieces, in the shape of what was given."""
        parts = parts or [self.constant(0.0, 0)]
        return np.concatenate(parts, self.axis).reshape(np.shape(self.like))

    def d_initial(self, staged: Sequence[Array]) -> Array:
        """The gradient of the initial value: what each piece has for it, summed to its shape."""
        parts = [
            np.take(rows, [-1 if self.reverse else 0], self.axis)
            if rows.shape[self.axis]
            else self.constant(0.0)
            for rows in staged
        ] or [self.constant(0.0, 0)]
        full = np.concatenate(parts, self.axis)
        full = full if self.by_pieces else np.squeeze(full, self.axis)
        shape = np.asarray(self.initial).shape
        full = full.sum(axis=tuple(range(full.ndim - len(shape))))
        stretched = tuple(k for k, n in enumerate(shape) if n == 1 and full.shape[k] != 1)
        return np.asarray(full.sum(axis=stretched, keepdims=True))

    def each(self, scan: Callable[..., Any], *given: Elements) -> list[Any]:
        """What an inclusive scan gives of each piece."""
        numbers = range(len(self.borders))
        return [scan(*(self.staged(array, number) for array in given)) for number in numbers]


def results(about: Pieces, identity: float, scan: Callable[..., Any], *given: Elements) -> Array:
    """The results of a scan."""
    found = about.each(scan, *given)
    return about.whole([about.outcome(rows, p, identity) for p, rows in enumerate(found)])


def gradients(about: Pieces, backward: Callable[..., Any], *given: Elements) -> Any:
    """The gradient of the elements, and of the initial value if there is one."""
    found = about.each(backward, *given)
    dx = about.whole([about.gradient(rows, p) for p, rows in enumerate(found)])
    return (dx, about.d_initial(found)) if about.leads else dx


def last_of(results: Array, desc: Any, state: Array | None, identity: float) -> Array:
    """The state that an inclusive scan leaves: its last result, or what it started from."""
    axis, shape = desc.scan_axis, desc.input_shape or (1,)
    if shape[axis]:
        return np.asarray(np.take(results.reshape(shape), 0 if desc.reverse else -1, axis))
    rest = shape[:axis] + shape[axis + 1 :]
    return np.full(rest, identity) if state is None else np.array(state)
