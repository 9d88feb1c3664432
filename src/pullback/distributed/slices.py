"""Slices of one NumPy array as the parts that ranks hold: the forms of ops/*/sharded.py in one
process, one rank after the other. Checks use it, with as many ranks as they like.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.ops.sharding import INF, Spread, namespace

Array = Any


def _add_along_axis(x: Array, indices: Array, axis: int) -> Array:
    rows, places = np.moveaxis(x, axis, 0), np.moveaxis(indices, axis, 0)
    others = np.indices(rows.shape, sparse=True)[1:]
    sums = np.zeros_like(rows)
    np.add.at(sums, (places, *others), rows)
    return np.moveaxis(sums, 0, axis)


NUMPY = namespace(
    np,
    amax=np.amax,
    concatenate=np.concatenate,
    moveaxis=np.moveaxis,
    sum=lambda x, axis, keepdims: np.sum(x, axis, keepdims=keepdims),
    add_along_axis=_add_along_axis,
    take_along_axis=np.take_along_axis,
    argmax=np.argmax,
    argsort=lambda x: np.argsort(x, stable=True),
)


@dataclass(frozen=True)
class _Posted:
    """What a rank gives to an all-to-all, so many elements to each rank."""

    values: Array
    sends: list[int]

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes)

    def to(self, rank: int) -> Array:
        begin = sum(self.sends[:rank])
        return self.values[begin : begin + self.sends[rank]]


class _Waiting(Exception):
    """A rank has nothing to do until the others have said what they have."""


class Meeting:
    """What ranks exchange, one collective after the other."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rounds: list[list[Any]] = []

    @property
    def sent(self) -> int:
        """Bytes that each rank has given."""
        return sum(max(value.nbytes for value in given) for given in self.rounds)


class Slice(Spread):
    """One thread among those of a meeting."""

    xp = NUMPY

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.size = meeting, rank, meeting.size
        self.calls = 0

    def gathered(self, value: Any) -> list[Any]:
        """What all ranks have given in this collective. The first time nobody knows: the rank says
        its own and is run again when all have."""
        rounds, self.calls = self.meeting.rounds, self.calls + 1
        if self.calls > len(rounds):
            rounds.append([])
        found = rounds[self.calls - 1]
        if len(found) < self.size:
            assert len(found) == self.rank, "ranks disagree about collectives"
            found.append(value)
            raise _Waiting
        return found

    def exchange(self, flat: Array) -> Array:
        return np.stack(self.gathered(flat))

    def select(self, rank: int, after: bool, new: Array, old: Array) -> Array:
        return new if (rank < self.rank if after else rank > self.rank) else old

    def own(self, gathered: Array) -> Array:
        return gathered[self.rank]

    def hide_own(self, gathered: Array) -> Array:
        hidden = gathered.copy()
        hidden[self.rank] = -INF
        return hidden

    def enough(self, test: Array, yes: Callable[[], Array], no: Callable[[], Array]) -> Array:
        return yes() if test else no()

    def gather_uneven(self, x: Array, widths: Array) -> Array:
        missing = int(widths.max()) - x.shape[-1]
        padded = np.concatenate([x, np.full((*x.shape[:-1], missing), -INF, x.dtype)], -1)
        return np.stack(self.gathered(padded))

    def route(self, x: Array, sends: list[int], receives: list[int]) -> Array:
        parts = [given.to(self.rank) for given in self.gathered(_Posted(x, sends))]
        assert [len(part) for part in parts] == receives, "ranks disagree about an all-to-all"
        return np.concatenate(parts)

    def distinct(self, values: Array, bound: int) -> tuple[Array, Array]:
        return np.unique(values, return_inverse=True)

    def wide(self, x: Array) -> Array:
        return np.asarray(x).astype(np.float64)

    def working(self, x: Array) -> Array:
        return x.astype(np.float32 if self.is_half(x) else np.float64)

    def like(self, x: Array, model: Array) -> Array:
        return np.asarray(x).astype(model.dtype)

    def is_half(self, x: Array) -> bool:
        return bool(x.dtype.itemsize == 2)

    def is_wide(self, x: Array) -> bool:
        return bool(x.dtype == np.float64)

    def filled(self, shape: tuple[int, ...], value: float, like: Array) -> Array:
        return np.full(shape, value)

    def largest_of(self, x: Array, count: int) -> Array:
        missing = max(count - x.shape[-1], 0)
        padded = np.concatenate([x, np.full((*x.shape[:-1], missing), -INF, x.dtype)], -1)
        ordered = np.sort(padded, -1)  # NaN last
        return ordered[..., ordered.shape[-1] - count :]

    def is_integer(self, x: Array) -> bool:
        return bool(x.dtype.kind == "i")

    def steps(self, count: int, like: Array) -> Array:
        return np.arange(count, dtype=np.float64)

    def as_index(self, x: Array) -> Array:
        return np.asarray(x).astype(np.int64)


def run_slices(
    form: Callable[..., Any], function: Any, arguments: Sequence[dict[str, Any]]
) -> tuple[list[tuple[Array, ...]], int, int]:
    """The results of a form for each rank's arguments, how many collectives it took, and how many
    bytes each rank gave to them."""
    meeting, results = Meeting(len(arguments)), list[tuple[Array, ...]]()
    with np.errstate(all="ignore"):
        while not results:
            for rank, given in enumerate(arguments):
                try:
                    results.append(form(Slice(meeting, rank), function, given)[0])
                except _Waiting:
                    continue
    return results, len(meeting.rounds), meeting.sent
