"""Softmax within segments: rows, peers and figures. Edges of a graph, a column for each head."""

from __future__ import annotations

from functools import partial
from typing import Any

from pullback.bench.figures import At, Figure, ahead, owed
from pullback.bench.workload import (
    BF16,
    F16,
    F32,
    F64,
    SMALL,
    Family,
    Peers,
    Table,
    Workload,
    take_columns,
    whole,
)
from pullback.ops.segment.bench import rows_of

OPS = ("segment_softmax", "segment_log_softmax")
EDGES = (500_000, 8, 50_000)
_rows = partial(rows_of, ascending=False)


WORKLOADS = (
    Workload("500k edges x 8", OPS, _rows(*EDGES), take_columns),
    Workload(
        "500k edges x 8",
        OPS[:1],
        _rows(*EDGES),
        take_columns,
        (F64, BF16, F16),
        peers=(),
    ),
    Workload("sorted 500k edges x 8", OPS, _rows(*EDGES, ascending=True), take_columns),
    Workload("sorted 500kx64", OPS[:1], _rows(500_000, 64, 50_000, ascending=True), take_columns),
    Workload("1024x8", OPS, _rows(1024, 8, 100), take_columns, tags=SMALL),
)


def _torch() -> Table:
    import torch

    def softmax(x: Any, segment_ids: Any, num_segments: int, **_: Any) -> Any:
        """As graph libraries compose it."""
        index = segment_ids[:, None].expand_as(x)
        some = x.new_full((num_segments, x.shape[1]), -torch.inf)
        top = some.scatter_reduce(0, index, x.detach(), "amax")
        powers = (x - top.index_select(0, segment_ids)).exp()
        sums = x.new_zeros((num_segments, x.shape[1])).scatter_add(0, index, powers)
        return powers / sums.index_select(0, segment_ids)

    def log_softmax(x: Any, segment_ids: Any, num_segments: int, **_: Any) -> Any:
        index = segment_ids[:, None].expand_as(x)
        some = x.new_full((num_segments, x.shape[1]), -torch.inf)
        off = x - some.scatter_reduce(0, index, x.detach(), "amax").index_select(0, segment_ids)
        sums = x.new_zeros((num_segments, x.shape[1])).scatter_add(0, index, off.exp())
        return off - sums.log().index_select(0, segment_ids)

    return {"segment_softmax": softmax, "segment_log_softmax": log_softmax}


def _jax() -> Table:
    import jax

    def softmax(
        x: Any, segment_ids: Any, num_segments: int, indices_are_sorted: bool, **_: Any
    ) -> Any:
        known = {"indices_are_sorted": indices_are_sorted}
        top = jax.ops.segment_max(jax.lax.stop_gradient(x), segment_ids, num_segments, **known)
        powers = jax.numpy.exp(x - top[segment_ids])
        return powers / jax.ops.segment_sum(powers, segment_ids, num_segments, **known)[segment_ids]

    return {"segment_softmax": softmax}


def _figures() -> tuple[Figure, ...]:
    return (
        *(ahead(4.0, At(op, way, "500k edges x 8"), "torch") for op in OPS for way in _WAYS),
        *owed("segment_softmax"),
    )


_WAYS = ("forward", "backward")
FAMILY = Family(
    name="segment_softmax",
    ops=OPS,
    workloads=WORKLOADS,
    demo=(Workload("200k edges x 8", OPS, _rows(200_000, 8, 20_000), take_columns),),
    grow=lambda draw, op, batch, axis: _rows(8 * batch, axis // 8, batch)(draw, op),
    natures=(
        Workload("random", OPS, _rows(2000, 8, 100), whole, (F32, F64, BF16, F16)),
        Workload("long", OPS, _rows(20_000, 4, 3), whole),
    ),
    peers=Peers({"torch": _torch, "jax": _jax}),
    figures=_figures(),
)
