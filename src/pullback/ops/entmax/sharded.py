"""entmax and the loss of softmax over sharded classes."""

from __future__ import annotations

from typing import Any

from pullback.contract.record import is_number
from pullback.ops.entmax.functions import entmax
from pullback.ops.sharding import INF, Arguments, Array, Sends, Spread, State
from pullback.ops.simplex.sharded import (
    CANDIDATES,
    FIXED_SIZE,
    exponential_map,
    sparse_gradient,
    whole_exponentials,
    with_candidates,
)
from pullback.plan.function import axis_of

Found = tuple[tuple[Array, ...], State] | None


def _entmax(s: Spread, function: Any, arguments: Arguments) -> Found:
    x, alpha = arguments["x"], arguments["alpha"]
    if not is_number(alpha):
        return None
    axis = axis_of(function.name, arguments["axis"], len(x.shape))
    return (with_candidates(s, x, axis, lambda rows: entmax(rows, alpha)),), ()


def _entmax_backward(s: Spread, function: Any, arguments: Arguments) -> Found:
    dy, alpha = arguments["dy"], arguments["alpha"]
    if not is_number(alpha):
        return None
    axis = axis_of(function.name, arguments["axis"], len(dy.shape))
    power = 2.0 - alpha

    def weight(y: Array) -> Array:
        return s.xp.exp(power * s.xp.log(y))

    return (sparse_gradient(s, dy, arguments["y"], axis, weight),), ()


def _softmax_loss(s: Spread, function: Any, arguments: Arguments) -> Found:
    """log Σ exp x - x[target], of classes; distributions are left to whoever gathers."""
    x, target = arguments["x"], arguments["target"]
    if not s.is_integer(target):
        return None
    xp, axis = s.xp, axis_of(function.name, arguments["axis"], len(x.shape))
    width = x.shape[axis]

    def picked(begin: Any) -> State:
        here = _is_target(s, x, target, axis, begin)
        return s.total(xp.where(here, s.wide(x), 0.0), axis), s.total(s.wide(here), axis)

    begin = s.begin(width)
    extent = s.filled((), float(width), x)
    (top, mass), parts = whole_exponentials(s, x, axis, *picked(begin), extent)
    if not s.is_even(parts[2]):
        begin = s.true_begin(parts[2])
        parts[:2] = s.gather(*picked(begin))

    def combine(state: State, part: State) -> State:
        return xp.where(part[1] > 0, part[0], state[0]), state[1] + part[1]

    start = s.full(x, axis, float("nan")), s.full(x, axis, 0.0)
    value, hits = s.fold(parts[:2], start, combine, False, everyone=True)
    s.check_classes(function.name, target, hits, parts[2])
    masked = top == -INF
    gap = xp.where(value == top, 0.0, top - value)
    loss = xp.where(masked, 0.0, xp.log(xp.where(masked, 1.0, mass)) + gap)
    p = exponential_map(s, x, axis, (top, mass), logs=False)
    results = (s.like(loss, x), p) if arguments["return_probabilities"] else (s.like(loss, x),)
    where = s.as_index(s.filled((), 0.0, x) + begin)
    return results, (where, s.wide(masked))


def _is_target(s: Spread, x: Array, target: Array, axis: int, begin: Any) -> Array:
    steps = s.steps(x.shape[axis], x).reshape((-1, *(1,) * (len(x.shape) - 1 - axis)))
    return steps + begin == s.rows(s.wide(target), axis)


def _softmax_loss_backward(s: Spread, function: Any, arguments: Arguments) -> Found:
    """Each part by itself, once it is known which rows are masked."""
    dy, p, target = (arguments[name] for name in ("dy", "p", "target"))
    if not s.is_integer(target):
        return None
    axis = axis_of(function.name, arguments["axis"], len(p.shape))
    kept = arguments.get("kept")
    if kept:
        begin, masked = kept
    else:
        begin, width = s.begin(p.shape[axis]), s.filled((), float(p.shape[axis]), p)
        masses, widths = s.gather(s.total(p, axis), width)
        masked = s.wide(s.xp.sum(masses, 0, False) == 0)
        begin = begin if s.is_even(widths) else s.true_begin(widths)
    here = s.wide(_is_target(s, p, target, axis, begin))
    dx = (s.wide(p) - here) * s.rows(s.wide(dy), axis)
    return (s.like(s.xp.where(s.rows(masked, axis) > 0, 0.0, dx), p),), ()


SHARDED = {
    "entmax": _entmax,
    "entmax_backward": _entmax_backward,
    "softmax_loss": _softmax_loss,
    "softmax_loss_backward": _softmax_loss_backward,
}

SENDS = {
    "entmax": Sends(CANDIDATES + 1, besides=1, least=2, why=FIXED_SIZE),
    "entmax_backward": Sends(2),
    "softmax_loss": Sends(
        4,
        besides=1,
        least=3,
        why="how many parts have the class",
        peers="Megatron: 3 all-reduces, 12",
    ),
    "softmax_loss_backward": Sends(1, besides=1),
}
