"""Scans over a sharded axis: what a part hands on (a sum, a product as mantissa and exponent, a
log-sum-exp, an extremum with its position), and the plain scan from what came before."""

from __future__ import annotations

from typing import Any

from pullback.ops.scan.functions import (
    cumprod,
    cumprod_backward,
    cumsum,
    logcumsumexp,
    logcumsumexp_backward,
)
from pullback.ops.scan.sharded_extremum import extremum, extremum_backward
from pullback.ops.scan_sharded import Walk, handed_back, newest, pull_back, walk_of
from pullback.ops.sharding import INF, Arguments, Array, Sends, Spread, State, logaddexp, ratio

Found = tuple[tuple[Array, ...], State]


# --- sums ---------------------------------------------------------------------------------------


def _sum_of(walk: Walk, x: Array) -> State:
    """The sum of a part: in two numbers, the second what rounding left out of the first, where
    float64 is not wider than the data."""
    s = walk.s
    total = s.total(x, walk.axis)
    if not s.is_wide(x):
        return (total,)
    rest = cumsum(s.joined(x, -total, walk.axis, behind=True), walk.axis)
    return total, s.edge(rest, walk.axis, first=False, empty=0.0)


def _add(state: State, part: State) -> State:
    total = state[0] + part[0]
    if len(state) == 1:
        return (total,)
    other = total - state[0]
    error = (state[0] - (total - other)) + (part[0] - other)
    return total, state[1] + part[1] + error


def _running_sum(walk: Walk, x: Array, parts: list[Array], start: Array) -> Array:
    """The sums of a part that begin with those of the parts before it."""
    s = walk.s
    zero = (s.full(x, walk.axis, 0.0),) * (len(parts) - 1)
    state = s.fold(parts, (start, *zero), _add, walk.reverse)
    wide = s.working(x)
    initial = s.like(state[0], wide)
    if len(parts) == 1:
        return s.like(cumsum(wide, initial=initial, **walk.options), x)
    wide = s.joined(wide, state[1], walk.axis, behind=walk.reverse)
    return s.without(cumsum(wide, initial=initial, **walk.options), walk.axis, walk.reverse)


def _cumsum(s: Spread, function: Any, arguments: Arguments) -> Found:
    x = arguments["x"]
    walk = walk_of(s, function.name, arguments, x)
    parts = s.gather(*_sum_of(walk, x))
    # -0.0 changes no sum; but what an exclusive scan begins with is 0.0.
    return (_running_sum(walk, x, parts, walk.start(0.0 if walk.exclusive else -0.0)),), ()


def _cumsum_backward(s: Spread, function: Any, arguments: Arguments) -> Found:
    dy = arguments["dy"]
    walk = walk_of(s, function.name, arguments, dy)
    back = Walk(s, dy, walk.axis, not walk.reverse, walk.exclusive, None)
    parts = s.gather(*_sum_of(back, dy))
    start = back.start(0.0 if walk.exclusive else -0.0)
    dx = _running_sum(back, dy, parts, start)
    if walk.initial is None:
        return (dx,), ()
    zero = (s.full(dy, walk.axis, 0.0),) * len(parts)
    whole = s.fold(parts, zero, _add, back.reverse, everyone=True)
    return (dx, walk.for_initial(whole[0])), ()


# --- products -----------------------------------------------------------------------------------


def _multiply(s: Spread) -> Any:
    def combine(state: State, part: State) -> State:
        mantissa, exponent = s.split(state[0] * part[0])
        return mantissa, state[1] + part[1] + exponent

    return combine


def _cumprod(s: Spread, function: Any, arguments: Arguments) -> Found:
    x = arguments["x"]
    walk = walk_of(s, function.name, arguments, x)
    parts = s.gather(*s.product(x, walk.axis))
    state = s.fold(parts, s.split(walk.start(1.0)), _multiply(s), walk.reverse)
    y = cumprod(s.wide(x), initial=s.scaled(*state), **walk.options)
    return (s.like(y, x),), ()


def _cumprod_backward(s: Spread, function: Any, arguments: Arguments) -> Found:
    dy, x, y = (arguments[name] for name in ("dy", "x", "y"))
    walk = walk_of(s, function.name, arguments, dy)
    own = handed_back(walk, x, dy), *s.product(x, walk.axis)
    nothing = (s.full(dy, walk.axis, 0.0),)
    if s.is_half(dy):  # the y given is too coarse
        parts = s.gather(*own)
        state = s.fold(parts[1:], s.split(walk.start(1.0)), _multiply(s), walk.reverse)
        entering = s.scaled(*state)
        y = cumprod(s.wide(x), initial=entering, **walk.options)
    else:
        parts = s.gather(*own, walk.last(y), walk.present())
        (entering,) = s.fold(parts[3:], (walk.start(1.0),), newest(s), walk.reverse)
    if walk.exclusive and walk.steps:
        entering = walk.first(y)
    (behind,) = s.fold(parts[:3], nothing, pull_back(s), not walk.reverse)
    wide = [s.wide(t) for t in (dy, x, y)]
    extended = map(walk.extended, wide, (behind, 1.0, 1.0))
    dx, _ = cumprod_backward(*extended, initial=entering, **walk.options)
    dx = s.like(walk.cut(dx), x)
    if walk.initial is None:
        return (dx,), ()
    (whole,) = s.fold(parts[:3], nothing, pull_back(s), not walk.reverse, everyone=True)
    return (dx, walk.for_initial(whole)), ()


