"""Statistics of segments: rows, peers and figures. Edges of a graph, a column for each head."""

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

OPS = ("segment_logsumexp",)
EDGES = (500_000, 8, 50_000)
_rows = partial(rows_of, ascending=False)


WORKLOADS = (
    Workload("500k edges x 8", OPS, _rows(*EDGES), take_columns),
    Workload(
        "500k edges x 8",
        OPS,
        _rows(*EDGES),
        take_columns,
        (F64, BF16, F16),
        peers=(),
    ),
    Workload("sorted 500k edges x 8", OPS, _rows(*EDGES, ascending=True), take_columns),
    Workload("1024x8", OPS, _rows(1024, 8, 100), take_columns, tags=SMALL),
)


def _torch() -> Table:
    import torch

    def logsumexp(x: Any, segment_ids: Any, num_segments: int, **_: Any) -> Any:
        """As graph libraries compose it."""
        index = segment_ids[:, None].expand_as(x)
        some = x.new_full((num_segments, x.shape[1]), -torch.inf)
        top = some.scatter_reduce(0, index, x.detach(), "amax")
        powers = (x - top.index_select(0, segment_ids)).exp()
        return x.new_zeros(top.shape).scatter_add(0, index, powers).log() + top

    return {"segment_logsumexp": logsumexp}


def _jax() -> Table:
    import jax

    def logsumexp(
        x: Any, segment_ids: Any, num_segments: int, indices_are_sorted: bool, **_: Any
    ) -> Any:
        known = {"indices_are_sorted": indices_are_sorted}
        top = jax.ops.segment_max(jax.lax.stop_gradient(x), segment_ids, num_segments, **known)
        powers = jax.numpy.exp(x - top[segment_ids])
        return jax.numpy.log(jax.ops.segment_sum(powers, segment_ids, num_segments, **known)) + top

    return {"segment_logsumexp": logsumexp}


def _figures() -> tuple[Figure, ...]:
    ways = ("forward", "backward")
    return (
        *(ahead(3.0, At("segment_logsumexp", way, "500k edges x 8"), "torch") for way in ways),
        *owed("segment_statistics"),
    )


FAMILY = Family(
    name="segment_statistics",
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
