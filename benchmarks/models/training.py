"""Parts of training loops beside PyTorch and JAX: sparse tables, averaged weights, segment sums.

    python benchmarks/models/training.py [--turns N] [--size N] [names …]

`bag`: forward and backward of a sparse `EmbeddingBag`, and the same with the step of `SparseAdam`,
which needs rows without duplicates: PyTorch leaves summing them to the optimiser, ours come summed
up. `dlrm`: the same of a recommender with eight tables, whose losses and gradients must agree.
`average`: `lerp` with `out=` over 200 small tensors. `jax`: a sum over unsorted segments under
`jax.jit`. Prints process time of the other, and how many times faster ours is, medians, in turns.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pullback
import pullback.torch

Call = Callable[[], object]
TABLES, WIDTH = 8, 32


class Recommender(torch.nn.Module):  # type: ignore[misc]
    """DLRM: bags of categories and a layer of numbers, their products in pairs, a layer on top."""

    def __init__(self, make: type[torch.nn.EmbeddingBag], rows: int) -> None:
        super().__init__()
        bags = [make(rows, WIDTH, mode="sum", sparse=True) for _ in range(TABLES)]
        self.bags = torch.nn.ModuleList(bags)
        self.below = torch.nn.Linear(13, WIDTH)
        self.above = torch.nn.Linear(WIDTH + (TABLES + 1) * TABLES // 2, 1)

    def forward(self, numbers: Tensor, ids: list[Tensor], offsets: Tensor) -> Tensor:
        first = self.below(numbers).relu()
        found = [bag(part, offsets) for bag, part in zip(self.bags, ids, strict=True)]
        every = torch.stack([first, *found], 1)
        i, j = torch.triu_indices(TABLES + 1, TABLES + 1, 1)
        pairs = (every @ every.mT)[:, i, j]
        return self.above(torch.cat([first, pairs], 1))[:, 0]


def skewed(count: int, rows: int) -> Tensor:
    """Ids with the skew of categories: few are frequent."""
    return (rows ** torch.rand(count, dtype=torch.float64) - 1).long().clamp(0, rows - 1)


def steps(loss: Callable[[], Tensor], model: torch.nn.Module, tables: list[Tensor]) -> list[Call]:
    """Forward and backward, and the same with a step of the optimiser."""
    optimiser = torch.optim.SparseAdam(tables, lr=1e-3)

    def gradient() -> None:
        model.zero_grad(set_to_none=True)
        loss().backward()

    def step() -> None:
        gradient()
        optimiser.step()

    return [gradient, step]


def bag(size: int) -> Iterator[tuple[str, Call, Call]]:
    ids, offsets = skewed(20 * size, 50 * size), torch.arange(0, 20 * size, 20)
    given = torch.randn(size, 64)
    plain = torch.nn.EmbeddingBag(50 * size, 64, mode="sum", sparse=True)
    ours = pullback.torch.nn.EmbeddingBag(50 * size, 64, mode="sum", sparse=True)
    ours.load_state_dict(plain.state_dict())
    pairs = [
        steps(lambda m=module: (m(ids, offsets) * given).sum(), module, [module.weight])  # type: ignore[misc]
        for module in (plain, ours)
    ]
    titles = ("sparse bag, forward and backward", "sparse bag, with SparseAdam")
    yield from zip(titles, *pairs, strict=True)
    agree("sparse bag", [(plain.weight.grad, ours.weight.grad)])


def dlrm(size: int) -> Iterator[tuple[str, Call, Call]]:
    rows, offsets = 20 * size, torch.arange(0, 5 * size, 5)
    ids = [skewed(5 * size, rows) for _ in range(TABLES)]
    numbers, clicks = torch.randn(size, 13), (torch.rand(size) < 0.3).float()
    plain = Recommender(torch.nn.EmbeddingBag, rows)
    ours = Recommender(pullback.torch.nn.EmbeddingBag, rows)
    ours.load_state_dict(plain.state_dict())

    def loss(model: torch.nn.Module) -> Tensor:
        found = model(numbers, ids, offsets)
        return torch.nn.functional.binary_cross_entropy_with_logits(found, clicks)

    pairs = [
        steps(lambda m=model: loss(m), model, [b.weight for b in model.bags])  # type: ignore[misc]
        for model in (plain, ours)
    ]
    for calls in zip(*pairs, strict=True):
        for call in calls:
            call()
    both = zip(plain.parameters(), ours.parameters(), strict=True)
    agree("dlrm", [(p.grad, q.grad) for p, q in both])
    titles = ("dlrm, forward and backward", "dlrm, with SparseAdam")
    yield from zip(titles, *pairs, strict=True)
    losses = loss(plain).item(), loss(ours).item()
    if not np.isclose(*losses, rtol=1e-4):
        raise AssertionError(f"dlrm: losses {losses}")


def average(size: int) -> Iterator[tuple[str, Call, Call]]:
    shapes = [(max(size // 64, 1), 1 + n % 64) for n in range(200)]
    means, weights = ([torch.randn(shape) for shape in shapes] for _ in range(2))

    def plain() -> None:
        for mean, weight in zip(means, weights, strict=True):
            mean.lerp_(weight, 0.01)

    def ours() -> None:
        for mean, weight in zip(means, weights, strict=True):
            pullback.lerp(mean, weight, 0.01, out=mean)

    yield "lerp with out= over 200 tensors", plain, ours


def jax(size: int) -> Iterator[tuple[str, Call, Call]]:
    import jax as library

    rng = np.random.default_rng(0)
    ids = library.numpy.asarray(rng.integers(0, size, 20 * size).astype(np.int32))
    plain = library.jit(lambda x, ids: library.ops.segment_sum(x, ids, size))
    ours = library.jit(lambda x, ids: pullback.segment_sum(x, ids, num_segments=size))
    for width in (1, 16, 64):
        x = library.numpy.asarray(rng.standard_normal((20 * size, width), dtype=np.float32))
        np.testing.assert_allclose(plain(x, ids), ours(x, ids), atol=1e-4)

        def done(call: Callable[..., object], x: object = x) -> Call:
            return lambda: library.block_until_ready(call(x, ids))

        yield f"unsorted segment sum of {width} under jax.jit", done(plain), done(ours)


def agree(name: str, pairs: list[tuple[Any, Any]]) -> None:
    """Gradients are those of PyTorch, to 1e-5 of the largest."""
    for theirs, ours in pairs:
        ours, theirs = ours.to_dense(), theirs.to_dense()
        bound = 1e-5 * theirs.abs().max().item()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=bound)
    print(f"{name}: gradients agree", flush=True)


def ratio(theirs: Call, ours: Call, turns: int) -> tuple[float, float]:
    """Milliseconds of the other, and how many times faster ours is."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns + 1):
        for call, taken in zip((theirs, ours), times, strict=True):
            begin = time.process_time()
            call()
            if turn:
                taken.append(time.process_time() - begin)
    plain, mine = map(median, times)
    return 1e3 * plain, plain / mine


def main() -> int:
    rows = {"bag": bag, "dlrm": dlrm, "average": average, "jax": jax}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", choices=[[], *rows], metavar="names")
    parser.add_argument("--turns", type=int, default=31)
    parser.add_argument("--size", type=int, default=2048)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    pullback.set_num_threads(1)
    torch.manual_seed(0)
    for name in asked.names or rows:
        for title, theirs, ours in rows[name](asked.size):
            milliseconds, times = ratio(theirs, ours, asked.turns)
            print(f"{title:40} {milliseconds:10.4f} ms {times:6.2f}x", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
