"""The linear recurrence over a sharded axis. A part hands on the product of its factors, as
mantissa and exponent, and the state it ends with if it starts from 0."""

from __future__ import annotations

from typing import Any

from pullback.ops.calculus import sum_to
from pullback.ops.recurrence.functions import linear_scan, linear_scan_backward
from pullback.ops.scan_sharded import handed_back, newest, pull_back, walk_of
from pullback.ops.sharding import Arguments, Array, Form, Sends, Spread, State

Found = tuple[tuple[Array, ...], State]


def _forward(factor: str, source: str) -> Form:
    def form(s: Spread, function: Any, arguments: Arguments) -> Found:
        a, b = arguments[factor], arguments[source]
        walk = walk_of(s, function.name, arguments, b)
        factors = s.xp.broadcast_to(a, tuple(b.shape))
        alone = linear_scan(s.wide(factors), s.wide(b), walk.axis, reverse=walk.reverse)
        parts = s.gather(*s.product(factors, walk.axis), walk.last(alone))

        def combine(state: State, part: State) -> State:
            mantissa, exponent, own = part
            return (s.scaled(mantissa * state[0], exponent) + own,)

        (state,) = s.fold(parts, (walk.start(0.0),), combine, walk.reverse)
        wide_a, wide_b = s.working(a), s.working(b)
        initial = s.like(state, wide_b)
        return (s.like(linear_scan(wide_a, wide_b, initial=initial, **walk.options), b),), ()

    return form


def _backward(s: Spread, function: Any, arguments: Arguments) -> Found:
    dh, a, h = (arguments[name] for name in ("dh", "a", "h"))
    walk = walk_of(s, function.name, arguments, dh)
    factors = s.xp.broadcast_to(a, tuple(dh.shape))
    products = s.product(factors, walk.axis)
    # One factor for all steps? Where a part is one step, the others' know.
    shape, at = tuple(a.shape), walk.axis - len(dh.shape)
    stretched = len(shape) < -at or (shape[at] == 1 and walk.steps != 1)
    own = handed_back(walk, factors, dh), *products, walk.last(h), walk.present()
    *parts, flags = s.gather(*own, s.filled((), float(stretched), dh))
    stretched = s.agreed("a", stretched, flags)
    nothing = (s.full(dh, walk.axis, 0.0),)
    (behind,) = s.fold(parts[:3], nothing, pull_back(s), not walk.reverse)
    (entering,) = s.fold(parts[3:], (walk.start(0.0),), newest(s), walk.reverse)
    if walk.exclusive and walk.steps:
        entering = walk.first(h)
    wide = [s.working(x) for x in (dh, factors, h)]
    extended = map(walk.extended, wide, (behind, 1.0, 0.0))
    da, db, _ = linear_scan_backward(*extended, initial=s.like(entering, wide[0]), **walk.options)
    d_factors = sum_to(s.xp, walk.cut(da), tuple(a.shape))
    if stretched:
        shares = s.gather(d_factors)
        (d_factors,) = s.fold(shares, (0.0,), lambda t, p: (t[0] + p[0],), False, everyone=True)
    results = [s.like(d_factors, a), s.like(walk.cut(db), dh)]
    if walk.initial is not None:
        (whole,) = s.fold(parts[:3], nothing, pull_back(s), not walk.reverse, everyone=True)
        results.append(walk.for_initial(whole))
    return tuple(results), ()


SHARDED = {
    "linear_scan": _forward("a", "b"),
    "discounted_sum": _forward("discount", "x"),
    "linear_scan_backward": _backward,
}

# The gradient is that of the recurrence, which names its arguments in another way.
GRADIENTS = {"discounted_sum": ("linear_scan_backward", {"discount": "a", "x": "b"})}

_BEFORE = "the state before a part is sent, and not computed again"

SENDS = {
    "linear_scan": Sends(3),
    "discounted_sum": Sends(3),
    "linear_scan_backward": Sends(4, besides=2, least=3, why=_BEFORE),
}
