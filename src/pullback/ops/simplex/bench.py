"""Simplex maps: rows, peers and figures."""

from __future__ import annotations

import numpy as np

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
    take_columns,
    take_rows,
    whole,
)
from pullback.verify.subject import Arguments

SMOOTH, SPARSE = ("softmax", "log_softmax"), ("sparsemax", "entmax15")
OPS = (*SMOOTH, *SPARSE)
SHAPES = ((4096, 1024), (256, 32000))
SHORT = ((65536, 10), (16384, 100))  # as many rows as examples, as many columns as classes
_NAMES = tuple(f"{rows}x{columns}" for rows, columns in SHAPES)


def _x(*shape: int, axis: int = -1, scale: float = 1.0, offset: float = 0.0) -> Make:
    def make(draw: Draw, op: str) -> Arguments:
        x = draw.normal(*shape)
        if scale != 1 or offset:
            x = draw.of(scale * x.astype(np.float64) + offset)
        return {"x": x, "axis": axis}

    return make


def _masked(*shape: int) -> Make:
    """Half of every row at -inf."""

    def make(draw: Draw, op: str) -> Arguments:
        x = draw.normal(*shape)
        x[..., ::2] = -np.inf
        return {"x": x, "axis": -1}

    return make


_FLOATS = (F32, BF16, F16, F64)
WORKLOADS = (
    Workload(_NAMES[0], OPS, _x(*SHAPES[0]), take_rows, _FLOATS),
    Workload(_NAMES[1], OPS, _x(*SHAPES[1]), take_rows),
    Workload("axis 0", OPS, _x(4096, 4096, axis=0), take_columns),
    *(Workload(f"{rows}x{columns}", OPS, _x(rows, columns), take_rows) for rows, columns in SHORT),
    *(
        Workload(f"{rows}x{columns}", OPS, _x(rows, columns), take_rows, tags=SMALL)
        for rows, columns in ((4, 16), (8, 32), (64, 64), (256, 256), (512, 512))
    ),
)


def _torch() -> Table:
    import torch

    return {
        "softmax": lambda x, axis, **_: torch.softmax(x, axis),
        "log_softmax": lambda x, axis, **_: torch.log_softmax(x, axis),
    }


def _torch_out() -> Table:
    import torch

    aten = torch.ops.aten
    return {
        "softmax": lambda x, axis, out, **_: torch.softmax(x, axis, out=out),
        "log_softmax": lambda x, axis, out, **_: torch.log_softmax(x, axis, out=out),
        "softmax_backward": lambda dy, y, axis, out, **_: aten._softmax_backward_data.out(
            dy, y, axis, y.dtype, grad_input=out
        ),
        "log_softmax_backward": lambda dy, y, axis, out, **_: aten._log_softmax_backward_data.out(
            dy, y, axis, y.dtype, out=out
        ),
    }


def _entmax() -> Table:
    import entmax

    return {
        "sparsemax": lambda x, axis, **_: entmax.sparsemax(x, axis),
        "entmax15": lambda x, axis, **_: entmax.entmax15(x, axis),
    }


def _jax() -> Table:
    import jax

    return {
        "softmax": lambda x, axis, **_: jax.nn.softmax(x, axis),
        "log_softmax": lambda x, axis, **_: jax.nn.log_softmax(x, axis),
    }


def _scipy() -> Table:
    from scipy import special

    return {
        "softmax": lambda x, axis, **_: special.softmax(x, axis),
        "log_softmax": lambda x, axis, **_: special.log_softmax(x, axis),
    }


_OVER_ENTMAX = {
    ("sparsemax", "forward"): 50.0,
    ("sparsemax", "backward"): 10.0,
    ("entmax15", "forward"): 30.0,
    ("entmax15", "backward"): 8.0,
}


def _figures() -> tuple[Figure, ...]:
    ways = ("forward", "backward")
    sparse = [
        ahead(bound, At(*key, name), "entmax")
        for name in _NAMES
        for key, bound in _OVER_ENTMAX.items()
    ]
    smooth = [
        ahead(1.3, At(op, way, name), *rivals)
        for op in SMOOTH
        for way in ways
        for name in (*_NAMES, "axis 0")
        for rivals in (("torch", "jax"), ("torch out",))
    ]
    copies = [
        of_copy(0.8, At(op, "backward", name)) for op in ("sparsemax", "softmax") for name in _NAMES
    ]
    bf16 = [halves(0.8, op, way, "bf16", _NAMES[0]) for op in OPS for way in ways]
    return (*sparse, *smooth, *copies, *bf16, *owed("simplex"))


FAMILY = Family(
    name="simplex",
    ops=OPS,
    workloads=WORKLOADS,
    demo=WORKLOADS[:1],
    grow=lambda draw, op, batch, axis: {"x": draw.normal(batch, axis), "axis": -1},
    natures=(
        Workload("random", OPS, _x(16, 1000), whole, _FLOATS),
        Workload("offset 1e4", OPS, _x(16, 1000, offset=1e4), whole),
        Workload("peaked", OPS, _x(16, 1000, scale=30.0), whole),
        Workload("half masked", OPS, _masked(16, 1000), whole),
    ),
    peers=Peers(
        {
            "torch": _torch,
            "torch out": _torch_out,
            "entmax": _entmax,
            "jax": _jax,
            "scipy": _scipy,
        }
    ),
    steps=(("torch", "entmax", "sparsemax", 20.0),),
    figures=_figures(),
)
