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
