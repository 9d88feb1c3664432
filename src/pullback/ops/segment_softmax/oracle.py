"""Softmax within segments, by definition: the maps of `ops/simplex` over each group of rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pullback.ops.oracle import OutOfRange, Wide, ieee, wide
from pullback.ops.segment.oracle import groups
from pullback.ops.simplex import oracle as simplex


def _of_groups(
    map: Callable[..., Wide],
    arrays: tuple[npt.ArrayLike, ...],
    fill: float,
    segment_ids: npt.ArrayLike | None,
    num_segments: int | None,
    offsets: npt.ArrayLike | None,
    axis: int,
    out_of_range: OutOfRange,
) -> Wide:
    """`map` over the rows of each group of all arrays; `fill` in rows of none."""
    rows = [np.moveaxis(wide(array), axis, 0) for array in arrays]
    out = np.full(rows[0].shape, fill, np.longdouble)
    for group in groups(segment_ids, num_segments, offsets, out_of_range):
        if group.size:
            out[group] = map(*(array[group] for array in rows), axis=0)
    return np.moveaxis(out, 0, axis)


def _forward(map: Callable[..., Wide], fill: float) -> Callable[..., Wide]:
    @ieee
    def oracle(
        x: npt.ArrayLike,
        segment_ids: npt.ArrayLike | None = None,
        num_segments: int | None = None,
        *,
        offsets: npt.ArrayLike | None = None,
        axis: int = 0,
        out_of_range: OutOfRange = "skip",
    ) -> Wide:
        return _of_groups(map, (x,), fill, segment_ids, num_segments, offsets, axis, out_of_range)

    return oracle


def _backward(map: Callable[..., Wide]) -> Callable[..., Wide]:
    @ieee
    def oracle(
        dy: npt.ArrayLike,
        y: npt.ArrayLike,
        segment_ids: npt.ArrayLike | None = None,
        num_segments: int | None = None,
        *,
        offsets: npt.ArrayLike | None = None,
        axis: int = 0,
        out_of_range: OutOfRange = "skip",
    ) -> Wide:
        return _of_groups(map, (dy, y), 0.0, segment_ids, num_segments, offsets, axis, out_of_range)

    return oracle


segment_softmax = _forward(simplex.softmax, 0.0)
segment_log_softmax = _forward(simplex.log_softmax, -np.inf)
segment_softmax_backward = _backward(simplex.softmax_backward)
segment_log_softmax_backward = _backward(simplex.log_softmax_backward)
