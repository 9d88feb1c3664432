"""Memory layouts of the same values. Each copies an array into a larger buffer and returns the view
that holds it; of an output, whatever the buffer has outside the view must stay as it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Layout = Callable[[Any], Any]


def poison(array: Any) -> Any:
    """A NaN, or an integer no index could be."""
    return np.array(-7 if array.dtype.kind in "iub" else np.nan, array.dtype)


def buffer_of(view: Any) -> Any:
    """The array that owns the memory of a view."""
    while isinstance(view.base, np.ndarray):
        view = view.base
    return view


def in_buffer(array: Any, order: Sequence[int], steps: Sequence[int], margin: int) -> Any:
    """The axes stored in this order, outermost first, with a step per axis and so many more
    elements on both sides of each."""
    extents = [abs(step) * n + 2 * margin for n, step in zip(array.shape, steps, strict=True)]
    buffer = np.full([extents[axis] for axis in order], poison(array), array.dtype)
    whole = buffer.transpose(np.argsort(order))
    inner = whole[tuple(slice(margin, extent - margin) for extent in extents)]
    view = inner[tuple(slice(None, None, step) for step in steps)]
    view[...] = array
    return view


def _column_major(array: Any) -> Any:
    return in_buffer(array, range(array.ndim)[::-1], [1] * array.ndim, 0)


def _strided(array: Any) -> Any:
    return in_buffer(array, range(array.ndim), [2] * array.ndim, 0)


def _flipped(array: Any) -> Any:
    return in_buffer(array, range(array.ndim), [-1] * array.ndim, 0)


def _shifted(array: Any) -> Any:
    buffer = np.full(array.size + 1, poison(array), array.dtype)
    view = buffer[1:].reshape(array.shape)
    view[...] = array
    return view


def _permuted(array: Any) -> Any:
    last = array.ndim - 1
    return in_buffer(array, [*range(last)[::-1], last], [1] * last + [2], 0)


def _first_flipped(array: Any) -> Any:
    return in_buffer(array, range(array.ndim), [-1] + [1] * (array.ndim - 1), 1)


LAYOUTS: dict[str, Layout] = {
    "column-major": _column_major,
    "every other element": _strided,
    "negative strides": _flipped,
    "off by one element": _shifted,
    "outer axes permuted, every other element of the last": _permuted,
    "first axis reversed, inside a larger array": _first_flipped,
}
