"""Models over pieces of different lengths, trained beside a plain PyTorch twin.

    python benchmarks/models/sequences.py [--size N] [--steps N]

`returns`: discounted returns of episodes (`discounted_sum` with offsets). `mingru`: a minGRU layer
(`linear_scan`). `cox`: a Cox model with strata (`logcumsumexp` with offsets). `rays`: volume
rendering of rays with as many samples each as they have (`cumprod`, exclusive, and `segment_sum`
with offsets). Each prints losses of both, the largest difference of gradients, and process time per
step, in turns.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

import pullback

Loss = Callable[[torch.nn.Module], Tensor]


def pieces(size: int, mean: int) -> Tensor:
    """Borders of pieces of random lengths, `size` positions in all."""
    cuts = torch.randint(1, size, (max(size // mean, 1),), generator=torch.manual_seed(0))
    return torch.cat([torch.tensor([0]), cuts.unique(), torch.tensor([size])])


def returns(size: int) -> tuple[torch.nn.Module, Loss, Loss]:
    offsets, rewards = pieces(size, 50), torch.rand(size)
    states = torch.randn(size, 8, generator=torch.manual_seed(1))

    def ours(model: torch.nn.Module) -> Tensor:
        shaped = rewards + 0.1 * model(states)[:, 0]
        return pullback.discounted_sum(shaped, 0.9, offsets=offsets).square().mean()

    def plain(model: torch.nn.Module) -> Tensor:
        shaped, found = rewards + 0.1 * model(states)[:, 0], []
        for begin, end in zip(offsets.tolist(), offsets.tolist()[1:], strict=False):
            total = shaped.new_zeros(())
            for n in range(end - 1, begin - 1, -1):
                total = shaped[n] + 0.9 * total
                found.append(total)
        return torch.stack(found).square().mean()

    return torch.nn.Linear(8, 1), ours, plain


def mingru(size: int) -> tuple[torch.nn.Module, Loss, Loss]:
    length, width = max(size // 8, 2), 8
    x = torch.randn(4, length, width, generator=torch.manual_seed(2))

    def gates(model: torch.nn.Module) -> tuple[Tensor, Tensor]:
        update, candidate = model(x).chunk(2, -1)
        return 1 - update.sigmoid(), update.sigmoid() * candidate

    def ours(model: torch.nn.Module) -> Tensor:
        return (pullback.linear_scan(*gates(model), axis=1) - x).square().mean()

    def plain(model: torch.nn.Module) -> Tensor:
        keep, new = gates(model)
        state, found = torch.zeros_like(new[:, 0]), []
        for n in range(length):
            state = keep[:, n] * state + new[:, n]
            found.append(state)
        return (torch.stack(found, 1) - x).square().mean()

    return torch.nn.Linear(width, 2 * width), ours, plain


def cox(size: int) -> tuple[torch.nn.Module, Loss, Loss]:
    """Rows are sorted by time within each stratum; those at risk are a row and all after it."""
    offsets = pieces(size, 200)
    x = torch.randn(size, 6, generator=torch.manual_seed(3))
    events = torch.rand(size, generator=torch.manual_seed(4)) < 0.7

    def ours(model: torch.nn.Module) -> Tensor:
        risk = model(x)[:, 0]
        at_risk = pullback.logcumsumexp(risk, reverse=True, offsets=offsets)
        return (at_risk - risk)[events].mean()

    def plain(model: torch.nn.Module) -> Tensor:
        risk, found = model(x)[:, 0], []
        for begin, end in zip(offsets.tolist(), offsets.tolist()[1:], strict=False):
            found.append(risk[begin:end].flip(0).logcumsumexp(0).flip(0))
        return (torch.cat(found) - risk)[events].mean()

    return torch.nn.Linear(6, 1, bias=False), ours, plain


def rays(size: int) -> tuple[torch.nn.Module, Loss, Loss]:
    """Colours of rays: each sample's, by its opacity and by the light that comes through to it."""
    offsets = pieces(size, 30)
    counts = offsets.diff()
    x = torch.randn(size, 6, generator=torch.manual_seed(6))
    target = torch.rand(len(counts), 3, generator=torch.manual_seed(7))

    def samples(model: torch.nn.Module) -> tuple[Tensor, Tensor]:
        found = model(x)
        return 1 - torch.exp(-torch.nn.functional.softplus(found[:, 0])), found[:, 1:].sigmoid()

    def ours(model: torch.nn.Module) -> Tensor:
        opacity, colour = samples(model)
        through = pullback.cumprod(1 - opacity, exclusive=True, offsets=offsets)
        seen = (through * opacity)[:, None] * colour
        return (pullback.segment_sum(seen, offsets=offsets) - target).square().mean()

    def plain(model: torch.nn.Module) -> Tensor:
        """Rays padded to the longest."""
        opacity, colour = samples(model)
        present = torch.arange(int(counts.max())) < counts[:, None]
        padded = torch.ones(present.shape).masked_scatter(present, 1 - opacity)
        before = torch.cat([torch.ones(len(counts), 1), padded[:, :-1]], 1).cumprod(1)
        seen = (before[present] * opacity)[:, None] * colour
        rows = torch.repeat_interleave(torch.arange(len(counts)), counts)
        return (torch.zeros(len(counts), 3).index_add(0, rows, seen) - target).square().mean()

    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    return model, ours, plain


MODELS = {"returns": returns, "mingru": mingru, "cox": cox, "rays": rays}


def train(name: str, model: torch.nn.Module, ours: Loss, plain: Loss, steps: int) -> float:
    """Train both; the largest difference of gradients over all steps, relative to the largest."""
    optimizer, worst, losses = torch.optim.SGD(model.parameters(), 0.05), 0.0, (0.0, 0.0)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(steps):
        gradients, values = [], []
        for loss, taken in zip((plain, ours), times, strict=True):
            optimizer.zero_grad()
            begin = time.process_time()
            value = loss(model)
            value.backward()
            taken.append(time.process_time() - begin)
            values.append(float(value))
            gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        worst = max(
            worst, float((gradients[0] - gradients[1]).abs().max() / gradients[0].abs().max())
        )
        losses = values[0], values[1]
        optimizer.step()
    slow, fast = (1e3 * median(taken) for taken in times)
    print(
        f"{name}: loss {losses[1]:.6f} (PyTorch {losses[0]:.6f}), gradients differ by {worst:.1e}, "
        f"{fast:.2f} ms a step (PyTorch {slow:.2f} ms, {slow / max(fast, 1e-9):.1f}x)"
    )
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--size", type=int, default=20_000, help="positions")
    parser.add_argument("--steps", type=int, default=5)
    asked = parser.parse_args()
    worst = 0.0
    for name, model in MODELS.items():
        torch.manual_seed(5)
        worst = max(worst, train(name, *model(asked.size), asked.steps))
    return 0 if worst < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
