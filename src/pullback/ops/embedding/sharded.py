"""Tables whose rows are spread over ranks. Each rank asks owners for the rows of its own indices
(all-to-all there and back); gradients go the way the indices went. Owners receive from rank 0, 1, …
and each rank keeps its order, so sums are those of ascending positions: the bits of one machine."""

from __future__ import annotations

from math import prod
from typing import Any

from pullback.contract.errors import IndexOutOfRange, InvalidProblem
from pullback.contract.record import is_index
from pullback.ops.embedding.functions import embedding, embedding_backward, embedding_bag
from pullback.ops.segment_sharded import is_strict
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


def _own(s: Spread, function: Any, arguments: Arguments, height: int) -> tuple[int, Any, Any]:
    """How many rows the table has, where this rank's begin, and which of them is padding."""
    begin = s.begin(height)
    rows = s.size * height if s.fixed else s.extent
    padding = arguments["padding_idx"]
    if padding is not None:
        if not is_index(padding) or not -rows <= padding < rows:
            raise InvalidProblem(
                function.name, "padding_idx", f"in [{-rows}, {rows})", repr(padding)
            )
        padding = int(padding) % rows
    return rows, begin, padding


def _checked(s: Spread, arguments: Arguments, flat: Array, rows: int, padding: Any) -> Array:
    """Indices, -1 for those that read zeros. Bad ones are an error as the call says: the plain
    function finds them, which has the same indices on all ranks, or runs in the same program."""
    if is_strict(arguments):
        zeros = s.filled((rows, 1), 0.0, flat)
        flat = flat + s.like(embedding(zeros, flat)[:, 0], flat)
    keeps = (flat >= 0) & (flat < rows)
    keeps = keeps if padding is None else keeps & (flat != padding)
    return s.xp.where(keeps, flat, -1)


def _rows_of(s: Spread, weight: Array, asked: Array, begin: Any) -> Array:
    """Rows for the indices of this rank, one row of `asked` for each rank: each looks up what is
    its own for all, an all-to-all brings them together, and whoever has a row is who is heard."""
    height, width = weight.shape
    local = s.like(asked.reshape(-1) - begin, asked)
    local = s.xp.where(asked.reshape(-1) < 0, -1, local)
    found = embedding(weight, local, out_of_range="skip")
    here = s.like((local >= 0) & (local < height), weight)
    both = s.xp.concatenate([found, here[:, None]], 1)
    both = s.swapped(both.reshape((*asked.shape, width + 1)))
    rows = both[0]
    for rank in range(1, s.size):
        rows = s.xp.where(both[rank][:, -1:] > 0, both[rank], rows)
    return rows[:, :-1]


def _shared_lookup(s: Spread, function: Any, arguments: Arguments) -> Found:
    """Of indices that all ranks have alike, or in programs of fixed extents."""
    weight, indices = arguments["weight"], arguments["indices"]
    rows, begin, padding = _own(s, function, arguments, weight.shape[0])
    flat = _checked(s, arguments, indices.reshape(-1), rows, padding)
    count, alike = flat.shape[0], s.alike is not None
    if alike:
        missing = -count % s.size
        filler = s.xp.full_like(s.xp.broadcast_to(flat[:1].sum(), (missing,)), -1)
        asked = s.xp.concatenate([flat, s.like(filler, flat)], 0).reshape((s.size, -1))
    else:
        asked = s.joined_ranks(flat)
    found = _rows_of(s, weight, asked, begin)
    if alike:
        found = s.joined_ranks(found).reshape((-1, weight.shape[1]))[:count]
    return (found.reshape((*indices.shape, weight.shape[1])),), (asked,)


def _shared_backward(s: Spread, function: Any, arguments: Arguments) -> Found:
    """Each rank sums what its own rows get. Gradients of a rank's own indices are gathered first,
    in the order of ranks, which is that of positions."""
    dout, indices = arguments["dout"], arguments["indices"]
    kept = arguments.get("kept")
    height = arguments["weight"].shape[0] if kept else arguments["num_embeddings"] // s.size
    rows, begin, padding = _own(s, function, arguments, height)
    own = dout.reshape((prod(dout.shape[:-1]), dout.shape[-1]))
    if kept:
        flat = kept[0].reshape(-1)
        own = s.joined_ranks(own).reshape((-1, own.shape[-1]))
    else:
        flat = _checked(s, arguments, indices.reshape(-1), rows, padding)
    local = s.xp.where(flat < 0, -1, s.like(flat - begin, flat))
    options = {"scale_grad_by_freq": arguments.get("scale_grad_by_freq", False)}
    return (embedding_backward(own, local, height, out_of_range="skip", **options),), ()


def _lookup(s: Spread, function: Any, arguments: Arguments) -> Found:
    if s.fixed or s.alike is not None:
        return _shared_lookup(s, function, arguments)
    weight, indices = arguments["weight"], arguments["indices"]
    flat, height = indices.reshape(-1), weight.shape[0]
    (heights,) = s.gather(s.filled((), float(height), weight))
    borders = [0]
    for rows in s.counts(heights):
        borders.append(borders[-1] + rows)
    begin, rows = borders[s.rank], borders[-1]
    order, counts, bad = s.by_owner(flat, borders)
    *asks, positions, values = s.gather(*counts, *bad)
    if is_strict(arguments):
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


def _lookup_backward(s: Spread, function: Any, arguments: Arguments) -> Found | None:
    if s.fixed and arguments.get("accumulate_into") is None and not arguments.get("sparse"):
        return _shared_backward(s, function, arguments)
    if not arguments.get("kept"):
        return None
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
_lookup.own_indices = True  # type: ignore[attr-defined]
SHARDED = {"embedding": _lookup, "embedding_backward": _lookup_backward}
SENDS: dict[str, Any] = {}
