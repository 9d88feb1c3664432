"""The linear recurrence and its adjoint, by definition. Rows are walked in scan order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.ops.oracle import Array, axis_back, axis_first, ieee
from pullback.ops.scan_oracle import Elements, Outcomes, Pieces, results

Like = npt.ArrayLike
Given = npt.ArrayLike | None


def _linear_scan(a: Like, b: Like, axis: int, reverse: bool) -> Array:
    factors, terms = axis_first(a, axis, reverse), axis_first(b, axis, reverse)
    h = terms.copy()
    for j in range(len(h)):
        # Not 0·a[0]: an infinite first factor has nothing to multiply.
        h[j] = factors[j] * h[j - 1] + terms[j] if j else terms[j]
    return axis_back(h, b, axis, reverse)


@ieee
def linear_scan(
    a: Like,
    b: Like,
    axis: int = -1,
    *,
    reverse: bool = False,
    exclusive: bool = False,
    initial: Given = None,
    offsets: Given = None,
) -> Array:
    factors = np.broadcast_to(a, np.shape(b))
    about = Pieces(b, axis, reverse, exclusive, initial, offsets)
    return results(
        about,
        0.0,
        lambda a, b: _linear_scan(a, b, about.axis, reverse),
        Elements(factors, 1.0),
        Elements(b),
    )


@ieee
def discounted_sum(
    x: Like,
    discount: Like,
    axis: int = -1,
    *,
    reverse: bool = True,
    initial: Given = None,
    offsets: Given = None,
) -> Array:
    """h[j] = x[j] + discount·h[j+1], or of h[j-1] if not reversed."""
    return linear_scan(discount, x, axis, reverse=reverse, initial=initial, offsets=offsets)


def _linear_scan_backward(
    dh: Like, a: Like, h: Like, axis: int, reverse: bool
) -> tuple[Array, Array]:
    factors, states = axis_first(a, axis, reverse), axis_first(h, axis, reverse)
    g = axis_first(dh, axis, reverse).copy()
    for j in reversed(range(len(g) - 1)):
        g[j] = factors[j + 1] * g[j + 1] + g[j]
    da = np.zeros_like(g)
    da[1:] = g[1:] * states[:-1]
    return axis_back(da, dh, axis, reverse), axis_back(g, dh, axis, reverse)


@ieee
def linear_scan_backward(
    dh: Like,
    a: Like,
    h: Like,
    axis: int = -1,
    *,
    reverse: bool = False,
    exclusive: bool = False,
    initial: Given = None,
    offsets: Given = None,
) -> Any:
    """(da, db), and the gradient of the initial value if there is one."""
    factors = np.broadcast_to(a, np.shape(dh))
    about = Pieces(dh, axis, reverse, exclusive, initial, offsets)
    found = about.each(
        lambda dh, a, h: _linear_scan_backward(dh, a, h, about.axis, reverse),
        Outcomes(dh, -0.0),
        Elements(factors, 1.0),
        Outcomes(h),
    )
    da, db = (
        about.whole([about.gradient(pair[k], group) for group, pair in found]) for k in (0, 1)
    )
    da = _summed(da, np.shape(a))
    return (da, db, about.d_initial([g for _, (_, g) in found])) if about.leads else (da, db)


def _summed(values: Array, shape: tuple[int, ...]) -> Array:
    """To the shape of what was broadcast."""
    values = values.sum(axis=tuple(range(values.ndim - len(shape))))
    stretched = tuple(k for k, n in enumerate(shape) if n == 1 and values.shape[k] != 1)
    return np.asarray(values.sum(axis=stretched, keepdims=True))
