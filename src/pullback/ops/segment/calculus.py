"""Derivatives of the segment reductions.

A sum over a segment and the spreading of a row over its members are adjoint: all the others are
these two, with a Jacobian between them that has one entry per element of x."""

from __future__ import annotations

from typing import Any

from pullback.ops.calculus import Array, Arrays, Calculus, Options, Tangents, previous
from pullback.ops.recurrence.functions import linear_scan
from pullback.ops.segment import functions as f
from pullback.ops.segment.derivatives import Grouped, batched, free_axes, shared

_FORWARD: dict[str, Any] = {"batch": batched, "axes": free_axes("s", x="n")}
_BACKWARD: dict[str, Any] = {"batch": batched, "axes": free_axes("n", dy="s", x="n")}


def _additive(forward: Any, backward: Any) -> dict[str, Calculus]:
    """sum and mean: linear, so their own derivatives, except for the constant `empty`."""

    def back(g: Array, segment_ids: Any, offsets: Any, rows: int, options: Options) -> Array:
        count = None if offsets is None else rows
        return backward(g, segment_ids, num_inputs=count, offsets=offsets, **shared(options))

    def pull(
        xp: Arrays, g: Array, *, segment_ids: Any, offsets: Any, shapes: Any, options: Options
    ) -> Tangents:
        rows = shapes["x"][options["axis"]]
        return {"x": back(g, segment_ids, offsets, rows, options)}

    def push(
        xp: Arrays,
        t: Tangents,
        *,
        segment_ids: Any,
        offsets: Any,
        result: Array,
        options: Options,
    ) -> Array:
        count = result.shape[options["axis"]]
        return forward(t["x"], segment_ids, count, offsets=offsets, **shared(options))

    def backward_pull(
        xp: Arrays, g: Array, *, segment_ids: Any, offsets: Any, shapes: Any, options: Options
    ) -> Tangents:
        count = shapes["dy"][options["axis"]]
        return {"dy": forward(g, segment_ids, count, offsets=offsets, **shared(options))}

    def backward_push(
        xp: Arrays,
        t: Tangents,
        *,
        segment_ids: Any,
        offsets: Any,
        result: Array,
        options: Options,
    ) -> Array:
        rows = result.shape[options["axis"]]
        return back(t["dy"], segment_ids, offsets, rows, options)

    return {
        forward.name: Calculus(pull, push, **_FORWARD),
        backward.name: Calculus(backward_pull, backward_push, **_BACKWARD),
    }


def _extremum(forward: Any, backward: Any) -> dict[str, Calculus]:
    """max and min: who holds the extremum is a choice, and has no derivative."""

    def back(
        xp: Arrays, g: Array, x: Array, segment_ids: Any, offsets: Any, options: Options
    ) -> Array:
        rest = shared(options, "ties")
        return backward(g, xp.constant(x), segment_ids, offsets=offsets, **rest)

    def collect(
        xp: Arrays,
        values: Array,
        dy: Array,
        x: Array,
        segment_ids: Any,
        offsets: Any,
        options: Options,
    ) -> Array:
        """Of each segment what its extremum is of some values."""
        ones = xp.full_like(xp.constant(dy), 1.0)
        shares = back(xp, ones, x, segment_ids, offsets, options)
        groups = Grouped(segment_ids, offsets, options)
        return groups.total(shares * values, dy.shape[options["axis"]])

    def pull(
        xp: Arrays, g: Array, *, x: Array, segment_ids: Any, offsets: Any, options: Options
    ) -> Tangents:
        return {"x": back(xp, g, x, segment_ids, offsets, options)}

    def push(
        xp: Arrays,
        t: Tangents,
        *,
        x: Array,
        segment_ids: Any,
        offsets: Any,
        result: Array,
        options: Options,
    ) -> Array:
        return collect(xp, t["x"], result, x, segment_ids, offsets, options)

    def backward_pull(
        xp: Arrays,
        g: Array,
        *,
        dy: Array,
        x: Array,
        segment_ids: Any,
        offsets: Any,
        options: Options,
    ) -> Tangents:
        return {"dy": collect(xp, g, dy, x, segment_ids, offsets, options)}

    def backward_push(
        xp: Arrays, t: Tangents, *, x: Array, segment_ids: Any, offsets: Any, options: Options
    ) -> Array:
        return back(xp, t["dy"], x, segment_ids, offsets, options)

    return {
        forward.name: Calculus(pull, push, **_FORWARD),
        backward.name: Calculus(backward_pull, backward_push, **_BACKWARD),
    }


