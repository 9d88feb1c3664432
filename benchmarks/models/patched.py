"""PyTorch with and without `pullback.patch.torch()`: training of embeddings, and every op patched.

    python benchmarks/models/patched.py [--turns N] [--threads N] [names …]

Prints, for each row whose name contains one of the names, process time of PyTorch over process
time when patched, medians, in turns. "small" rows are below the size from which on an op is served.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import pullback
import pullback.patch

Call = Callable[[], Any]


def skewed(count: int, size: int) -> Tensor:
    """Ids with the skew of words in a text."""
    shares = torch.rand(count, generator=torch.manual_seed(0), dtype=torch.float64)
    return (size**shares - 1).long().clamp(0, size - 1)


def embedding(rows: int, width: int, count: int) -> Call:
    """A step of training: lookup, a loss, the gradient of the table."""
    table, ids = torch.randn(rows, width).requires_grad_(), skewed(count, rows)
    given = torch.randn(count, width)

    def step() -> None:
        table.grad = None
        functional.embedding(ids, table).backward(given)

    return step


def bags(rows: int, width: int, count: int, mode: str, shares: bool = False) -> Call:
    table, ids = torch.randn(rows, width).requires_grad_(), skewed(count, rows)
    starts = torch.arange(0, count, 20)
    given = torch.randn(len(starts), width)
    weights = torch.rand(count).requires_grad_() if shares else None

    def step() -> None:
        table.grad = None
        functional.embedding_bag(
            ids, table, starts, mode=mode, per_sample_weights=weights
        ).backward(given)

    return step


def unary(name: str, dim: int, *shape: int) -> Call:
    x, function = torch.rand(shape) + 0.5, getattr(torch, name)
    return lambda: function(x, dim)


def added(name: str, rows: int, width: int, count: int) -> Call:
    base, source, ids = torch.zeros(rows, width), torch.randn(count, width), skewed(count, rows)
    if name == "index_add":
        return lambda: base.index_add(0, ids, source)
    wide = ids[:, None].expand(count, width)
    return lambda: base.scatter_add(0, wide, source)


def reduced(kind: str, count: int, width: int) -> Call:
    x, lengths = torch.rand(count, width), torch.full((count // 10,), 10)
    return lambda: torch.segment_reduce(x, kind, lengths=lengths)


def rows() -> dict[str, Callable[[], Call]]:
    found: dict[str, Callable[[], Call]] = {
        "train embedding 20000x64, 32768 ids": lambda: embedding(20_000, 64, 32_768),
        "train embedding 50000x256, 65536 ids": lambda: embedding(50_000, 256, 65_536),
        "train embedding 30000x512, 16384 ids": lambda: embedding(30_000, 512, 16_384),
        "train embedding 1000000x64, 4096 ids": lambda: embedding(1_000_000, 64, 4096),
        "train embedding small 1000x16, 512 ids": lambda: embedding(1000, 16, 512),
        "train bag sum 50000x64, 65536 ids": lambda: bags(50_000, 64, 65_536, "sum"),
        "train bag mean 50000x64, 65536 ids": lambda: bags(50_000, 64, 65_536, "mean"),
        "train bag weighted 50000x64, 65536 ids": lambda: bags(50_000, 64, 65_536, "sum", True),
    }
    for name in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"):
        for dim, shape in ((0, (512, 4096)), (1, (512, 4096)), (1, (2048, 64)), (0, (131_072,))):
            title = f"{name} {'x'.join(map(str, shape))} along {dim}"
            found[title] = lambda n=name, d=dim, s=shape: unary(n, d, *s)  # type: ignore[misc]
        found[f"{name} small 8x64"] = lambda n=name: unary(n, 1, 8, 64)  # type: ignore[misc]
    for name in ("index_add", "scatter_add"):
        for at in (
            (10_000, 16, 200_000),
            (10_000, 128, 50_000),
            (1000, 8, 70_000),
            (9, 32, 17_000),
        ):
            title = f"{name} {at[2]}x{at[1]} into {at[0]}"
            found[title] = lambda n=name, a=at: added(n, *a)  # type: ignore[misc]
        title = f"{name} small 100x8 into 50"
        found[title] = lambda n=name: added(n, 50, 8, 100)  # type: ignore[misc]
    for kind in ("sum", "mean", "max", "min", "prod"):
        found[f"segment_reduce {kind} 100000x16"] = lambda k=kind: reduced(k, 100_000, 16)  # type: ignore[misc]
    found["not patched: softmax 8x64"] = lambda: unary("softmax", 1, 8, 64)
    found["not patched: exp 8x64"] = lambda: (lambda x: lambda: torch.exp(x))(torch.rand(8, 64))
    return found


def ratio(call: Call, turns: int) -> tuple[float, float]:
    """Milliseconds of PyTorch, and how many times faster it is when patched."""
    call()
    begin = time.process_time()
    call()
    repeats = max(1, int(2e-3 / max(time.process_time() - begin, 1e-7)))
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns + 1):
        for patched, taken in enumerate(times):
            patch = pullback.patch.torch() if patched else None
            begin = time.process_time()
            for _ in range(repeats):
                call()
            if turn:
                taken.append((time.process_time() - begin) / repeats)
            if patch is not None:
                patch.restore()
        gc.collect()
    plain, ours = (median(taken) for taken in times)
    return 1e3 * plain, plain / ours


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    pullback.set_num_threads(asked.threads)
    for title, make in rows().items():
        if not asked.names or any(name in title for name in asked.names):
            milliseconds, times = ratio(make(), asked.turns)
            print(f"{title:45} {milliseconds:10.4f} ms {times:6.2f}x", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
