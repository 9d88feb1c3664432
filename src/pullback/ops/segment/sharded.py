"""Reductions of segments whose rows are spread over ranks: what a rank's rows of a segment amount
to (a sum, a sum and a count, an extremum and its position, a product as mantissa and exponent)."""

from __future__ import annotations

from typing import Any

from pullback.ops.segment.functions import (
    segment_max,
    segment_min,
    segment_prod,
    segment_prod_backward,
    segment_sum,
)
from pullback.ops.segment_sharded import Family, Groups, sends
from pullback.ops.sharding import Arguments, Array, Sends, State

_BLOCK = 512  # so many factors of at least 1/2 are a double


# --- sums ---------------------------------------------------------------------------------------


def total_of(g: Groups, rows: Array, wide: bool) -> State:
    """Sums of this rank's segments in float64; where that is not wider than the data, in two
    numbers, the second what rounding left out of the first."""
    total = g.partial(segment_sum, g.s.wide(rows))
    if not wide:
        return (total,)
    touched, places = g._touched
    steps = g.s.as_index(g.s.steps(touched.shape[0], rows))
    ids = g.s.xp.concatenate([g.s.as_index(places), steps], 0)
    rest = segment_sum(g.s.xp.concatenate([rows, -total], 0), ids, touched.shape[0])
    return total, g.s.xp.where(g.s.xp.isfinite(rest), rest, 0.0)


def _sum_state(g: Groups, x: Array, arguments: Arguments) -> State:
    found = g.exchanged(*total_of(g, g.rows(x), g.s.is_wide(x)))
    return (_whole_sum(g, found, found.states, arguments.get("empty")),)


def _whole_sum(g: Groups, found: Any, states: list[Array], empty: float | None) -> Array:
    total = found.merged(segment_sum, states[0], empty=empty)
    if len(states) == 1:
        return total
    # Both in one sum, which carries its own rounding error.
    ids = g.s.xp.concatenate([found.ids, found.ids], 0)
    rest = g.s.xp.where(states[1] == 0, -0.0, states[1])
    both = g.s.xp.concatenate([states[0], rest], 0)
    return segment_sum(both, ids, g.count, out_of_range="skip", empty=empty)


def _plain(g: Groups, state: State, arguments: Arguments) -> tuple[Array, ...]:
    x = arguments["x"]
    return (g.s.like(g.restored(state[0], x), x),)


def _sum_gradient(g: Groups, state: State, arguments: Arguments) -> Array:
    return g.at_rows(g.rows(arguments["dy"]))


def _mean_state(g: Groups, x: Array, arguments: Arguments) -> State:
    """Means and counts. A gradient has no x, and needs counts alone."""
    s = g.s
    ones = s.filled((g.given.shape[0], 1), 1.0, g.given)
    counts = g.partial(segment_sum, ones)
    if x is None:
        found = g.exchanged(counts)
        return found.states[0], found.merged(segment_sum, found.states[0])
    found = g.exchanged(*total_of(g, g.rows(x), s.is_wide(x)), counts)
    *sums, many = found.states
    count = found.merged(segment_sum, many)
    mean = _whole_sum(g, found, sums, 0.0) / s.xp.where(count == 0, 1.0, count)
    empty = arguments.get("empty") or 0.0
    return s.xp.where(count == 0, empty, mean), count


def _mean_gradient(g: Groups, state: State, arguments: Arguments) -> Array:
    count = g.s.xp.where(state[1] == 0, 1.0, state[1])
    return g.at_rows(g.s.wide(g.rows(arguments["dy"])) / count)


# --- extrema ------------------------------------------------------------------------------------


def _rule(arguments: Arguments) -> str:
    return str(getattr(arguments["ties"], "value", arguments["ties"]))


