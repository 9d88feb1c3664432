"""The linear recurrence: rows, peers and figures."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.bench.figures import At, Figure, ahead, into, no_slower, of_copy
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

SCAN, RETURNS = ("linear_scan",), ("discounted_sum",)
OPS = (*SCAN, *RETURNS)
_WRT = ("a", "b")


def _ab(*shape: int, axis: int = -1, factors: tuple[int, ...] | None = None) -> Make:
    """Factors near one, of a shape that broadcasts."""

    def make(draw: Draw, op: str) -> Arguments:
        a = draw.near_one(*(shape if factors is None else factors))
        return {"a": a, "b": draw.normal(*shape), "axis": axis}

    return make


def _pieces(n: int, mean: int) -> Make:
    def make(draw: Draw, op: str) -> Arguments:
        inner = np.sort(draw.rng.integers(0, n + 1, n // mean - 1))
        offsets = np.array([0, *inner, n])
        return {"a": draw.near_one(n), "b": draw.normal(n), "axis": 0, "offsets": offsets}

    return make


def _rewards(*shape: int) -> Make:
    return lambda draw, op: {"x": draw.normal(*shape), "discount": draw.of(np.array([0.99]))}


def _started(*shape: int) -> Make:
    def make(draw: Draw, op: str) -> Arguments:
        return {**_ab(*shape)(draw, op), "initial": draw.normal(*shape[:-1])}

    return make


def _scan(name: str, make: Make, *, peers: tuple[str, ...] = (), **more: Any) -> Workload:
    return Workload(name, SCAN, make, wrt=_WRT, peers=peers, **more)


_STEPS = "64x512x64, axis 1"
_LARGE = (4096, 4096)
_PIECES = (8, 64, 4096)
_ALL: Any = {"elements": (F32, F64, BF16, F16)}
WORKLOADS = (
    _scan("4096x4096", _ab(*_LARGE), take=take_rows, **_ALL, peers=("jax",)),
    _scan(_STEPS, _ab(64, 512, 64, axis=1), take=take_rows, peers=("torch", "torch loop", "jax")),
    _scan("a per channel", _ab(64, 512, 64, axis=1, factors=(64,)), peers=("torch loop", "jax")),
    _scan("a per row", _ab(*_LARGE, factors=(4096, 1))),
    _scan("a per step, axis 0", _ab(*_LARGE, axis=0, factors=(4096, 1))),
    _scan("axis 0", _ab(*_LARGE, axis=0)),
    _scan("1x16M", _ab(1, 1 << 24)),
    _scan("exclusive", _ab(*_LARGE), take=take_rows, options={"exclusive": True}),
    _scan("initial", _started(*_LARGE), take=take_rows, directions=("forward",)),
    _scan("4M", _ab(1 << 22, axis=0)),
    *(_scan(f"pieces of {mean}", _pieces(1 << 22, mean)) for mean in _PIECES),
    Workload("4096x4096", RETURNS, _rewards(*_LARGE), take_rows, peers=()),
    Workload("1024x512", RETURNS, _rewards(1024, 512), take_rows, peers=("torch loop", "scipy")),
)


def _torch() -> Table:
    """PyTorch's associative scan, which has no kernel on CPUs: log2(n) steps of whole tensors."""
    from torch._higher_order_ops import associative_scan

    def joined(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    def run(a: Any, b: Any, axis: int, **_: Any) -> Any:
        return associative_scan(joined, (a, b), dim=axis, combine_mode="generic")[1]

    return {"linear_scan": run}


def _torch_loop() -> Table:
    import torch

    def scan(a: Any, b: Any, axis: int, **_: Any) -> Any:
        a = a.expand_as(b).unbind(axis)
        h, found = torch.zeros(()), []
        for factor, term in zip(a, b.unbind(axis), strict=True):
            h = factor * h + term
            found.append(h)
        return torch.stack(found, axis)

    def returns(x: Any, discount: Any, **_: Any) -> Any:
        h, found = torch.zeros(()), []
        for term in reversed(x.unbind(-1)):
            h = discount * h + term
            found.append(h)
        return torch.stack(found[::-1], -1)

    return {"linear_scan": scan, "discounted_sum": returns}


def _jax() -> Table:
    import jax
    import jax.numpy as jnp

    def joined(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    def run(a: Any, b: Any, axis: int, **_: Any) -> Any:
        pair = jnp.broadcast_to(a, b.shape), b
        return jax.lax.associative_scan(joined, pair, axis=axis % b.ndim)[1]

    return {"linear_scan": run}


def _scipy() -> Table:
    from scipy.signal import lfilter

    def returns(x: Any, discount: Any, **_: Any) -> Any:
        return lfilter([1.0], [1.0, -float(discount[0])], x[..., ::-1])[..., ::-1].astype(x.dtype)

    return {"discounted_sum": returns}


def _figures() -> tuple[Figure, ...]:
    ways = ("forward", "backward")
    steps = At("linear_scan", "forward", _STEPS)
    plain = [into(At("linear_scan", way)) for way in ways]
    exclusive = [into(At("linear_scan", way, "exclusive")) for way in ways]
    return (
        of_copy(0.6, At("linear_scan", "forward")),
        ahead(3.0, steps, "torch"),
        ahead(15.0, steps, "torch loop"),
        *(
            no_slower(1.1, f"linear_scan {way}, exclusive: time of the plain scan", edge, than)
            for way, edge, than in zip(ways, exclusive, plain, strict=True)
        ),
        *(
            no_slower(
                1 / 0.7,
                f"linear_scan {way}, pieces of {mean}: time without offsets",
                into(At("linear_scan", way, f"pieces of {mean}")),
                into(At("linear_scan", way, "4M")),
            )
            for way in ways
            for mean in _PIECES
        ),
    )


def _grown(draw: Draw, op: str, batch: int, axis: int) -> Arguments:
    make = _rewards(batch, axis) if op in RETURNS else _ab(batch, axis)
    return make(draw, op)


FAMILY = Family(
    name="recurrence",
    ops=OPS,
    workloads=WORKLOADS,
    demo=WORKLOADS[:1],
    grow=_grown,
    natures=(
        Workload("random", SCAN, _ab(16, 1024), whole, (F32, F64, BF16, F16), wrt=_WRT),
        Workload("random", RETURNS, _rewards(16, 1024), whole, (F32, F64, BF16, F16)),
    ),
    peers=Peers({"torch": _torch, "torch loop": _torch_loop, "jax": _jax, "scipy": _scipy}),
    figures=_figures(),
)
