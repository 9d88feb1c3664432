"""Random problems as named choices, so that a failing one can be made smaller choice by choice.

A family's `cases.py` has `draw(draw, names)`, which makes one random problem for a function with
parameters of these names. Everything random in it goes through a `Draw`: each choice has a label
and a number, 0 being the plainest. The same numbers always make the same problem.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

import numpy as np

from pullback.contract.element import ElementKind
from pullback.ops.case import Array
from pullback.ops.values import STYLES, Range

T = TypeVar("T")

MOST_RANK = 6


class Choices:
    """Numbers by label: drawn at random and recorded, or given, in which case what is missing is
    the plainest."""

    def __init__(self, source: Random | None, given: Mapping[str, int] | None = None) -> None:
        self._source, self._given = source, given or {}
        self.made: dict[str, int] = {}

    def number(self, label: str, draw: Callable[[Random], int]) -> int:
        name = label
        while name in self.made:
            name += "'"
        if self._source is None:
            value = self._given.get(name, 0)
        else:
            value = draw(self._source)
        self.made[name] = value
        return value


class Draw:
    """What a family draws its problems with: extents, shapes, values, ids and borders.

    `size` is about how many elements the largest tensor may have; `near` are the extents at which
    kernels change their ways. With `blank` all values are 0. `refused` names the errors of which a
    call must raise one."""

    def __init__(
        self,
        choices: Choices,
        element: ElementKind,
        index: ElementKind,
        size: int,
        near: Sequence[int],
        blank: bool = False,
    ) -> None:
        self._choices, self.element, self.index = choices, element, index
        self.size, self._near, self.blank = size, near, blank
        self.range = Range(element)
        self.refused: tuple[str, ...] = ()

    # --- choices -------------------------------------------------------------------------------

    def chance(self, label: str, likely: float = 0.5) -> bool:
        return self._choices.number(label, lambda r: int(r.random() < likely)) != 0

    def pick(self, label: str, options: Sequence[T], weights: Sequence[float] | None = None) -> T:
        """One of the options; the first is the plainest."""
        places = range(len(options))
        found = self._choices.number(label, lambda r: r.choices(places, weights)[0])
        return options[found if found < len(options) else 0]

    def integer(self, label: str, low: int, high: int) -> int:
        """Any integer from `low` to `high`, `low` being the plainest."""
        high = max(low, high)
        return low + min(
            self._choices.number(label, lambda r: r.randint(0, high - low)), high - low
        )

    def source(self, label: str) -> np.random.Generator:
        """Where the contents of an array come from."""
        return np.random.default_rng(self._choices.number(label, lambda r: r.getrandbits(32)))

    def extent(self, label: str, most: int, least: int = 0) -> int:
        """Nothing, one, a few, about where a kernel changes its ways, or anything."""

        def draw(r: Random) -> int:
            kind = r.random()
            if kind < 0.03:
                found = 0
            elif kind < 0.12:
                found = 1
            elif kind < 0.4:
                found = r.randint(2, 9)
            elif kind < 0.8:
                reached = [n for n in self._near if n <= most] or [1]
                # The largest that fit are the rarest to be drawn at random, and where chunks end.
                part = reached[-8:] if r.random() < 0.4 else reached
                found = r.choice(part) + r.choice((-1, 0, 0, 1, 1, r.randint(2, 40)))
            else:
                found = int(2 ** r.uniform(0, max(most, 1).bit_length()))
            return min(max(found, least), max(most, least))

        return self._choices.number(label, draw)

    def shape(
        self, label: str = "shape", least_rank: int = 0, size: int | None = None
    ) -> tuple[int, ...]:
        """A shape of at most `size` elements; any of its axes may be the long one."""
        ranks = range(least_rank, MOST_RANK + 1)
        weights = [(1, 5, 8, 6, 5, 3, 2)[rank] for rank in ranks]
        rank = self.pick(f"{label}.rank", ranks, weights)
        left = self.size if size is None else size
        order = self._choices.number(f"{label}.order", lambda r: r.getrandbits(16))
        extents = [1] * rank
        axes = np.random.default_rng(order).permutation(rank).tolist()
        if axes and self.chance(f"{label}.long", 0.15):  # one line takes nearly all there is
            extents[axes[0]] = self.extent(f"{label}.{axes[0]}", max(left, 1), left // 2)
            left //= max(extents[axes.pop(0)], 1)
        for axis in axes:
            extents[axis] = self.extent(f"{label}.{axis}", max(left, 1))
            left //= max(extents[axis], 1)
        return tuple(extents)

    def axis(self, shape: Sequence[int]) -> int:
        """An axis, often the longest, counted from either end; rarely one that is not there."""
        extent = max(len(shape), 1)
        if self.chance("axis.wrong", 0.01):
            self.refuse("InvalidProblem")
            return self.pick("axis.far", (extent, -extent - 1, 100, -(1 << 40)))
        axis = self.integer("axis", 0, extent - 1)
        if shape and self.chance("axis.longest", 0.4):
            axis = int(np.argmax(shape))
        return axis - extent if self.chance("axis.negative") else axis

    def refuse(self, error: str, when: bool = True) -> None:
        """Say that the call is a mistake, and by which error that is told."""
        if when:
            self.refused += (error,)

    # --- contents ------------------------------------------------------------------------------

    def values(self, label: str, shape: Sequence[int], styles: Sequence[str] = ()) -> Array:
        """Values of the element's range, as float64: special ones, ties, exponents far apart."""
        names = styles or tuple(STYLES)
        style = STYLES[self.pick(f"{label}.style", names, [STYLES[n].weight for n in names])]
        rng = self.source(f"{label}.seed")
        if self.blank:
            return np.zeros(tuple(shape))
        with np.errstate(all="ignore"):
            found = np.asarray(style.make(rng, tuple(shape), self.range), np.float64)
        if style.special and self.chance(f"{label}.special", 0.15):
            found = self._with_specials(f"{label}.special", found)
        return found

    def _with_specials(self, label: str, values: Array) -> Array:
        """Some elements replaced by infinities, NaN, zeros and the ends of the range."""
        rng, found = self.source(f"{label}.seed"), values.copy()
        specials = self.range.specials
        kinds = self.pick(f"{label}.kinds", (1, 2, len(specials)))
        chosen = rng.permutation(len(specials))[:kinds]
        share = self.pick(f"{label}.share", (0.01, 0.1, 0.5, 1.0), (4, 4, 2, 1))
        where = rng.random(found.shape) < share
        if not where.any() and where.size:
            where.flat[rng.integers(where.size)] = True
        found[where] = specials[chosen][rng.integers(0, kinds, int(where.sum()))]
        return found

    def ids(self, label: str, count: int, extent: int) -> Array:
        """`count` ids meant for [0, extent): sorted, skewed, or hostile."""
        name = self.pick(f"{label}.kind", tuple(IDS), [weight for weight, _ in IDS.values()])
        rng = self.source(f"{label}.seed")
        found = np.asarray(IDS[name][1](rng, count, extent), np.int64)
        if self.chance(f"{label}.hostile", 0.12):
            limits = np.iinfo(self.index.dtype)
            ends = [-1, extent, extent + 1, -extent, limits.min, limits.max, limits.max - 1]
            share = self.pick(f"{label}.share", (0.02, 0.3, 1.0), (4, 2, 1))
            where = rng.random(count) < share
            found[where] = rng.choice(np.array(ends, np.int64), int(where.sum()))
        if self.chance(f"{label}.sorted", 0.4):
            found = np.sort(found)
        return np.clip(found, *_limits(self.index))

    def borders(self, label: str, end: int, pieces: int) -> Array:
        """`pieces` starts within [0, end], the first of them 0; rarely some that are none."""
        name = self.pick(f"{label}.kind", tuple(BORDERS))
        rng = self.source(f"{label}.seed")
        found = np.sort(np.asarray(BORDERS[name](rng, pieces, end), np.int64))
        found[:1] = 0
        if found.size and self.chance(f"{label}.hostile", 0.05):
            limits = np.iinfo(self.index.dtype)
            bad = self.pick(f"{label}.bad", (end + 1, -1, limits.max, limits.min))
            found[rng.integers(found.size)] = bad
            self.refuse("InvalidProblem")  # the first is not 0, one decreases, or one is too far
        return found

    def option(self, label: str, options: Sequence[T]) -> T:
        """An option of a function: the default first."""
        return self.pick(f"option.{label}", options)


