"""Linear interpolation and its adjoint, by definition."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pullback.ops.oracle import Wide, ieee, wide


def _shares(weight: npt.ArrayLike) -> tuple[Wide, Wide]:
    """w and 1-w. A number lives in double, and so does its complement; an array is a tensor."""
    if isinstance(weight, np.ndarray):
        w = wide(weight)
        return w, np.asarray(1 - w)
    number = np.float64(weight)  # type: ignore[arg-type]
    return wide(number), wide(np.float64(1) - number)


def _sum_to(gradient: Wide, shape: tuple[int, ...]) -> Wide:
    """The adjoint of broadcasting `shape` to the gradient's own."""
    added = gradient.ndim - len(shape)
    stretched = [added + i for i, extent in enumerate(shape) if extent == 1]
    axes = (*range(added), *stretched)
    return np.asarray(gradient.sum(axis=axes, keepdims=True).reshape(shape))


@ieee
def lerp(a: npt.ArrayLike, b: npt.ArrayLike, weight: npt.ArrayLike) -> Wide:
    w, rest = _shares(weight)
    start, end = wide(a), wide(b)
    from_start = start + w * (end - start)
    from_end = end - (end - start) * rest
    return np.asarray(np.where(np.abs(w) < 0.5, from_start, from_end))


@ieee
def lerp_backward(
    dy: npt.ArrayLike,
    weight: npt.ArrayLike,
    a: npt.ArrayLike | None = None,
    b: npt.ArrayLike | None = None,
) -> tuple[Wide, ...]:
    """(da, db), and dweight if the weight is an array; summed to a's and b's shapes if given."""
    w, rest = _shares(weight)
    g = wide(dy)
    da, db = np.asarray(rest * g), np.asarray(w * g)
    if a is None or b is None:
        if isinstance(weight, np.ndarray):
            raise ValueError("the gradient of a tensor weight needs a and b")
        return da, db
    da, db = _sum_to(da, np.shape(a)), _sum_to(db, np.shape(b))
    if not isinstance(weight, np.ndarray):
        return da, db
    return da, db, _sum_to(np.asarray(g * (wide(b) - wide(a))), weight.shape)
