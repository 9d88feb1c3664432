"""entmax and the loss of softmax over sharded classes."""

from __future__ import annotations

from typing import Any

from pullback.contract.record import is_number
from pullback.ops.entmax.functions import entmax
from pullback.ops.sharding import Arguments, Array, Spread, State
from pullback.ops.simplex.sharded import (
    sparse_gradient,
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


SHARDED = {"entmax": _entmax, "entmax_backward": _entmax_backward}
