"""Segment reductions: rows, peers and figures."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from pullback.bench.figures import At, Figure, ahead, faster, into, of_copy, on_two_threads, owed
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
from pullback.verify.subject import Arguments

OPS = ("segment_sum", "segment_mean", "segment_max", "segment_min", "segment_prod")
LARGE = (1 << 20, 64, 100_000)


def ids_of(draw: Draw, rows: int, segments: int, ascending: bool) -> Any:
    """Every segment has a row at least: libraries differ on what an empty one holds."""
    some = draw.rng.integers(0, segments, max(rows - segments, 0))
    ids = np.concatenate([np.arange(min(rows, segments)), some])
    return np.sort(ids) if ascending else draw.rng.permutation(ids)


def rows_of(rows: int, width: int, segments: int, ascending: bool = True) -> Make:
    def make(draw: Draw, op: str) -> Arguments:
        x = draw.near_one(rows, width) if op == "segment_prod" else draw.normal(rows, width)
        ids = ids_of(draw, rows, segments, ascending)
        known = {"num_segments": segments, "indices_are_sorted": ascending}
        return {"x": x, "segment_ids": ids, **known}

    return make


def _skewed(rows: int, width: int, segments: int) -> Make:
    """One segment holds 99 % of the rows."""

    def make(draw: Draw, op: str) -> Arguments:
        arguments = rows_of(rows, width, segments)(draw, op)
        most = draw.rng.random(rows) < 0.99
        arguments["segment_ids"] = np.sort(np.where(most, segments // 2, arguments["segment_ids"]))
        return arguments

    return make


def _prepared(arguments: Arguments) -> Arguments:
    from pullback.ops.segment.index import prepare_segments

    segments = arguments.get("num_segments") or len(arguments["dy"])
    return {"segment_ids": prepare_segments(arguments["segment_ids"], segments)}


_MAIN = ("segment_sum", "segment_max", "segment_prod")
_TINY = ((16, 4, 4), (64, 4, 8), (256, 16, 32), (1024, 64, 100), (4096, 64, 400))
WORKLOADS = (
    Workload("sorted 1Mx64", OPS, rows_of(*LARGE), take_columns),
    Workload("sorted 1Mx64", _MAIN, rows_of(*LARGE), take_columns, (BF16, F16), peers=()),
    Workload(
        "unsorted 1Mx64", _MAIN, rows_of(*LARGE, ascending=False), take_columns,
        tags=frozenset({"step"}),
    ),
    Workload(
        "unsorted 1Mx1", ("segment_sum",), rows_of(1_000_000, 1, 50_000, ascending=False),
        take_columns, peers=("torch", "jax", "numbagg"),
    ),
    Workload("sorted 1Mx5", _MAIN, rows_of(1_000_000, 5, 10_000), take_columns),
    Workload(
        "prepared 1Mx64", _MAIN, rows_of(*LARGE, ascending=False), take_columns,
        prepare=_prepared, peers=(),
    ),
    Workload(
        "one giant 1Mx64", _MAIN, _skewed(*LARGE), take_columns,
        peers=(), tags=frozenset({"scaling"}),
    ),
    *(
        Workload(f"{n}x{d}", OPS, rows_of(n, d, s), take_columns, tags=SMALL) for n, d, s in _TINY
    ),
)  # fmt: skip


def _torch() -> Table:
    import torch

    # PyTorch wants lengths for ids: it is given them ahead, outside the timed calls, compiled or
    # not. To the compiler a cached function is as good as the function, so it is told.
    counted = lru_cache(maxsize=4)(torch.bincount)
    lengths: Callable[..., Any] = torch.compiler.assume_constant_result(
        lambda ids, segments: counted(ids, minlength=segments)
    )

    def reduce(name: str, scattered: str) -> Callable[..., Any]:
        def call(
            x: Any, segment_ids: Any, num_segments: int, indices_are_sorted: bool, **_: Any
        ) -> Any:
            if indices_are_sorted:
                counts = lengths(segment_ids, num_segments)
                return torch.segment_reduce(x, name, lengths=counts, unsafe=True)
            target = x.new_zeros((num_segments, x.shape[1]))
            index = segment_ids[:, None].expand_as(x)
            return target.scatter_reduce(0, index, x, scattered, include_self=False)

        return call

    return {
        "segment_sum": reduce("sum", "sum"),
        "segment_mean": reduce("mean", "mean"),
        "segment_max": reduce("max", "amax"),
        "segment_min": reduce("min", "amin"),
        "segment_prod": reduce("prod", "prod"),
    }


def _jax() -> Table:
    import jax

    def reduce(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, segment_ids, num_segments, indices_are_sorted, **_: function(
            x, segment_ids, num_segments, indices_are_sorted=indices_are_sorted
        )

    return {
        f"segment_{name}": reduce(getattr(jax.ops, f"segment_{name}"))
        for name in ("sum", "max", "min", "prod")
    }


def _numpy() -> Table:
    """Borders are found in the call: NumPy has no other way to be told."""

    def reduce(ufunc: Any) -> Callable[..., Any]:
        def call(x: Any, segment_ids: Any, num_segments: int, **_: Any) -> Any:
            borders = np.searchsorted(segment_ids, np.arange(num_segments))
            return ufunc.reduceat(x, borders, axis=0)

        return call

    ufuncs = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}
    return {f"segment_{name}": reduce(ufunc) for name, ufunc in ufuncs.items()}


def _numbagg() -> Table:
    import numbagg

    def reduce(name: str) -> Callable[..., Any]:
        function = getattr(numbagg, f"group_nan{name}")
        return lambda x, segment_ids, num_segments, **_: (
            function(x, segment_ids, num_labels=num_segments, axis=0).T
        )

    return {op: reduce(op.removeprefix("segment_")) for op in OPS}


def _figures() -> tuple[Figure, ...]:
    size, ways = "sorted 1Mx64", ("forward", "backward")
    return (
        *(ahead(3.0, At(op, "forward", size), "torch") for op in ("segment_sum", "segment_max")),
        *(ahead(1.3, At(op, "forward", size), "jax") for op in ("segment_sum", "segment_max")),
        *(ahead(6.0, At(op, "backward", size), "torch") for op in ("segment_max", "segment_prod")),
        ahead(1.5, At("segment_max", "backward", size), "jax"),
        *(
            faster(
                0.7,
                f"{op} {way}, unsorted with a prepared index: speed over sorted",
                into(At(op, way, size)),
                into(At(op, way, "prepared 1Mx64")),
            )
            for op in _MAIN
            for way in ways
        ),
        *(ahead(2.0, At(op, "forward", "unsorted 1Mx64"), "torch") for op in _MAIN),
        ahead(10.0, At("segment_max", "backward", "unsorted 1Mx64"), "torch"),
        *(on_two_threads(1.6, op, way, "one giant 1Mx64") for op in _MAIN for way in ways),
        *(of_copy(0.6, At(op, "backward", size)) for op in OPS),
        *owed("segment"),
    )


FAMILY = Family(
    name="segment",
    ops=OPS,
    workloads=WORKLOADS,
    demo=(Workload("200kx64", OPS, rows_of(200_000, 64, 20_000), take_columns),),
    grow=lambda draw, op, batch, axis: rows_of(8 * batch, axis // 8, batch)(draw, op),
    natures=(
        Workload("random", OPS, rows_of(2000, 8, 100), whole, (F32, F64, BF16, F16)),
        Workload("long", OPS, rows_of(20_000, 4, 3), whole),
        Workload(
            "zeros", ("segment_prod",),
            lambda draw, op: _with_zeros(rows_of(200, 8, 20)(draw, op)), whole,
        ),
    ),
    peers=Peers({"torch": _torch, "jax": _jax, "numpy": _numpy, "numbagg": _numbagg}),
    steps=(("torch", "torch", "segment_max", 5.0),),
    figures=_figures(),
)  # fmt: skip


def _with_zeros(arguments: Arguments) -> Arguments:
    arguments["x"][::7] = 0
    return arguments
