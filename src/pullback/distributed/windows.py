"""Windows of NumPy arrays that are longer than memory, or not there yet.

    from pullback.distributed import windows as pbw

    state = None
    for at in cuts:                                   # what rows amount to
        state = pbw.summary(pb.softmax, x[:, at], state)
    for at in cuts:                                   # and then their results
        y[:, at] = pbw.applied(pb.softmax, x[:, at], state)

Maps onto the simplex are read twice. The state of softmax and log_softmax is the largest element of
each row and the sum of exponentials relative to it; that of the sparse maps, the elements that may
be in the support, of which `threshold` is made. All of them are float64, have the shape of the rows
(candidates one axis more), and may be merged in any order.

Reductions of sorted segments are read once, and have the bits of the whole: `reduced` gives what a
window amounts to and the segment that is open behind it. Scans have plans that carry a state.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.contract.errors import InvalidProblem, Unsupported
from pullback.contract.record import is_number
from pullback.distributed.slices import Meeting, Slice
from pullback.ops.segment import windows as segments
from pullback.ops.segment.windows import OpenSegment, Reduced
from pullback.ops.simplex.sharded import (
    exponential_map,
    exponential_state,
    merge_exponentials,
)
from pullback.plan.function import axis_of
from pullback.tensor.rounding import round_to

__all__ = ["OpenSegment", "Reduced", "applied", "merged", "reduced", "summary", "threshold"]

Array = np.ndarray[Any, Any]
State = tuple[Array, ...]  # (largest, sum), or (candidates,)
EXPONENTIAL = ("softmax", "log_softmax")
ALPHA = {"sparsemax": 2.0, "entmax15": 1.5}
REDUCTIONS = ("segment_sum", "segment_mean", "segment_max", "segment_min", "segment_prod")


def summary(
    function: Any, x: Array, state: State | None = None, axis: int = -1, alpha: float | None = None
) -> State:
    """What the rows of a window amount to, with those of a state."""
    name, rows = _rows(function, x, axis)
    with np.errstate(all="ignore"):
        if name in EXPONENTIAL:
            found: State = exponential_state(_alone(), rows, rows.ndim - 1)
        else:
            found = _candidates(rows, _alpha(name, alpha))
    return found if state is None else merged(function, found, state, alpha)


def merged(function: Any, one: State, other: State, alpha: float | None = None) -> State:
    """The state of both."""
    name = _name(function)
    with np.errstate(all="ignore"):
        if name in EXPONENTIAL:
            found: State = merge_exponentials(_alone())(one, other)
            return found
        return _candidates(np.concatenate([*one, *other], -1), _alpha(name, alpha))


def applied(
    function: Any, x: Array, state: State, axis: int = -1, alpha: float | None = None
) -> Array:
    """The results of a window, from the state of whole rows; rounded once."""
    name, rows = _rows(function, x, axis)
    with np.errstate(all="ignore"):
        if name in EXPONENTIAL:
            y = exponential_map(_alone(), rows, rows.ndim - 1, state, name == "log_softmax")
        else:
            y = _sparse(rows, state, _alpha(name, alpha))
    return np.moveaxis(round_to(y, x.dtype), -1, axis)


def threshold(function: Any, state: State, alpha: float | None = None) -> Array:
    """τ of each row: y = max((α-1)·x - τ, 0)^(1/(α-1)), with α = 2 for sparsemax."""
    name = _name(function)
    with np.errstate(all="ignore"):
        top, height = _largest(state, _alpha(name, alpha))
        return np.where(np.isinf(top), top, (_alpha(name, alpha) - 1) * top - height)


def reduced(
    function: Any,
    x: Array,
    segment_ids: Array,
    state: OpenSegment | None = None,
    *,
    empty: float | None = None,
    ties: str = "first",
) -> Reduced:
    """A window of rows whose ids ascend over all windows. Results begin with the segment that was
    open before; the last one is what its rows so far amount to, and is given again by the next
    window. Extrema and their positions are those of the function with `return_indices`."""
    name = _name(function)
    if name not in REDUCTIONS:
        raise Unsupported("windows", "function", f"one of {', '.join(REDUCTIONS)}", name)
    return segments.reduced(name.removeprefix("segment_"), x, segment_ids, state, empty, ties)


def _alone() -> Slice:
    """The arithmetic of one rank among one."""
    return Slice(Meeting(1), 0)


def _name(function: Any) -> str:
    found = getattr(getattr(function, "function", None), "name", None)
    if found is None:
        raise InvalidProblem("windows", "function", "one of pullback", repr(function))
    return str(found)


def _rows(function: Any, x: Any, axis: int) -> tuple[str, Array]:
    """A window in float64, the axis last."""
    name = _name(function)
    if name not in EXPONENTIAL and name not in ALPHA and name != "entmax":
        expected = "softmax, log_softmax, sparsemax, entmax15 or entmax"
        raise Unsupported("windows", "function", expected, name)
    if not isinstance(x, np.ndarray):
        raise Unsupported(name, "x", "a NumPy array: windows are those of a file", repr(x))
    at = axis_of(name, axis, x.ndim)
    return name, np.moveaxis(x.astype(np.float64), at, -1)


def _alpha(name: str, alpha: Any) -> float:
    if name in ALPHA:
        return ALPHA[name]
    if not is_number(alpha) or not alpha > 1:
        raise InvalidProblem(name, "alpha", "a number greater than 1 in windows", repr(alpha))
    return float(alpha)


# --- sparse maps ----------------------------------------------------------------------------------


def _map(rows: Array, alpha: float) -> Array:
    from pullback.ops.entmax.functions import entmax

    return np.asarray(entmax(rows, alpha))


def _candidates(rows: Array, alpha: float) -> State:
    """The elements of the support, in descending order, padded with -inf: what more of a row shows
    only raises the threshold. One NaN stands for all."""
    broken = np.isnan(rows).any(-1, keepdims=True)
    kept = np.where(_map(rows, alpha) > 0, rows, -np.inf)
    kept = -np.sort(-np.where(broken, -np.inf, kept), -1)
    most = int((kept > -np.inf).sum(-1).max(initial=1))
    found = np.full((*rows.shape[:-1], max(most, 1)), -np.inf)
    found[..., : kept.shape[-1]] = kept[..., : found.shape[-1]]
    return (np.where(broken, np.nan, found),)


def _largest(state: State, alpha: float) -> tuple[Array, Array]:
    """The largest element of each row, and τ as seen from (α-1) times it."""
    return state[0][..., 0], _map(state[0], alpha)[..., 0] ** (alpha - 1)


def _sparse(rows: Array, state: State, alpha: float) -> Array:
    top, height = (part[..., None] for part in _largest(state, alpha))
    many = (state[0] == np.inf).sum(-1, keepdims=True)
    gap = (alpha - 1) * (rows - top) + height
    y = np.where(gap > 0, gap, 0.0) ** (1 / (alpha - 1))
    y = np.where(many > 0, (rows == np.inf) / np.maximum(many, 1), y)
    return np.where(np.isnan(top), np.nan, y)
