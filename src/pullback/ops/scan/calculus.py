"""Derivatives of the scans. With `linear_scan` they are closed: every order is again linear."""

from __future__ import annotations

from typing import Any

from pullback.ops.calculus import (
    Array,
    Arrays,
    Calculus,
    Options,
    Tangents,
    following,
    linear,
    previous,
)
from pullback.ops.recurrence.functions import linear_scan
from pullback.ops.scan.functions import (
    cummax,
    cummax_backward,
    cummin,
    cummin_backward,
    cumprod,
    cumprod_backward,
    cumsum,
    cumsum_backward,
    logcumsumexp,
    logcumsumexp_backward,
)

INF = float("inf")


# --- cumprod ------------------------------------------------------------------------------------


def _cumprod_pull(xp: Arrays, g: Array, *, x: Array, result: Array, options: Options) -> Tangents:
    return {"x": cumprod_backward(g, x, result, **options)}


def _cumprod_push(
    xp: Arrays, t: Tangents, *, x: Array, result: Array, axis: int, reverse: bool
) -> Array:
    """t_y[j] = x[j]·t_y[j-1] + y[j-1]·t_x[j]."""
    before = previous(xp, result, axis, reverse, 1.0)
    return linear_scan(x, before * t["x"], axis, reverse=reverse)


def _cumprod_backward(
    xp: Arrays, *, dy: Array, x: Array, y: Array | None, axis: int, reverse: bool
) -> Array:
    y = cumprod(x, axis, reverse=reverse) if y is None else y
    later = following(xp, x, axis, reverse, 0.0)
    before = previous(xp, y, axis, reverse, 1.0)
    return before * linear_scan(later, dy, axis, reverse=not reverse)


# --- logcumsumexp -------------------------------------------------------------------------------


def _ratio(xp: Arrays, a: Array, b: Array) -> Array:
    """exp(a - b) for a <= b, where equal infinities are equal and -inf weighs nothing."""
    usual = (a > -INF) & (b < INF)
    # The inner `where` keeps inf - inf out of the derivative of the branch not taken.
    ratio = xp.exp(xp.where(usual, a - b, 0.0))
    return xp.where(usual, ratio, xp.where(a == INF, 1.0, xp.full_like(ratio, 0.0)))


def _shares(xp: Arrays, x: Array, y: Array, axis: int, reverse: bool) -> tuple[Array, Array]:
    """Of y[j], what is the new element's and what the sum's: exp(x[j]-y[j]), exp(y[j-1]-y[j])."""
    before = previous(xp, y, axis, reverse, -INF)
    # Infinities tie: the first one outweighs all, later ones included.
    return xp.where(before == INF, 0.0, _ratio(xp, x, y)), _ratio(xp, before, y)


def _logcumsumexp_pull(
    xp: Arrays, g: Array, *, x: Array, result: Array, options: Options
) -> Tangents:
    return {"x": logcumsumexp_backward(g, x, result, **options)}


def _logcumsumexp_push(
    xp: Arrays, t: Tangents, *, x: Array, result: Array, axis: int, reverse: bool
) -> Array:
    """t_y[j] = exp(y[j-1]-y[j])·t_y[j-1] + exp(x[j]-y[j])·t_x[j]."""
    share, decay = _shares(xp, x, result, axis, reverse)
    return linear_scan(decay, share * t["x"], axis, reverse=reverse)


def _logcumsumexp_backward(
    xp: Arrays, *, dy: Array, x: Array, y: Array | None, axis: int, reverse: bool
) -> Array:
    y = logcumsumexp(x, axis, reverse=reverse) if y is None else y
    share, decay = _shares(xp, x, y, axis, reverse)
    later = following(xp, decay, axis, reverse, 0.0)
    return share * linear_scan(later, dy, axis, reverse=not reverse)


# --- cummax and cummin --------------------------------------------------------------------------


def _extremum(forward: Any, backward: Any) -> dict[str, Calculus]:
    """Which element holds the extremum is a choice, and has no derivative."""

    def held(xp: Arrays, values: Array, x: Array, options: Options) -> Array:
        if not x.shape:
            return values
        _, holders = forward(xp.constant(x), **{**options, "return_indices": True})
        return xp.take_along_axis(values, holders, options["axis"])

    def spread(xp: Arrays, dy: Array, x: Array, options: Options) -> Array:
        options = {name: options[name] for name in ("axis", "reverse", "ties")}
        return backward(dy, xp.constant(x), **options)

    def pull(xp: Arrays, g: Array, *, x: Array, options: Options) -> Tangents:
        return {"x": spread(xp, g, x, options)}

    def push(xp: Arrays, t: Tangents, *, x: Array, options: Options) -> Array:
        return held(xp, t["x"], x, options)

    def backward_pull(xp: Arrays, g: Array, *, x: Array, options: Options) -> Tangents:
        return {"dy": held(xp, g, x, options)}

    def backward_push(xp: Arrays, t: Tangents, *, x: Array, options: Options) -> Array:
        return spread(xp, t["dy"], x, options)

    return {
        forward.name: Calculus(pull, push),
        backward.name: Calculus(backward_pull, backward_push),
    }


CALCULUS = {
    **linear(cumsum, cumsum_backward, "x", "dy"),
    "cumprod": Calculus(_cumprod_pull, _cumprod_push),
    "cumprod_backward": Calculus(composed=_cumprod_backward),
    "logcumsumexp": Calculus(_logcumsumexp_pull, _logcumsumexp_push),
    "logcumsumexp_backward": Calculus(composed=_logcumsumexp_backward),
    **_extremum(cummax, cummax_backward),
    **_extremum(cummin, cummin_backward),
}
