"""The linear recurrence and its adjoint, by definition. Rows are walked in scan order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pullback.ops.oracle import Array, axis_back, axis_first, ieee


@ieee
def linear_scan(
    a: npt.ArrayLike, b: npt.ArrayLike, axis: int = -1, *, reverse: bool = False
) -> Array:
    factors, terms = axis_first(a, axis, reverse), axis_first(b, axis, reverse)
    h = terms.copy()
    for j in range(len(h)):
        # Not 0·a[0]: an infinite first factor has nothing to multiply.
        h[j] = factors[j] * h[j - 1] + terms[j] if j else terms[j]
    return axis_back(h, a, axis, reverse)


@ieee
def linear_scan_backward(
    dh: npt.ArrayLike, a: npt.ArrayLike, h: npt.ArrayLike, axis: int = -1, *, reverse: bool = False
) -> tuple[Array, Array]:
    factors, states = axis_first(a, axis, reverse), axis_first(h, axis, reverse)
    g = axis_first(dh, axis, reverse).copy()
    for j in reversed(range(len(g) - 1)):
        g[j] = factors[j + 1] * g[j + 1] + g[j]
    da = np.zeros_like(g)
    da[1:] = g[1:] * states[:-1]
    return axis_back(da, a, axis, reverse), axis_back(g, a, axis, reverse)
