"""Table lookups, bags of them, and their adjoints, by definition. Nothing is changed in place."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from pullback.ops.oracle import Bools, Ints, OutOfRange, Wide, ieee, kept, maximal, wide

Mode = Literal["sum", "mean", "max"]


def _read(
    indices: npt.ArrayLike, extent: int, padding_idx: int | None, out_of_range: OutOfRange
) -> tuple[Ints, Bools]:
    """The indices as a flat list, and which of them name a row that is read and written."""
    ids = np.asarray(indices, dtype=np.int64).reshape(-1)
    live = kept(ids, extent, out_of_range)
    if padding_idx is not None:
        live = live & (ids != (padding_idx + extent if padding_idx < 0 else padding_idx))
    return ids, live


def _bags(
    indices: npt.ArrayLike, offsets: npt.ArrayLike | None, include_last_offset: bool
) -> list[slice]:
    """The positions of each bag, among flat indices; without offsets, each row is a bag."""
    shape = np.shape(indices)
    if offsets is None:
        return [slice(bag * shape[1], (bag + 1) * shape[1]) for bag in range(shape[0])]
    borders = np.asarray(offsets, dtype=np.int64).tolist()
    borders = borders if include_last_offset else [*borders, shape[0]]
    return [slice(start, end) for start, end in pairwise(borders)]


def _shares(weights: npt.ArrayLike | None, count: int) -> Wide:
    """What each position is multiplied by."""
    return np.ones(count, np.longdouble) if weights is None else wide(weights).reshape(count)


def _finish(
    sums: Wide,
    received: Bools,
    holders: Ints | None,
    accumulate_into: npt.ArrayLike | None,
    sparse: bool,
) -> Wide | tuple[Ints, Wide]:
    """Divide by how many positions hold each row (if asked), then add to the old or thin out."""
    if holders is not None:
        sums = sums / np.maximum(holders, 1)[:, None]
    if sparse:
        rows = np.flatnonzero(received).astype(np.int64)
        return rows, sums[rows]
    if accumulate_into is None:
        return sums
    old = wide(accumulate_into)
    return np.asarray(np.where(received[:, None], old + sums, old))


@ieee
def embedding(
    weight: npt.ArrayLike,
    indices: npt.ArrayLike,
    *,
    padding_idx: int | None = None,
    out_of_range: OutOfRange = "skip",
) -> Wide:
    table = wide(weight)
    ids, live = _read(indices, len(table), padding_idx, out_of_range)
    out = np.zeros((ids.size, table.shape[1]), np.longdouble)
    out[live] = table[ids[live]]
    return out.reshape(*np.shape(indices), table.shape[1])


@ieee
def embedding_backward(
    dout: npt.ArrayLike,
    indices: npt.ArrayLike,
    num_embeddings: int,
    *,
    padding_idx: int | None = None,
    scale_grad_by_freq: bool = False,
    accumulate_into: npt.ArrayLike | None = None,
    sparse: bool = False,
    out_of_range: OutOfRange = "skip",
) -> Wide | tuple[Ints, Wide]:
    ids, live = _read(indices, num_embeddings, padding_idx, out_of_range)
    width = np.shape(dout)[-1]
    g = wide(dout).reshape(ids.size, width)
    sums = np.zeros((num_embeddings, width), np.longdouble)
    holders = np.bincount(ids[live], minlength=num_embeddings).astype(np.int64)
    for position in np.flatnonzero(live):
        sums[ids[position]] += g[position]
    frequencies = holders if scale_grad_by_freq else None
    return _finish(sums, holders > 0, frequencies, accumulate_into, sparse)


@ieee
def embedding_bag(
    weight: npt.ArrayLike,
    indices: npt.ArrayLike,
    offsets: npt.ArrayLike | None = None,
    *,
    mode: Mode = "mean",
    padding_idx: int | None = None,
    per_sample_weights: npt.ArrayLike | None = None,
    include_last_offset: bool = False,
    out_of_range: OutOfRange = "skip",
    return_indices: bool = False,
) -> Wide | tuple[Wide, Ints]:
    table = wide(weight)
    ids, live = _read(indices, len(table), padding_idx, out_of_range)
    bags = _bags(indices, offsets, include_last_offset)
    shares = _shares(per_sample_weights, ids.size)
    out = np.zeros((len(bags), table.shape[1]), np.longdouble)
    winners = np.full(out.shape, -1, np.int64)
    for bag, members in enumerate(bags):
        chosen = ids[members][live[members]]
        rows = table[chosen] * shares[members][live[members], None]
        if not chosen.size:
            continue
        if mode == "max":
            first = maximal(rows).argmax(axis=0)
            out[bag], winners[bag] = rows[first, np.arange(rows.shape[1])], chosen[first]
        else:
            out[bag] = rows.sum(axis=0) / (len(rows) if mode == "mean" else 1)
    return (out, winners) if return_indices else out


@ieee
def embedding_bag_backward(
    dout: npt.ArrayLike,
    indices: npt.ArrayLike,
    offsets: npt.ArrayLike | None = None,
    num_embeddings: int = 0,
    *,
    mode: Mode = "mean",
    padding_idx: int | None = None,
    per_sample_weights: npt.ArrayLike | None = None,
    include_last_offset: bool = False,
    output_index: npt.ArrayLike | None = None,
    scale_grad_by_freq: bool = False,
    accumulate_into: npt.ArrayLike | None = None,
    sparse: bool = False,
    out_of_range: OutOfRange = "skip",
) -> Wide | tuple[Ints, Wide]:
    g = wide(dout)
    ids, live = _read(indices, num_embeddings, padding_idx, out_of_range)
    shares = _shares(per_sample_weights, ids.size)
    sums = np.zeros((num_embeddings, g.shape[1]), np.longdouble)
    holders = np.zeros(num_embeddings, np.int64)
    received = np.zeros(num_embeddings, np.bool_)
    for bag, members in enumerate(_bags(indices, offsets, include_last_offset)):
        positions = np.arange(members.start, members.stop)[live[members]]
        np.add.at(holders, ids[positions], 1)
        if mode == "max":
            rows, won = _read(np.asarray(output_index)[bag], num_embeddings, padding_idx, "skip")
            sums[rows[won], np.flatnonzero(won)] += g[bag, won]
            received[rows[won]] = True
            continue
        divisor = len(positions) if mode == "mean" else 1
        for position in positions:
            sums[ids[position]] += g[bag] * shares[position] / divisor
        received[ids[positions]] = True
    frequencies = holders if scale_grad_by_freq else None
    return _finish(sums, received, frequencies, accumulate_into, sparse)


@ieee
def embedding_bag_per_sample_weights_backward(
    dout: npt.ArrayLike,
    weight: npt.ArrayLike,
    indices: npt.ArrayLike,
    offsets: npt.ArrayLike | None = None,
    *,
    padding_idx: int | None = None,
    include_last_offset: bool = False,
    out_of_range: OutOfRange = "skip",
) -> Wide:
    """Each kept position gets the product of its row with its bag's gradient, the others 0."""
    g, table = wide(dout), wide(weight)
    ids, live = _read(indices, len(table), padding_idx, out_of_range)
    shares = np.zeros(ids.size, np.longdouble)
    for bag, members in enumerate(_bags(indices, offsets, include_last_offset)):
        for position in range(members.start, members.stop):
            if live[position]:
                shares[position] = (g[bag] * table[ids[position]]).sum()
    return shares.reshape(np.shape(indices))
