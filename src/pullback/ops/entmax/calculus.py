"""Derivatives of entmax and of the losses. With b = alpha - 1 and v = log p, on the support:

    ∂p/∂x = diag(s) - s sᵀ / Σ s        s = p^(1-b), symmetric
    ∂p/∂alpha = a - s·Σ a / Σ s         a = -p·v²·k(b·v), k(y) = (y - 1 + e^-y) / y²

Both follow from p and alpha alone, which makes second derivatives of them. The gradient of a loss
is (p - t)·dy: p is the saved one, which is differentiated as the map of x. A target that is a
distribution has a gradient too, written out: log_b t - log_b p on the support.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from pullback.ops.axes import Axes, Rule, Shapes, along_axis
from pullback.ops.calculus import (
    Array,
    Arrays,
    Calculus,
    Options,
    Tangents,
    all_mapped,
    each,
    sum_to,
    total,
)
from pullback.ops.entmax.functions import (
    entmax,
    entmax15_loss,
    entmax15_loss_backward,
    entmax_backward,
    entmax_loss,
    entmax_loss_backward,
    softmax_loss,
    softmax_loss_backward,
    sparsemax_loss,
    sparsemax_loss_backward,
)
from pullback.plan.function import axis_of

NEAR = 0.25  # below this, k(y) is its power series


def _is_array(alpha: Any) -> TypeGuard[Any]:
    return hasattr(alpha, "shape") and not isinstance(alpha, float)


# --- entmax -------------------------------------------------------------------------------------


def _pull(
    xp: Arrays, g: Array, *, x: Array, alpha: Array | float, result: Array, axis: int
) -> Tangents:
    if not _is_array(alpha):
        return {"x": entmax_backward(g, result, alpha, axis)}
    return dict(zip(("x", "alpha"), entmax_backward(g, result, alpha, axis, x=x), strict=True))


def _push(
    xp: Arrays, t: Tangents, *, x: Array, alpha: Array | float, result: Array, axis: int
) -> Array:
    if not _is_array(alpha):
        return entmax_backward(t["x"], result, alpha, axis)
    dy = t["x"]
    tangent, _ = _backward(xp, dy=dy, y=result, alpha=alpha, axis=axis, x=None)
    return tangent + t["alpha"] * _by_alpha(xp, result, alpha, axis)


def _slopes(xp: Arrays, y: Array, alpha: Array | float) -> tuple[Array, Array]:
    """s = p^(2-alpha) on the support, 0 off it, and log p there."""
    support = y > 0
    v = xp.log(xp.where(support, y, 1.0))
    return xp.where(support, xp.exp((2.0 - alpha) * v), 0.0), v


def _by_alpha(xp: Arrays, y: Array, alpha: Array, axis: int) -> Array:
    """∂p/∂alpha."""
    s, v = _slopes(xp, y, alpha)
    z = (alpha - 1.0) * v
    near = abs(z) < NEAR
    series = 0.0 * z
    for k in range(14, -1, -1):
        series = 1.0 - series * z / (k + 3.0)
    far = xp.where(near, 1.0, z)
    curve = xp.where(near, 0.5 * series, (far - 1.0 + xp.exp(-far)) / (far * far))
    a = -y * v * v * curve
    mass = total(xp, s, axis)
    return a - s * (total(xp, a, axis) / xp.where(mass == 0, 1.0, mass))


def _backward(
    xp: Arrays, *, dy: Array, y: Array, alpha: Array | float, axis: int, x: Array | None
) -> Array | tuple[Array, Array]:
    s, _ = _slopes(xp, y, alpha)
    g = xp.where(s > 0, dy, 0.0)
    mass = total(xp, s, axis)
    dx = s * (g - total(xp, s * g, axis) / xp.where(mass == 0, 1.0, mass))
    if not _is_array(alpha):
        return dx
    # As the kernel, which computes dalpha from x.
    p = y if x is None else entmax(x, alpha, axis)
    terms = xp.where(p > 0, dy, 0.0) * _by_alpha(xp, p, alpha, axis)
    return dx, sum_to(xp, total(xp, terms, axis), alpha.shape)


def _batch(
    xp: Arrays, function: Any, size: int, mapped: frozenset[str], arguments: dict[str, Any]
) -> Any:
    """The batch is the leading axis of all, with axes of one between it and those of alpha."""
    tensors = all_mapped(xp, function, size, mapped, arguments)
    shapes = {name: x.shape for name, x in tensors.items()}
    rank = max(len(shape) for shape in shapes.values()) - 1
    axis = axis_of(function.name, arguments["axis"], rank) + 1
    for name, x in tensors.items():
        missing = max(rank, 1) + 1 - len(x.shape)
        arguments[name] = x.reshape((size, *(1,) * missing, *x.shape[1:]))
    results = function(**{**arguments, "axis": axis})
    if not isinstance(results, tuple):
        return results if rank else results.reshape(size)
    dx, dalpha = results
    return dx.reshape(shapes["dy"]), dalpha.reshape(shapes["alpha"])


# --- losses -------------------------------------------------------------------------------------


def _is_label(target: Array) -> bool:
    return "int" in str(target.dtype)


def _onehot(xp: Arrays, p: Array, target: Array, axis: int) -> Array:
    """The target as a distribution."""
    if not _is_label(target):
        return target
    if not p.shape:
        return xp.full_like(p, 1.0)
    axis %= len(p.shape)
    after = (1,) * (len(p.shape) - axis - 1)
    places = xp.arange(p.shape[axis], p).reshape((p.shape[axis], *after))
    return xp.where(places == _per_row(target, p, axis), xp.full_like(p, 1.0), 0.0)


def _off(xp: Arrays, x: Array, axis: int) -> Array:
    """The sum along an axis that goes."""
    return xp.sum(x, axis, False) if x.shape else x


def _per_row(value: Array, p: Array, axis: int) -> Array:
    if not p.shape:
        return value
    axis %= len(p.shape)
    return value.reshape((*p.shape[:axis], 1, *p.shape[axis + 1 :]))


def _loss_calculus(loss: Any, backward: Any, alpha_of: Any) -> dict[str, Calculus]:
    """Of a loss and its backward; alpha_of(options) is their alpha."""

    def kept(options: Options) -> Options:
        return {name: value for name, value in options.items() if name != "return_probabilities"}

    def pull(
        xp: Arrays,
        g: Array,
        *,
        x: Array,
        target: Array,
        recorded: Array,
        options: Options,
        wanted: frozenset[str],
    ) -> Tangents:
        alpha, axis = alpha_of(options), options["axis"]
        p = xp.linked(recorded, lambda x: entmax(x, alpha, axis), x)
        found = {"x": backward(g, p, target, **kept(options))}
        if "target" in wanted and not _is_label(target):
            found["target"] = _per_row(g, p, axis) * _by_target(xp, x, p, target, alpha, axis)
        return found

    def push(xp: Arrays, t: Tangents, *, x: Array, target: Array, options: Options) -> Array:
        alpha, axis = alpha_of(options), options["axis"]
        p = entmax(x, alpha, axis)
        change = _difference(xp, p, target, axis) * t["x"]
        if not _is_label(target):
            change = change + _by_target(xp, x, p, target, alpha, axis) * t["target"]
        return _off(xp, change, axis)

    def composed(xp: Arrays, *, dy: Array, p: Array, target: Array, options: Options) -> Array:
        axis = options["axis"]
        return _difference(xp, p, target, axis) * _per_row(dy, p, axis)

    def records(arguments: Any) -> Options:
        return {"return_probabilities": True}

    return {
        loss.name: Calculus(pull, push, records=records, axes=_loss_axes("x")),
        backward.name: Calculus(
            composed=composed, batch=_loss_backward_batch, axes=_loss_axes("p")
        ),
    }


def _loss_axes(whole: str) -> Rule:
    """Rows are free; a result is one value for each (and then the map), or the gradient of all."""

    def rule(shapes: Shapes, options: Mapping[str, Any]) -> Axes | None:
        rank = len(shapes[whole])
        if not rank:
            return None
        names = tuple(f"b{number}" for number in range(rank))
        at = axis_of("loss", options["axis"], rank)
        rows = names[:at] + names[at + 1 :]
        arguments = {name: names if len(s) == rank else rows for name, s in shapes.items()}
        results = (rows, names) if whole == "x" else (names,)
        return Axes(arguments, results, frozenset(rows), names[at])

    return rule


def _log_beta(xp: Arrays, v: Array, alpha: float) -> Array:
    """(v^b - 1) / b, log v at b = 0."""
    logs, b = xp.log(v), alpha - 1.0
    return xp.expm1(b * logs) / b if b else logs


def _by_target(xp: Arrays, x: Array, p: Array, t: Array, alpha: float, axis: int) -> Array:
    """The gradient of a loss for its target: log_b t - w, with w = x - m - c = log_b p on the
    support. Where none exists (log 0, x = -inf) it is finite."""
    support, masses = p > 0, xp.constant(p)
    mass = total(xp, masses, axis)
    log_p = _log_beta(xp, xp.where(support, p, 1.0), alpha)
    shift = xp.where(support, masses * (xp.where(support, x, 0.0) - log_p), 0.0)
    level = total(xp, shift, axis) / xp.where(mass == 0, 1.0, mass)
    w = xp.where(support, log_p, x - level)
    # Without mass, and at infinities, there is no derivative.
    w = xp.where((abs(w) == math.inf) | (mass == 0), 0.0, w)
    zero = -1.0 / (alpha - 1.0) if alpha > 1 else 0.0
    logs = xp.where(t > 0, _log_beta(xp, xp.where(t > 0, t, 1.0), alpha), zero)
    return xp.where(mass == 0, 0.0, logs - w)


def _difference(xp: Arrays, p: Array, target: Array, axis: int) -> Array:
    """p - t, and 0 in rows without mass."""
    mass = total(xp, xp.constant(p), axis)
    return xp.where(mass == 0, 0.0, p - _onehot(xp, p, target, axis))


def _loss_backward_batch(
    xp: Arrays, function: Any, size: int, mapped: frozenset[str], arguments: dict[str, Any]
) -> Any:
    tensors = all_mapped(xp, function, size, mapped, arguments)
    rank = len(tensors["p"].shape) - 1
    axis = axis_of(function.name, arguments["axis"], rank) + 1
    if not rank:
        full = {n: x.reshape(size, 1) for n, x in tensors.items() if n == "p"}
        if not _is_label(tensors["target"]):
            full["target"] = tensors["target"].reshape(size, 1)
        tensors = {**tensors, **full}
    results = function(**{**arguments, **tensors, "axis": axis})
    return results if rank else each(results, lambda x: x.reshape(size))


CALCULUS = {
    "entmax": Calculus(_pull, _push, batch=_batch, axes=along_axis("entmax")),
    "entmax_backward": Calculus(
        composed=_backward, batch=_batch, axes=along_axis("entmax_backward", ("", "alpha"))
    ),
    **_loss_calculus(softmax_loss, softmax_loss_backward, lambda _: 1.0),
    **_loss_calculus(entmax15_loss, entmax15_loss_backward, lambda _: 1.5),
    **_loss_calculus(sparsemax_loss, sparsemax_loss_backward, lambda _: 2.0),
    **_loss_calculus(entmax_loss, entmax_loss_backward, lambda options: options["alpha"]),
}
