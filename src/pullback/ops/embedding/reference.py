"""The oracles behind the plans: the same errors, the definition in high precision."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.contract.kinds import IndexPolicy
from pullback.ops.embedding import oracle
from pullback.ops.embedding.contract import (
    FAILURES,
    bag_length,
    check_bags,
    check_winners,
    row_capacity,
)
from pullback.ops.segment.index import check_ids

Arrays = dict[str, Any]


def _options(op: str, desc: Any, indices: Any) -> Arrays:
    strict = desc.policy is IndexPolicy.ERROR
    check_ids(op, desc, FAILURES, indices, desc.num_embeddings, strict, ascending=False)
    return {"padding_idx": desc.padding_idx}


def _bag_options(op: str, desc: Any, indices: Any, offsets: Any) -> Arrays:
    if offsets is None:
        offsets = bag_length(desc) * np.arange(desc.num_bags)
    borders = offsets.astype(np.int64)
    previous = np.concatenate([[0], borders[:-1]]).astype(np.int64)
    wrong = (borders < previous) | (borders > desc.num_indices) | (borders < 0)
    wrong[:1] |= borders[:1] != 0
    for position in np.flatnonzero(wrong)[:1]:
        raise FAILURES[3].raised(op, desc, int(position), int(borders[position]))
    shared = {"mode": desc.mode, "include_last_offset": desc.include_last_offset}
    return {**_options(op, desc, indices), **shared, "offsets": borders}


def embedding(desc: Any, *, weight: Any, indices: Any, **_: Any) -> Arrays:
    options = _options("embedding", desc, indices)
    return {"out": oracle.embedding(weight, indices, **options)}


def embedding_backward(desc: Any, *, dout: Any, indices: Any, dweight: Any, **_: Any) -> Arrays:
    options = _options("embedding_backward", desc, indices)
    found = oracle.embedding_backward(
        dout,
        indices,
        desc.num_embeddings,
        scale_grad_by_freq=desc.scale_grad_by_freq,
        accumulate_into=dweight if desc.accumulate else None,
        sparse=desc.sparse,
        **options,
    )
    if desc.sparse:
        return _filled(desc, *found)
    return {"dweight": found}


def _filled(desc: Any, rows: Any, gradients: Any) -> Arrays:
    """The rows that received something, in tables for as many as there may be."""
    capacity = row_capacity(desc)
    numbers = np.zeros(capacity + 1, np.int64)
    numbers[: rows.size], numbers[capacity] = rows, rows.size
    dweight = np.zeros((capacity, desc.embedding_dim), np.longdouble)
    dweight[: rows.size] = gradients
    return {"dweight": dweight, "rows": numbers}


def embedding_bag(
    desc: Any,
    *,
    weight: Any,
    indices: Any,
    offsets: Any = None,
    per_sample_weights: Any = None,
    **_: Any,
) -> Arrays:
    check_bags("embedding_bag", desc, offsets, per_sample_weights)
    options = _bag_options("embedding_bag", desc, indices, offsets)
    out, winners = oracle.embedding_bag(
        weight,
        indices,
        per_sample_weights=per_sample_weights,
        return_indices=True,
        **options,
    )
    return {"out": out, "output_index": winners}


def embedding_bag_backward(
    desc: Any,
    *,
    dout: Any,
    indices: Any,
    offsets: Any = None,
    dweight: Any = None,
    per_sample_weights: Any = None,
    output_index: Any = None,
    weight: Any = None,
    d_per_sample_weights: Any = None,
    **_: Any,
) -> Arrays:
    op = "embedding_bag_backward"
    check_bags(op, desc, offsets, per_sample_weights, weight, d_per_sample_weights)
    options = _bag_options(op, desc, indices, offsets)
    found: Arrays = {}
    if dweight is not None and desc.mode == "max":
        check_winners(op, desc, output_index)
    if dweight is not None:
        gradient = oracle.embedding_bag_backward(
            dout,
            indices,
            num_embeddings=desc.num_embeddings,
            per_sample_weights=per_sample_weights,
            output_index=output_index,
            scale_grad_by_freq=desc.scale_grad_by_freq,
            accumulate_into=dweight if desc.accumulate else None,
            sparse=desc.sparse,
            **options,
        )
        found |= _filled(desc, *gradient) if desc.sparse else {"dweight": gradient}
    if d_per_sample_weights is not None:
        del options["mode"]
        found["d_per_sample_weights"] = oracle.embedding_bag_per_sample_weights_backward(
            dout, weight, indices, **options
        )
    return found
