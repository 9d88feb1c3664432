"""What functions are made of where the axis they work along is spread over several ranks.

A form computes one rank's part of a result. It is a function of a `Spread`, which knows how the
ranks are joined and has the arithmetic of one framework, and of the arguments of the function by
name, tensors being this rank's parts. Forms live in their family's folder (`sharded.py`), in a
table `SHARDED` by the name of the function.

Ranks are folded one after the other, in the order of the axis or against it, by the form itself:
the result does not depend on how a library of collectives would sum. Summaries are wide (float64).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import SimpleNamespace
from typing import Any

from pullback.contract.errors import IndexOutOfRange, Unsupported

Array = Any
Arguments = Mapping[str, Any]
State = tuple[Array, ...]
# A form gives results, and what the form of the gradient may be given as "kept".
Form = Callable[["Spread", Any, Arguments], tuple[tuple[Array, ...], State]]

INF = float("inf")

# What forms use of the modules of all libraries, under the same name.
COMMON = (
    "broadcast_to",
    "clip",
    "exp",
    "exp2",
    "frexp",
    "full_like",
    "isfinite",
    "isnan",
    "log",
    "log1p",
    "maximum",
    "minimum",
    "prod",
    "sqrt",
    "stack",
    "where",
)


def namespace(module: Any, **others: Any) -> SimpleNamespace:
    """These of a library, with what it has under another name or not at all."""
    return SimpleNamespace(**{name: getattr(module, name) for name in COMMON}, **others)


@dataclass(frozen=True, slots=True)
class Sends:
    """What a rank gives to the all-gathers of a form: float64 numbers for each row, a few besides,
    and how many all-gathers there are; other figures where the data are float64 (`wide`) or have 16
    bits (`half`). Of segments a row is a column of one, and `segments` are numbers for each of
    them. `same`: the bits are those of one machine, for any number of ranks."""

    rows: int
    besides: int = 0
    collectives: int = 1
    wide: Sends | None = None
    half: Sends | None = None
    same: bool = False
    segments: int = 0
    least: int | None = None  # numbers for each row that no form can do without; None: these
    why: str = ""  # what the others are for
    peers: str = ""  # what others send, where it is not whole parts


_BLOCK = 512  # so many factors of at least 1/2 are a double


class Spread(ABC):
    """One rank among those that hold the parts of an axis."""

    size: int
    rank: Any
    fixed = False  # whether extents are fixed before data are known, and equal on all ranks
    by = "rows"  # how parts are cut, where there is a choice
    alike: frozenset[str] | None = None  # arguments that all ranks have alike, if known

    # --- how ranks are joined: the only collective of most forms --------------------------------

    @abstractmethod
    def exchange(self, flat: Array) -> Array:
        """The vectors of all ranks as rows of a matrix: one all-gather."""

    @abstractmethod
    def select(self, rank: int, after: bool, new: Array, old: Array) -> Array:
        """`new` on ranks that come after this one (or before it), else `old`."""

    @abstractmethod
    def own(self, gathered: Array) -> Array:
        """This rank's row of what was gathered."""

    @abstractmethod
    def hide_own(self, gathered: Array) -> Array:
        """What was gathered, with -inf in this rank's row."""

    @abstractmethod
    def enough(self, test: Array, yes: Callable[[], Array], no: Callable[[], Array]) -> Array:
        """The one or the other, by a test that all ranks agree on."""

    @abstractmethod
    def gather_uneven(self, x: Array, widths: Array) -> Array:
        """Of all ranks, padded with -inf at the end of the last axis, in the dtype of x."""

    @abstractmethod
    def distinct(self, values: Array, bound: int) -> tuple[Array, Array]:
        """Distinct values in ascending order, and where each of them is; values are at most
        `bound`. Where extents are fixed, `bound` fills what is left over."""

    def survey(self, ids: Array, count: int | None) -> list[float]:
        """Of ids in [0, count): the largest, the first, the last, how many distinct ones there are;
        position and value of the first that is out of range, and of the first that is smaller than
        the one before it (-1 where there is none)."""
        if not ids.shape[0]:
            return [-1.0, 0.0, 0.0, 0.0, -1.0, 0.0, -1.0, 0.0]
        bad = (ids < 0) if count is None else (ids < 0) | (ids >= count)
        lower = ids[1:] < ids[:-1]
        found = [float(ids.max()), float(ids[0]), float(ids[-1])]
        found.append(float(self.distinct(ids, 0)[0].shape[0]))
        for wrong, offset in ((bad, 0), (lower, 1)):
            at = int(self.xp.argmax(self.as_index(wrong))) if bool(wrong.any()) else -1
            found += [float(at + offset), float(ids[at + offset])] if at >= 0 else [-1.0, 0.0]
        return found

    def stacked(self, rows: Array, counts: Any, fill: float) -> Array:
        """The rows of all ranks one after the other. Ranks have up to so many; what is missing to
        the most is filled with a constant."""
        most = max(1, *counts)
        missing = self.filled((most - rows.shape[0], rows.shape[1]), fill, rows)
        flat = self.xp.concatenate([rows, missing], 0).reshape(-1)
        return self.exchange(flat).reshape((self.size * most, rows.shape[1]))

    def is_own(self, total: int) -> Array:
        """Which of so many rows of all ranks, as many of each, are this rank's."""
        at = self.steps(total, None) // max(total // self.size, 1)
        return (at == self.rank)[:, None]

    def part_of_segments(self, x: Array, axis: int) -> Array:
        """This rank's part of a result by segments; the whole one, unless parts are by segments."""
        return x

    def all_segments(self, x: Array, axis: int) -> Array:
        """The whole of what `part_of_segments` gives a part of."""
        return x

    def route(self, x: Array, sends: list[int], receives: list[int]) -> Array:
        """So many rows to each rank, in the order of ranks, for so many of each: an all-to-all."""
        expected = 'of parts by columns (by="columns"): extents that data decide are none of JAX'
        raise Unsupported("over", "by", expected, "by rows")

    def by_owner(self, flat: Array, borders: list[int]) -> tuple[Array, list[Array], list[Array]]:
        """Positions ordered by the rank whose rows their indices are, how many each rank has, and
        the first index that is nobody's, with its position (-1 if there is none)."""
        raise NotImplementedError

    def swapped(self, x: Array) -> Array:
        """Row r of all ranks, of a matrix with a row for each rank: an all-to-all."""
        raise NotImplementedError

    def joined_ranks(self, x: Array) -> Array:
        """What all ranks have, ranks along a new first axis."""
        raise NotImplementedError

    def scattered(self, rows: Array, order: Array, count: int) -> Array:
        """Rows at the positions they belong to, among so many; zeros elsewhere."""
        raise NotImplementedError

    def whole(self, x: Array, axis: int, widths: Array) -> Array:
        """All ranks' parts, one after the other along an axis."""
        last = self.xp.moveaxis(x, axis, -1)
        parts = self.gather_uneven(last, widths)
        joined = [parts[r][..., :n] for r, n in enumerate(self.counts(widths))]
        return self.xp.moveaxis(self.xp.concatenate(joined, -1), -1, axis)

    def part(self, x: Array, axis: int, widths: Array, width: int) -> Array:
        """This rank's part of a whole array."""
        begin = sum(self.counts(widths)[: self.rank])
        return x[(slice(None),) * axis + (slice(begin, begin + width),)]

    def counts(self, widths: Array) -> list[int]:
        return [int(width) for width in widths]

    def begin(self, width: int) -> Any:
        """Where this rank's part begins, if all are of one extent; else as known."""
        return self.rank * width

    @property
    def extent(self) -> int:
        """The whole extent, where those of all parts are known."""
        raise NotImplementedError

    def is_even(self, widths: Array) -> bool:
        """Whether `begin` was right on all ranks."""
        counts = self.counts(widths)
        return all(sum(counts[:r]) == r * counts[r] for r in range(self.size))

    def true_begin(self, widths: Array) -> Any:
        return sum(self.counts(widths)[: self.rank])

    def check_classes(self, op: str, target: Array, hits: Array, widths: Array) -> None:
        """That each row's class is some rank's: all ranks know, and raise alike."""
        missing = (hits == 0).reshape(-1)
        if bool(missing.any()):
            at = int(missing.nonzero()[0][0])
            got = f"{int(target.reshape(-1)[at])} at position {at}"
            classes = sum(self.counts(widths))
            raise IndexOutOfRange(op, "target", f"in [0, {classes})", got)

    def agreed(self, name: str, own: bool, flags: Array) -> bool:
        """Whether all ranks have an argument alike, by the flags of those that can tell."""
        return name in self.alike if self.alike is not None else bool((flags > 0).any())

    # --- arithmetic of the framework ------------------------------------------------------------

    xp: Any

    @abstractmethod
    def wide(self, x: Array) -> Array:
        """As float64."""

    @abstractmethod
    def working(self, x: Array) -> Array:
        """In the dtype that local parts are computed in: of 16 bits float32, else float64."""

    @abstractmethod
    def like(self, x: Array, model: Array) -> Array:
        """Rounded to the dtype of another array."""

    @abstractmethod
    def is_half(self, x: Array) -> bool:
        """Whether it has 16 bits."""

    @abstractmethod
    def is_wide(self, x: Array) -> bool:
        """Whether it is float64 as it is."""

    @abstractmethod
    def filled(self, shape: tuple[int, ...], value: float, like: Array) -> Array:
        """A constant in float64, where another array is."""

    @abstractmethod
    def largest_of(self, x: Array, count: int) -> Array:
        """The largest elements along the last axis, NaN first; -inf where there are not so many."""

    @abstractmethod
    def is_integer(self, x: Array) -> bool: ...

    @abstractmethod
    def steps(self, count: int, like: Array) -> Array:
        """0, 1, … in float64."""

    @abstractmethod
    def as_index(self, x: Array) -> Array:
        """Whole numbers as positions have them."""

    def gather(self, *parts: Array) -> list[Array]:
        """Each of these as all ranks have it, ranks along a new first axis."""
        flat = self.xp.concatenate([self.wide(p).reshape(-1) for p in parts], 0)
        found, rows, at = self.exchange(flat), [], 0
        for part in parts:
            count = prod(part.shape)
            rows.append(found[:, at : at + count].reshape((self.size, *part.shape)))
            at += count
        return rows

    def fold(
        self,
        gathered: Sequence[Array],
        start: State,
        combine: Callable[[State, State], State],
        reverse: bool,
        everyone: bool = False,
    ) -> State:
        """What the ranks before this one make of a state, in the order of the axis (`reverse`:
        those behind it, from the far end); with `everyone`, all ranks."""
        state = start
        for rank in reversed(range(self.size)) if reverse else range(self.size):
            new = combine(state, tuple(part[rank] for part in gathered))
            if everyone:
                state = new
            else:
                pairs = zip(new, state, strict=True)
                state = tuple(self.select(rank, not reverse, n, old) for n, old in pairs)
        return state

    # --- along an axis --------------------------------------------------------------------------

    def full(self, like: Array, axis: int, value: float) -> Array:
        """A constant in float64, of the shape without the axis."""
        return self.filled((*like.shape[:axis], *like.shape[axis + 1 :]), value, like)

    def rows(self, value: Array, axis: int) -> Array:
        """With an axis of one where the axis was."""
        return value.reshape((*value.shape[:axis], 1, *value.shape[axis:]))

    def edge(self, x: Array, axis: int, first: bool, empty: float) -> Array:
        """What is first or last along the axis, without it; a constant where there is nothing."""
        if not x.shape[axis]:
            return self.full(x, axis, empty)
        return x[(slice(None),) * axis + (0 if first else -1,)]

    def joined(self, x: Array, more: Array, axis: int, behind: bool) -> Array:
        """With one more element, of the same dtype, behind or before the others."""
        one = self.rows(more, axis)
        return self.xp.concatenate([x, one] if behind else [one, x], axis)

    def without(self, x: Array, axis: int, behind: bool) -> Array:
        """Without the element that was added."""
        return x[(slice(None),) * axis + (slice(0, -1) if behind else slice(1, None),)]

    def total(self, x: Array, axis: int) -> Array:
        """The sum in float64. Of nothing it is -0.0, which alone changes no sum."""
        if not x.shape[axis]:
            return self.full(x, axis, -0.0)
        return self.xp.sum(self.wide(x), axis, False)

    def largest(self, x: Array, axis: int) -> Array:
        if not x.shape[axis]:
            return self.full(x, axis, -INF)
        return self.xp.amax(self.wide(x), axis)

    def product(self, x: Array, axis: int) -> State:
        """Mantissa and exponent of the product: it may leave the range of float64 on the way."""
        xp = self.xp
        x = xp.moveaxis(self.wide(x), axis, -1)
        exponent = self.full(x, len(x.shape) - 1, 0.0)
        while True:
            x, powers = self.split(x)
            exponent = exponent + xp.sum(powers, -1, False)
            count = x.shape[-1]
            if count == 1:
                return x[..., 0], exponent
            missing = -count % _BLOCK if count > _BLOCK else max(1 - count, 0)
            if missing:
                ones = xp.full_like(
                    xp.broadcast_to(x[..., :1].sum(), (*x.shape[:-1], missing)), 1.0
                )
                x = xp.concatenate([x, ones], -1)
            blocks = -(-x.shape[-1] // _BLOCK)
            x = xp.prod(x.reshape((*x.shape[:-1], blocks, x.shape[-1] // blocks)), -1)

    def split(self, x: Array) -> State:
        """Mantissa and exponent; what has none keeps its value."""
        mantissa, exponent = self.xp.frexp(x)
        usual = self.xp.isfinite(x)
        return self.xp.where(usual, mantissa, x), self.wide(self.xp.where(usual, exponent, 0))

    def scaled(self, mantissa: Array, exponent: Array) -> Array:
        """The number that these are, in steps that each are in range."""
        low = self.xp.clip(exponent, -1000, 1000)
        rest = self.xp.clip(exponent - low, -1000, 1000)
        return mantissa * self.xp.exp2(low) * self.xp.exp2(rest)


def logaddexp(xp: Any, a: Array, b: Array) -> Array:
    """log(exp a + exp b), where equal infinities stay what they are."""
    high, low = xp.maximum(a, b), xp.minimum(a, b)
    usual = xp.isfinite(high) & xp.isfinite(low)
    gap = xp.where(usual, low - high, 0.0)
    return xp.where(usual, high + xp.log1p(xp.exp(gap)), high)


def ratio(xp: Any, a: Array, b: Array) -> Array:
    """exp(a - b) for a <= b, where equal infinities are equal and -inf weighs nothing."""
    usual = (a > -INF) & (b < INF)
    found = xp.exp(xp.where(usual, a - b, 0.0))
    return xp.where(usual, found, xp.where(a == INF, 1.0, xp.where(xp.isnan(a + b), a + b, 0.0)))
