"""entmax for any alpha and the Fenchel-Young losses, by definition. Rows lie along the first axis.

With b = alpha - 1: exp_b(w) = max(1 + b·w, 0)^(1/b), and e^w at b = 0. The map is exp_b(x - m - c)
with m the maximum of the row and c >= 0 such that the row sums to 1. It is found by bisection of
t = -log p of the maximum: c = (1 - e^-bt) / b, and u = 1 + b·w = e^-bt + b·(x - m).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pullback.ops.oracle import INF, Array, Wide, axis_first, ieee, wide

ONE = np.longdouble(1)


class Rows(NamedTuple):
    """A row at its root: w = x - m - c, u = 1 + b·w, p = exp_b(w), and v = log p."""

    w: Wide
    u: Wide
    v: Wide
    p: Wide
    b: Wide
    masked: Array  # rows of only -inf


def _betas(alpha: Any, x: npt.ArrayLike, axis: int) -> Wide:
    """alpha - 1 of each row."""
    alphas = np.broadcast_to(wide(alpha), np.shape(x))
    rows = np.moveaxis(np.atleast_1d(alphas), axis, 0)
    if len(rows):
        return np.asarray(rows[0] - ONE)
    return np.zeros(rows.shape[1:], np.longdouble)


def _at(rows: Wide, top: Wide, t: Wide, b: Wide) -> tuple[Wide, Wide, Wide, Wide]:
    z, positive = np.where(rows == top, 0, rows - top), np.where(b == 0, ONE, b)
    w = z + np.where(b == 0, -t, np.expm1(-b * t) / positive)
    u = np.where(b == 0, ONE, np.where(b > 1, np.exp(-b * t) + b * z, 1 + b * w))
    on = u > 0
    logs = np.where(b > 1, np.log(np.where(on, u, 1)), np.log1p(np.where(on & (b <= 1), b * w, 0)))
    v = np.where(b == 0, w, logs / positive)
    p = np.where(np.isnan(w), w, np.where(u > 0, np.exp(v), 0))
    return w, u, v, p


def _solve(x: npt.ArrayLike, alpha: Any, axis: int) -> Rows:
    rows, b = axis_first(x, axis), _betas(alpha, x, axis)
    top = np.asarray(rows.max(axis=0, initial=-INF, where=~np.isnan(rows)))
    low = np.zeros_like(top)
    high = np.full_like(top, np.log(np.longdouble(max(len(rows), 1))))
    for _ in range(72):
        t = (low + high) / 2
        heavy = _at(rows, top, t, b)[3].sum(axis=0) >= 1
        low, high = np.where(heavy, t, low), np.where(heavy, high, t)
    # `high` keeps entries exactly at the threshold at 0 where that is representable; where the
    # row has one entry the root is 0.
    t = np.where(_at(rows, top, low, b)[3].sum(axis=0) == 1, low, (low + high) / 2)
    return Rows(*_at(rows, top, t, b), b, (rows == -INF).all(axis=0))


def _back(rows: Wide, like: npt.ArrayLike, axis: int) -> Array:
    return np.moveaxis(rows, 0, axis).reshape(np.shape(like))


def _spoiled(rows: Wide) -> Array:
    return np.asarray(np.isnan(rows).any(axis=0))


@ieee
def entmax(x: npt.ArrayLike, alpha: Any, axis: int = -1) -> Array:
    found = _solve(x, alpha, axis)
    nan = _spoiled(axis_first(x, axis))
    p = np.where(nan, np.longdouble(np.nan), np.where(found.masked, 0, found.p))
    return _back(p, x, axis)


def _row_gradient(g: Wide, p: Wide, b: Wide) -> Wide:
    """dx = s·(dy - Σ s·dy / Σ s) with s = p^(1-b); off the support dy is not read and dx is 0."""
    support = p > 0
    s = np.where(support, np.exp((1 - b) * np.log(np.where(support, p, 1))), 0)
    softmax = b == 0
    g = np.where(support | softmax, g, 0)
    mass = s.sum(axis=0)
    mean = np.where(softmax, (s * g).sum(axis=0), (s * g).sum(axis=0) / np.where(mass > 0, mass, 1))
    dx = np.where(support | softmax, s * (g - mean), 0)
    return np.where((p == 0).all(axis=0), 0, np.where(_spoiled(p), np.longdouble(np.nan), dx))


def _alpha_gradient(g: Wide, found: Rows, nan: Array) -> Wide:
    """Σ dy·∂p/∂alpha: a = ∂p/∂b at fixed w, and c moves so that the row keeps its sum."""
    w, u, v, p, b, masked = found
    # Of a probability that f64 does not hold, dy is not read.
    support = p.astype(np.float64) > 0
    s = np.where(support, b * w, 0)
    near = np.abs(s) < 1e-3
    series = sum((-1) ** k * (k + 1) / np.longdouble(k + 2) * s**k for k in range(8))
    safe = np.where(near, ONE, s)
    logs = np.where(near, 0, v * b)  # log u
    curve = np.where(near, series, (logs - safe / np.where(support, u, 1)) / safe**2)
    a = np.where(support, -p * np.where(support, w, 0) ** 2 * curve, 0)
    slope = np.where(support, p / np.where(support, u, 1), 0)
    g = np.where(support, g, 0)
    rate = a.sum(axis=0) / np.where(masked, 1, slope.sum(axis=0))
    d = (g * a).sum(axis=0) - (g * slope).sum(axis=0) * rate
    return np.where(nan, np.longdouble(np.nan), np.where(masked, 0, d))


def summed_to(values: Array, shape: tuple[int, ...]) -> Array:
    """The adjoint of broadcasting `shape`."""
    added = values.ndim - len(shape)
    axes = tuple(range(added)) + tuple(
        added + k for k, n in enumerate(shape) if n == 1 and values.shape[added + k] != 1
    )
    return np.asarray(values.sum(axis=axes, keepdims=True)).reshape(shape)


@ieee
def entmax_backward(
    dy: npt.ArrayLike, y: npt.ArrayLike, alpha: Any, axis: int = -1, x: npt.ArrayLike | None = None
) -> Any:
    g, p = axis_first(dy, axis), axis_first(y, axis)
    dx = _back(_row_gradient(g, p, _betas(alpha, y, axis)), y, axis)
    if not isinstance(alpha, np.ndarray):
        return dx
    assert x is not None
    rows = axis_first(x, axis)
    nan = _spoiled(rows)
    d = _alpha_gradient(g, _solve(x, alpha, axis), nan)
    if not len(rows):
        d = np.zeros(rows.shape[1:], np.longdouble)
    full = np.shape(x)
    values = np.expand_dims(d, axis % len(full)) if full else d.reshape(())
    return dx, summed_to(values, np.shape(alpha))


# --- losses -------------------------------------------------------------------------------------


def _targets(target: npt.ArrayLike, like: npt.ArrayLike, axis: int) -> Wide:
    target = np.asarray(target)
    if target.dtype.kind in "iu":
        n = np.atleast_1d(np.asarray(like)).shape[axis]
        numbers = np.arange(n).reshape(n, *(1,) * target.ndim)
        rows = np.where(numbers == target, ONE, np.longdouble(0))
        return rows if np.ndim(like) else rows.reshape(n)
    return axis_first(target, axis)


def _loss(x: npt.ArrayLike, target: npt.ArrayLike, alpha: Any, axis: int) -> Array:
    """Σ [t·(log_b t - w) - u·(t - p)] / alpha: Ω*(x) + Ω(t) - <x, t> for rows t that sum to 1."""
    found, t = _solve(x, alpha, axis), _targets(target, x, axis)
    w, u, _, p, b, masked = found
    positive = np.where(t > 0, t, ONE)
    log_t = np.where(b == 0, np.log(positive), np.expm1(b * np.log(positive)) / np.where(b, b, 1))
    terms = np.where(t > 0, t * (log_t - w) - u * (t - p), np.where(p > 0, u * p, 0)) / (1 + b)
    nan = np.isnan(axis_first(x, axis)).any(axis=0) | np.isnan(t).any(axis=0)
    total = np.where(nan, np.longdouble(np.nan), np.where(masked, 0, terms.sum(axis=0)))
    shape = np.delete(np.shape(x), axis) if np.ndim(x) else ()
    return np.asarray(total).reshape(tuple(int(n) for n in shape))


def _loss_of(alpha: float) -> tuple[Any, Any]:
    @ieee
    def loss(
        x: npt.ArrayLike, target: npt.ArrayLike, axis: int = -1, return_probabilities: bool = False
    ) -> Any:
        value = _loss(x, target, alpha, axis)
        return (value, entmax(x, alpha, axis)) if return_probabilities else value

    return loss, _loss_backward


@ieee
def _loss_backward(
    dy: npt.ArrayLike,
    p: npt.ArrayLike,
    target: npt.ArrayLike,
    axis: int = -1,
) -> Array:
    """(p - t)·dy; a row without mass has no gradient."""
    rows, t = axis_first(p, axis), _targets(target, p, axis)
    dx = (rows - t) * wide(dy)
    return _back(np.where((rows == 0).all(axis=0), 0, dx), p, axis)


softmax_loss, softmax_loss_backward = _loss_of(1.0)
entmax15_loss, entmax15_loss_backward = _loss_of(1.5)
sparsemax_loss, sparsemax_loss_backward = _loss_of(2.0)


@ieee
def entmax_loss(
    x: npt.ArrayLike,
    target: npt.ArrayLike,
    alpha: Any,
    axis: int = -1,
    return_probabilities: bool = False,
) -> Any:
    value = _loss(x, target, alpha, axis)
    return (value, entmax(x, alpha, axis)) if return_probabilities else value


@ieee
def entmax_loss_backward(
    dy: npt.ArrayLike,
    p: npt.ArrayLike,
    target: npt.ArrayLike,
    alpha: Any,
    axis: int = -1,
) -> Array:
    return _loss_backward(dy, p, target, axis)
