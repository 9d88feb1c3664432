"""What the forms of scans over a sharded axis share: what a part hands on to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pullback.ops.calculus import sum_to
from pullback.ops.recurrence.functions import linear_scan
from pullback.ops.sharding import Arguments, Array, Spread, State
from pullback.plan.function import axis_of


@dataclass(frozen=True, slots=True)
class Walk:
    """The order of one call. `like` has the scanned shape."""

    s: Spread
    like: Array
    axis: int
    reverse: bool
    exclusive: bool
    initial: Any

    @property
    def steps(self) -> int:
        return int(self.like.shape[self.axis])

    @property
    def options(self) -> dict[str, Any]:
        return {"axis": self.axis, "reverse": self.reverse, "exclusive": self.exclusive}

    def start(self, identity: float) -> Array:
        """What the whole scan starts from, in float64."""
        empty = self.s.full(self.like, self.axis, identity)
        if self.initial is None:
            return empty
        return self.s.xp.broadcast_to(self.s.wide(self.initial), tuple(empty.shape))

    def first(self, x: Array, empty: float = 0.0) -> Array:
        return self.s.wide(self.s.edge(x, self.axis, not self.reverse, empty))

    def last(self, x: Array, empty: float = 0.0) -> Array:
        return self.s.wide(self.s.edge(x, self.axis, self.reverse, empty))

    def present(self) -> Array:
        """1 where this rank holds a step, else 0."""
        return self.s.filled((), float(self.steps > 0), self.like)

    def extended(self, x: Array, value: Array | float) -> Array:
        """With a last step after the others that stands for all that follow."""
        if isinstance(value, float):
            value = self.s.full(x, self.axis, value)
        return self.s.joined(x, self.s.like(value, x), self.axis, behind=not self.reverse)

    def cut(self, x: Array) -> Array:
        return self.s.without(x, self.axis, behind=not self.reverse)

    def for_initial(self, wide: Array) -> Array:
        """The gradient of the initial value, which may have been broadcast."""
        return self.s.like(sum_to(self.s.xp, wide, tuple(self.initial.shape)), self.initial)


def walk_of(s: Spread, op: str, arguments: Arguments, like: Array) -> Walk:
    axis = axis_of(op, arguments["axis"], len(like.shape))
    reverse, exclusive = arguments["reverse"], arguments.get("exclusive", False)
    return Walk(s, like, axis, reverse, exclusive, arguments["initial"])


def handed_back(walk: Walk, factors: Array, gradients: Array) -> Array:
    """The gradient that a part with such factors hands on to the state it started from, if that of
    the state it ends with is 0."""
    wide_factors, wide = walk.s.wide(factors), walk.s.wide(gradients)
    source = wide if walk.exclusive else wide_factors * wide
    return walk.first(linear_scan(wide_factors, source, walk.axis, reverse=not walk.reverse))


def pull_back(s: Spread) -> Any:
    """Adds to what a part hands back what those behind it did, by the product of its factors."""

    def combine(state: State, part: State) -> State:
        own, mantissa, exponent = part[:3]
        return (own + s.scaled(mantissa * state[0], exponent),)

    return combine


def newest(s: Spread) -> Any:
    """The value of the last part that has a step, of pairs (value, present)."""

    def combine(state: State, part: State) -> State:
        value, present = part
        return (s.xp.where(present > 0, value, state[0]),)

    return combine
