"""Derivatives of lerp: linear in a and b, and in the weight if that is a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pullback.ops.axes import elementwise
from pullback.ops.calculus import Array, Arrays, Calculus, Tangents, all_mapped, sum_to
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
    xp: Arrays, *, dy: Array, weight: Array | float, a: Array, b: Array
) -> tuple[Array, ...]:
    shapes = [dy.shape if operand is None else operand.shape for operand in (a, b)]
    da, db = sum_to(xp, (1 - weight) * dy, shapes[0]), sum_to(xp, weight * dy, shapes[1])
    if not hasattr(weight, "shape"):
        return da, db
    return da, db, sum_to(xp, dy * (b - a), weight.shape)


def _batch(
    xp: Arrays, function: Any, size: int, mapped: frozenset[str], arguments: dict[str, Any]
) -> Any:
    """The batch is the leading axis of all, with axes of one between it and those of lower rank."""
    tensors = all_mapped(xp, function, size, mapped, arguments)
    rank = max(len(x.shape) for x in tensors.values())
    for name, x in tensors.items():
        missing = rank - len(x.shape)
        arguments[name] = x.reshape((size, *(1,) * missing, *x.shape[1:]))
    results = function(**arguments)
    if not isinstance(results, tuple):
        return results
    operands = (tensors[name if name in tensors else "dy"] for name in ("a", "b", "weight"))
    return tuple(r.reshape(x.shape) for r, x in zip(results, operands, strict=False))


CALCULUS = {
    "lerp": Calculus(_pull, _push, saves=_saves, batch=_batch, axes=elementwise([""])),
    "lerp_backward": Calculus(
        composed=_backward, batch=_batch, axes=elementwise(["a", "b", "weight"])
    ),
}
