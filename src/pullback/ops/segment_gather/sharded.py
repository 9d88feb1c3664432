"""Graphs in parts: each rank has the rows of its own nodes and the edges into its own segments. The
rows that its edges come from are looked up once each, wherever they are."""

from __future__ import annotations

from math import prod
from typing import Any

from pullback.ops.segment_gather.functions import gather_segment_reduce
from pullback.ops.sharding import Arguments


def _reduce(xp: Any, lookup: Any, arguments: Arguments) -> Any:
    given = dict(arguments)
    x, ids = given.pop("x"), given.pop("gather_ids")
    needed, places = xp.unique(ids)
    table = x.reshape((x.shape[0], prod(x.shape[1:])))
    rows = lookup(table, needed, out_of_range=given["out_of_range"])
    inside = (ids >= 0) & (ids < lookup.rows(x))
    places = xp.where(inside, places, xp.full_like(places, -1))
    rows = rows.reshape((needed.shape[0], *x.shape[1:]))
    return gather_segment_reduce(rows, places, **given)


COMPOSED = {"gather_segment_reduce": _reduce}
SHARDED: dict[str, Any] = {}
SENDS: dict[str, Any] = {}
