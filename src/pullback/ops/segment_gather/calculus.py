"""Derivatives of gathered rows reduced by segment.

Sums are linear in x and in the weights: the three functions are each other's derivatives. Who holds
an extremum is a choice and has no derivative; forward mode of extrema and second derivatives go by
the composed form, which makes a row for each position."""

from __future__ import annotations

from typing import Any

from pullback.ops.axes import Rule, notation
from pullback.ops.calculus import Array, Arrays, Calculus, Options, Tangents
from pullback.ops.embedding.functions import embedding
from pullback.ops.segment import functions as segment
from pullback.ops.segment_gather import functions as f

_SHARED = ("indices_are_sorted", "out_of_range")
_TENSORS = ("gather_ids", "segment_ids", "offsets")


def _is_extremum(options: Options) -> bool:
    return getattr(options["reduce"], "value", options["reduce"]) in ("max", "min")


def _given(ids: dict[str, Any], options: Options, *names: str) -> dict[str, Any]:
    """The arguments that the functions have in common."""
    return {**ids, **{name: options[name] for name in (*_SHARED, *names)}}


def _collected(
    xp: Arrays, values: Array, like: Array, x: Array, ids: dict[str, Any], options: Options
) -> Array:
    """Of each segment what some values, which have the shape of x, are where its extremum is."""
    kind = getattr(options["reduce"], "value", options["reduce"])
    at, rows, count = ids["gather_ids"], x.shape[0], like.shape[0]
    policy = options["out_of_range"]
    kept = {"offsets": ids["offsets"], "out_of_range": "skip"}
    segments = ids["segment_ids"]
    if segments is not None:
        found = xp.ids(segments)
        segments = xp.where((at >= 0) & (at < rows), found, xp.full_like(found, -1))
    back = getattr(segment, f"segment_{kind}_backward")
    gathered = embedding(xp.constant(x), at, out_of_range=policy)
    ones = xp.full_like(xp.constant(like), 1.0)
    shares = back(ones, gathered, segments, ties=options["ties"], **kept)
    picked = shares * embedding(values, at, out_of_range=policy)
    return segment.segment_sum(picked, segments, count, **kept)


# --- forward ------------------------------------------------------------------------------------


def _pull(
    xp: Arrays,
    g: Array,
    *,
    x: Array,
    weights: Array | None,
    gather_ids: Any,
    segment_ids: Any,
    offsets: Any,
    wanted: Any,
    options: Options,
) -> Tangents:
    ids = {"gather_ids": gather_ids, "segment_ids": segment_ids, "offsets": offsets}
    found = {}
    if "x" in wanted:
        rows = xp.constant(x) if _is_extremum(options) or weights is None else x
        known = _given(ids, options, "reduce", "ties")
        found["x"] = f.gather_segment_reduce_backward(g, rows, weights=weights, **known)
    if "weights" in wanted:
        known = _given(ids, options)
        found["weights"] = f.gather_segment_reduce_weights_backward(g, x, **known)
    return found


def _push(
    xp: Arrays,
    t: Tangents,
    *,
    x: Array,
    weights: Array | None,
    gather_ids: Any,
    segment_ids: Any,
    offsets: Any,
    result: Array,
    options: Options,
) -> Array:
    ids = {"gather_ids": gather_ids, "segment_ids": segment_ids, "offsets": offsets}
    if _is_extremum(options):
        return _collected(xp, t["x"], result, x, ids, options)
    known = {**_given(ids, options, "reduce"), "num_segments": result.shape[0]}
    found = f.gather_segment_reduce(t["x"], weights=weights, **known)
    if weights is None:
        return found
    return found + f.gather_segment_reduce(x, weights=t["weights"], **known)


# --- backward -----------------------------------------------------------------------------------


