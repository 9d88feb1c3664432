"""Softmax within segments whose rows are spread over ranks: the largest element of a segment's rows
and the sum of exponentials; backwards, a sum."""

from __future__ import annotations

from typing import Any

from pullback.ops.segment.functions import segment_max, segment_sum
from pullback.ops.segment_sharded import Found, Groups, groups_over, sends
from pullback.ops.sharding import INF, Arguments, Array, Form, Spread, State


def shifted(g: Groups, x: Array, top: Array) -> Array:
    """x - top, 0 where they are equal infinities."""
    return g.s.xp.where(x == top, 0.0, x - top)


def exponentials(g: Groups, x: Array) -> State:
    """Of each segment the largest element, the sum of exponentials relative to it, and whether it
    has rows."""
    xp, rows = g.s.xp, g.s.wide(g.rows(x))
    top = g.partial(segment_max, rows)
    powers = xp.exp(shifted(g, rows, g.beside(top)))
    mass = g.partial(segment_sum, xp.where(g.beside(top) == -INF, 0.0, powers))
    found = g.exchanged(top, mass)
    best = found.merged(segment_max, found.states[0], empty=-INF)
    gap = xp.exp(shifted(g, found.states[0], found.beside(best)))
    shares = xp.where(found.states[0] == -INF, 0.0, found.states[1] * gap)
    return best, found.merged(segment_sum, shares), g.s.wide(found.held())


def weights(g: Groups, rows: Array, state: State) -> Array:
    """The softmax of rows; 0 in those of none and in segments of only -inf."""
    xp, top, mass = g.s.xp, g.at_rows(state[0]), g.at_rows(state[1])
    power = xp.exp(shifted(g, rows, top)) / xp.where(mass == 0, 1.0, mass)
    return xp.where((mass == 0) | (g.ids == g.count)[:, None], 0.0, power)


def _forward(logs: bool) -> Form:
    def form(s: Spread, function: Any, arguments: Arguments) -> Found:
        x = arguments["x"]
        g = groups_over(s, function, arguments, arguments["num_segments"])
        state, rows, xp = exponentials(g, x), s.wide(g.rows(x)), s.xp
        if logs:
            mass = g.at_rows(state[1])
            level = shifted(g, rows, g.at_rows(state[0])) - xp.log(xp.where(mass == 0, 1.0, mass))
            found = xp.where((mass == 0) | (g.ids == g.count)[:, None], -INF, level)
        else:
            found = weights(g, rows, state)
        return (s.like(g.restored(found, x), x),), ()

    return form


def _backward(logs: bool) -> Form:
    def form(s: Spread, function: Any, arguments: Arguments) -> Found:
        g = groups_over(s, function, arguments, arguments["num_segments"])
        xp = s.xp
        dy, y = (s.wide(g.rows(arguments[name])) for name in ("dy", "y"))
        if logs:
            p = xp.exp(y)
            own = g.partial(segment_sum, dy), g.partial(segment_sum, p)
            found = g.exchanged(*own)
            total, mass = (g.at_rows(found.merged(segment_sum, part)) for part in found.states)
            dx = xp.where(mass == 0, 0.0, dy - p * total)
        else:
            found = g.exchanged(g.partial(segment_sum, dy * y))
            dx = y * (dy - g.at_rows(found.merged(segment_sum, found.states[0])))
        dx = xp.where((g.ids == g.count)[:, None], 0.0, dx)
        return (s.like(g.restored(dx, arguments["dy"]), arguments["dy"]),), ()

    return form


SHARDED = {
    "segment_softmax": _forward(logs=False),
    "segment_softmax_backward": _backward(logs=False),
    "segment_log_softmax": _forward(logs=True),
    "segment_log_softmax_backward": _backward(logs=True),
}

SENDS = {
    "segment_softmax": sends(2),
    "segment_softmax_backward": sends(1),
    "segment_log_softmax": sends(2),
    "segment_log_softmax_backward": sends(2),
}
