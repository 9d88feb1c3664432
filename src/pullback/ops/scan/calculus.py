"""Derivatives of the scans. With `linear_scan` they are closed: every order is again linear.

S[j] is what was scanned before step j (ops/scan_calculus)."""

from __future__ import annotations

from typing import Any

from pullback.ops.calculus import Array, Arrays, Calculus, Options, Tangents
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
from pullback.ops.scan_calculus import Order, batch, order_of, scan_axes

INF = float("inf")
_AXES, _GRADIENT_AXES = scan_axes(""), scan_axes("", "initial")


def _named(gradients: Any, initial: Array | None) -> Tangents:
    """Gradients by argument, of what a backward returned."""
    return (
        {"x": gradients} if initial is None else dict(zip(("x", "initial"), gradients, strict=True))
    )


def _with(options: Options, initial: Any, offsets: Any) -> Options:
    return {**options, "initial": initial, "offsets": offsets}


# --- cumsum -------------------------------------------------------------------------------------


def _cumsum_pull(
    xp: Arrays, g: Array, *, initial: Array | None, offsets: Array | None, options: Options
) -> Tangents:
    return _named(cumsum_backward(g, **_with(options, initial, offsets)), initial)


def _cumsum_push(xp: Arrays, t: Tangents, *, offsets: Array | None, options: Options) -> Array:
    return cumsum(t["x"], **_with(options, t.get("initial"), offsets))


def _cumsum_backward(
    xp: Arrays,
    *,
    dy: Array,
    axis: int,
    reverse: bool,
    exclusive: bool,
    initial: Array | None,
    offsets: Array | None,
) -> Array | tuple[Array, Array]:
    dx = cumsum(dy, axis, reverse=not reverse, exclusive=exclusive, offsets=offsets)
    if initial is None:
        return dx
    order = Order(xp, dy, axis, reverse, exclusive, initial, offsets)
    return dx, order.d_initial(dx + dy if exclusive else dx)


# --- what cumprod and logcumsumexp share ----------------------------------------------------------

# S[j+1] = decay[j]·S[j] + share[j]·(what is new) for tangents, so gradients go back by decays.


def _scanned_back(
    order: Order, decay: Array, share: Array, dy: Array, started: Array | float = 1.0
) -> Array | tuple[Array, Array]:
    """dx[j] = share[j]·R[j], R the gradient of S[j+1]; and that of S[0], of which the initial value
    has a share too: 1, but with derivatives of its own where it is a ratio."""
    options: Options = {"reverse": not order.reverse, "offsets": order.offsets}
    if order.exclusive:
        r = linear_scan(decay, dy, order.axis, exclusive=True, **options)
    else:
        r = linear_scan(order.after(decay, 0.0), dy, order.axis, **options)
    dx = share * r
    if order.initial is None:
        return dx
    first = decay * r
    return dx, order.d_initial((first + dy) * started if order.exclusive else first)


# --- cumprod ------------------------------------------------------------------------------------


def _cumprod_pull(
    xp: Arrays,
    g: Array,
    *,
    x: Array,
    initial: Array | None,
    offsets: Array | None,
    result: Array,
    options: Options,
) -> Tangents:
    found = cumprod_backward(g, x, result, **_with(options, initial, offsets))
    return _named(found, initial)


def _cumprod_push(
    xp: Arrays,
    t: Tangents,
    *,
    x: Array,
    initial: Array | None,
    offsets: Array | None,
    result: Array,
    options: Options,
) -> Array:
    """t_S[j+1] = x[j]·t_S[j] + S[j]·t_x[j]."""
    before = order_of(xp, x, options, initial, offsets).entering(result, 1.0)
    return linear_scan(x, before * t["x"], **_with(options, t.get("initial"), offsets))


def _cumprod_backward(
    xp: Arrays,
    *,
    dy: Array,
    x: Array,
    y: Array | None,
    initial: Array | None,
    offsets: Array | None,
    options: Options,
) -> Array | tuple[Array, Array]:
    y = cumprod(x, **_with(options, initial, offsets)) if y is None else y
    order = order_of(xp, x, options, initial, offsets)
    return _scanned_back(order, x, order.entering(y, 1.0), dy)


# --- logcumsumexp -------------------------------------------------------------------------------


def _ratio(xp: Arrays, a: Array, b: Array) -> Array:
    """exp(a - b) for a <= b, where equal infinities are equal and -inf weighs nothing."""
    usual = (a > -INF) & (b < INF)
    # The inner `where` keeps inf - inf out of the derivative of the branch not taken.
    ratio = xp.exp(xp.where(usual, a - b, 0.0))
    return xp.where(usual, ratio, xp.where(a == INF, 1.0, xp.full_like(ratio, 0.0)))


def _shares(xp: Arrays, order: Order, x: Array, y: Array) -> tuple[Array, Array]:
    """Of S[j+1], what is the new element's and what the sum's: exp(x[j]-S[j+1]) and
    exp(S[j]-S[j+1])."""
    before, now = order.entering(y, -INF), y
    if order.exclusive:
        options: Options = {"reverse": order.reverse, "initial": order.initial}
        # What the last element adds no result shows: it is no variable.
        whole = logcumsumexp(x, order.axis, offsets=order.offsets, **options)
        now = order.following(y, xp.constant(whole))
    # Infinities tie: the first one outweighs all, later ones included.
    return xp.where(before == INF, 0.0, _ratio(xp, x, now)), _ratio(xp, before, now)


