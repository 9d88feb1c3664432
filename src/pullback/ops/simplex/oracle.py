"""Maps onto the simplex and their adjoints, by definition. Rows lie along the leading axis."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pullback.ops.oracle import INF, Array, Wide, axis_back, axis_first, ieee


def _peak(rows: Wide) -> Wide:
    return np.asarray(rows.max(axis=0, initial=-INF))


def _settled(rows: Wide, plain: Wide) -> Wide:
    """`plain`, except where the row's maximum is not finite and no formula applies.

    Entries at +inf share the mass, a row of only -inf has none, and NaN fills its row.
    """
    top = np.where(rows == INF, np.longdouble(1), 0)
    shared = top / np.maximum(top.sum(axis=0), 1)
    shared[:, np.isnan(rows).any(axis=0)] = np.nan
    return np.asarray(np.where(np.isfinite(_peak(rows)), plain, shared))


@ieee
def softmax(x: npt.ArrayLike, axis: int = -1) -> Array:
    rows = axis_first(x, axis)
    powers = np.exp(rows - _peak(rows))
    return axis_back(_settled(rows, powers / powers.sum(axis=0)), x, axis)


@ieee
def log_softmax(x: npt.ArrayLike, axis: int = -1) -> Array:
    rows = axis_first(x, axis)
    shifted = rows - _peak(rows)
    # The largest power is 1; log1p of the others keeps their digits when they are small.
    others = np.sort(np.exp(shifted), axis=0)[:-1].sum(axis=0)
    finite = np.isfinite(_peak(rows))
    masses = _settled(rows, np.ones_like(rows))
    return axis_back(np.where(finite, shifted - np.log1p(others), np.log(masses)), x, axis)


def _project(x: npt.ArrayLike, axis: int, power: int) -> Array:
    """y = max(x/power - tau, 0)**power with the tau that makes rows sum to 1, by bisection."""
    rows = axis_first(x, axis)
    shifted = (rows - _peak(rows)) / power
    low, high = -np.ones_like(_peak(rows)), np.zeros_like(_peak(rows))
    for _ in range(80):
        tau = (low + high) / 2
        heavy = (np.maximum(shifted - tau, 0) ** power).sum(axis=0) >= 1
        low, high = np.where(heavy, tau, low), np.where(heavy, high, tau)
    # `low` is the root itself where that is representable, so an entry exactly at tau gets 0.
    return axis_back(_settled(rows, np.maximum(shifted - low, 0) ** power), x, axis)


@ieee
def sparsemax(x: npt.ArrayLike, axis: int = -1) -> Array:
    return _project(x, axis, 1)


@ieee
def entmax15(x: npt.ArrayLike, axis: int = -1) -> Array:
    return _project(x, axis, 2)


@ieee
def softmax_backward(dy: npt.ArrayLike, y: npt.ArrayLike, axis: int = -1) -> Array:
    """dx = y·(dy - Σ y·dy); a row without mass has no gradient, whatever dy."""
    g, p = axis_first(dy, axis), axis_first(y, axis)
    dx = p * (g - (p * g).sum(axis=0))
    return axis_back(np.where((p == 0).all(axis=0), 0, dx), y, axis)


@ieee
def log_softmax_backward(dy: npt.ArrayLike, y: npt.ArrayLike, axis: int = -1) -> Array:
    """dx = dy - exp(y)·Σ dy; a row without mass has no gradient, and NaN in y fills its row."""
    g, rows = axis_first(dy, axis), axis_first(y, axis)
    dx = np.where((rows == -INF).all(axis=0), 0, g - np.exp(rows) * g.sum(axis=0))
    return axis_back(np.where(np.isnan(rows).any(axis=0), np.longdouble(np.nan), dx), y, axis)


def _supported_backward(dy: npt.ArrayLike, y: npt.ArrayLike, axis: int, power: int) -> Array:
    """dx = s·dy - s·Σ(s·dy)/Σs with s = y**(1 - 1/power) on the support, 0 off it."""
    p = axis_first(y, axis)
    support = p > 0
    s = np.where(support, np.sqrt(p) if power == 2 else 1, 0).astype(np.longdouble)
    g = np.where(support, axis_first(dy, axis), 0)  # dy is not read off the support
    dx = np.where(support, s * g - s * (s * g).sum(axis=0) / s.sum(axis=0), 0)
    return axis_back(np.where(np.isnan(p).any(axis=0), np.longdouble(np.nan), dx), y, axis)


@ieee
def sparsemax_backward(dy: npt.ArrayLike, y: npt.ArrayLike, axis: int = -1) -> Array:
    """dx = dy - mean of dy over the support {y > 0}, on the support."""
    return _supported_backward(dy, y, axis, 1)


@ieee
def entmax15_backward(dy: npt.ArrayLike, y: npt.ArrayLike, axis: int = -1) -> Array:
    """dx = s·dy - s·Σ(s·dy)/Σs with s = sqrt(y)."""
    return _supported_backward(dy, y, axis, 2)
