"""Distances in units in the last place."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pullback.tensor.rounding import Wide, round_to, spacing

__all__ = ["round_to", "ulp_error", "worst"]


def ulp_error(got: npt.ArrayLike, want: npt.ArrayLike, scale: npt.ArrayLike = 0.0) -> Wide:
    """|got - want| in units in the last place of got's dtype at |want|, or at `scale` if larger.

    `scale` is for results that cancellation makes small: a sum is as exact as its terms allow. A
    wanted value that rounds to infinity is infinity. Specials must agree: 0 if so, else infinity.
    Infinity is one step past the largest number next to a wanted value that is finite and as large:
    an error of a few units may cross that border.
    """
    found = np.asarray(got)
    value = np.asarray(want, dtype=np.longdouble)
    rounded = round_to(value, found.dtype).astype(np.longdouble)
    actual = found.astype(np.longdouble)
    top = np.asarray(ml_dtypes.finfo(found.dtype).max, np.longdouble)
    with np.errstate(all="ignore"):
        step = spacing(np.maximum(np.minimum(np.abs(value), top), scale), found.dtype)
        past = np.copysign(top + spacing(top, found.dtype), actual)
        reached = np.where(np.isinf(actual) & np.isfinite(value), past, actual)
        distance = np.abs(reached - value) / step
        near = value * np.sign(actual)
        edge = (np.abs(reached) > top / 2) & (near > top / 2) & (near < 2 * top)
    same = (actual == rounded) | (np.isnan(actual) & np.isnan(rounded))
    special = np.where(same, 0, np.where(edge, distance, np.inf)).astype(np.longdouble)
    return np.asarray(np.where(np.isfinite(actual) & np.isfinite(rounded), distance, special))


def worst(got: npt.ArrayLike, want: npt.ArrayLike, scale: npt.ArrayLike = 0.0) -> float:
    """The largest error of all elements in ulp, 0 if there are none."""
    if np.shape(got) != np.shape(want):
        raise ValueError(f"shape {np.shape(got)} where {np.shape(want)} was wanted")
    return float(np.max(ulp_error(got, want, scale), initial=0.0))
