"""Tables whose rows are spread over ranks. Each rank asks owners for the rows of its own indices
(all-to-all there and back); gradients go the way the indices went. Owners receive from rank 0, 1, …
and each rank keeps its order, so sums are those of ascending positions: the bits of one machine."""

from __future__ import annotations

from math import prod
from typing import Any

from pullback.contract.errors import IndexOutOfRange, InvalidProblem
from pullback.contract.record import is_index
from pullback.ops.embedding.functions import embedding, embedding_backward, embedding_bag
from pullback.ops.sharding import Arguments, Array, Spread, State

Found = tuple[tuple[Array, ...], State]


def _padding(op: str, padding_idx: Any, rows: int, begin: int, height: int) -> int | None:
    """The row of padding among this rank's rows, if it is one of them."""
    if padding_idx is None:
        return None
    if not is_index(padding_idx) or not -rows <= padding_idx < rows:
        raise InvalidProblem(op, "padding_idx", f"in [{-rows}, {rows})", repr(padding_idx))
    at = int(padding_idx) % rows - begin
    return at if 0 <= at < height else None


def _lookup(s: Spread, function: Any, arguments: Arguments) -> Found:
    weight, indices = arguments["weight"], arguments["indices"]
    flat, height = indices.reshape(-1), weight.shape[0]
    (heights,) = s.gather(s.filled((), float(height), weight))
    borders = [0]
    for rows in s.counts(heights):
        borders.append(borders[-1] + rows)
    begin, rows = borders[s.rank], borders[-1]
    order, counts, bad = s.by_owner(flat, borders)
    *asks, positions, values = s.gather(*counts, *bad)
    if getattr(arguments["out_of_range"], "value", arguments["out_of_range"]) == "error":
        for rank, (position, value) in enumerate(zip(positions, values, strict=True)):
            if position >= 0:  # which all ranks see, and raise
                got = f"{int(value)} at position {int(position)} of rank {rank}"
                raise IndexOutOfRange(function.name, "indices", f"in [0, {rows})", got)
    sends = [int(ask[s.rank]) for ask in asks]
    receives = [int(n) for n in asks[s.rank]]
    padding = _padding(function.name, arguments["padding_idx"], rows, begin, height)
    asked = s.route(flat[order], sends, receives) - begin
    found = s.route(embedding(weight, asked, padding_idx=padding), receives, sends)
    out = s.scattered(found, order, flat.shape[0]).reshape((*indices.shape, weight.shape[1]))
    kept = (
        asked,
        order,
        *(s.as_index(s.filled((), float(n), weight)) for n in (*sends, *receives)),
    )
    return (out,), (*kept, s.as_index(s.filled((), -1.0 if padding is None else padding, weight)))


def _lookup_backward(s: Spread, function: Any, arguments: Arguments) -> Found:
    asked, order, *numbers, padding = arguments["kept"]
    sends = [int(n) for n in numbers[: s.size]]
    receives = [int(n) for n in numbers[s.size :]]
    dout, height = arguments["dout"], arguments["weight"].shape[0]
    own = dout.reshape((prod(dout.shape[:-1]), dout.shape[-1]))[order]
    there = s.route(own, sends, receives)
    skipped = None if int(padding) < 0 else int(padding)
    return (embedding_backward(there, asked, height, padding_idx=skipped),), ()


def _bag(xp: Any, lookup: Any, arguments: Arguments) -> Any:
    """Bags of this rank's own indices: of rows that were looked up, position by position. What does
    not count is out of their range."""
    given = dict(arguments)
    weight, indices, padding = given.pop("weight"), given.pop("indices"), given.pop("padding_idx")
    rows = lookup(weight, indices, padding_idx=padding, out_of_range=given["out_of_range"])
    whole = lookup.rows(weight)
    counts = (indices >= 0) & (indices < whole)
    if padding is not None:
        counts = counts & (indices != padding % whole)
    count = prod(indices.shape)
    at = xp.arange(count, indices).reshape(indices.shape)
    given["out_of_range"] = "skip"
    table = rows.reshape((count, rows.shape[-1]))
    found = embedding_bag(table, xp.where(counts, at, xp.full_like(at, -1)), **given)
    if not arguments["return_indices"]:
        return found
    values, places = found
    return values, xp.where(places < 0, places, xp.take(indices.reshape(-1), places))


# Functions composed of lookups over ranks and plain functions.
COMPOSED = {"embedding_bag": _bag}

_lookup.exact = _lookup_backward.exact = True  # type: ignore[attr-defined]
SHARDED = {"embedding": _lookup, "embedding_backward": _lookup_backward}
SENDS: dict[str, Any] = {}
