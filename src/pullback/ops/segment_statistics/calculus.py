"""Derivatives of the statistics of segments."""

from __future__ import annotations

from typing import Any

from pullback.ops.calculus import Array, Arrays, Calculus, Options, Tangents
from pullback.ops.segment.derivatives import Grouped, batched, free_axes, shared
from pullback.ops.segment_softmax.functions import segment_softmax
from pullback.ops.segment_statistics import functions as f


def _shares(x: Array, segment_ids: Any, offsets: Any, count: int | None, options: Options) -> Array:
    """The softmax of x within each of so many segments."""
    return segment_softmax(x, segment_ids, count, offsets=offsets, **shared(options))


def _logsumexp_pull(
    xp: Arrays,
    g: Array,
    *,
    x: Array,
    segment_ids: Any,
    offsets: Any,
    options: Options,
) -> Tangents:
    rest = shared(options)
    return {"x": f.segment_logsumexp_backward(g, x, None, segment_ids, offsets=offsets, **rest)}


def _logsumexp_push(
    xp: Arrays,
    t: Tangents,
    *,
    x: Array,
    segment_ids: Any,
    offsets: Any,
    result: Array,
    options: Options,
) -> Array:
    count = result.shape[options["axis"]]
    shares = _shares(x, segment_ids, offsets, count, options)
    return Grouped(segment_ids, offsets, options).total(shares * t["x"], count)


def _logsumexp_backward(
    xp: Arrays, *, dy: Array, x: Array, segment_ids: Any, offsets: Any, options: Options
) -> Array:
    shares = _shares(x, segment_ids, offsets, dy.shape[options["axis"]], options)
    return shares * Grouped(segment_ids, offsets, options).spread(dy, x)


# --- variances ----------------------------------------------------------------------------------


def _variance_calculus(forward: Any, backward: Any, root: bool) -> dict[str, Calculus]:
    """Of var, or of its root."""

    def pull(
        xp: Arrays, g: Array, *, x: Array, segment_ids: Any, offsets: Any, options: Options
    ) -> Tangents:
        rest = shared(options, "ddof")
        return {"x": backward(g, x, segment_ids, offsets=offsets, **rest)}

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
        rest = shared(options, "ddof")
        slopes = backward(xp.full_like(result, 1.0), x, segment_ids, offsets=offsets, **rest)
        groups = Grouped(segment_ids, offsets, options)
        return groups.total(slopes * t["x"], result.shape[options["axis"]])

    def composed(
        xp: Arrays, *, dy: Array, x: Array, segment_ids: Any, offsets: Any, options: Options
    ) -> Array:
        groups, count = Grouped(segment_ids, offsets, options), dy.shape[options["axis"]]
        ones = xp.constant(groups.total(xp.full_like(x, 1.0), count))
        means = groups.total(x, count) / xp.where(ones == 0, 1.0, ones)
        d, left = x - groups.spread(means, x), ones - options["ddof"]
        slope = dy * xp.where(left > 0, 2.0 / xp.where(left > 0, left, 1.0), 0.0)
        if root:
            variance = groups.total(d * d, count) / xp.where(left > 0, left, 1.0)
            some = (variance > 0) & (left > 0)
            slope = xp.where(some, slope / (2.0 * xp.sqrt(xp.where(some, variance, 1.0))), 0.0)
        return d * groups.spread(slope, x)

    return {
        forward.name: Calculus(pull, push, **_FORWARD),
        backward.name: Calculus(composed=composed, **_BACKWARD),
    }


_FORWARD: dict[str, Any] = {"batch": batched, "axes": free_axes("s", x="n")}
_BACKWARD: dict[str, Any] = {"batch": batched, "axes": free_axes("n", dy="s", x="n", y="s")}
CALCULUS = {
    "segment_logsumexp": Calculus(_logsumexp_pull, _logsumexp_push, **_FORWARD),
    "segment_logsumexp_backward": Calculus(composed=_logsumexp_backward, **_BACKWARD),
    **_variance_calculus(f.segment_var, f.segment_var_backward, root=False),
    **_variance_calculus(f.segment_std, f.segment_std_backward, root=True),
}