def _extremum(reduce: Any) -> Family:
    def state(g: Groups, x: Array, arguments: Arguments) -> State:
        """Values, positions along the axis (-1 where there is none), and with ties split how many
        rows hold the value."""
        xp, rule, rows = g.s.xp, _rule(arguments), g.rows(x)
        options = {"return_indices": True, "ties": rule}
        values, places = g.partial(reduce, rows, **options)
        own = [g.s.wide(values), g.s.wide(places) + g.begin]
        if rule == "split":
            own.append(g.partial(segment_sum, g.s.wide(_equal(xp, rows, g.beside(values)))))
        found = g.exchanged(*own)
        best, at = found.merged(reduce, found.states[0], empty=arguments.get("empty"), **options)
        none = at < 0
        found_at = xp.take_along_axis(found.states[1], xp.where(none, 0, at), 0)
        whole = [best, xp.where(none, -1.0, found_at)]
        if rule == "split":
            tied = _equal(xp, found.states[0], found.beside(best))
            whole.append(found.merged(segment_sum, xp.where(tied, found.states[2], 0.0)))
        return tuple(whole)

    def finish(g: Groups, state: State, arguments: Arguments) -> tuple[Array, ...]:
        (values,) = _plain(g, state, arguments)
        if not arguments["return_indices"]:
            return (values,)
        return values, g.s.as_index(g.restored(state[1], arguments["x"]))

    def gradient(g: Groups, state: State, arguments: Arguments) -> Array:
        xp, dy = g.s.xp, g.s.wide(g.rows(arguments["dy"]))
        if _rule(arguments) == "split":
            shares = g.at_rows(dy / xp.where(state[2] == 0, 1.0, state[2]))
            rows = g.rows(arguments["x"])
            return xp.where(_equal(xp, g.s.wide(rows), g.at_rows(state[0])), shares, 0.0)
        steps = g.s.steps(g.given.shape[0], g.given)[:, None] + g.begin
        return xp.where(g.at_rows(state[1]) == steps, g.at_rows(dy), 0.0)

    return Family(state, finish, gradient)


def _equal(xp: Any, a: Array, b: Array) -> Array:
    """NaNs tie with each other."""
    return (a == b) | (xp.isnan(a) & xp.isnan(b))


# --- products -----------------------------------------------------------------------------------


def _product_of(g: Groups, rows: Array) -> State:
    """Mantissa and exponent of the products of this rank's segments. They may leave the range of
    float64, so factors are multiplied in blocks of rows, mantissas alone."""
    s, xp = g.s, g.s.xp
    slots, places = g._touched[0].shape[0], s.as_index(g._touched[1])
    mantissa, powers = s.split(s.wide(rows))
    exponent = segment_sum(powers, places, slots)
    while mantissa.shape[0] > _BLOCK:
        blocks = -(-mantissa.shape[0] // _BLOCK)
        inner = s.as_index(s.steps(mantissa.shape[0], rows)) // _BLOCK
        pairs, at = s.distinct(places * blocks + inner, slots * blocks)
        if pairs.shape[0] >= mantissa.shape[0]:  # rows of one block are of segments of their own
            order = xp.argsort(places)
            mantissa, places = mantissa[order], places[order]
            pairs, at = s.distinct(places * blocks + inner, slots * blocks)
            if pairs.shape[0] >= mantissa.shape[0]:
                break
        mantissa, powers = s.split(segment_prod(mantissa, at, pairs.shape[0]))
        places = xp.clip(pairs // blocks, 0, slots - 1)
        exponent = exponent + segment_sum(powers, places, slots)
    mantissa, powers = s.split(segment_prod(mantissa, places, slots))
    return mantissa, exponent + powers


def _prod_state(g: Groups, x: Array, arguments: Arguments) -> State:
    """The product of all ranks' rows, and that of all others' than this rank's."""
    s, xp = g.s, g.s.xp
    found = g.exchanged(*_product_of(g, g.rows(x)))
    mantissa, exponent = found.states
    whole = s.scaled(found.merged(segment_prod, mantissa), found.merged(segment_sum, exponent))
    empty = arguments.get("empty")
    whole = xp.where(found.held(), whole, 1.0 if empty is None else empty)
    own = s.is_own(mantissa.shape[0])
    others = s.scaled(
        found.merged(segment_prod, xp.where(own, 1.0, mantissa)),
        found.merged(segment_sum, xp.where(own, 0.0, exponent)),
    )
    return whole, others


def _prod_gradient(g: Groups, state: State, arguments: Arguments) -> Array:
    dy = g.s.wide(g.rows(arguments["dy"])) * state[1]
    rows = g.s.wide(g.rows(arguments["x"]))
    return segment_prod_backward(dy, rows, g.ids, out_of_range="skip")


_FAMILIES = {
    "segment_sum": Family(_sum_state, _plain, _sum_gradient, needs_state=False),
    "segment_mean": Family(_mean_state, _plain, _mean_gradient),
    "segment_max": _extremum(segment_max),
    "segment_min": _extremum(segment_min),
    "segment_prod": Family(_prod_state, _plain, _prod_gradient),
}
SHARDED = {
    **{name: family.forward() for name, family in _FAMILIES.items()},
    **{f"{name}_backward": family.backward() for name, family in _FAMILIES.items()},
}

SENDS = {
    "segment_sum": sends(1, wide=sends(2)),
    "segment_sum_backward": Sends(0, collectives=0, same=True),
    "segment_mean": sends(1, 2, wide=sends(2, 2)),
    "segment_mean_backward": sends(0, 2),
    "segment_max": sends(2),
    "segment_max_backward": sends(2),
    "segment_min": sends(2),
    "segment_min_backward": sends(2),
    "segment_prod": sends(2),
    "segment_prod_backward": sends(2),
}