# --- log-sum-exp --------------------------------------------------------------------------------


def _log_sum(walk: Walk, x: Array) -> Array:
    """log Σ exp x of a part."""
    s, xp = walk.s, walk.s.xp
    top = s.largest(x, walk.axis)
    usual = xp.isfinite(top)
    shift = s.rows(xp.where(usual, top, 0.0), walk.axis)
    powers = xp.exp(xp.where(s.rows(usual, walk.axis), s.wide(x) - shift, 0.0))
    total = s.total(powers, walk.axis)
    return xp.where(usual, top + xp.log(xp.where(usual, total, 1.0)), top)


def _running_log_sum(walk: Walk, x: Array) -> tuple[Array, Array]:
    """Running log-sum-exps in float64, and what was there before this part."""
    s = walk.s
    parts = s.gather(_log_sum(walk, x))

    def combine(state: State, part: State) -> State:
        return (logaddexp(s.xp, state[0], part[0]),)

    (state,) = s.fold(parts, (walk.start(-INF),), combine, walk.reverse)
    return logcumsumexp(s.wide(x), initial=state, **walk.options), state


def _logcumsumexp(s: Spread, function: Any, arguments: Arguments) -> Found:
    x = arguments["x"]
    walk = walk_of(s, function.name, arguments, x)
    return (s.like(_running_log_sum(walk, x)[0], x),), ()


def _logcumsumexp_backward(s: Spread, function: Any, arguments: Arguments) -> Found:
    """Of a part is handed on S, the sum of its gradients as its first result weighs them, with
    that result; the last one tells the next part whether an infinity came before."""
    dy, x, y = (arguments[name] for name in ("dy", "x", "y"))
    xp, walk = s.xp, walk_of(s, function.name, arguments, dy)
    # In 16 bits the y given is too coarse: computed again, with a collective of its own.
    y = _running_log_sum(walk, x)[0] if s.is_half(dy) else s.wide(y)
    first = walk.first(y)
    weights = ratio(xp, s.rows(first, walk.axis), y)
    own = s.total(s.wide(dy) * weights, walk.axis)
    parts = s.gather(own, first, walk.last(y), walk.present())
    zero = s.full(dy, walk.axis, 0.0)

    def behind(state: State, part: State) -> State:
        mass, border, some = state
        own, first, present = part
        passed = xp.where(some > 0, ratio(xp, first, border) * mass, 0.0)
        there = present > 0
        return (
            xp.where(there, own + passed, mass),
            xp.where(there, first, border),
            xp.where(there, 1.0, some),
        )

    backwards = [parts[0], parts[1], parts[3]]
    mass, border, some = s.fold(backwards, (zero, zero, zero), behind, not walk.reverse)
    (entering,) = s.fold(parts[2:], (walk.start(-INF),), newest(s), walk.reverse)
    if walk.exclusive and walk.steps:
        entering = first
    border = xp.where(some > 0, border, walk.last(y))
    wide = [s.wide(dy), s.wide(x), y]
    extended = map(walk.extended, wide, (mass, -INF, border))
    dx, _ = logcumsumexp_backward(*extended, initial=entering, **walk.options)
    dx = s.like(walk.cut(dx), x)
    if walk.initial is None:
        return (dx,), ()
    mass, border, some = s.fold(
        backwards, (zero, zero, zero), behind, not walk.reverse, everyone=True
    )
    share = ratio(xp, walk.start(-INF), border)
    return (dx, walk.for_initial(xp.where(some > 0, share * mass, 0.0))), ()


SHARDED = {
    "cumsum": _cumsum,
    "cumsum_backward": _cumsum_backward,
    "cumprod": _cumprod,
    "cumprod_backward": _cumprod_backward,
    "logcumsumexp": _logcumsumexp,
    "logcumsumexp_backward": _logcumsumexp_backward,
    "cummax": extremum(1.0),
    "cummax_backward": extremum_backward("cummax", 1.0),
    "cummin": extremum(-1.0),
    "cummin_backward": extremum_backward("cummin", -1.0),
}

_BEFORE = "the result before a part is sent, and not computed again"
_PLACES = "positions again, where the forward has not kept them (DTensor)"

SENDS = {
    "cumsum": Sends(1, wide=Sends(2)),
    "cumsum_backward": Sends(1, wide=Sends(2)),
    "cumprod": Sends(2),
    "cumprod_backward": Sends(4, besides=1, half=Sends(3), least=3, why=_BEFORE),
    "logcumsumexp": Sends(1),
    "logcumsumexp_backward": Sends(
        3, besides=1, half=Sends(4, besides=1, collectives=2), least=2, why=_BEFORE
    ),
    "cummax": Sends(2, besides=1, same=True),
    "cummax_backward": Sends(4, besides=1, collectives=2, least=2, why=_PLACES),
    "cummin": Sends(2, besides=1, same=True),
    "cummin_backward": Sends(4, besides=1, collectives=2, least=2, why=_PLACES),
}
