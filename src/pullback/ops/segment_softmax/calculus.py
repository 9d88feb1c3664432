"""Derivatives of softmax within segments. Sums over segments and the spreading of a row over its
members are `segment_sum` and its backward."""

from __future__ import annotations

from typing import Any

from pullback.ops.calculus import Array, Arrays, Calculus, Options, Tangents
from pullback.ops.segment.derivatives import Grouped, batched, free_axes
from pullback.ops.segment_softmax.functions import (
    segment_log_softmax,
    segment_log_softmax_backward,
    segment_softmax,
    segment_softmax_backward,
)


def _softmax_pull(
    xp: Arrays, g: Array, *, result: Array, segment_ids: Any, offsets: Any, options: Options
) -> Tangents:
    return {"x": segment_softmax_backward(g, result, segment_ids, offsets=offsets, **options)}


def _softmax_push(
    xp: Arrays, t: Tangents, *, result: Array, segment_ids: Any, offsets: Any, options: Options
) -> Array:
    return segment_softmax_backward(t["x"], result, segment_ids, offsets=offsets, **options)


def _softmax_backward(
    xp: Arrays, *, dy: Array, y: Array, segment_ids: Any, offsets: Any, options: Options
) -> Array:
    groups = Grouped(segment_ids, offsets, options)
    sums = groups.total(y * dy, options["num_segments"])
    kept = groups.kept(xp.full_like(xp.constant(sums), 1.0), y)
    return y * kept * (dy - groups.spread(sums, y))


def _log_pull(
    xp: Arrays, g: Array, *, result: Array, segment_ids: Any, offsets: Any, options: Options
) -> Tangents:
    return {"x": segment_log_softmax_backward(g, result, segment_ids, offsets=offsets, **options)}


def _masked(xp: Arrays, groups: Grouped, p: Array, value: Array) -> Array:
    """`value`, but 0 in segments without mass, and in rows of none."""
    return xp.where(groups.summed(p) == 0, 0.0, value)


def _log_push(
    xp: Arrays, t: Tangents, *, result: Array, segment_ids: Any, offsets: Any, options: Options
) -> Array:
    p, groups = xp.exp(result), Grouped(segment_ids, offsets, options)
    return _masked(xp, groups, p, t["x"] - groups.summed(p * t["x"]))


def _log_backward(
    xp: Arrays, *, dy: Array, y: Array, segment_ids: Any, offsets: Any, options: Options
) -> Array:
    p, groups = xp.exp(y), Grouped(segment_ids, offsets, options)
    return _masked(xp, groups, p, dy - p * groups.summed(dy))


_AXES = free_axes("n", x="n", dy="n", y="n")
CALCULUS = {
    segment_softmax.name: Calculus(_softmax_pull, _softmax_push, batch=batched, axes=_AXES),
    segment_softmax_backward.name: Calculus(composed=_softmax_backward, batch=batched, axes=_AXES),
    segment_log_softmax.name: Calculus(_log_pull, _log_push, batch=batched, axes=_AXES),
    segment_log_softmax_backward.name: Calculus(composed=_log_backward, batch=batched, axes=_AXES),
}
