"""Segments in parts over processes, for tests/ranks.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import pullback as pb
from pullback import distributed

# What every way of cutting is run with: a sum, positions, rows in the result, two numbers.
NAMES = ("segment_sum", "segment_max", "segment_log_softmax", "segment_std")


def segment_faults(mesh: Any, rank: int, size: int) -> Iterator[str]:
    yield from error_faults(mesh, rank, size)
    torch.manual_seed(2)
    x = torch.randn(40, 3)
    some = torch.randint(0, 9, (40,))
    some[some == 4], some[3] = 3, -5
    borders = [0, 5, 5, 30, 40] if size == 4 else [0, 13, 40]
    own = slice(borders[rank], borders[rank + 1])
    for by, ids in (("rows", some), ("segments", some), ("borders", some.sort().values)):
        for name in NAMES:
            whole, part = x.clone().requires_grad_(), x[own].clone().requires_grad_()
            options: dict[str, Any] = {"out_of_range": "skip"}
            if name == "segment_max":
                options["return_indices"] = True
            wanted = _first(getattr(pb, name)(whole, ids, 10, **options))
            dy = torch.randn(wanted[0].shape)
            wanted[0].backward(dy)
            found = _first(
                getattr(distributed, name)(part, ids[own], 10, over=mesh, by=by, **options)
            )
            at = own if wanted[0].shape == x.shape else _part(found[0], by, rank)
            found[0].backward(dy[at].contiguous())
            assert whole.grad is not None
            assert part.grad is not None
            # Rows that were routed are summed as on one machine.
            same = _near if by == "rows" else torch.equal
            pairs = zip(found, wanted, strict=True)
            if not all(same(f, w[at]) for f, w in pairs) or not same(part.grad, whole.grad[own]):
                yield f"{name} by {by}: other values"


def error_faults(mesh: Any, rank: int, size: int) -> Iterator[str]:
    """What the last rank finds wrong with its ids, all raise, with one sentence; none waits."""
    last = rank == size - 1
    x, ids, edges = torch.ones(3, 2), torch.zeros(3).long(), torch.arange(3)
    wrong, lower = (torch.tensor([n, 1, 0]) if last else ids for n in (9, 3))
    share = size * 2 + 1 if last else 0
    sums, graph = distributed.segment_sum, distributed.gather_segment_reduce
    calls: list[tuple[str, Any, str]] = [
        ("rows", lambda: sums(x, wrong, 4, over=mesh), "9 at position 0"),
        ("segments", lambda: sums(x, wrong, 4, over=mesh, by="segments"), "9 at position 0"),
        ("order", lambda: sums(x, lower, 4, over=mesh, indices_are_sorted=True), "1 at position 1"),
        ("exact", lambda: sums(x, wrong, 4, over=mesh, exact=True), "9 at position"),
        ("table", lambda: distributed.embedding(x, wrong + share, over=mesh), "at position"),
        ("graph", lambda: graph(x, edges, wrong, 4, over=mesh), "9 at position 0"),
        ("bag", lambda: distributed.embedding_bag(
            x, edges, torch.tensor([0, 7 if last else 1]), over=mesh), f"on rank {size - 1}"),
    ]  # fmt: skip
    for name, call, said in calls:
        try:
            call()
            own = "no error"
        except pb.InvalidProblem as error:
            own = str(error)
        sentences: list[Any] = [None] * size
        dist.all_gather_object(sentences, own)
        if said not in own or len(set(sentences)) != 1:
            yield f"bad ids, {name}: {sentences}"
    graph(x, edges, ids, 4, over=mesh)  # ranks go on together


def _first(results: Any) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def _near(found: Tensor, wanted: Tensor) -> bool:
    return torch.allclose(found, wanted, rtol=1e-6, atol=1e-6)


def _part(found: Tensor, by: str, rank: int) -> slice:
    """Which segments a rank has."""
    if by == "rows":
        return slice(None)
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.tensor([found.shape[0]]))
    begin = sum(int(n) for n in counts[:rank])
    return slice(begin, begin + found.shape[0])
