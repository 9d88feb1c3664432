"""Distances in units in the last place, and correct rounding from the oracles' wide values."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Wide = npt.NDArray[np.longdouble]


def _ulp(at: Wide, dtype: npt.DTypeLike) -> Wide:
    """The spacing of `dtype` in the binade of `at`; below the normal range, of the denormals."""
    info = ml_dtypes.finfo(dtype)
    exponent = np.frexp(np.where(np.isfinite(at), at, 1))[1] - 1
    exponent = np.where(at == 0, info.minexp, np.maximum(exponent, info.minexp))
    return np.asarray(np.ldexp(np.longdouble(1), exponent - info.nmant))


def round_to(want: npt.ArrayLike, dtype: npt.DTypeLike) -> Array:
    """Round to `dtype`, to nearest and ties to even, in a single rounding.

    A plain cast goes through double or float on its way to the 16-bit dtypes and rounds twice.
    """
    value = np.asarray(want, dtype=np.longdouble)
    with np.errstate(all="ignore"):
        ulp = _ulp(value, dtype)
        nearest = np.where(np.isfinite(value), np.rint(value / ulp) * ulp, value)
        return np.asarray(nearest.astype(dtype))


def ulp_error(got: npt.ArrayLike, want: npt.ArrayLike, scale: npt.ArrayLike = 0.0) -> Wide:
    """|got - want| in units in the last place of got's dtype at |want|, or at `scale` if larger.

    `scale` is for results that cancellation makes small: a sum is as exact as its terms allow. A
    wanted value that rounds to infinity is infinity. Specials must agree: 0 if so, else infinity.
    """
    found = np.asarray(got)
    value = np.asarray(want, dtype=np.longdouble)
    rounded = round_to(value, found.dtype).astype(np.longdouble)
    actual = found.astype(np.longdouble)
    with np.errstate(all="ignore"):
        distance = np.abs(actual - value) / _ulp(np.maximum(np.abs(value), scale), found.dtype)
    same = (actual == rounded) | (np.isnan(actual) & np.isnan(rounded))
    special = np.where(same, 0, np.inf).astype(np.longdouble)
    return np.asarray(np.where(np.isfinite(actual) & np.isfinite(rounded), distance, special))


def worst(got: npt.ArrayLike, want: npt.ArrayLike, scale: npt.ArrayLike = 0.0) -> float:
    """The largest error of all elements in ulp, 0 if there are none."""
    if np.shape(got) != np.shape(want):
        raise ValueError(f"shape {np.shape(got)} where {np.shape(want)} was wanted")
    return float(np.max(ulp_error(got, want, scale), initial=0.0))
