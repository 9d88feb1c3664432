"""Scans: rows, peers and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pullback.bench.figures import At, Figure, ahead, halves, into, no_slower, of_copy, owed, peak
from pullback.bench.problem import Take
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
from pullback.ops.scan.bench_pieces import either, flagged, looped, padded
from pullback.verify.subject import Arguments

OPS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
EXTREMA = ("cummax", "cummin")


def _plain(draw: Draw, op: str, *shape: int) -> Any:
    return draw.near_one(*shape) if op == "cumprod" else draw.normal(*shape)


def _x(*shape: int, axis: int = -1) -> Make:
    return lambda draw, op: {"x": _plain(draw, op, *shape), "axis": axis}


def _with_zeros(*shape: int) -> Make:
    """Three zeros in every row: where dividing by the input gives NaN."""

    def make(draw: Draw, op: str) -> Arguments:
        x = draw.near_one(*shape)
        for column in (shape[-1] // 5, shape[-1] // 2, shape[-1] - 2):
            x[..., column] = 0
        return {"x": x, "axis": -1}

    return make


def _sorted(*shape: int) -> Make:
    """Every element a new extremum."""

    def make(draw: Draw, op: str) -> Arguments:
        row = np.linspace(-1, 1, shape[-1]) * (1 if op == "cummax" else -1)
        return {"x": draw.of(np.broadcast_to(row, shape)), "axis": -1}

    return make


def _tied(*shape: int) -> Make:
    return lambda draw, op: {"x": draw.of(np.ones(shape)), "axis": -1}


def _masked(*shape: int) -> Make:
    """A prefix of -inf, as masks leave it."""

    def make(draw: Draw, op: str) -> Arguments:
        x = draw.normal(*shape)
        x[..., : shape[-1] // 3] = -np.inf
        return {"x": x, "axis": -1}

    return make


def _ramp(*shape: int) -> Make:
    """Steep: exponentials of neighbours are out of each other's range."""

    def make(draw: Draw, op: str) -> Arguments:
        return {"x": draw.of(np.broadcast_to(10.0 * np.arange(shape[-1]), shape)), "axis": -1}

    return make


