"""Segment reductions and their adjoints, by definition: group the rows, reduce each group.

`ties` means nothing to a forward, where the first extremum is always the one copied; it stands in
the signatures because it stands in the public ones. `num_segments=None` is one past the largest id,
or one less than there are offsets.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.ops.oracle import Bools, Ints, OutOfRange, Ties, Wide, ieee, kept, maximal, wide

Reduce = Callable[[Wide], Wide]
Pull = Callable[[Wide, Wide], Wide]


def groups(
    segment_ids: Any,
    extent: int | None,
    offsets: Any,
    out_of_range: OutOfRange,
) -> list[Ints]:
    """The kept positions of each segment, ascending."""
    if offsets is not None:
        borders = np.asarray(offsets, np.int64)
        return [np.arange(*ends) for ends in itertools.pairwise(borders.tolist())]
    if extent is None:
        extent = max(np.asarray(segment_ids).tolist(), default=-1) + 1
    extent = max(extent, 0)
    members: list[list[int]] = [[] for _ in range(extent)]
    ids = np.asarray(segment_ids).tolist()
    for position in np.flatnonzero(kept(segment_ids, extent, out_of_range)).tolist():
        members[ids[position]].append(position)
    return [np.array(group, np.int64) for group in members]


def _backward(
    dy: npt.ArrayLike, x: Wide, axis: int, members: Callable[[int], list[Ints]], pull: Pull
) -> Wide:
    """Each group of rows receives pull(the segment's gradient, the group)."""
    g, rows = np.moveaxis(wide(dy), axis, 0), np.moveaxis(x, axis, 0)
    dx = np.zeros_like(rows)
    for segment, group in enumerate(members(len(g))):
        if group.size:
            dx[group] = pull(g[segment], rows[group])
    return np.moveaxis(dx, 0, axis)


def _ones(dy: npt.ArrayLike, segment_ids: Any, offsets: Any, axis: int) -> Wide:
    """Stands in for the input where the adjoint does not depend on it."""
    shape = list(np.shape(dy))
    shape[axis] = np.size(segment_ids) if offsets is None else int(offsets[-1])
    return np.ones(shape, np.longdouble)


def _first(holders: Bools) -> Bools:
    """Keep only the first holder of each column."""
    return np.asarray(holders & (np.cumsum(holders, axis=0) == 1))


def _first_held(rows: Wide, holders: Bools) -> Wide:
    # Picked, not computed: the value keeps the winner's own sign and payload.
    return np.asarray(np.take_along_axis(rows, holders.argmax(axis=0)[None], axis=0)[0])


def _to_holders(g: Wide, holders: Bools, ties: Ties) -> Wide:
    """Send g to the first or last holder of the extremum, or to all of them in equal shares."""
    if ties == "first":
        holders = _first(holders)
    if ties == "last":
        holders = _first(holders[::-1])[::-1]
    return np.asarray(np.where(holders, g / holders.sum(axis=0), 0))


def _product(rows: Wide) -> Wide:
    """Exponents are added up apart: a product may leave the range of numbers and come back, and may
    vanish before it meets an infinite factor."""
    numbers, shifts = np.frexp(rows)
    exponents = shifts.astype(np.int64)
    while len(numbers) > 1:
        if len(numbers) % 2:
            numbers = np.concatenate([numbers, np.ones_like(numbers[:1])])
            exponents = np.concatenate([exponents, np.zeros_like(exponents[:1])])
        numbers, shifts = np.frexp(numbers[::2] * numbers[1::2])
        exponents = exponents[::2] + exponents[1::2] + shifts
    return np.asarray(np.ldexp(numbers[0], np.clip(exponents[0], -(1 << 20), 1 << 20)))


def _times_others(g: Wide, rows: Wide) -> Wide:
    """g times the product of all other rows. Their exponents are added up apart: a product may
    leave the range of numbers and come back, and times 0 it is 0."""
    numbers, exponents = np.frexp(rows)
    small = np.abs(numbers) < np.sqrt(0.5)  # so that products of thousands stay near 1
    numbers, exponents = np.where(small, 2 * numbers, numbers), exponents - small
    before, after = _of_others(np.multiply, numbers, 1), _of_others(np.add, exponents, 0)
    return np.asarray(np.ldexp(g * before, after))


def _of_others(fold: np.ufunc, rows: Any, none: int) -> Any:
    one = np.full_like(rows[:1], none)
    before = fold.accumulate(np.concatenate([one, rows[:-1]]), axis=0)
    after = fold.accumulate(np.concatenate([one, rows[:0:-1]]), axis=0)[::-1]
    return fold(before, after)


def reduction(reduce: Reduce, neutral: float = 0.0) -> Callable[..., Wide]:
    """A forward: what becomes of the rows of a segment, and what one without rows holds."""

    @ieee
    def oracle(
        x: npt.ArrayLike,
        segment_ids: npt.ArrayLike | None = None,
        num_segments: int | None = None,
        *,
        offsets: npt.ArrayLike | None = None,
        axis: int = 0,
        empty: float | None = None,
        ties: Ties = "first",
        out_of_range: OutOfRange = "skip",
    ) -> Wide:
        rows = np.moveaxis(wide(x), axis, 0)
        members = groups(segment_ids, num_segments, offsets, out_of_range)
        fill = neutral if empty is None else empty
        out = np.full((len(members), *rows.shape[1:]), fill, np.longdouble)
        for segment, group in enumerate(members):
            if group.size:
                out[segment] = reduce(rows[group])
        return np.moveaxis(out, 0, axis)

    return oracle


def _extremum(holders_of: Callable[[Wide], Bools]) -> Callable[..., Any]:
    """A maximum or minimum, and the position of a row that holds it: -1 without rows."""
    values_of = reduction(lambda rows: _first_held(rows, holders_of(rows)))

    @ieee
    def oracle(
        x: npt.ArrayLike,
        segment_ids: npt.ArrayLike | None = None,
        num_segments: int | None = None,
        *,
        offsets: npt.ArrayLike | None = None,
        axis: int = 0,
        empty: float | None = None,
        ties: Ties = "first",
        out_of_range: OutOfRange = "skip",
        return_indices: bool = False,
    ) -> Any:
        shared: Any = {"offsets": offsets, "axis": axis, "out_of_range": out_of_range}
        values = values_of(x, segment_ids, num_segments, empty=empty, **shared)
        if not return_indices:
            return values
        rows = np.moveaxis(wide(x), axis, 0)
        members = groups(segment_ids, num_segments, offsets, out_of_range)
        found = np.full((len(members), *rows.shape[1:]), -1, np.int64)
        for segment, group in enumerate(members):
            if group.size:
                holders = holders_of(rows[group])
                last = len(group) - 1 - holders[::-1].argmax(axis=0)
                found[segment] = group[last if ties == "last" else holders.argmax(axis=0)]
        return values, np.moveaxis(found, 0, axis)

    return oracle


def _linear_adjoint(pull: Pull) -> Callable[..., Wide]:
    """A backward that does not depend on the input."""

    @ieee
    def oracle(
        dy: npt.ArrayLike,
        segment_ids: npt.ArrayLike | None = None,
        *,
        offsets: npt.ArrayLike | None = None,
        axis: int = 0,
        out_of_range: OutOfRange = "skip",
    ) -> Wide:
        def members(extent: int) -> list[Ints]:
            return groups(segment_ids, extent, offsets, out_of_range)

        return _backward(dy, _ones(dy, segment_ids, offsets, axis), axis, members, pull)

    return oracle


def adjoint(pull: Callable[[Wide, Wide, Ties], Wide]) -> Callable[..., Wide]:
    """A backward that does: pull(the segment's gradient, its rows, the rule for ties)."""

    @ieee
    def oracle(
        dy: npt.ArrayLike,
        x: npt.ArrayLike,
        segment_ids: npt.ArrayLike | None = None,
        *,
        offsets: npt.ArrayLike | None = None,
        axis: int = 0,
        ties: Ties = "first",
        out_of_range: OutOfRange = "skip",
    ) -> Wide:
        def members(extent: int) -> list[Ints]:
            return groups(segment_ids, extent, offsets, out_of_range)

        return _backward(dy, wide(x), axis, members, lambda g, rows: pull(g, rows, ties))

    return oracle


segment_sum = reduction(lambda rows: rows.sum(axis=0))
segment_mean = reduction(lambda rows: rows.sum(axis=0) / len(rows))
segment_max = _extremum(maximal)
segment_min = _extremum(lambda rows: maximal(-rows))
segment_prod = reduction(_product, neutral=1.0)

segment_sum_backward = _linear_adjoint(lambda g, ones: g * ones)
segment_mean_backward = _linear_adjoint(lambda g, ones: g * ones / np.longdouble(len(ones)))
segment_max_backward = adjoint(lambda g, rows, ties: _to_holders(g, maximal(rows), ties))
segment_min_backward = adjoint(lambda g, rows, ties: _to_holders(g, maximal(-rows), ties))
segment_prod_backward = adjoint(lambda g, rows, _: _times_others(g, rows))
