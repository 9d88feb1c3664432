"""Derivatives of the linear recurrence: each is a linear recurrence again."""

from __future__ import annotations

from typing import Any

from pullback.ops.calculus import Array, Arrays, Calculus, Options, Tangents, sum_to
from pullback.ops.recurrence.functions import discounted_sum, linear_scan, linear_scan_backward
from pullback.ops.scan_calculus import batch, order_of, scan_axes


def _with(options: Options, initial: Any, offsets: Any) -> Options:
    return {**options, "initial": initial, "offsets": offsets}


def _pull(
    xp: Arrays,
    g: Array,
    *,
    a: Array,
    initial: Array | None,
    offsets: Array | None,
    result: Array,
    options: Options,
) -> Tangents:
    found = linear_scan_backward(g, a, result, **_with(options, initial, offsets))
    return dict(zip(("a", "b", "initial"), found, strict=False))


def _push(
    xp: Arrays,
    t: Tangents,
    *,
    a: Array,
    initial: Array | None,
    offsets: Array | None,
    result: Array,
    options: Options,
) -> Array:
    before = order_of(xp, result, options, initial, offsets).entering(result, 0.0)
    source = before * t["a"] + t["b"]
    return linear_scan(a, source, **_with(options, t.get("initial"), offsets))


def _backward(
    xp: Arrays,
    *,
    dh: Array,
    a: Array,
    h: Array,
    initial: Array | None,
    offsets: Array | None,
    options: Options,
) -> tuple[Array, ...]:
    order = order_of(xp, dh, options, initial, offsets)
    factors = xp.broadcast_to(a, tuple(dh.shape))
    back: Options = {"reverse": not order.reverse, "offsets": offsets}
    if order.exclusive:
        db = linear_scan(factors, dh, order.axis, exclusive=True, **back)
    else:
        db = linear_scan(order.after(factors, 0.0), dh, order.axis, **back)
    da = sum_to(xp, db * order.entering(h, 0.0), tuple(a.shape))
    if initial is None:
        return da, db
    first = factors * db
    return da, db, order.d_initial(first + dh if order.exclusive else first)


def _discounted_pull(
    xp: Arrays,
    g: Array,
    *,
    discount: Array,
    initial: Array | None,
    offsets: Array | None,
    result: Array,
    options: Options,
) -> Tangents:
    found = linear_scan_backward(g, discount, result, **_with(options, initial, offsets))
    return dict(zip(("discount", "x", "initial"), found, strict=False))


def _discounted_push(
    xp: Arrays,
    t: Tangents,
    *,
    discount: Array,
    initial: Array | None,
    offsets: Array | None,
    result: Array,
    options: Options,
) -> Array:
    before = order_of(xp, result, options, initial, offsets).entering(result, 0.0)
    source = before * t["discount"] + t["x"]
    return discounted_sum(source, discount, **_with(options, t.get("initial"), offsets))


CALCULUS = {
    "linear_scan": Calculus(_pull, _push, batch=batch, axes=scan_axes("")),
    "linear_scan_backward": Calculus(
        composed=_backward, batch=batch, axes=scan_axes("a", "", "initial")
    ),
    "discounted_sum": Calculus(_discounted_pull, _discounted_push, batch=batch, axes=scan_axes("")),
}
