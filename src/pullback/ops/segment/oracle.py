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


def _reduction(reduce: Reduce, neutral: float = 0.0) -> Callable[..., Wide]:
    """A forward: what becomes of the rows of a segment, and what one without rows holds."""

    @ieee
    def oracle(
        x: npt.ArrayLike,
        segment_ids: npt.ArrayLike,
        num_segments: int | None = None,
        *,
        empty: float | None = None,
        ties: Ties = "first",
        out_of_range: OutOfRange = "skip",
    ) -> Wide:
        fill = neutral if empty is None else empty
        return _forward(x, segment_ids, num_segments, out_of_range, fill, reduce)

    return oracle


def _linear_adjoint(pull: Pull) -> Callable[..., Wide]:
    """A backward that does not depend on the input."""

    @ieee
    def oracle(
        dy: npt.ArrayLike, segment_ids: npt.ArrayLike, *, out_of_range: OutOfRange = "skip"
    ) -> Wide:
        return _backward(dy, _ones(dy, segment_ids), segment_ids, out_of_range, pull)

    return oracle


def _adjoint(pull: Callable[[Wide, Wide, Ties], Wide]) -> Callable[..., Wide]:
    """A backward that does: pull(the segment's gradient, its rows, the rule for ties)."""

    @ieee
    def oracle(
        dy: npt.ArrayLike,
        x: npt.ArrayLike,
        segment_ids: npt.ArrayLike,
        *,
        ties: Ties = "first",
        out_of_range: OutOfRange = "skip",
    ) -> Wide:
        return _backward(
            dy, wide(x), segment_ids, out_of_range, lambda g, rows: pull(g, rows, ties)
        )

    return oracle


segment_sum = _reduction(lambda rows: rows.sum(axis=0))
segment_mean = _reduction(lambda rows: rows.sum(axis=0) / len(rows))
segment_max = _reduction(lambda rows: _first_held(rows, maximal(rows)))
segment_min = _reduction(lambda rows: _first_held(rows, maximal(-rows)))
segment_prod = _reduction(lambda rows: rows.prod(axis=0), neutral=1.0)

segment_sum_backward = _linear_adjoint(lambda g, ones: g * ones)
segment_mean_backward = _linear_adjoint(lambda g, ones: g * ones / np.longdouble(len(ones)))
segment_max_backward = _adjoint(lambda g, rows, ties: _to_holders(g, maximal(rows), ties))
segment_min_backward = _adjoint(lambda g, rows, ties: _to_holders(g, maximal(-rows), ties))
segment_prod_backward = _adjoint(lambda g, rows, _: np.asarray(g * _product_of_others(rows)))
