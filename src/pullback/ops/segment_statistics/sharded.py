"""Statistics of segments whose rows are spread over ranks: (largest element, sum of exponentials),
or (count, mean, sum of squared deviations), of which wholes are made without cancellation."""

from __future__ import annotations

from pullback.ops.segment.functions import segment_mean, segment_sum
from pullback.ops.segment_sharded import Family, Groups, sends
from pullback.ops.segment_softmax.sharded import exponentials, weights
from pullback.ops.sharding import Arguments, Array, State


def _log_state(g: Groups, x: Array, arguments: Arguments) -> State:
    return exponentials(g, x)


def _log_sum(g: Groups, state: State, arguments: Arguments) -> tuple[Array, ...]:
    xp, (top, mass, held), x = g.s.xp, state, arguments["x"]
    found = xp.where(mass == 0, top, top + xp.log(xp.where(mass == 0, 1.0, mass)))
    empty = arguments["empty"]
    if empty is not None:
        found = xp.where(held > 0, found, empty)
    return (g.s.like(g.restored(found, x), x),)


def _log_gradient(g: Groups, state: State, arguments: Arguments) -> Array:
    rows = g.s.wide(g.rows(arguments["x"]))
    dy = g.at_rows(g.s.wide(g.rows(arguments["dy"])))
    p = weights(g, rows, state)
    return g.s.xp.where(p == 0, 0.0, p * dy)


def _spread_state(g: Groups, x: Array, arguments: Arguments) -> State:
    """Counts, means and sums of squared deviations."""
    s, xp, rows = g.s, g.s.xp, g.s.wide(g.rows(x))
    ones = s.filled((rows.shape[0], 1), 1.0, rows)
    mean = g.partial(segment_mean, rows)
    gap = rows - g.beside(mean)
    found = g.exchanged(g.partial(segment_sum, ones), mean, g.partial(segment_sum, gap * gap))
    counts, means, squares = found.states
    count = found.merged(segment_sum, counts)
    some = xp.where(count == 0, 1.0, count)
    # Relative to the first mean of a segment: equal rows have exactly equal means.
    base = found.merged(segment_sum, xp.where(found.is_first(), means, -0.0))
    off = means - found.beside(base)
    whole = base + found.merged(segment_sum, counts * off) / some
    apart = means - found.beside(whole)
    return count, whole, found.merged(segment_sum, squares + counts * apart * apart)


def _family(root: bool) -> Family:
    def variance(g: Groups, state: State, arguments: Arguments) -> tuple[Array, Array]:
        left = state[0] - float(arguments["ddof"])
        return g.s.xp.where(left > 0, state[2] / g.s.xp.where(left > 0, left, 1.0), 0.0), left

    def finish(g: Groups, state: State, arguments: Arguments) -> tuple[Array, ...]:
        xp, x = g.s.xp, arguments["x"]
        found, _ = variance(g, state, arguments)
        found = xp.sqrt(found) if root else found
        if arguments["empty"] is not None:
            found = xp.where(state[0] > 0, found, arguments["empty"])
        return (g.s.like(g.restored(found, x), x),)

    def gradient(g: Groups, state: State, arguments: Arguments) -> Array:
        xp, rows = g.s.xp, g.s.wide(g.rows(arguments["x"]))
        found, left = variance(g, state, arguments)
        divisor = left * xp.sqrt(found) if root else left
        usual = (left > 0) & ((found > 0) | xp.isnan(found)) if root else left > 0
        scale = xp.where(usual, (1.0 if root else 2.0) / xp.where(usual, divisor, 1.0), 0.0)
        dy = g.s.wide(g.rows(arguments["dy"]))
        return g.at_rows(xp.where(usual, dy * scale, 0.0)) * (rows - g.at_rows(state[1]))

    return Family(_spread_state, finish, gradient)


_FAMILIES = {
    "segment_logsumexp": Family(_log_state, _log_sum, _log_gradient),
    "segment_var": _family(root=False),
    "segment_std": _family(root=True),
}
SHARDED = {
    **{name: family.forward() for name, family in _FAMILIES.items()},
    **{f"{name}_backward": family.backward() for name, family in _FAMILIES.items()},
}

SENDS = {
    "segment_logsumexp": sends(2),
    "segment_logsumexp_backward": sends(2),
    "segment_var": sends(2, 2),
    "segment_var_backward": sends(2, 2),
    "segment_std": sends(2, 2),
    "segment_std_backward": sends(2, 2),
}
