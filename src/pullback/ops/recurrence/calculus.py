"""Derivatives of the linear recurrence: each is a linear recurrence again."""

from __future__ import annotations

from pullback.ops.calculus import (
    Array,
    Arrays,
    Calculus,
    Options,
    Tangents,
    following,
    previous,
)
from pullback.ops.recurrence.functions import linear_scan, linear_scan_backward


def _pull(xp: Arrays, g: Array, *, a: Array, result: Array, options: Options) -> Tangents:
    da, db = linear_scan_backward(g, a, result, **options)
    return {"a": da, "b": db}


def _push(xp: Arrays, t: Tangents, *, a: Array, result: Array, axis: int, reverse: bool) -> Array:
    source = previous(xp, result, axis, reverse, 0.0) * t["a"] + t["b"]
    return linear_scan(a, source, axis, reverse=reverse)


def _backward(
    xp: Arrays, *, dh: Array, a: Array, h: Array, axis: int, reverse: bool
) -> tuple[Array, Array]:
    later = following(xp, a, axis, reverse, 0.0)
    db = linear_scan(later, dh, axis, reverse=not reverse)
    return db * previous(xp, h, axis, reverse, 0.0), db


CALCULUS = {
    "linear_scan": Calculus(_pull, _push),
    "linear_scan_backward": Calculus(composed=_backward),
}
