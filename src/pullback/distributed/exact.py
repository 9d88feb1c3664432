"""The bits of one machine for a function along a sharded axis: ranks exchange parts of the axis for
shares of the rows, run the plain function on whole rows, and exchange back.

Rows are independent, so a row has the bits that it has alone. Each exchange is one all-to-all of
what a rank has, however many ranks there are. Where no axis is free, as in a vector, or where rows
have indices of their own, whose errors only the rank with such a row would see, operands are
gathered whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

from pullback.contract.errors import Unsupported
from pullback.ops.axes import Axes, axes_of
from pullback.ops.sharding import Array, Spread, State


@dataclass(frozen=True)
class Exchange:
    """`widths` are the extents of all ranks' parts, and there are so many rows, which ranks share
    evenly. Where extents are fixed, the last shares are filled up with zeros."""

    s: Spread
    widths: list[int]
    rows: int

    @property
    def cuts(self) -> list[int]:
        """Where each rank's share of the rows begins, and the end."""
        share = -(-self.rows // self.s.size)
        return [min(rank * share, self.rows) for rank in range(self.s.size + 1)]

    @property
    def shares(self) -> list[int]:
        return [end - begin for begin, end in pairwise(self.cuts)]

    @property
    def share(self) -> int:
        return self.cuts[1] if self.s.fixed else self.shares[self.s.rank]

    def whole_rows(self, x: Array) -> Array:
        """[rows, width, others] of all ranks -> [share of the rows, extent, others]."""
        s, others = self.s, x.shape[2]
        if s.fixed:
            found = s.swapped(self._filled(x).reshape((s.size, self.share, *x.shape[1:])))
            blocks = [found[rank] for rank in range(s.size)]
        else:
            counts = [self.share * width * others for width in self.widths]
            found = s.route(x.reshape(-1), self._counts(x.shape[1] * others), counts)
            blocks = _cut(found, counts, [(self.share, width, others) for width in self.widths])
        return s.xp.concatenate(blocks, 1)

    def parts(self, x: Array, width: int) -> Array:
        """[share of the rows, extent, others] of all ranks -> [rows, width, others]."""
        s, others = self.s, x.shape[2]
        ends = [sum(self.widths[: rank + 1]) for rank in range(s.size)]
        blocks = [x[:, end - n : end] for end, n in zip(ends, self.widths, strict=True)]
        if s.fixed:
            found = s.swapped(s.xp.stack(blocks))
            return found.reshape((s.size * self.share, width, others))[: self.rows]
        flat = s.xp.concatenate([block.reshape(-1) for block in blocks], 0)
        counts = self._counts(width * others)
        found = s.route(flat, [self.share * n * others for n in self.widths], counts)
        return s.xp.concatenate(_cut(found, counts, [(n, width, others) for n in self.shares]), 0)

    def own(self, x: Array, axis: int) -> Array:
        """Of what all ranks have, this rank's share of the rows."""
        rows = self.s.xp.moveaxis(x, axis, 0)
        if self.s.fixed:
            rows = self.s.part(self._filled(rows), 0, None, self.share)
        else:
            rows = rows[self.cuts[self.s.rank] : self.cuts[self.s.rank + 1]]
        return self.s.xp.moveaxis(rows, 0, axis)

    def all(self, x: Array, axis: int) -> Array:
        """What all ranks have, of their shares."""
        s = self.s
        known = None if s.fixed else s.xp.stack([s.filled((), float(n), x) for n in self.shares])
        found = s.whole(x, axis, known)
        return found[(slice(None),) * axis + (slice(0, self.rows),)]

    def _counts(self, row: int) -> list[int]:
        """Elements of the rows of each rank's share."""
        return [share * row for share in self.shares]

    def _filled(self, x: Array) -> Array:
        missing, xp = self.share * self.s.size - self.rows, self.s.xp
        zeros = xp.full_like(xp.broadcast_to(x[:1], (missing, *x.shape[1:])), 0.0)
        return xp.concatenate([x, zeros], 0)


def _cut(flat: Array, counts: list[int], shapes: list[tuple[int, ...]]) -> list[Array]:
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    triples = zip(ends, counts, shapes, strict=True)
    return [flat[end - n : end].reshape(shape) for end, n, shape in triples]


def exact(
    s: Spread, function: Any, arguments: Mapping[str, Any]
) -> tuple[tuple[Array, ...], State]:
    """The call on whole rows, and this rank's part of the results."""
    given = {name: value for name, value in arguments.items() if name in function.parameters}
    tensors = {n: t for n in function.tensors if hasattr(t := given[n], "shape")}
    options = {n: value for n, value in given.items() if n not in tensors}
    axes, widths, width, shapes = _agreed(s, function, tensors, options)
    along, row = axes.along, _row(function, axes, shapes)
    rows = next((shapes[n][a.index(row)] for n, a in axes.arguments.items() if row in a), 0)
    exchange = Exchange(s, [width] * s.size if s.fixed else s.counts(widths), rows)

    def placed(x: Array, names: tuple[str, ...], there: Any) -> Array:
        at = names.index(row), names.index(along)
        moved = s.xp.moveaxis(x, at, (0, 1))
        shape = tuple(moved.shape)
        found = there(moved.reshape((*shape[:2], prod(shape[2:]))))
        return s.xp.moveaxis(found.reshape((*found.shape[:2], *shape[2:])), (0, 1), at)

    for name, tensor in tensors.items():
        names = axes.arguments[name]
        if along in names and row in names:
            given[name] = placed(tensor, names, exchange.whole_rows)
        elif along in names:
            given[name] = s.whole(tensor, names.index(along), widths)
        elif row in names:
            given[name] = exchange.own(tensor, names.index(row))
    results = function(**given)
    found = []
    for number, result in enumerate(results if isinstance(results, tuple) else (results,)):
        names = axes.result(number)
        if along in names and row in names:
            result = placed(result, names, lambda x: exchange.parts(x, width))
        elif along in names:
            result = s.part(result, names.index(along), widths, width)
        elif row in names:
            result = exchange.all(result, names.index(row))
        found.append(result)
    return tuple(found), ()


def _row(function: Any, axes: Axes, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The longest axis that is free, and that all results and no indices have; "" if none is."""
    found, longest = "", 0
    for name, names in axes.arguments.items():
        for axis, extent in zip(names, shapes[name], strict=True):
            indices = (axes.arguments.get(n, ()) for n in function.indices | function.either)
            everywhere = axis in axes.free and all(axis in result for result in axes.results)
            if everywhere and extent > longest and not any(axis in a for a in indices):
                found, longest = axis, extent
    return found


def _agreed(
    s: Spread, function: Any, tensors: Mapping[str, Array], options: Mapping[str, Any]
) -> tuple[Axes, Any, int, dict[str, tuple[int, ...]]]:
    """Axes of the call on whole operands, extents of all parts and of this one, and shapes of the
    whole. A part of one step looks like a tensor that is stretched along the axis: it is one where
    it has one step on a rank whose part is of another extent."""
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    axes = axes_of(function, shapes, options)
    if axes is None or not axes.along:
        expected = "of rank 1 at least, in parts along an axis"
        raise Unsupported(function.name, "over", expected, "others")
    along = axes.along
    places = {n: axes.arguments[n].index(along) for n in tensors if along in axes.arguments[n]}
    width = next(shapes[n][at] for n, at in places.items())
    like = next(iter(tensors.values()))
    stretched = "one" + along.removeprefix("b")
    told = [float(width), *(float(stretched in axes.arguments[name]) for name in tensors)]
    if s.fixed:
        widths, extent, parts = None, width * s.size, set(places)
    else:
        widths, *flags = s.gather(*(s.filled((), number, like) for number in told))
        extent = sum(s.counts(widths))
        parts = {n for n, flag in zip(tensors, flags, strict=True) if not bool((flag > 0).any())}
    for name in places.keys() & parts:
        at = places[name]
        shapes[name] = (*shapes[name][:at], extent, *shapes[name][at + 1 :])
    whole = axes_of(function, shapes, options)
    assert whole is not None
    return whole, widths, width, shapes
