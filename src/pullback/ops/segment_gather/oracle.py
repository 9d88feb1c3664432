"""Gathered rows reduced by segment, and the adjoints, by definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.ops.oracle import Ints, OutOfRange, Ties, Wide, ieee, kept, wide
from pullback.ops.segment import oracle as segment
from pullback.ops.segment.oracle import groups


def blank(rows: int, columns: int) -> Wide:
    """Stands in for x where the adjoint does not depend on it."""
    return np.zeros((rows, columns), np.longdouble)


def _members(
    rows: int, gather_ids: Any, ids: Any, extent: int | None, offsets: Any, policy: OutOfRange
) -> list[Ints]:
    """The positions of each segment, without those whose row is out of range."""
    inside = kept(gather_ids, rows, policy)
    return [group[inside[group]] for group in groups(ids, extent, offsets, policy)]


def _regrouped(members: list[Ints], count: int) -> Ints:
    """Ids of positions from the groups they are in, -1 for those in none."""
    ids = np.full(count, -1, np.int64)
    for s, group in enumerate(members):
        ids[group] = s
    return ids


def _rows(x: Wide, gather_ids: Any, weights: Any) -> Wide:
    """The gathered rows, weighted; zeros for those that are not there."""
    at = np.asarray(gather_ids, np.int64)
    inside = (at >= 0) & (at < len(x))
    rows = np.zeros((len(at), x.shape[1]), np.longdouble)
    rows[inside] = x[at[inside]]
    return rows if weights is None else rows * wide(weights)[:, None]


@ieee
def gather_segment_reduce(
    x: npt.ArrayLike,
    gather_ids: npt.ArrayLike,
    segment_ids: npt.ArrayLike | None = None,
    num_segments: int | None = None,
    *,
    reduce: str = "sum",
    weights: npt.ArrayLike | None = None,
    offsets: npt.ArrayLike | None = None,
    ties: Ties = "first",
    out_of_range: OutOfRange = "skip",
) -> Wide:
    table, n = wide(x), np.size(gather_ids)
    members = _members(len(table), gather_ids, segment_ids, num_segments, offsets, out_of_range)
    ids = _regrouped(members, n)
    rows = _rows(table, gather_ids, weights)
    found: Wide = getattr(segment, f"segment_{reduce}")(rows, ids, len(members))
    return found


@ieee
def gather_segment_reduce_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    gather_ids: npt.ArrayLike,
    segment_ids: npt.ArrayLike | None = None,
    *,
    reduce: str = "sum",
    weights: npt.ArrayLike | None = None,
    offsets: npt.ArrayLike | None = None,
    ties: Ties = "first",
    out_of_range: OutOfRange = "skip",
) -> Wide:
    g, table, n = wide(dy), wide(x), np.size(gather_ids)
    members = _members(len(table), gather_ids, segment_ids, len(g), offsets, out_of_range)
    ids = _regrouped(members, n)
    back = getattr(segment, f"segment_{reduce}_backward")
    if reduce in ("max", "min"):
        shares = back(g, _rows(table, gather_ids, None), ids, ties=ties)
    else:
        shares = back(g, ids)
    if weights is not None:
        shares = shares * wide(weights)[:, None]
    dx = np.zeros_like(table)
    at = np.asarray(gather_ids, np.int64)
    for position in np.flatnonzero(ids >= 0).tolist():
        dx[at[position]] += shares[position]
    return dx


@ieee
def gather_segment_reduce_weights_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    gather_ids: npt.ArrayLike,
    segment_ids: npt.ArrayLike | None = None,
    *,
    offsets: npt.ArrayLike | None = None,
    out_of_range: OutOfRange = "skip",
) -> Wide:
    g, table, n = wide(dy), wide(x), np.size(gather_ids)
    members = _members(len(table), gather_ids, segment_ids, len(g), offsets, out_of_range)
    ids, at = _regrouped(members, n), np.asarray(gather_ids, np.int64)
    found = np.zeros(n, np.longdouble)
    some = ids >= 0
    found[some] = (g[ids[some]] * table[at[some]]).sum(axis=1)
    return found
