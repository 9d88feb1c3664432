"""Derivatives of the segment reductions.

A sum over a segment and the spreading of a row over its members are adjoint: all the others are
these two, with a Jacobian between them that has one entry per element of x."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pullback.ops.axes import notation
from pullback.ops.calculus import Array, Arrays, Calculus, Options, Tangents, previous
from pullback.ops.recurrence.functions import linear_scan
from pullback.ops.segment import functions as f

# What backward functions take of a forward's options.
_SHARED = ("indices_are_sorted", "out_of_range")


def _some(options: Options, *names: str) -> Options:
    return {name: options[name] for name in (*_SHARED, *names)}


def _additive(forward: Any, backward: Any) -> dict[str, Calculus]:
    """sum and mean: linear, so their own derivatives, except for the constant `empty`."""

    def pull(xp: Arrays, g: Array, *, segment_ids: Any, options: Options) -> Tangents:
        return {"x": backward(g, segment_ids, **_some(options))}

    def push(
        xp: Arrays, t: Tangents, *, segment_ids: Any, result: Array, options: Options
    ) -> Array:
        return forward(t["x"], segment_ids, result.shape[0], **_some(options))

    def backward_pull(
        xp: Arrays, g: Array, *, segment_ids: Any, shapes: Any, options: Options
    ) -> Tangents:
        return {"dy": forward(g, segment_ids, shapes["dy"][0], **_some(options))}

    def backward_push(xp: Arrays, t: Tangents, *, segment_ids: Any, options: Options) -> Array:
        return backward(t["dy"], segment_ids, **_some(options))

    return {
        forward.name: Calculus(pull, push),
        backward.name: Calculus(backward_pull, backward_push),
    }


def _extremum(forward: Any, backward: Any) -> dict[str, Calculus]:
    """max and min: who holds the extremum is a choice, and has no derivative."""

    def shares(xp: Arrays, dy: Array, x: Array, segment_ids: Any, options: Options) -> Array:
        """What part of its segment's gradient each element receives."""
        ones = xp.full_like(xp.constant(dy), 1.0)
        return backward(ones, xp.constant(x), segment_ids, **_some(options, "ties"))

    def collect(
        xp: Arrays, values: Array, dy: Array, x: Array, segment_ids: Any, options: Options
    ) -> Array:
        weighted = shares(xp, dy, x, segment_ids, options) * values
        return f.segment_sum(weighted, segment_ids, dy.shape[0], **_some(options))

    def pull(xp: Arrays, g: Array, *, x: Array, segment_ids: Any, options: Options) -> Tangents:
        return {"x": backward(g, xp.constant(x), segment_ids, **_some(options, "ties"))}

    def push(
        xp: Arrays, t: Tangents, *, x: Array, segment_ids: Any, result: Array, options: Options
    ) -> Array:
        return collect(xp, t["x"], result, x, segment_ids, options)

    def backward_pull(
        xp: Arrays, g: Array, *, dy: Array, x: Array, segment_ids: Any, options: Options
    ) -> Tangents:
        return {"dy": collect(xp, g, dy, x, segment_ids, options)}

    def backward_push(
        xp: Arrays, t: Tangents, *, x: Array, segment_ids: Any, options: Options
    ) -> Array:
        return backward(t["dy"], xp.constant(x), segment_ids, **_some(options, "ties"))

    return {
        forward.name: Calculus(pull, push),
        backward.name: Calculus(backward_pull, backward_push),
    }


# --- prod ---------------------------------------------------------------------------------------


def _prod_pull(xp: Arrays, g: Array, *, x: Array, segment_ids: Any, options: Options) -> Tangents:
    return {"x": f.segment_prod_backward(g, x, segment_ids, **_some(options))}


def _prod_push(
    xp: Arrays, t: Tangents, *, x: Array, segment_ids: Any, result: Array, options: Options
) -> Array:
    ones = xp.full_like(result, 1.0)
    others = f.segment_prod_backward(ones, x, segment_ids, **_some(options))
    return f.segment_sum(others * t["x"], segment_ids, result.shape[0], **_some(options))


def _products_before(xp: Arrays, x: Array, inner: Array, reverse: bool) -> Array:
    """In each run of rows the product of those before, in the order of the scan. `inner` is 0 at
    the first row of a run, which starts again at 1, and 1 elsewhere."""
    factors = previous(xp, x, 0, reverse, 0.0) * inner
    return linear_scan(factors, xp.full_like(x, 1.0) - inner, 0, reverse=reverse)


def _prod_backward(
    xp: Arrays, *, dy: Array, x: Array, segment_ids: Any, out_of_range: Any
) -> Array:
    """dy times the product of the other rows: of those before and of those after, once a stable
    sort has brought each segment's rows together."""
    ids = xp.ids(segment_ids)
    order = xp.argsort(ids)
    rows, sorted_ids = xp.take(x, order, 0), xp.take(ids, order, 0)
    flat = (-1,) + (1,) * (len(x.shape) - 1)
    others = xp.full_like(rows, 1.0)
    for reverse in (False, True):
        joined = sorted_ids == previous(xp, sorted_ids, 0, reverse, -1)
        first = previous(xp, xp.full_like(sorted_ids, 0), 0, reverse, 1)
        inner = xp.where((joined & (first == 0)).reshape(flat), xp.full_like(rows, 1.0), 0.0)
        others = others * _products_before(xp, rows, inner, reverse)
    spread = f.segment_sum_backward(dy, segment_ids, out_of_range=out_of_range)
    return spread * xp.take(others, xp.argsort(order), 0)


def _batch(
    xp: Arrays, function: Any, size: int, mapped: frozenset[str], arguments: dict[str, Any]
) -> Any:
    """With ids in common a batch is one more column; with ids of their own, one by one."""
    if "segment_ids" in mapped:
        return None
    for name in function.tensors.keys() - function.indices:
        x = arguments[name]
        x = x if name in mapped else xp.broadcast_to(x, (size, *x.shape))
        arguments[name] = xp.moveaxis(x, 0, 1)
    return xp.moveaxis(function(**arguments), 1, 0)


RULES = {
    **_additive(f.segment_sum, f.segment_sum_backward),
    **_additive(f.segment_mean, f.segment_mean_backward),
    **_extremum(f.segment_max, f.segment_max_backward),
    **_extremum(f.segment_min, f.segment_min_backward),
    "segment_prod": Calculus(_prod_pull, _prod_push),
    "segment_prod_backward": Calculus(composed=_prod_backward),
}
_FORWARD = notation(["s d*"], free="d*", x="n d*", segment_ids="n")
_BACKWARD = notation(["n d*"], free="d*", dy="s d*", x="n d*", segment_ids="n")
CALCULUS = {
    name: replace(rules, batch=_batch, axes=_BACKWARD if name.endswith("backward") else _FORWARD)
    for name, rules in RULES.items()
}
