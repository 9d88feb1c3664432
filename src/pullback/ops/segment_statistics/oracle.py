"""Statistics of segments and their adjoints, by definition: group the rows, reduce each group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.ops.oracle import INF, OutOfRange, Wide, ieee
from pullback.ops.segment.oracle import adjoint, reduction
from pullback.ops.simplex.oracle import softmax


def _logsumexp(rows: Wide) -> Wide:
    top = rows.max(axis=0, initial=-INF)
    shift = np.where(np.isfinite(top), top, 0)
    return np.asarray(shift + np.log(np.exp(rows - shift).sum(axis=0)))


def _shares(g: Wide, rows: Wide, _: Any) -> Wide:
    """A segment of only -inf has no gradient, whatever g."""
    p = softmax(rows, 0)
    return np.asarray(np.where((p == 0).all(axis=0), 0, g * p))


segment_logsumexp = reduction(_logsumexp, neutral=-np.inf)
_logsumexp_adjoint: Callable[..., Wide] = adjoint(_shares)


@ieee
def segment_logsumexp_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    y: npt.ArrayLike | None = None,
    segment_ids: npt.ArrayLike | None = None,
    *,
    offsets: npt.ArrayLike | None = None,
    axis: int = 0,
    out_of_range: OutOfRange = "skip",
) -> Wide:
    """The forward's output is not needed."""
    return _logsumexp_adjoint(
        dy, x, segment_ids, offsets=offsets, axis=axis, out_of_range=out_of_range
    )


# --- variances ----------------------------------------------------------------------------------


def _deviations(rows: Wide) -> Wide:
    """x - mean, relative to the first row: equal rows deviate by nothing."""
    d = rows - rows[0]
    return np.asarray(d - d.sum(axis=0) / len(rows))


def _variance(rows: Wide, ddof: int) -> Wide:
    if len(rows) <= ddof:
        return np.zeros_like(rows[0])
    return np.asarray((_deviations(rows) ** 2).sum(axis=0) / (len(rows) - ddof))


def _variance_slope(rows: Wide, ddof: int) -> tuple[Wide, Any]:
    """The slope of each row, and where there is none."""
    if len(rows) <= ddof:
        return np.zeros_like(rows), True
    return np.asarray(2 * _deviations(rows) / (len(rows) - ddof)), False


def _root_slope(rows: Wide, ddof: int) -> tuple[Wide, Any]:
    root, (slope, none) = np.sqrt(_variance(rows, ddof)), _variance_slope(rows, ddof)
    return np.asarray(slope / (2 * root)), none | (root == 0)


def _forward(reduce: Callable[[Wide, int], Wide]) -> Callable[..., Wide]:
    @ieee
    def oracle(
        x: npt.ArrayLike,
        segment_ids: npt.ArrayLike | None = None,
        num_segments: int | None = None,
        *,
        offsets: npt.ArrayLike | None = None,
        axis: int = 0,
        ddof: int = 0,
        empty: float | None = None,
        out_of_range: OutOfRange = "skip",
    ) -> Wide:
        shared: Any = {"offsets": offsets, "axis": axis, "out_of_range": out_of_range}
        by_definition = reduction(lambda rows: reduce(rows, ddof))
        return by_definition(x, segment_ids, num_segments, empty=empty, **shared)

    return oracle


def _backward(slope: Callable[[Wide, int], tuple[Wide, Any]]) -> Callable[..., Wide]:
    @ieee
    def oracle(
        dy: npt.ArrayLike,
        x: npt.ArrayLike,
        segment_ids: npt.ArrayLike | None = None,
        *,
        offsets: npt.ArrayLike | None = None,
        axis: int = 0,
        ddof: int = 0,
        out_of_range: OutOfRange = "skip",
    ) -> Wide:
        def pull(g: Wide, rows: Wide, _: Any) -> Wide:
            found, none = slope(rows, ddof)
            return np.asarray(np.where(none, 0, g * found))

        shared: Any = {"offsets": offsets, "axis": axis, "out_of_range": out_of_range}
        return adjoint(pull)(dy, x, segment_ids, **shared)

    return oracle


segment_var = _forward(_variance)
segment_std = _forward(lambda rows, ddof: np.sqrt(_variance(rows, ddof)))
segment_var_backward = _backward(_variance_slope)
segment_std_backward = _backward(_root_slope)
