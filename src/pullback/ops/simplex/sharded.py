"""Simplex maps over sharded classes.

softmax and log_softmax exchange the largest element of a part and the sum of its exponentials. A
sparse map needs the elements that may be in the support: those of the whole row that a part holds
are among those of the part by itself, since more elements only raise the threshold. Each rank sends
its CANDIDATES largest ones and how many it would keep; if one would keep more, whole parts follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.ops.sharding import INF, Arguments, Array, Form, Sends, Spread, State
from pullback.plan.function import axis_of

Found = tuple[tuple[Array, ...], State]
CANDIDATES = 32


def _rows_of(s: Spread, function: Any, arguments: Arguments, name: str) -> tuple[Array, int]:
    x = arguments[name]
    return x, axis_of(function.name, arguments["axis"], len(x.shape))


# --- exponentials -------------------------------------------------------------------------------


def _shifted(s: Spread, x: Array, top: Array, axis: int) -> tuple[Array, Array]:
    """x - top, 0 where they are equal infinities, and its exponential; rows of only -inf weigh
    nothing."""
    xp = s.xp
    top = s.rows(top, axis)
    level = xp.where(x == top, 0.0, x - top)
    return level, xp.where(top == -INF, 0.0, xp.exp(level))


def exponential_state(s: Spread, x: Array, axis: int) -> State:
    """The largest element of a part, and the sum of exponentials relative to it."""
    wide = s.wide(x)
    top = s.largest(wide, axis)
    return top, s.total(_shifted(s, wide, top, axis)[1], axis)


def merge_exponentials(s: Spread) -> Callable[[State, State], State]:
    def combine(state: State, part: State) -> State:
        xp = s.xp
        top = xp.maximum(state[0], part[0])
        shares = [
            total * xp.where(high == top, 1.0, xp.exp(high - top))
            for high, total in (state[:2], part[:2])
        ]
        return top, shares[0] + shares[1]

    return combine


def whole_exponentials(s: Spread, x: Array, axis: int, *more: Array) -> tuple[State, list[Array]]:
    """The state of all ranks, and what else is gathered with it."""
    parts = s.gather(*exponential_state(s, x, axis), *more)
    start = s.full(x, axis, -INF), s.full(x, axis, 0.0)
    return s.fold(parts[:2], start, merge_exponentials(s), False, everyone=True), parts[2:]


def exponential_map(s: Spread, x: Array, axis: int, state: State, logs: bool) -> Array:
    xp, wide = s.xp, s.wide(x)
    level, power = _shifted(s, wide, state[0], axis)
    mass = s.rows(state[1], axis)
    if not logs:
        return s.like(power / xp.where(mass == 0, 1.0, mass), x)
    masked = s.rows(state[0], axis) == -INF
    return s.like(xp.where(masked, wide, level - xp.log(xp.where(masked, 1.0, mass))), x)


def _exponential(logs: bool) -> Form:
    def form(s: Spread, function: Any, arguments: Arguments) -> Found:
        x, axis = _rows_of(s, function, arguments, "x")
        state, _ = whole_exponentials(s, x, axis)
        return (exponential_map(s, x, axis, state, logs),), ()

    return form


# --- gradients ----------------------------------------------------------------------------------


def _summed(s: Spread, *parts: Array) -> list[Array]:
    """Sums over all ranks, in their order: one collective."""
    gathered = s.gather(*parts)
    zero = tuple(s.xp.full_like(part[0], 0.0) for part in gathered)

    def combine(state: State, part: State) -> State:
        return tuple(a + b for a, b in zip(state, part, strict=True))

    return list(s.fold(gathered, zero, combine, False, everyone=True))


def _softmax_backward(s: Spread, function: Any, arguments: Arguments) -> Found:
    dy, axis = _rows_of(s, function, arguments, "dy")
    wide, y = s.wide(dy), s.wide(arguments["y"])
    (inner,) = _summed(s, s.total(wide * y, axis))
    return (s.like(y * (wide - s.rows(inner, axis)), dy),), ()


def _log_softmax_backward(s: Spread, function: Any, arguments: Arguments) -> Found:
    dy, axis = _rows_of(s, function, arguments, "dy")
    wide, p = s.wide(dy), s.xp.exp(s.wide(arguments["y"]))
    total, mass = _summed(s, s.total(wide, axis), s.total(p, axis))
    dx = wide - p * s.rows(total, axis)
    return (s.like(s.xp.where(s.rows(mass, axis) == 0, 0.0, dx), dy),), ()


def sparse_gradient(
    s: Spread, dy: Array, y: Array, axis: int, weight: Callable[[Array], Array]
) -> Array:
    """w·dy - w·Σ(w·dy)/Σw, with weights that are 0 off the support, where dy is not read."""
    xp, y = s.xp, s.wide(y)
    support = (y > 0) | xp.isnan(y)
    w = xp.where(support, weight(xp.where(support, y, 1.0)), 0.0)
    g = xp.where(support, s.wide(dy), 0.0)
    inner, mass = _summed(s, s.total(w * g, axis), s.total(w, axis))
    mean = inner / xp.where(mass == 0, 1.0, mass)
    return s.like(w * g - w * s.rows(mean, axis), dy)


def _sparse_backward(root: bool) -> Form:
    def form(s: Spread, function: Any, arguments: Arguments) -> Found:
        dy, axis = _rows_of(s, function, arguments, "dy")
        # NaN ** 0 would be 1.
        weight = s.xp.sqrt if root else lambda y: s.xp.where(s.xp.isnan(y), y, 1.0)
        return (sparse_gradient(s, dy, arguments["y"], axis, weight),), ()

    return form


# --- candidates ---------------------------------------------------------------------------------


def with_candidates(s: Spread, x: Array, axis: int, run: Callable[[Array], Array]) -> Array:
    """A sparse map of whole rows: this rank's elements beside those of others that may count. `run`
    is the map along the last axis."""
    xp = s.xp
    own = xp.moveaxis(s.working(x), axis, -1)
    width = own.shape[-1]
    kept = s.total(s.wide(run(own) != 0), len(own.shape) - 1) if width else s.full(x, axis, 0.0)
    # A NaN makes the row NaN: one of them is enough.
    kept = xp.where(xp.isnan(s.largest(own, len(own.shape) - 1)), 1.0, kept)
    top = s.largest_of(own, CANDIDATES)
    candidates, counts, widths = s.gather(top, kept, s.filled((), float(width), x))
    result = s.enough(
        xp.amax(counts.reshape(-1), 0) <= CANDIDATES,
        lambda: _beside(s, own, candidates, run),
        lambda: _beside(s, own, s.gather_uneven(own, widths), run),
    )
    return s.like(xp.moveaxis(result, -1, axis), x)


def _beside(s: Spread, own: Array, others: Array, run: Callable[[Array], Array]) -> Array:
    """The map of this rank's elements and the others', of which only the former are returned."""
    others = s.like(s.hide_own(others), own)
    joined = s.xp.concatenate([own, *(others[rank] for rank in range(s.size))], -1)
    return run(joined)[..., : own.shape[-1]]


def _sparse(s: Spread, function: Any, arguments: Arguments) -> Found:
    x, axis = _rows_of(s, function, arguments, "x")
    return (with_candidates(s, x, axis, function),), ()


SHARDED = {
    "softmax": _exponential(logs=False),
    "softmax_backward": _softmax_backward,
    "log_softmax": _exponential(logs=True),
    "log_softmax_backward": _log_softmax_backward,
    "sparsemax": _sparse,
    "sparsemax_backward": _sparse_backward(root=False),
    "entmax15": _sparse,
    "entmax15_backward": _sparse_backward(root=True),
}

FIXED_SIZE = "a fixed number of candidates, whose support nobody knows before"

SENDS = {
    "softmax": Sends(2),
    "softmax_backward": Sends(1),
    "log_softmax": Sends(2),
    "log_softmax_backward": Sends(2, least=1, why="which rows are masked"),
    "sparsemax": Sends(CANDIDATES + 1, besides=1, least=2, why=FIXED_SIZE),
    "sparsemax_backward": Sends(2),
    "entmax15": Sends(CANDIDATES + 1, besides=1, least=2, why=FIXED_SIZE),
    "entmax15_backward": Sends(2),
}
