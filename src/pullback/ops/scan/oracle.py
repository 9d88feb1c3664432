"""Inclusive scans and their adjoints, by definition. Rows are walked in scan order, axis first."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from pullback.ops.oracle import INF, Array, Ints, Wide, axis_back, axis_first, ieee

ScanTies = Literal["first", "last"]


@ieee
def cumsum(x: npt.ArrayLike, axis: int = -1, *, reverse: bool = False) -> Array:
    rows = axis_first(x, axis, reverse)
    return axis_back(np.add.accumulate(rows, axis=0), x, axis, reverse)


@ieee
def cumsum_backward(dy: npt.ArrayLike, axis: int = -1, *, reverse: bool = False) -> Array:
    return cumsum(dy, axis, reverse=not reverse)


@ieee
def cumprod(x: npt.ArrayLike, axis: int = -1, *, reverse: bool = False) -> Array:
    rows = axis_first(x, axis, reverse)
    return axis_back(np.multiply.accumulate(rows, axis=0), x, axis, reverse)


@ieee
def cumprod_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    y: npt.ArrayLike | None = None,
    axis: int = -1,
    *,
    reverse: bool = False,
) -> Array:
    """dx[j] = y[j-1]·R[j] with R[j] = dy[j] + x[j+1]·R[j+1]; `y` as given, or from `x` if None."""
    g, rows = axis_first(dy, axis, reverse), axis_first(x, axis, reverse)
    product = np.multiply.accumulate(rows, axis=0) if y is None else axis_first(y, axis, reverse)
    before = np.concatenate([np.ones_like(rows[:1]), product[:-1]])
    dx, later = np.empty_like(rows), np.zeros(rows.shape[1:], np.longdouble)
    for j in reversed(range(len(rows))):
        total = g[j] + later
        dx[j] = before[j] * total
        later = rows[j] * total
    return axis_back(dx, x, axis, reverse)


def _holders(rows: Wide, ties: ScanTies) -> Ints:
    """For each position, the row that holds the running maximum there, which is the last that won.
    NaN is greatest."""
    best = np.maximum.accumulate(rows, axis=0)
    wins = (rows == best) | np.isnan(rows)
    if ties == "first":  # what equals the best so far changes nothing
        wins[1:] &= (best[1:] != best[:-1]) & ~np.isnan(best[:-1])
    places = np.arange(len(rows)).reshape(-1, *[1] * (rows.ndim - 1))
    return np.maximum.accumulate(np.where(wins, places, 0), axis=0)


def _running_extremum(
    x: npt.ArrayLike, axis: int, reverse: bool, return_indices: bool, ties: ScanTies, sign: int
) -> Array | tuple[Array, Ints]:
    rows = axis_first(x, axis, reverse)
    holders = _holders(sign * rows, ties)
    values = axis_back(np.take_along_axis(rows, holders, axis=0), x, axis, reverse)
    if not return_indices:
        return values
    positions = len(rows) - 1 - holders if reverse else holders
    return values, axis_back(positions, x, axis, reverse)


def _running_extremum_backward(
    dy: npt.ArrayLike, x: npt.ArrayLike, axis: int, reverse: bool, ties: ScanTies, sign: int
) -> Array:
    """Every output sends its gradient to the input it was copied from."""
    g, rows = axis_first(dy, axis, reverse), axis_first(x, axis, reverse)
    holders = _holders(sign * rows, ties)
    dx, lanes = np.zeros_like(rows), np.indices(rows.shape)[1:]
    np.add.at(dx, (holders, *lanes), g)
    return axis_back(dx, x, axis, reverse)


@ieee
def cummax(
    x: npt.ArrayLike,
    axis: int = -1,
    *,
    reverse: bool = False,
    return_indices: bool = False,
    ties: ScanTies = "first",
) -> Array | tuple[Array, Ints]:
    return _running_extremum(x, axis, reverse, return_indices, ties, +1)


@ieee
def cummin(
    x: npt.ArrayLike,
    axis: int = -1,
    *,
    reverse: bool = False,
    return_indices: bool = False,
    ties: ScanTies = "first",
) -> Array | tuple[Array, Ints]:
    return _running_extremum(x, axis, reverse, return_indices, ties, -1)


@ieee
def cummax_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    axis: int = -1,
    *,
    reverse: bool = False,
    ties: ScanTies = "first",
) -> Array:
    return _running_extremum_backward(dy, x, axis, reverse, ties, +1)


@ieee
def cummin_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    axis: int = -1,
    *,
    reverse: bool = False,
    ties: ScanTies = "first",
) -> Array:
    return _running_extremum_backward(dy, x, axis, reverse, ties, -1)


def _ratio(a: Wide, b: Wide) -> Wide:
    """exp(a)/exp(b), where equal infinities are equal."""
    return np.asarray(np.where(a == b, np.longdouble(1), np.exp(a - b)))


def _log_sums(rows: Wide) -> tuple[Wide, Wide]:
    """(m, t) with logcumsumexp = m + log1p(t): running maximum, and the others relative to it.

    Kept apart so that neither a large m nor a tiny t costs digits.
    """
    peak, rest = np.maximum.accumulate(rows, axis=0), np.zeros_like(rows)
    rises, one = rows[1:] > peak[:-1], _ratio(rows[1:], peak[1:])
    shrinks = _ratio(peak[:-1], peak[1:])
    for k in range(1, len(rows)):
        before = rest[k - 1]
        rest[k] = np.where(rises[k - 1], (1 + before) * shrinks[k - 1], before + one[k - 1])
    return peak, rest


@ieee
def logcumsumexp(x: npt.ArrayLike, axis: int = -1, *, reverse: bool = False) -> Array:
    peak, rest = _log_sums(axis_first(x, axis, reverse))
    return axis_back(peak + np.log1p(rest), x, axis, reverse)


@ieee
def logcumsumexp_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    y: npt.ArrayLike | None = None,
    axis: int = -1,
    *,
    reverse: bool = False,
) -> Array:
    """dx[k] = exp(x[k]-y[k])·S[k] with S[k] = dy[k] + exp(y[k]-y[k+1])·S[k+1].

    `y` is taken as given, rounding and all, or from `x` if None.
    """
    g, rows = axis_first(dy, axis, reverse), axis_first(x, axis, reverse)
    if y is None:
        peak, rest = _log_sums(rows)
    else:
        peak, rest = axis_first(y, axis, reverse), np.zeros_like(rows)
    weight = _ratio(rows, peak) / (1 + rest)
    decay = _ratio(peak[:-1], peak[1:]) * (1 + rest[:-1]) / (1 + rest[1:])

    # Infinities tie: the first +inf outweighs all, later ones included.
    at_top = peak == INF
    since = np.concatenate([np.zeros_like(at_top[:1]), at_top[:-1]])
    weight = np.where(at_top, at_top & ~since, weight)
    decay = np.where(at_top[:-1] & at_top[1:], 1, decay)

    dx, later = np.empty_like(rows), np.zeros(rows.shape[1:], np.longdouble)
    for k in reversed(range(len(rows))):
        total = g[k] + later
        dx[k] = np.where(peak[k] == -INF, 0, weight[k] * total)
        later = decay[k - 1] * total if k else later
    return axis_back(dx, x, axis, reverse)
