"""Correct rounding from the oracles' wide values to the dtypes of tensors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Wide = npt.NDArray[np.longdouble]


def spacing(at: Wide, dtype: npt.DTypeLike) -> Wide:
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
        ulp = spacing(value, dtype)
        nearest = np.where(np.isfinite(value), np.rint(value / ulp) * ulp, value)
        return np.asarray(nearest.astype(dtype))
