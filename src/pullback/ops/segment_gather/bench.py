"""Gathered rows reduced by segment: rows, peers and figures. Messages along edges of a graph."""

from __future__ import annotations

from typing import Any

from pullback.bench.figures import At, Figure, ahead, owed
from pullback.bench.workload import (
    BF16,
    F16,
    F32,
    F64,
    SMALL,
    Draw,
    Family,
    Make,
    Peers,
    Table,
    Workload,
    take_columns,
    whole,
)
from pullback.ops.segment.bench import ids_of
from pullback.verify.subject import Arguments

OPS = ("gather_segment_reduce",)
EDGES = (500_000, 64, 50_000)


def _edges(
    edges: int, width: int, nodes: int, ascending: bool = False, reduce: str = "sum"
) -> Make:
    def make(draw: Draw, op: str) -> Arguments:
        known = {"num_segments": nodes, "indices_are_sorted": ascending, "reduce": reduce}
        ids = {"gather_ids": draw.rng.integers(0, nodes, edges)}
        ids["segment_ids"] = ids_of(draw, edges, nodes, ascending)
        return {"x": draw.normal(nodes, width), **ids, **known}

    return make


WORKLOADS = (
    Workload("500k edges x 64", OPS, _edges(*EDGES), take_columns),
    Workload("500k edges x 64", OPS, _edges(*EDGES), take_columns, (F64, BF16, F16), peers=()),
    Workload("sorted 500k edges x 64", OPS, _edges(*EDGES, True), take_columns),
    Workload("max 500k edges x 64", OPS, _edges(*EDGES, reduce="max"), take_columns),
    Workload("1024 edges x 16", OPS, _edges(1024, 16, 100), take_columns, tags=SMALL),
)


def _torch() -> Table:
    def reduced(
        x: Any, gather_ids: Any, segment_ids: Any, num_segments: int, reduce: str, **_: Any
    ) -> Any:
        rows = x.index_select(0, gather_ids)
        index = segment_ids[:, None].expand_as(rows)
        target = x.new_zeros((num_segments, x.shape[1]))
        if reduce == "sum":
            return target.scatter_add(0, index, rows)
        return target.scatter_reduce(0, index, rows, f"a{reduce}", include_self=False)

    return {"gather_segment_reduce": reduced}


def _jax() -> Table:
    import jax

    def reduced(
        x: Any,
        gather_ids: Any,
        segment_ids: Any,
        num_segments: int,
        indices_are_sorted: bool,
        reduce: str,
        **_: Any,
    ) -> Any:
        function = getattr(jax.ops, f"segment_{reduce}")
        known = {"indices_are_sorted": indices_are_sorted}
        return function(x[gather_ids], segment_ids, num_segments, **known)

    return {"gather_segment_reduce": reduced}


def _figures() -> tuple[Figure, ...]:
    op, ways = OPS[0], ("forward", "backward")
    return (
        *(ahead(3.0, At(op, way, "500k edges x 64"), "torch") for way in ways),
        *(ahead(4.0, At(op, way, "max 500k edges x 64"), "torch") for way in ways),
        *owed("segment_gather"),
    )


FAMILY = Family(
    name="segment_gather",
    ops=OPS,
    workloads=WORKLOADS,
    demo=(Workload("200k edges x 64", OPS, _edges(200_000, 64, 20_000), take_columns),),
    grow=lambda draw, op, batch, axis: _edges(8 * batch, axis // 8, batch)(draw, op),
    natures=(
        Workload("random", OPS, _edges(2000, 8, 100), whole, (F32, F64, BF16, F16)),
        Workload("long", OPS, _edges(20_000, 4, 3), whole),
    ),
    peers=Peers({"torch": _torch, "jax": _jax}),
    figures=_figures(),
)