def _backward_pull(
    xp: Arrays,
    g: Array,
    *,
    dy: Array,
    x: Array,
    weights: Array | None,
    gather_ids: Any,
    segment_ids: Any,
    offsets: Any,
    wanted: Any,
    options: Options,
) -> Tangents:
    ids = {"gather_ids": gather_ids, "segment_ids": segment_ids, "offsets": offsets}
    found = {}
    if "dy" in wanted and _is_extremum(options):
        found["dy"] = _collected(xp, g, dy, x, ids, options)
    elif "dy" in wanted:
        known = {**_given(ids, options, "reduce"), "num_segments": dy.shape[0]}
        found["dy"] = f.gather_segment_reduce(g, weights=weights, **known)
    if "weights" in wanted:
        known = _given(ids, options)
        found["weights"] = f.gather_segment_reduce_weights_backward(dy, g, **known)
    return found


def _backward_push(
    xp: Arrays,
    t: Tangents,
    *,
    dy: Array,
    x: Array,
    weights: Array | None,
    gather_ids: Any,
    segment_ids: Any,
    offsets: Any,
    options: Options,
) -> Array:
    ids = {"gather_ids": gather_ids, "segment_ids": segment_ids, "offsets": offsets}
    known = _given(ids, options, "reduce", "ties")
    found = f.gather_segment_reduce_backward(t["dy"], x, weights=weights, **known)
    if weights is None:
        return found
    return found + f.gather_segment_reduce_backward(dy, x, weights=t["weights"], **known)


# --- weights ------------------------------------------------------------------------------------


def _weights_pull(
    xp: Arrays,
    g: Array,
    *,
    dy: Array,
    x: Array,
    gather_ids: Any,
    segment_ids: Any,
    offsets: Any,
    wanted: Any,
    options: Options,
) -> Tangents:
    ids = {"gather_ids": gather_ids, "segment_ids": segment_ids, "offsets": offsets}
    known, found = _given(ids, options), {}
    if "dy" in wanted:
        count = dy.shape[0]
        found["dy"] = f.gather_segment_reduce(x, num_segments=count, weights=g, **known)
    if "x" in wanted:
        found["x"] = f.gather_segment_reduce_backward(dy, x, weights=g, **known)
    return found


def _weights_push(
    xp: Arrays,
    t: Tangents,
    *,
    dy: Array,
    x: Array,
    gather_ids: Any,
    segment_ids: Any,
    offsets: Any,
    options: Options,
) -> Array:
    ids = {"gather_ids": gather_ids, "segment_ids": segment_ids, "offsets": offsets}
    known, back = _given(ids, options), f.gather_segment_reduce_weights_backward
    return back(t["dy"], x, **known) + back(dy, t["x"], **known)


def _batch(
    xp: Arrays, function: Any, size: int, mapped: frozenset[str], arguments: dict[str, Any]
) -> Any:
    """With ids and weights in common a batch is more columns; else one by one."""
    if mapped & {*_TENSORS, "weights"} or "weights" in function.name:
        return None
    for name in ("dy", "x"):
        if name in arguments:
            x = arguments[name]
            x = x if name in mapped else xp.broadcast_to(x, (size, *x.shape))
            columns = x.shape[2]
            arguments[name] = xp.moveaxis(x, 0, 1).reshape((x.shape[1], size * columns))
    found = function(**arguments)
    return xp.moveaxis(found.reshape((found.shape[0], size, columns)), 1, 0)


def _axes(result: str, free: str) -> Rule:
    """Features are free."""
    ids = {"gather_ids": "n", "segment_ids": "n", "offsets": "border", "weights": "n"}
    return notation([result], free, x="v d*", dy="s d*", **ids)


CALCULUS = {
    "gather_segment_reduce": Calculus(_pull, _push, batch=_batch, axes=_axes("s d*", "d*")),
    "gather_segment_reduce_backward": Calculus(
        _backward_pull, _backward_push, batch=_batch, axes=_axes("v d*", "d*")
    ),
    "gather_segment_reduce_weights_backward": Calculus(
        _weights_pull, _weights_push, batch=_batch, axes=_axes("n", "")
    ),
}
