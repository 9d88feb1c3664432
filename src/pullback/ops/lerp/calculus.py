"""Derivatives of lerp: linear in a and b, and in the weight if that is a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pullback.ops.calculus import Array, Arrays, Calculus, Tangents, sum_to
from pullback.ops.lerp.functions import lerp, lerp_backward


def _saves(arguments: Mapping[str, Any]) -> frozenset[str]:
    """With a constant weight and no broadcasting the backward needs none of the operands."""
    a, b, weight = (arguments[name] for name in ("a", "b", "weight"))
    same = not hasattr(weight, "shape") and tuple(a.shape) == tuple(b.shape)
    return frozenset() if same else frozenset(("a", "b", "weight"))


def _pull(
    xp: Arrays, g: Array, *, a: Array | None, b: Array | None, weight: Array | float
) -> Tangents:
    return dict(zip(("a", "b", "weight"), lerp_backward(g, weight, a, b), strict=False))


def _push(xp: Arrays, t: Tangents, *, a: Array, b: Array, weight: Array | float) -> Array:
    tangent = lerp(t["a"], t["b"], weight)
    return tangent + t["weight"] * (b - a) if "weight" in t else tangent


def _backward(
    xp: Arrays, *, dy: Array, weight: Array | float, a: Array | None, b: Array | None
) -> tuple[Array, ...]:
    shapes = [dy.shape if operand is None else operand.shape for operand in (a, b)]
    da, db = sum_to(xp, (1 - weight) * dy, shapes[0]), sum_to(xp, weight * dy, shapes[1])
    if not hasattr(weight, "shape"):
        return da, db
    assert a is not None
    assert b is not None
    return da, db, sum_to(xp, dy * (b - a), weight.shape)


CALCULUS = {
    "lerp": Calculus(_pull, _push, saves=_saves),
    "lerp_backward": Calculus(composed=_backward),
}
