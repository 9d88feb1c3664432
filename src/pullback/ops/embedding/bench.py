"""Embeddings: rows, peers and figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.bench.figures import At, Figure, ahead, faster, of_copy, owed
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

OPS = ("embedding", "embedding_bag")
LOOKUP, BAG = OPS[:1], OPS[1:]
_WRT = ("weight",)
_GATHERS = ("weight", "indices")


def _uniform(draw: Draw, rows: int, count: int) -> Any:
    return draw.rng.integers(0, rows, count)


def _zipf(draw: Draw, rows: int, count: int) -> Any:
    """Words of a language: a few rows take most of the positions."""
    drawn = draw.rng.zipf(1.2, 8 * count)
    return (drawn[drawn <= rows] - 1)[:count]


Indices = Callable[[Draw, int, int], Any]


def _lookup(rows: int, width: int, count: int, indices: Indices = _uniform) -> Make:
    def make(draw: Draw, op: str) -> Arguments:
        return {"weight": draw.normal(rows, width), "indices": indices(draw, rows, count)}

    return make


def _bags(rows: int, width: int, bags: int, each: int, mode: str) -> Make:
    def make(draw: Draw, op: str) -> Arguments:
        arguments = _lookup(rows, width, bags * each)(draw, op)
        return {**arguments, "offsets": np.arange(bags) * each, "mode": mode}

    return make


def _large(name: str, ops: tuple[str, ...], make: Make, **more: Any) -> Workload:
    return Workload(name, ops, make, take_columns, wrt=_WRT, gathers=_GATHERS, **more)


_HALVES: dict[str, Any] = {"elements": (BF16, F16), "peers": ()}
WORKLOADS = (
    _large("zipf 50kx256", LOOKUP, _lookup(50_000, 256, 1 << 16, _zipf)),
    _large("zipf 50kx256", LOOKUP, _lookup(50_000, 256, 1 << 16, _zipf), **_HALVES),
    _large("uniform 50kx256", LOOKUP, _lookup(50_000, 256, 1 << 16)),
    *(_large(f"uniform 50kx{d}", LOOKUP, _lookup(50_000, d, 1 << 16)) for d in (100, 300)),
    _large("dense 1Mx64", LOOKUP, _lookup(1_000_000, 64, 1 << 16), directions=("backward",)),
    _large(
        "sparse 1Mx64", LOOKUP, _lookup(1_000_000, 64, 1 << 16),
        directions=("backward",), backward_options={"sparse": True}, peers=(),
    ),
    *(
        _large(f"{mode} 4096 bags of 50", BAG, _bags(100_000, 128, 4096, 50, mode))
        for mode in ("sum", "mean", "max")
    ),
    *(
        _large(f"{v}x{d}, {n}", LOOKUP, _lookup(v, d, n), tags=SMALL)
        for v, d, n in ((8, 4, 16), (16, 8, 32), (64, 16, 256), (1000, 64, 1024), (4000, 64, 4096))
    ),
    *(
        _large(f"sum {v}x{d}, {b} bags", BAG, _bags(v, d, b, 8, "sum"), tags=SMALL)
        for v, d, b in ((8, 4, 4), (64, 16, 32), (1000, 64, 512))
    ),
)  # fmt: skip


def _torch() -> Table:
    from torch.nn import functional

    return {
        "embedding": lambda weight, indices, **_: functional.embedding(indices, weight),
        "embedding_bag": lambda weight, indices, offsets, mode, **_: functional.embedding_bag(
            indices, weight, offsets, mode=mode
        ),
    }


def _jax() -> Table:
    import jax
    import jax.numpy as jnp

    def bag(weight: Any, indices: Any, offsets: Any, mode: str, **_: Any) -> Any:
        bags = jnp.searchsorted(offsets, jnp.arange(len(indices)), side="right") - 1
        rows, known = weight[indices], {"indices_are_sorted": True}
        if mode == "max":
            return jax.ops.segment_max(rows, bags, len(offsets), **known)
        sums = jax.ops.segment_sum(rows, bags, len(offsets), **known)
        counts = jnp.diff(offsets, append=len(indices))
        return sums if mode == "sum" else sums / counts[:, None].astype(sums.dtype)

    return {
        "embedding": lambda weight, indices, **_: jnp.take(weight, indices, axis=0),
        "embedding_bag": bag,
    }


def _numpy() -> Table:
    return {"embedding": lambda weight, indices, **_: np.take(weight, indices, axis=0)}


def _figures() -> tuple[Figure, ...]:
    drawn = ("zipf 50kx256", "uniform 50kx256")
    bags = "sum 4096 bags of 50"
    return (
        *(ahead(2.5, At("embedding", "backward", name), "torch") for name in drawn),
        *(ahead(1.2, At("embedding", "backward", name), "jax") for name in drawn),
        faster(
            10.0,
            "embedding backward 1Mx64, sparse: speed over PyTorch's dense gradient",
            At("embedding", "backward", "dense 1Mx64", who="torch"),
            At("embedding", "backward", "sparse 1Mx64"),
        ),
        *(ahead(1.5, At("embedding", "forward", name), "torch") for name in drawn),
        *(ahead(1.5, At("embedding_bag", way, bags), "torch") for way in ("forward", "backward")),
        *(of_copy(0.6, At("embedding", "forward", name)) for name in drawn),
        *owed("embedding"),
    )


def _grow(draw: Draw, op: str, batch: int, axis: int) -> Arguments:
    """Positions are the batch, the width of a row is the axis."""
    width = axis // 8
    if op == "embedding":
        return _lookup(10_000, width, 4 * batch)(draw, op)
    return _bags(10_000, width, batch, 8, "sum")(draw, op)


_FLOATS = (F32, F64, BF16, F16)


def _nature(name: str, ops: tuple[str, ...], make: Make) -> Workload:
    return Workload(name, ops, make, whole, _FLOATS, wrt=_WRT)


FAMILY = Family(
    name="embedding",
    ops=OPS,
    workloads=WORKLOADS,
    demo=(
        WORKLOADS[0],
        next(w for w in WORKLOADS if w.name == "sum 4096 bags of 50"),
    ),
    grow=_grow,
    natures=(
        _nature("random", LOOKUP, _lookup(100, 8, 2000, _zipf)),
        *(_nature(f"random, {mode}", BAG, _bags(100, 8, 100, 20, mode)) for mode in ("sum", "max")),
    ),
    peers=Peers({"torch": _torch, "jax": _jax, "numpy": _numpy}),
    steps=(("torch", "torch", "embedding", 1.5),),
    figures=_figures(),
)