def _limits(index: ElementKind) -> tuple[int, int]:
    info = np.iinfo(index.dtype)
    return int(info.min), int(info.max)


Make = Callable[[np.random.Generator, int, int], Any]


def _skewed(rng: np.random.Generator, count: int, extent: int) -> Array:
    return np.minimum(rng.zipf(1.4, count) - 1, max(extent - 1, 0))


def _giant(rng: np.random.Generator, count: int, extent: int) -> Array:
    top = max(extent, 1)
    return np.where(rng.random(count) < 0.95, rng.integers(0, top), rng.integers(0, top, count))


def _runs(rng: np.random.Generator, count: int, extent: int) -> Array:
    """Runs of equal ids, some rising: as sorted ids with a few out of order."""
    length = int(rng.integers(1, 12))
    return np.repeat(rng.integers(0, max(extent, 1), count // length + 1), length)[:count]


IDS: dict[str, tuple[float, Make]] = {
    "all alike": (1, lambda r, n, s: np.full(n, max(s - 1, 0))),
    "even": (2, lambda r, n, s: np.arange(n) * max(s, 1) // max(n, 1)),
    "random": (5, lambda r, n, s: r.integers(0, max(s, 1), n)),
    "round robin": (1, lambda r, n, s: np.arange(n) % max(s, 1)),
    "skewed": (2, _skewed),
    "one giant": (2, _giant),
    "runs": (2, _runs),
    "few": (1, lambda r, n, s: r.choice(r.integers(0, max(s, 1), 3), n)),
}

BORDERS: dict[str, Callable[[np.random.Generator, int, int], Any]] = {
    "even": lambda r, n, end: np.arange(n) * end // max(n, 1),
    "random": lambda r, n, end: r.integers(0, end + 1, n),
    "all at the start": lambda r, n, end: np.zeros(n),
    "one giant": lambda r, n, end: np.where(r.random(n) < 0.5, 0, end),
    "short, empty ones last": lambda r, n, end: np.minimum(r.integers(0, 3, n).cumsum(), end),
}
