"""Training over processes, for tests/ranks.py: data parallel with sparse gradients, FSDP2, plans of
tensor parallelism, torch.compile, second derivatives, and ranks that are called differently."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import pullback as pb
import pullback.torch.nn as pbn
from pullback import distributed


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.table = pbn.Embedding(12, 8, sparse=sparse)
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return pb.softmax(pb.cumsum(self.linear(self.table(ids)), -1))


def _gradients(model: Any, ids: Tensor) -> list[Tensor]:
    model.zero_grad()
    y = model(ids)
    (y * y).sum().backward()
    return [_dense(p.grad) for p in model.parameters()]


def _dense(x: Any) -> Tensor:
    x = x.full_tensor() if hasattr(x, "full_tensor") else x
    return x.to_dense() if x.is_sparse else x


def training_faults(mesh: Any, rank: int, size: int) -> Iterator[str]:
    ids = torch.arange(4 * size).view(size, 4) * 5 % 12
    # Data parallel means are over ranks.
    wanted = [g / size for g in _gradients(Model(), ids)]
    models = {
        "DDP, sparse": DistributedDataParallel(Model(sparse=True)),
        "FSDP2": fully_shard(Model(), mesh=mesh),
    }
    for name, model in models.items():
        found = _gradients(model, ids[rank : rank + 1])
        if not all(torch.allclose(f, w, atol=1e-6) for f, w in zip(found, wanted, strict=True)):
            yield f"{name}: other gradients"
    alone = Model()
    expected, y = _gradients(alone, ids), alone(ids)
    for plan in (RowwiseParallel(input_layouts=Replicate()), ColwiseParallel()):
        model = parallelize_module(Model(), mesh, {"table": plan})
        name = type(plan).__name__
        out = model.table(ids)
        out = out.full_tensor() if hasattr(out, "full_tensor") else out
        if isinstance(plan, RowwiseParallel):
            if not torch.allclose(model(ids), y, atol=1e-6):
                yield f"{name}: other values"
            got = _gradients(model, ids)
            if not all(torch.allclose(g, w, atol=1e-6) for g, w in zip(got, expected, strict=True)):
                yield f"{name}: other gradients"
        elif out.shape[-1] != 8 // size or not torch.equal(
            out, alone.table(ids)[..., 8 // size * rank : 8 // size * (rank + 1)]
        ):
            yield f"{name}: other values"
    yield from compiled_faults(mesh, rank, size)
    yield from twice_faults(mesh, rank, size)
    yield from disagreement_faults(mesh, rank)


def compiled_faults(mesh: Any, rank: int, size: int) -> Iterator[str]:
    x = torch.randn(3, 4 * size, generator=torch.Generator().manual_seed(1))
    own = slice(4 * rank, 4 * rank + 4)
    call = torch.compile(lambda x: distributed.cumsum(x * 2, over=mesh), backend="aot_eager")
    part = x[:, own].clone().requires_grad_()
    found = call(part)
    found.sum().backward()
    wanted = pb.cumsum(torch.full_like(x, 2.0), reverse=True)[:, own]
    if not torch.equal(found, pb.cumsum(x * 2)[:, own]) or not torch.equal(part.grad, wanted):
        yield "a compiled part: other bits"


def _penalty(call: Any, x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient, and that of the sum of its squares."""
    (g,) = torch.autograd.grad(call(x), x, dy, create_graph=True)
    return g, torch.autograd.grad((g * g).sum(), x)[0]


def twice_faults(mesh: Any, rank: int, size: int) -> Iterator[str]:
    rng = torch.Generator().manual_seed(3)
    x, dy = (torch.randn(3, 3 * size, generator=rng, dtype=torch.float64) for _ in range(2))
    ids, ones = torch.arange(3 * size) % 4, torch.ones(4, 3, dtype=torch.float64)
    own = slice(3 * rank, 3 * rank + 3)
    for name in ("cumprod", "logcumsumexp", "softmax"):
        wanted = _penalty(getattr(pb, name), x.clone().requires_grad_(), dy)
        part = x[:, own].clone().requires_grad_()
        found = _penalty(partial(getattr(distributed, name), over=mesh), part, dy[:, own])
        if not all(torch.allclose(f, w[:, own]) for f, w in zip(found, wanted, strict=True)):
            yield f"{name}: other second derivatives"
    rows = x.T.contiguous()
    wanted = _penalty(lambda x: pb.segment_prod(x, ids, 4), rows.clone().requires_grad_(), ones)
    part = rows[own].clone().requires_grad_()
    found = _penalty(lambda x: distributed.segment_prod(x, ids[own], 4, over=mesh), part, ones)
    if not all(torch.allclose(f, w[own]) for f, w in zip(found, wanted, strict=True)):
        yield "segment_prod: other second derivatives"


def disagreement_faults(mesh: Any, rank: int) -> Iterator[str]:
    """Calls that differ between ranks, each of a function that has not been called before."""
    last = rank == dist.get_world_size() - 1
    ids, width, axis = torch.zeros(3).long(), 5 if last else 4, 7 if last else 1
    calls: list[tuple[str, Any, str]] = [
        ("segment_var", lambda f: f(torch.ones(3, width), ids, 1), "5]"),
        ("segment_mean", lambda f: f(torch.ones(3, 2), ids, 1 + last), "=2"),
        ("discounted_sum", lambda f: f(torch.ones(3, 2), 0.5, axis), "in [-2, 2), got 7"),
    ]
    for name, call, said in calls:
        try:
            call(partial(getattr(distributed, name), over=mesh))
            yield f"{name} called differently: no error"
        except pb.InvalidProblem as error:
            if said not in str(error) or f"rank {dist.get_world_size() - 1}" not in str(error):
                yield f"{name} called differently: {error}"
