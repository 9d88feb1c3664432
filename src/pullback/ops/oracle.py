"""What the oracles of every family share: wide arithmetic, axes, who is extremal, which ids count.

An oracle is the definition of an op, evaluated in the widest float NumPy has (80 bits on x86). It
is slow and obvious on purpose, validates next to nothing, and returns unrounded `longdouble`
arrays: the caller rounds them to the dtype under test.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Wide = npt.NDArray[np.longdouble]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Ties = Literal["first", "last", "split"]
OutOfRange = Literal["skip", "error"]

INF = np.longdouble(np.inf)

ieee = np.errstate(all="ignore")
"""Decorates a definition that lets inf and NaN arise as IEEE 754 says, without warnings."""


def wide(x: npt.ArrayLike) -> Wide:
    """A fresh wide copy; exact for every float dtype, signs of zero and NaN included."""
    return np.array(x).astype(np.longdouble)


def axis_first(x: npt.ArrayLike, axis: int, reverse: bool = False) -> Wide:
    """`x` widened, `axis` leading and walked from its end if `reverse`. Rank 0 is a row of one."""
    rows = np.moveaxis(np.atleast_1d(wide(x)), axis, 0)
    return rows[::-1] if reverse else rows


def axis_back(rows: Array, like: npt.ArrayLike, axis: int, reverse: bool = False) -> Array:
    """Undo `axis_first`, giving `rows` the shape of `like`."""
    return np.moveaxis(rows[::-1] if reverse else rows, 0, axis).reshape(np.shape(like))


def maximal(rows: Wide) -> Bools:
    """Which entries of each column hold its maximum. NaN is greatest, and NaNs are equal."""
    nan = np.isnan(rows)
    return np.asarray(nan | (rows == rows.max(axis=0, initial=-INF)))


def kept(ids: npt.ArrayLike, extent: int, out_of_range: OutOfRange) -> Bools:
    """Which ids lie in [0, extent). The others are dropped, or the first of them is an error."""
    flat = np.asarray(ids, dtype=np.int64).reshape(-1)
    inside = (flat >= 0) & (flat < extent)
    if out_of_range == "error" and not inside.all():
        first = int(np.argmin(inside))
        raise IndexError(f"id {flat[first]} at position {first} is not in [0, {extent})")
    return inside
