"""Lerp: rows, peers and figures."""

from __future__ import annotations

from pullback.bench.figures import At, Figure, ahead, halves, of_copy, owed
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
    take_rows,
    whole,
)
from pullback.verify.subject import Arguments

OPS = ("lerp",)
WEIGHT = 0.3


def _by_number(*shape: int) -> Make:
    def make(draw: Draw, op: str) -> Arguments:
        return {"a": draw.normal(*shape), "b": draw.normal(*shape), "weight": WEIGHT}

    return make


def _by_tensor(*shape: int) -> Make:
    def make(draw: Draw, op: str) -> Arguments:
        return {**_by_number(*shape)(draw, op), "weight": draw.near_one(*shape)}

    return make


NUMBER, TENSOR = ("a", "b"), ("a", "b", "weight")
WORKLOADS = (
    Workload(
        "4096x4096", OPS, _by_number(4096, 4096), take_rows, (F32, BF16, F16, F64), wrt=NUMBER
    ),
    Workload("tensor weight", OPS, _by_tensor(4096, 4096), take_rows, wrt=TENSOR),
    *(
        Workload(f"{n}x{n}", OPS, _by_number(n, n), take_rows, wrt=NUMBER, tags=SMALL)
        for n in (8, 16, 64, 256, 512)
    ),
)


def _torch() -> Table:
    import torch

    return {"lerp": lambda a, b, weight, **_: torch.lerp(a, b, weight)}


def _torch_out() -> Table:
    import torch

    return {"lerp": lambda a, b, weight, out, **_: torch.lerp(a, b, weight, out=out)}


def _jax() -> Table:
    return {"lerp": lambda a, b, weight, **_: a + weight * (b - a)}


def _figures() -> tuple[Figure, ...]:
    ways = ("forward", "backward")
    return (
        *(of_copy(0.95, At("lerp", way)) for way in ways),
        *(halves(0.7, "lerp", way, kind) for way in ways for kind in ("bf16", "f16")),
        ahead(2.0, At("lerp", "backward"), "torch"),
        ahead(3.0, At("lerp", "backward"), "jax"),
        *owed("lerp"),
    )


FAMILY = Family(
    name="lerp",
    ops=OPS,
    workloads=WORKLOADS,
    demo=WORKLOADS[:1],
    grow=lambda draw, op, batch, axis: _by_number(batch, axis)(draw, op),
    natures=(
        Workload("random", OPS, _by_number(64, 256), whole, (F32, F64, BF16, F16), wrt=NUMBER),
        Workload("tensor weight", OPS, _by_tensor(64, 256), whole, (F32,), wrt=TENSOR),
    ),
    peers=Peers(
        {
            "torch": _torch,
            "torch out": _torch_out,
            "jax": _jax,
            "numpy": lambda: {"lerp": lambda a, b, weight, **_: a + weight * (b - a)},
        }
    ),
    figures=_figures(),
)
