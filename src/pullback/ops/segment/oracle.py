"""Segment reductions and their adjoints, by definition: group the rows, reduce each group.

`ties` means nothing to a forward, where the first extremum is always the one copied; it stands in
the signatures because it stands in the public ones. `num_segments=None` is one past the largest id.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pullback.ops.oracle import Bools, Ints, OutOfRange, Ties, Wide, ieee, kept, maximal, wide

Reduce = Callable[[Wide], Wide]
Pull = Callable[[Wide, Wide], Wide]


def _groups(segment_ids: npt.ArrayLike, extent: int, out_of_range: OutOfRange) -> list[Ints]:
    """The kept positions of each segment, ascending."""
    members: list[list[int]] = [[] for _ in range(extent)]
    ids = np.asarray(segment_ids).tolist()
    for position in np.flatnonzero(kept(segment_ids, extent, out_of_range)).tolist():
        members[ids[position]].append(position)
    return [np.array(group, np.int64) for group in members]


def _forward(
    x: npt.ArrayLike,
    segment_ids: npt.ArrayLike,
    num_segments: int | None,
    out_of_range: OutOfRange,
    empty: float,
    reduce: Reduce,
) -> Wide:
    rows = wide(x)
    if num_segments is None:
        num_segments = max(np.asarray(segment_ids).tolist(), default=-1) + 1
    groups = _groups(segment_ids, max(num_segments, 0), out_of_range)
    out = np.full((len(groups), *rows.shape[1:]), empty, np.longdouble)
    for segment, group in enumerate(groups):
        if group.size:
            out[segment] = reduce(rows[group])
    return out


def _backward(
    dy: npt.ArrayLike, x: Wide, segment_ids: npt.ArrayLike, out_of_range: OutOfRange, pull: Pull
) -> Wide:
    """Each group of rows receives pull(the segment's gradient, the group)."""
    g, dx = wide(dy), np.zeros_like(x)
    for segment, group in enumerate(_groups(segment_ids, len(g), out_of_range)):
        if group.size:
            dx[group] = pull(g[segment], x[group])
    return dx


def _ones(dy: npt.ArrayLike, segment_ids: npt.ArrayLike) -> Wide:
    """Stands in for the input where the adjoint does not depend on it."""
    return np.ones((np.size(segment_ids), *np.shape(dy)[1:]), np.longdouble)


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


def _product_of_others(rows: Wide) -> Wide:
    one = np.ones_like(rows[:1])
    before = np.multiply.accumulate(np.concatenate([one, rows[:-1]]), axis=0)
    after = np.multiply.accumulate(np.concatenate([one, rows[:0:-1]]), axis=0)[::-1]
    return np.asarray(before * after)


@ieee
def segment_sum(
    x: npt.ArrayLike,
    segment_ids: npt.ArrayLike,
    num_segments: int | None = None,
    *,
    empty: float | None = None,
    ties: Ties = "first",
    out_of_range: OutOfRange = "skip",
) -> Wide:
    fill = 0.0 if empty is None else empty
    return _forward(x, segment_ids, num_segments, out_of_range, fill, lambda r: r.sum(axis=0))


@ieee
def segment_mean(
    x: npt.ArrayLike,
    segment_ids: npt.ArrayLike,
    num_segments: int | None = None,
    *,
    empty: float | None = None,
    ties: Ties = "first",
    out_of_range: OutOfRange = "skip",
) -> Wide:
    fill = 0.0 if empty is None else empty
    return _forward(
        x, segment_ids, num_segments, out_of_range, fill, lambda r: r.sum(axis=0) / len(r)
    )


@ieee
def segment_max(
    x: npt.ArrayLike,
    segment_ids: npt.ArrayLike,
    num_segments: int | None = None,
    *,
    empty: float | None = None,
    ties: Ties = "first",
    out_of_range: OutOfRange = "skip",
) -> Wide:
    fill = 0.0 if empty is None else empty
    return _forward(
        x, segment_ids, num_segments, out_of_range, fill, lambda r: _first_held(r, maximal(r))
    )


@ieee
def segment_min(
    x: npt.ArrayLike,
    segment_ids: npt.ArrayLike,
    num_segments: int | None = None,
    *,
    empty: float | None = None,
    ties: Ties = "first",
    out_of_range: OutOfRange = "skip",
) -> Wide:
    fill = 0.0 if empty is None else empty
    return _forward(
        x, segment_ids, num_segments, out_of_range, fill, lambda r: _first_held(r, maximal(-r))
    )


@ieee
def segment_prod(
    x: npt.ArrayLike,
    segment_ids: npt.ArrayLike,
    num_segments: int | None = None,
    *,
    empty: float | None = None,
    ties: Ties = "first",
    out_of_range: OutOfRange = "skip",
) -> Wide:
    fill = 1.0 if empty is None else empty
    return _forward(x, segment_ids, num_segments, out_of_range, fill, lambda r: r.prod(axis=0))


@ieee
def segment_sum_backward(
    dy: npt.ArrayLike, segment_ids: npt.ArrayLike, *, out_of_range: OutOfRange = "skip"
) -> Wide:
    x = _ones(dy, segment_ids)
    return _backward(dy, x, segment_ids, out_of_range, lambda g, r: g * r)


@ieee
def segment_mean_backward(
    dy: npt.ArrayLike, segment_ids: npt.ArrayLike, *, out_of_range: OutOfRange = "skip"
) -> Wide:
    x = _ones(dy, segment_ids)
    return _backward(dy, x, segment_ids, out_of_range, lambda g, r: g * r / np.longdouble(len(r)))


@ieee
def segment_max_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    segment_ids: npt.ArrayLike,
    *,
    ties: Ties = "first",
    out_of_range: OutOfRange = "skip",
) -> Wide:
    def pull(g: Wide, rows: Wide) -> Wide:
        return _to_holders(g, maximal(rows), ties)

    return _backward(dy, wide(x), segment_ids, out_of_range, pull)


@ieee
def segment_min_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    segment_ids: npt.ArrayLike,
    *,
    ties: Ties = "first",
    out_of_range: OutOfRange = "skip",
) -> Wide:
    def pull(g: Wide, rows: Wide) -> Wide:
        return _to_holders(g, maximal(-rows), ties)

    return _backward(dy, wide(x), segment_ids, out_of_range, pull)


@ieee
def segment_prod_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    segment_ids: npt.ArrayLike,
    *,
    ties: Ties = "first",
    out_of_range: OutOfRange = "skip",
) -> Wide:
    """dx[n] = dy · the product of the segment's other rows."""

    def pull(g: Wide, rows: Wide) -> Wide:
        return np.asarray(g * _product_of_others(rows))

    return _backward(dy, wide(x), segment_ids, out_of_range, pull)