# --- prod ---------------------------------------------------------------------------------------


def _prod_pull(
    xp: Arrays, g: Array, *, x: Array, segment_ids: Any, offsets: Any, options: Options
) -> Tangents:
    rest = shared(options)
    return {"x": f.segment_prod_backward(g, x, segment_ids, offsets=offsets, **rest)}


def _prod_push(
    xp: Arrays,
    t: Tangents,
    *,
    x: Array,
    segment_ids: Any,
    offsets: Any,
    result: Array,
    options: Options,
) -> Array:
    ones = xp.full_like(result, 1.0)
    others = f.segment_prod_backward(ones, x, segment_ids, offsets=offsets, **shared(options))
    groups = Grouped(segment_ids, offsets, options)
    return groups.total(others * t["x"], result.shape[options["axis"]])


def _products_before(xp: Arrays, x: Array, inner: Array, reverse: bool) -> Array:
    """In each run of rows the product of those before, in the order of the scan. `inner` is 0 at
    the first row of a run, which starts again at 1, and 1 elsewhere."""
    factors = previous(xp, x, 0, reverse, 0.0) * inner
    return linear_scan(factors, xp.full_like(x, 1.0) - inner, 0, reverse=reverse)


def _others(xp: Arrays, rows: Array, inner: tuple[Array, Array]) -> Array:
    """The product of the other rows of a run: of those before and of those after."""
    before, after = inner
    return _products_before(xp, rows, before, False) * _products_before(xp, rows, after, True)


def _others_sorted(xp: Arrays, x: Array, ids: Array) -> Array:
    """The same of rows with ids, once a stable sort has brought each segment's rows together."""
    order = xp.argsort(ids)
    rows, sorted_ids = xp.take(x, order, 0), xp.take(ids, order, 0)
    flat = (-1,) + (1,) * (len(x.shape) - 1)

    def inner(reverse: bool) -> Array:
        joined = sorted_ids == previous(xp, sorted_ids, 0, reverse, -1)
        first = previous(xp, xp.full_like(sorted_ids, 0), 0, reverse, 1)
        return xp.where((joined & (first == 0)).reshape(flat), xp.full_like(rows, 1.0), 0.0)

    return xp.take(_others(xp, rows, (inner(False), inner(True))), xp.argsort(order), 0)


def _others_between(xp: Arrays, dy: Array, x: Array, offsets: Any, axis: int) -> Array:
    """The same of rows between borders. Of equal rows the first is the maximum, or the last."""
    ones, zeros = xp.full_like(xp.constant(dy), 1.0), xp.full_like(xp.constant(x), 0.0)

    def inner(ties: str) -> Array:
        ends = f.segment_max_backward(ones, zeros, offsets=offsets, axis=axis, ties=ties)
        return xp.moveaxis(1.0 - ends, axis, 0)

    return _others(xp, xp.moveaxis(x, axis, 0), (inner("first"), inner("last")))


def _prod_backward(
    xp: Arrays, *, dy: Array, x: Array, segment_ids: Any, offsets: Any, options: Options
) -> Array:
    """dy times the product of the other rows."""
    axis = options["axis"] % len(x.shape)
    if offsets is None:
        others = _others_sorted(xp, xp.moveaxis(x, axis, 0), xp.ids(segment_ids))
    else:
        others = _others_between(xp, dy, x, offsets, axis)
    spread = Grouped(segment_ids, offsets, options).spread(dy, x)
    return spread * xp.moveaxis(others, 0, axis)


CALCULUS = {
    **_additive(f.segment_sum, f.segment_sum_backward),
    **_additive(f.segment_mean, f.segment_mean_backward),
    **_extremum(f.segment_max, f.segment_max_backward),
    **_extremum(f.segment_min, f.segment_min_backward),
    "segment_prod": Calculus(_prod_pull, _prod_push, **_FORWARD),
    "segment_prod_backward": Calculus(composed=_prod_backward, **_BACKWARD),
}