def _pieces(n: int, mean: int) -> Make:
    """One line, cut at random: variable-length batches."""

    def make(draw: Draw, op: str) -> Arguments:
        inner = np.sort(draw.rng.integers(0, n + 1, n // mean - 1))
        return {"x": _plain(draw, op, n), "axis": 0, "offsets": np.array([0, *inner, n])}

    return make


_SHORT = ((104857, 10), (31775, 33))
_TINY = ((4, 16), (8, 32), (64, 64), (256, 256), (512, 512))
# PyTorch gives the last of equal extrema the gradient, and 16 bits leave many equal.
_LAST = {"ties": "last"}


# JAX takes seconds to compile the backward of a scan: it competes where a figure asks for it.
_NO_JAX = ("torch", "torch out", "torch.compile", "numpy")


# Half a million pieces in a Python loop take seconds; to compile JAX's associative scan too.
_OF_PIECES = {8: ("torch",), 64: ("torch", "torch loop"), 4096: ("torch", "torch loop")}


def _halves(name: str, ops: tuple[str, ...], make: Make, take: Take, **more: Any) -> Workload:
    return Workload(name, ops, make, take, (BF16, F16), peers=_NO_JAX, **more)


def _random(shape: tuple[int, int]) -> tuple[Workload, ...]:
    rest = tuple(op for op in OPS if op not in EXTREMA)
    return (
        Workload("random", OPS, _x(*shape), whole, (F32, F64)),
        _halves("random", rest, _x(*shape), whole),
        _halves("random", EXTREMA, _x(*shape), whole, options=_LAST),
    )


WORKLOADS = (
    Workload("4096x4096", OPS, _x(4096, 4096), take_rows),
    Workload("4096x4096", OPS, _x(4096, 4096), take_rows, (F64,), peers=_NO_JAX),
    _halves("4096x4096", tuple(o for o in OPS if o not in EXTREMA), _x(4096, 4096), take_rows),
    _halves("4096x4096", EXTREMA, _x(4096, 4096), take_rows, options=_LAST),
    Workload("zeros", ("cumprod",), _with_zeros(4096, 4096), take_rows, directions=("backward",)),
    Workload("sorted", EXTREMA, _sorted(4096, 4096), take_rows, directions=("backward",)),
    Workload("tied", EXTREMA, _tied(4096, 4096), take_rows, directions=("backward",)),
    Workload("64x262144", OPS, _x(64, 1 << 18), peers=_NO_JAX),
    Workload("1x16M", OPS, _x(1, 1 << 24), peers=_NO_JAX),
    *(
        Workload(f"{rows}x{columns}", OPS, _x(rows, columns), take_rows, peers=_NO_JAX)
        for rows, columns in _SHORT
    ),
    Workload("axis 0", OPS, _x(4096, 4096, axis=0), take_columns, peers=_NO_JAX),
    Workload("middle axis", OPS, _x(64, 1024, 256, axis=1), take_rows, peers=_NO_JAX),
    Workload("exclusive", OPS, _x(4096, 4096), take_rows, options={"exclusive": True}, peers=()),
    Workload(
        "initial",
        OPS,
        _x(4096, 4096),
        take_rows,
        (F32,),
        ("forward",),
        options={"initial": 0.5},
        peers=(),
    ),
    Workload("4M", OPS, _x(1 << 22, axis=0), peers=()),
    *(
        Workload(f"pieces of {mean}", OPS, _pieces(1 << 22, mean), peers=_OF_PIECES[mean])
        for mean in _OF_PIECES
    ),
    *(
        Workload(f"{rows}x{columns}", OPS, _x(rows, columns), take_rows, tags=SMALL)
        for rows, columns in _TINY
    ),
)

# --- peers ----------------------------------------------------------------------------------------


def _torch() -> Table:
    plain = _torch_scans()
    return either(plain, {op: padded(op, scan) for op, scan in plain.items()})


def _torch_loop() -> Table:
    return {op: looped(scan) for op, scan in _torch_scans().items()}


def _torch_scans() -> Table:
    import torch

    return {
        "cumsum": lambda x, axis, **_: torch.cumsum(x, axis),
        "cumprod": lambda x, axis, **_: torch.cumprod(x, axis),
        "cummax": lambda x, axis, **_: torch.cummax(x, axis).values,
        "cummin": lambda x, axis, **_: torch.cummin(x, axis).values,
        "logcumsumexp": lambda x, axis, **_: torch.logcumsumexp(x, axis),
    }


def _torch_out() -> Table:
    import torch

    return {
        "cumsum": lambda x, axis, out, **_: torch.cumsum(x, axis, out=out),
        "cumprod": lambda x, axis, out, **_: torch.cumprod(x, axis, out=out),
        "logcumsumexp": lambda x, axis, out, **_: torch.logcumsumexp(x, axis, out=out),
    }


def _jax() -> Table:
    import jax
    import jax.numpy as jnp

    def scan(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, axis, **_: function(x, axis=axis % x.ndim)

    combine = (jnp.add, jnp.multiply, jnp.maximum, jnp.minimum, jnp.logaddexp)
    plain = {
        "cumsum": scan(jnp.cumsum),
        "cumprod": scan(jnp.cumprod),
        "cummax": scan(jax.lax.cummax),
        "cummin": scan(jax.lax.cummin),
        "logcumsumexp": scan(jax.lax.cumlogsumexp),
    }
    return either(plain, dict(zip(OPS, map(flagged, combine), strict=True)))


def _numpy() -> Table:
    return {
        "cumsum": lambda x, axis, **_: np.cumsum(x, axis, dtype=x.dtype),
        "cumprod": lambda x, axis, **_: np.cumprod(x, axis, dtype=x.dtype),
        "cummax": lambda x, axis, **_: np.maximum.accumulate(x, axis),
        "cummin": lambda x, axis, **_: np.minimum.accumulate(x, axis),
        "logcumsumexp": lambda x, axis, **_: np.logaddexp.accumulate(x, axis),
    }


# --- figures --------------------------------------------------------------------------------------

# Fractions of a copy that each kernel reaches into given outputs.
_OF_COPY = {
    ("cumsum", "forward"): 0.75,
    ("cumsum", "backward"): 0.75,
    ("cumprod", "backward"): 0.8,
    ("cummax", "backward"): 0.8,
    ("cummin", "backward"): 0.8,
    ("logcumsumexp", "forward"): 0.55,
    ("logcumsumexp", "backward"): 0.85,
}
_OVER_TORCH = {"cumsum": 4.0, "cumprod": 6.0, "cummax": 3.0, "logcumsumexp": 40.0}
_HALF = {"cumsum": 0.7, "cumprod": 0.7, "cummax": 0.7, "logcumsumexp": 1.0}


_EDGES = (("forward", "exclusive"), ("backward", "exclusive"), ("forward", "initial"))


def _figures() -> tuple[Figure, ...]:
    main = [of_copy(bound, At(op, way)) for (op, way), bound in _OF_COPY.items()]
    hard = [of_copy(0.8, At(op, "backward", data)) for op in EXTREMA for data in ("sorted", "tied")]
    long = [of_copy(0.9 * bound, At(*key, "64x262144")) for key, bound in _OF_COPY.items()]
    # A bound above what the op reaches in many rows would ask a single row to be faster.
    one = [of_copy(min(0.6, 0.8 * b), At(*key, "1x16M")) for key, b in _OF_COPY.items()]
    axes = [
        no_slower(
            1.2,
            f"{op} {way}, {where}: time over the last axis",
            into(At(op, way, where)),
            into(At(op, way)),
        )
        for op, way in _OF_COPY
        for where in ("axis 0", "middle axis")
    ]
    half = [
        halves(bound, op, way, kind)
        for op, bound in _HALF.items()
        for way in ("forward", "backward")
        for kind in ("bf16", "f16")
    ]
    torch = [ahead(bound, At(op, "backward"), "torch") for op, bound in _OVER_TORCH.items()]
    pieces = [figure for mean in _OF_PIECES for figure in _piecewise(mean)]
    edges = [
        no_slower(1.1, f"{op} {way}, {form}: time of the plain scan", into(at), into(At(op, way)))
        for op in OPS
        for way, form in (
            ("forward", "exclusive"),
            ("backward", "exclusive"),
            ("forward", "initial"),
        )
        for at in (At(op, way, form),)
    ]
    zeros = ahead(15.0, At("cumprod", "backward", "zeros"), "torch")
    jax = [ahead(3.0, At(op, "backward"), "jax") for op in _OVER_TORCH]
    return (
        *main,
        *hard,
        *long,
        *one,
        *axes,
        *half,
        *torch,
        zeros,
        *jax,
        *pieces,
        *edges,
        *owed("scan"),
    )


def _piecewise(mean: int) -> Iterator[Figure]:
    """Seven tenths of the speed without offsets, three times that of the best other form."""
    for op in OPS:
        for way in ("forward", "backward"):
            at = At(op, way, f"pieces of {mean}")
            text = f"{op} {way}, {at.workload}: time without offsets"
            yield no_slower(1 / 0.7, text, into(at), into(At(op, way, "4M")))
            yield ahead(3.0, at, *_OF_PIECES[mean])


FAMILY = Family(
    name="scan",
    ops=OPS,
    workloads=WORKLOADS,
    demo=WORKLOADS[:1],
    grow=lambda draw, op, batch, axis: {"x": _plain(draw, op, batch, axis), "axis": -1},
    natures=(
        *_random((16, 4096)),
        Workload("zeros", ("cumprod",), _with_zeros(16, 512), whole),
        Workload("ties", EXTREMA, _tied(4, 512), whole),
        Workload("-inf prefix", ("logcumsumexp",), _masked(16, 512), whole),
        Workload("steep ramp", ("logcumsumexp",), _ramp(4, 512), whole),
    ),
    peers=Peers(
        {
            "torch": _torch,
            "torch loop": _torch_loop,
            "torch out": _torch_out,
            "jax": _jax,
            "numpy": _numpy,
        }
    ),
    steps=(
        ("torch", "torch", "cumsum", 2.0),
        ("torch", "torch", "cumprod", 4.0),
        ("torch", "torch", "logcumsumexp", 20.0),
        ("torch", "torch", "cummax", 3.0),
        ("jax", "jax", "logcumsumexp", 20.0),
        ("jax", "jax", "cumprod", 3.0),
        ("jax", "jax", "cummax", 5.0),
    ),
    figures=(*_figures(), peak(0.5, "cumprod", "torch"), peak(0.5, "logcumsumexp", "torch")),
)
