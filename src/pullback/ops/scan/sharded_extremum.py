"""Running extrema over a sharded axis: exact in any grouping. A part hands on its extremum and its
position; backwards, the gradient that belongs to an element of a part before it."""

from __future__ import annotations

from typing import Any

from pullback.ops.scan import functions
from pullback.ops.scan_sharded import Walk, walk_of
from pullback.ops.sharding import INF, Arguments, Array, Form, Spread, State

Found = tuple[tuple[Array, ...], State]


def _takes_over(xp: Any, later: Array, held: Array, sign: float, ties: str) -> Array:
    """Whether a later value takes over from the one that is held. NaN does, once."""
    new, old = later * sign, held * sign
    if ties == "first":
        return (new > old) | (xp.isnan(new) & ~xp.isnan(old))
    return (new >= old) & ~xp.isnan(old) | xp.isnan(new)


def _local(walk: Walk, function: Any, x: Array, ties: Any, exclusive: bool) -> Any:
    return function(
        x, walk.axis, reverse=walk.reverse, return_indices=True, ties=ties, exclusive=exclusive
    )


def _running(walk: Walk, function: Any, x: Array, sign: float, ties: Any) -> tuple[Array, ...]:
    """Values, positions in the whole array, the position of what leaves this part, and where this
    part begins."""
    s, xp, rule = walk.s, walk.s.xp, getattr(ties, "value", ties)
    values, places = _local(walk, function, x, ties, False)
    own = walk.last(values, -INF * sign), walk.last(places, -1.0)
    parts = s.gather(*own, s.filled((), float(walk.steps), x))
    begins = [0.0 * parts[2][0]]
    for rank in range(s.size - 1):
        begins.append(begins[-1] + parts[2][rank])
    parts[2] = xp.stack(begins)
    nowhere = s.full(x, walk.axis, -1.0)
    # Held: value, position (-1: the initial value), whether there is anything at all.
    some = nowhere + (1.0 if walk.initial is None else 2.0)
    start = walk.start(-INF * sign), nowhere, some

    def combine(state: State, part: State) -> State:
        value, place, begin = part
        takes = (place >= 0) & ((state[2] < 1) | _takes_over(xp, value, state[0], sign, rule))
        return (
            xp.where(takes, value, state[0]),
            xp.where(takes, place + begin, state[1]),
            xp.where(takes, 1.0, state[2]),
        )

    held = s.fold(parts, start, combine, walk.reverse)
    begin = s.own(parts[2])
    leaving = combine(held, (*own, begin))[1]
    if walk.exclusive:
        values, places = _local(walk, function, x, ties, True)
    value, place, some = (s.rows(part, walk.axis) for part in held)
    value = s.like(value, x)
    takes = (some < 1) | ((places >= 0) & _takes_over(xp, values, value, sign, rule))
    begin = s.as_index(begin)
    own_places = s.as_index(xp.where(places < 0, places, places + begin))
    found = xp.where(takes, own_places, s.as_index(place))
    return xp.where(takes, values, value), found, s.as_index(leaving), begin


def extremum(sign: float) -> Form:
    def form(s: Spread, function: Any, arguments: Arguments) -> Found:
        x = arguments["x"]
        walk = walk_of(s, function.name, arguments, x)
        values, places, *more = _running(walk, function, x, sign, arguments["ties"])
        results = (values, places) if arguments["return_indices"] else (values,)
        return results, (places, *more)

    form.exact = True  # type: ignore[attr-defined]
    return form


def extremum_backward(forward: str, sign: float) -> Form:
    def form(s: Spread, function: Any, arguments: Arguments) -> Found:
        dy, x = arguments["dy"], arguments["x"]
        xp, walk = s.xp, walk_of(s, function.name, arguments, dy)
        kept = arguments.get("kept")
        if not kept:
            running = getattr(functions, forward)
            kept = _running(walk, running, x, sign, arguments["ties"])[1:]
        places, leaving, begin = kept

        def is_own(at: Array) -> Array:
            return (at >= begin) & (at < begin + walk.steps)

        wide, here = s.wide(dy), is_own(places)
        foreign = s.total(xp.where(here, 0.0, wide), walk.axis)
        passes = s.wide(xp.where(is_own(leaving), 0, 1))
        parts = s.gather(foreign, passes)

        def combine(state: State, part: State) -> State:
            return (part[0] + xp.where(part[1] > 0, state[0], 0.0),)

        nothing = (s.full(dy, walk.axis, 0.0),)
        (behind,) = s.fold(parts, nothing, combine, not walk.reverse)
        wide = walk.extended(xp.where(here, wide, 0.0), xp.where(is_own(leaving), behind, 0.0))
        to = s.joined(places, leaving, walk.axis, behind=not walk.reverse)
        sums = xp.add_along_axis(wide, xp.where(is_own(to), to - begin, 0), walk.axis)
        count = (slice(None),) * walk.axis + (slice(0, walk.steps),)
        dx = s.like(sums[count], dy)
        if walk.initial is None:
            return (dx,), ()
        (whole,) = s.fold(parts, nothing, combine, not walk.reverse, everyone=True)
        return (dx, walk.for_initial(whole)), ()

    return form
