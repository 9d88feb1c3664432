"""Derivatives of the simplex maps. All Jacobians but that of log_softmax are symmetric, so forward
mode is the backward kernel again."""

from __future__ import annotations

from typing import Any

from pullback.ops.calculus import Array, Arrays, Calculus, Options, Tangents, total
from pullback.ops.simplex.functions import (
    entmax15,
    entmax15_backward,
    log_softmax,
    log_softmax_backward,
    softmax,
    softmax_backward,
    sparsemax,
    sparsemax_backward,
)


def _symmetric(backward: Any) -> Calculus:
    def pull(xp: Arrays, g: Array, *, result: Array, options: Options) -> Tangents:
        return {"x": backward(g, result, **options)}

    def push(xp: Arrays, t: Tangents, *, result: Array, options: Options) -> Array:
        return backward(t["x"], result, **options)

    return Calculus(pull, push)


def _softmax_backward(xp: Arrays, *, dy: Array, y: Array, axis: int) -> Array:
    return y * (dy - total(xp, y * dy, axis))


def _log_softmax_pull(xp: Arrays, g: Array, *, result: Array, axis: int) -> Tangents:
    return {"x": log_softmax_backward(g, result, axis)}


def _masked(xp: Arrays, p: Array, value: Array, axis: int) -> Array:
    """`value`, but 0 in rows that are fully masked."""
    return xp.where(total(xp, p, axis) == 0, 0.0, value)


def _log_softmax_push(xp: Arrays, t: Tangents, *, result: Array, axis: int) -> Array:
    p = xp.exp(result)
    return _masked(xp, p, t["x"] - total(xp, p * t["x"], axis), axis)


def _log_softmax_backward(xp: Arrays, *, dy: Array, y: Array, axis: int) -> Array:
    p = xp.exp(y)
    return _masked(xp, p, dy - p * total(xp, dy, axis), axis)


def _sparsemax_backward_pull(xp: Arrays, g: Array, *, y: Array, axis: int) -> Tangents:
    return {"dy": sparsemax_backward(g, xp.constant(y), axis)}


def _sparsemax_backward_push(xp: Arrays, t: Tangents, *, y: Array, axis: int) -> Array:
    return sparsemax_backward(t["dy"], xp.constant(y), axis)


def _entmax15_backward(xp: Arrays, *, dy: Array, y: Array, axis: int) -> Array:
    support = y > 0
    # The inner `where` keeps the infinite slope of the root at 0 out of the derivative.
    s = xp.where(support, xp.sqrt(xp.where(support, y, 1.0)), 0.0)
    g = xp.where(support, dy, 0.0)
    mass = total(xp, s, axis)
    return s * g - s * (total(xp, s * g, axis) / xp.where(mass == 0, 1.0, mass))


CALCULUS = {
    softmax.name: _symmetric(softmax_backward),
    softmax_backward.name: Calculus(composed=_softmax_backward),
    log_softmax.name: Calculus(_log_softmax_pull, _log_softmax_push),
    log_softmax_backward.name: Calculus(composed=_log_softmax_backward),
    sparsemax.name: _symmetric(sparsemax_backward),
    sparsemax_backward.name: Calculus(_sparsemax_backward_pull, _sparsemax_backward_push),
    entmax15.name: _symmetric(entmax15_backward),
    entmax15_backward.name: Calculus(composed=_entmax15_backward),
}
