"""Segments whose rows go to the rank that keeps them: `by="segments"` cuts segments evenly, and
`by="borders"`, of ids that ascend over all ranks, leaves each where it begins, so that only rows of
segments that go on to the next rank move.

Rows arrive in the order of ranks, each rank's in its own: the order of the whole array. The plain
function then runs on whole segments, with the bits of one machine; results by rows go back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pullback.ops.axes import Axes, axes_of
from pullback.ops.segment_sharded import Groups, groups_over
from pullback.ops.sharding import Array, Spread, State

ROWS = "n"


def routed(
    s: Spread, function: Any, arguments: Mapping[str, Any]
) -> tuple[tuple[Array, ...], State]:
    given = {name: value for name, value in arguments.items() if name in function.parameters}
    tensors = {n: t for n in function.tensors if hasattr(t := given[n], "shape")}
    options = {n: value for n, value in given.items() if n not in tensors}
    axes = axes_of(function, {n: tuple(t.shape) for n, t in tensors.items()}, options)
    assert axes is not None
    g = groups_over(s, function, arguments, arguments.get("num_segments"))
    cuts = _cuts(s, g)
    ids = g.given
    order, counts, _ = s.by_owner(ids, cuts)
    asks = s.gather(*counts)
    sends, receives = [int(ask[s.rank]) for ask in asks], [int(n) for n in asks[s.rank]]
    for name, tensor in tensors.items():
        if ROWS in axes.arguments[name]:
            at = axes.arguments[name].index(ROWS)
            rows = s.route(s.xp.moveaxis(tensor, at, 0)[order], sends, receives)
            given[name] = s.xp.moveaxis(rows, 0, at)
    given["segment_ids"] = given["segment_ids"] - cuts[s.rank]
    if "num_segments" in given:
        given["num_segments"] = cuts[s.rank + 1] - cuts[s.rank]
    results = function(**given)
    several = results if isinstance(results, tuple) else (results,)
    found = []
    for number, result in enumerate(several):
        if number:  # positions of rows, as the whole array counts them
            places = s.route(
                s.as_index(s.steps(ids.shape[0], ids))[order] + g.begin, sends, receives
            )
            result = _counted(s, places, result)
        if ROWS in axes.result(number):
            at = axes.result(number).index(ROWS)
            back = s.route(s.xp.moveaxis(result, at, 0), receives, sends)
            whole = s.scattered(back, order, ids.shape[0])
            if order.shape[0] < ids.shape[0]:
                inside = (ids >= 0) & (ids < g.count)
                none = _of_none(s, function, {**given, **tensors}, axes)
                whole = s.xp.where(
                    inside.reshape((-1, *(1,) * (len(whole.shape) - 1))), whole, none
                )
            result = s.xp.moveaxis(whole, 0, at)
        found.append(result)
    return tuple(found), ()


def _cuts(s: Spread, g: Groups) -> list[int]:
    """Where each rank's segments begin, and the end."""
    count = g.count
    if s.by == "segments":
        width = -(-count // s.size)
        return [min(rank * width, count) for rank in range(s.size + 1)]
    begins: list[int | None] = []
    before = -1
    for rows, first, last in g.spans:
        begins.append(min(max(first + (first == before), 0), count) if rows else None)
        before = last if rows else before
    cuts = [count]
    for begin in reversed(begins[1:]):  # a rank without rows keeps nothing
        cuts.insert(0, cuts[0] if begin is None else begin)
    return [0, *cuts]


def _counted(s: Spread, places: Array, positions: Array) -> Array:
    if not places.shape[0]:
        return positions
    none = positions < 0
    flat = places[s.xp.where(none, 0, positions).reshape(-1)].reshape(positions.shape)
    return s.xp.where(none, positions, flat)


def _of_none(s: Spread, function: Any, given: dict[str, Any], axes: Axes) -> Array:
    """What the function leaves in a row that is of no segment, the axis of rows first."""
    for name, names in axes.arguments.items():
        if ROWS in names:
            at = names.index(ROWS)
            given[name] = given[name][(slice(None),) * at + (slice(0, 1),)]
    given["segment_ids"] = given["segment_ids"] * 0 - 1
    result = function(**given)
    return s.xp.moveaxis(result, axes.result(0).index(ROWS), 0)
