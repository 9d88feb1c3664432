"""entmax of any alpha and the Fenchel-Young losses: rows, peers and figures."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.bench.figures import At, Figure, ahead, owed
from pullback.bench.workload import (
    BF16,
    F16,
    F32,
    F64,
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

ALPHA = 1.33
LOSSES = ("softmax_loss", "entmax15_loss", "sparsemax_loss", "entmax_loss")
OPS = ("entmax", *LOSSES)


def _problem(draw: Draw, op: str, rows: int, columns: int) -> Arguments:
    found: Arguments = {"x": draw.normal(rows, columns)}
    if op in LOSSES:
        found["target"] = np.arange(rows, dtype=np.int64) * 7 % columns
    if op in ("entmax", "entmax_loss"):
        found["alpha"] = ALPHA
    return found


def _x(rows: int, columns: int) -> Make:
    return lambda draw, op: _problem(draw, op, rows, columns)


WORKLOADS = (
    Workload("4096x1024", ("entmax",), _x(4096, 1024), take_rows, (F32, BF16, F16, F64)),
    Workload("4096x1024", LOSSES, _x(4096, 1024)),
    Workload("256x32000", ("entmax",), _x(256, 32000), take_rows),
    Workload("256x32000", LOSSES, _x(256, 32000)),
)


def _torch() -> Table:
    from torch.nn import functional

    return {
        "softmax_loss": lambda x, target, **_: functional.cross_entropy(x, target, reduction="none")
    }


def _entmax() -> Table:
    import entmax

    def bisect(x: Any, alpha: float, **_: Any) -> Any:
        return entmax.entmax_bisect(x, alpha)

    return {
        "entmax": bisect,
        "sparsemax_loss": lambda x, target, **_: entmax.sparsemax_loss(x, target),
        "entmax15_loss": lambda x, target, **_: entmax.entmax15_loss(x, target),
        "entmax_loss": lambda x, target, alpha, **_: entmax.entmax_bisect_loss(x, target, alpha),
    }


def _figures() -> tuple[Figure, ...]:
    return (
        ahead(20.0, At("entmax", "forward", "4096x1024"), "entmax"),
        ahead(5.0, At("entmax", "backward", "4096x1024"), "entmax"),
        *(ahead(10.0, At(op, "forward", "4096x1024"), "entmax") for op in LOSSES[1:]),
        *owed("entmax"),
    )


FAMILY = Family(
    name="entmax",
    ops=OPS,
    workloads=WORKLOADS,
    demo=WORKLOADS[:2],
    grow=lambda draw, op, batch, axis: _problem(draw, op, batch, axis),
    natures=(Workload("random", OPS, _x(16, 1000), whole, (F32, F64, BF16, F16)),),
    peers=Peers({"torch": _torch, "entmax": _entmax}),
    figures=_figures(),
)