def _logcumsumexp_pull(
    xp: Arrays,
    g: Array,
    *,
    x: Array,
    initial: Array | None,
    offsets: Array | None,
    result: Array,
    options: Options,
) -> Tangents:
    found = logcumsumexp_backward(g, x, result, **_with(options, initial, offsets))
    return _named(found, initial)


def _logcumsumexp_push(
    xp: Arrays,
    t: Tangents,
    *,
    x: Array,
    initial: Array | None,
    offsets: Array | None,
    result: Array,
    options: Options,
) -> Array:
    """t_S[j+1] = exp(S[j]-S[j+1])·t_S[j] + exp(x[j]-S[j+1])·t_x[j]."""
    order = order_of(xp, x, options, initial, offsets)
    share, decay = _shares(xp, order, x, result)
    return linear_scan(decay, share * t["x"], **_with(options, t.get("initial"), offsets))


def _logcumsumexp_backward(
    xp: Arrays,
    *,
    dy: Array,
    x: Array,
    y: Array | None,
    initial: Array | None,
    offsets: Array | None,
    options: Options,
) -> Array | tuple[Array, Array]:
    y = logcumsumexp(x, **_with(options, initial, offsets)) if y is None else y
    order = order_of(xp, x, options, initial, offsets)
    share, decay = _shares(xp, order, x, y)
    started = 1.0 if initial is None else _ratio(xp, order.started(y), y)
    return _scanned_back(order, decay, share, dy, started)


# --- cummax and cummin --------------------------------------------------------------------------


def _extremum(forward: Any, backward: Any) -> dict[str, Calculus]:
    """Which element holds the extremum is a choice, and has no derivative."""

    def holders(
        xp: Arrays, x: Array, initial: Array | None, offsets: Array | None, options: Options
    ) -> Array:
        fixed = None if initial is None else xp.constant(initial)
        chosen = {**_with(options, fixed, offsets), "return_indices": True}
        return forward(xp.constant(x), **chosen)[1]

    def pull(
        xp: Arrays,
        g: Array,
        *,
        x: Array,
        initial: Array | None,
        offsets: Array | None,
        options: Options,
    ) -> Tangents:
        chosen = {name: v for name, v in options.items() if name != "return_indices"}
        fixed = None if initial is None else xp.constant(initial)
        return _named(backward(g, xp.constant(x), **_with(chosen, fixed, offsets)), initial)

    def push(
        xp: Arrays,
        t: Tangents,
        *,
        x: Array,
        initial: Array | None,
        offsets: Array | None,
        options: Options,
    ) -> Array:
        """The change of each result is that of the element that holds it."""
        at = holders(xp, x, initial, offsets, options)
        values, others = t["x"], 0.0
        if x.shape:
            values = xp.take_along_axis(values, xp.where(at < 0, 0, at), options["axis"])
        if initial is not None:
            others = order_of(xp, x, options, initial, offsets).of_pieces(t["initial"])
        return xp.where(at < 0, others, values)

    def composed(
        xp: Arrays,
        *,
        dy: Array,
        x: Array,
        initial: Array | None,
        offsets: Array | None,
        options: Options,
    ) -> Array | tuple[Array, Array]:
        """Each gradient goes to the element that holds the result, or to the initial value."""
        at = holders(xp, x, initial, offsets, options)
        own = xp.where(at < 0, 0.0, dy)
        dx = xp.add_along_axis(own, xp.where(at < 0, 0, at), options["axis"]) if x.shape else own
        if initial is None:
            return dx
        order = order_of(xp, dy, options, initial, offsets)
        rest = xp.where(at < 0, dy, 0.0)
        sums = cumsum(rest, options["axis"], reverse=not options["reverse"], offsets=offsets)
        return dx, order.d_initial(sums)

    return {
        forward.name: Calculus(pull, push, batch=batch, axes=_AXES),
        backward.name: Calculus(composed=composed, batch=batch, axes=_GRADIENT_AXES),
    }


CALCULUS = {
    "cumsum": Calculus(_cumsum_pull, _cumsum_push, batch=batch, axes=_AXES),
    "cumsum_backward": Calculus(composed=_cumsum_backward, batch=batch, axes=_GRADIENT_AXES),
    "cumprod": Calculus(_cumprod_pull, _cumprod_push, batch=batch, axes=_AXES),
    "cumprod_backward": Calculus(composed=_cumprod_backward, batch=batch, axes=_GRADIENT_AXES),
    "logcumsumexp": Calculus(_logcumsumexp_pull, _logcumsumexp_push, batch=batch, axes=_AXES),
    "logcumsumexp_backward": Calculus(
        composed=_logcumsumexp_backward, batch=batch, axes=_GRADIENT_AXES
    ),
    **_extremum(cummax, cummax_backward),
    **_extremum(cummin, cummin_backward),
}
