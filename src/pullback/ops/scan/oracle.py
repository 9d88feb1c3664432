"""Scans and their adjoints, by definition. Rows are walked in scan order, axis first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pullback.ops.oracle import INF, Array, Ints, Wide, axis_back, axis_first, ieee
from pullback.ops.scan_oracle import Elements, Outcomes, Pieces, gradients, results

ScanTies = Literal["first", "last"]
Like = npt.ArrayLike
Given = npt.ArrayLike | None


def _cumsum(x: Like, axis: int, reverse: bool) -> Array:
    rows = axis_first(x, axis, reverse)
    return axis_back(np.add.accumulate(rows, axis=0), x, axis, reverse)


def _forward(scan: Callable[..., Array], identity: float, summary: str) -> Callable[..., Array]:
    """A scan with all its options, of the inclusive one."""

    @ieee
    def oracle(
        x: Like,
        axis: int = -1,
        *,
        reverse: bool = False,
        exclusive: bool = False,
        initial: Given = None,
        offsets: Given = None,
    ) -> Array:
        about = Pieces(x, axis, reverse, exclusive, initial, offsets)
        plain = lambda rows: scan(rows, about.axis, reverse)  # noqa: E731
        return results(about, identity, plain, Elements(x))

    oracle.__doc__ = summary
    return oracle


cumsum = _forward(_cumsum, 0.0, "y[j] = x[0] + … + x[j].")


@ieee
def cumsum_backward(
    dy: Like,
    axis: int = -1,
    *,
    reverse: bool = False,
    exclusive: bool = False,
    initial: Given = None,
    offsets: Given = None,
) -> Any:
    about = Pieces(dy, axis, reverse, exclusive, initial, offsets)
    plain = lambda rows: _cumsum(rows, about.axis, not reverse)  # noqa: E731
    return gradients(about, plain, Outcomes(dy, -0.0))


def _cumprod(x: Like, axis: int, reverse: bool) -> Array:
    rows = axis_first(x, axis, reverse)
    return axis_back(np.multiply.accumulate(rows, axis=0), x, axis, reverse)


cumprod = _forward(_cumprod, 1.0, "y[j] = x[0]·…·x[j].")


def _backward(backward: Callable[..., Array], summary: str) -> Callable[..., Any]:
    """A gradient that takes x and y, y as it is given or from x if None, with all its options."""

    @ieee
    def oracle(
        dy: Like,
        x: Like,
        y: Given = None,
        axis: int = -1,
        *,
        reverse: bool = False,
        exclusive: bool = False,
        initial: Given = None,
        offsets: Given = None,
    ) -> Any:
        about = Pieces(dy, axis, reverse, exclusive, initial, offsets)
        given = [Outcomes(dy, -0.0), Elements(x), *([] if y is None else [Outcomes(y)])]

        def plain(dy: Array, x: Array, y: Array | None = None) -> Array:
            return backward(dy, x, y, about.axis, reverse)

        return gradients(about, plain, *given)

    oracle.__doc__ = summary
    return oracle


def _cumprod_backward(dy: Like, x: Like, y: Given, axis: int, reverse: bool) -> Array:
    g, rows = axis_first(dy, axis, reverse), axis_first(x, axis, reverse)
    product = np.multiply.accumulate(rows, axis=0) if y is None else axis_first(y, axis, reverse)
    before = np.concatenate([np.ones_like(rows[:1]), product[:-1]])
    dx, later = np.empty_like(rows), np.zeros(rows.shape[1:], np.longdouble)
    for j in reversed(range(len(rows))):
        total = g[j] + later
        dx[j] = before[j] * total
        later = rows[j] * total
    return axis_back(dx, x, axis, reverse)


cumprod_backward = _backward(
    _cumprod_backward, "dx[j] = y[j-1]·R[j] with R[j] = dy[j] + x[j+1]·R[j+1]."
)


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
    x: Like, axis: int, reverse: bool, ties: ScanTies, sign: int
) -> tuple[Array, Ints]:
    rows = axis_first(x, axis, reverse)
    holders = _holders(sign * rows, ties)
    values = axis_back(np.take_along_axis(rows, holders, axis=0), x, axis, reverse)
    positions = len(rows) - 1 - holders if reverse else holders
    return values, axis_back(positions, x, axis, reverse)


def _running_extremum_backward(
    dy: Like, x: Like, axis: int, reverse: bool, ties: ScanTies, sign: int
) -> Array:
    """Every output sends its gradient to the input it was copied from."""
    g, rows = axis_first(dy, axis, reverse), axis_first(x, axis, reverse)
    holders = _holders(sign * rows, ties)
    dx, lanes = np.zeros_like(rows), np.indices(rows.shape)[1:]
    np.add.at(dx, (holders, *lanes), g)
    return axis_back(dx, x, axis, reverse)


def _extremum(sign: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A maximum or a minimum and its gradient, with all options."""

    @ieee
    def forward(
        x: Like,
        axis: int = -1,
        *,
        reverse: bool = False,
        return_indices: bool = False,
        ties: ScanTies = "first",
        exclusive: bool = False,
        initial: Given = None,
        offsets: Given = None,
    ) -> Array | tuple[Array, Ints]:
        about = Pieces(x, axis, reverse, exclusive, initial, offsets)
        found = about.each(
            lambda rows: _running_extremum(rows, about.axis, reverse, ties, sign), Elements(x)
        )
        values = [about.outcome(v, group, -sign * np.inf) for group, (v, _) in found]
        if not return_indices:
            return about.whole(values)
        places = [about.outcome(about.position(at, group), group, -1) for group, (_, at) in found]
        return about.whole(values), about.whole(places).astype(np.int64)

    @ieee
    def backward(
        dy: Like,
        x: Like,
        axis: int = -1,
        *,
        reverse: bool = False,
        ties: ScanTies = "first",
        exclusive: bool = False,
        initial: Given = None,
        offsets: Given = None,
    ) -> Any:
        about = Pieces(dy, axis, reverse, exclusive, initial, offsets)

        def plain(dy: Array, x: Array) -> Array:
            return _running_extremum_backward(dy, x, about.axis, reverse, ties, sign)

        return gradients(about, plain, Outcomes(dy, -0.0), Elements(x))

    return forward, backward


cummax, cummax_backward = _extremum(+1)
cummin, cummin_backward = _extremum(-1)


def _ratio(a: Wide, b: Wide) -> Wide:
    """exp(a)/exp(b), where equal infinities are equal. Only that of -inf is 0: what underflows is
    still a weight, and an infinite gradient times it is infinite."""
    powers = np.where(a == b, np.longdouble(1), np.exp(a - b))
    least = np.finfo(np.longdouble).smallest_normal  # a part of it is not 0 either
    return np.asarray(np.where((powers == 0) & np.isfinite(a - b), least, powers))


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


def _logcumsumexp(x: Like, axis: int, reverse: bool) -> Array:
    peak, rest = _log_sums(axis_first(x, axis, reverse))
    return axis_back(peak + np.log1p(rest), x, axis, reverse)


logcumsumexp = _forward(_logcumsumexp, -np.inf, "y[j] = log(e^x[0] + … + e^x[j]).")


def _logcumsumexp_backward(dy: Like, x: Like, y: Given, axis: int, reverse: bool) -> Array:
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


logcumsumexp_backward = _backward(
    _logcumsumexp_backward,
    "dx[k] = exp(x[k]-y[k])·S[k] with S[k] = dy[k] + exp(y[k]-y[k+1])·S[k+1].",
)
