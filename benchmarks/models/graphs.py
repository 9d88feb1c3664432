"""Graph networks of PyTorch Geometric, trained with and without this library.

    python benchmarks/models/graphs.py [--nodes N] [--degree N] [--width N] [--steps N] [names …]

Each model takes two layers over one random graph with the skew of real ones, then a loss and its
gradients: alternately as PyG stands and after `pullback.compat.torch_geometric.install()`. Prints
losses of both, the largest difference of gradients, and process time per step, in turns.
Needs `pip install torch_geometric`.
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
from torch_geometric import nn as layers

import pullback
from pullback.compat import torch_geometric as ours


def graph(nodes: int, degree: int) -> Tensor:
    """Edges from anywhere to nodes that are the more popular the smaller their number."""
    generator = torch.manual_seed(0)
    count = nodes * degree
    popular = (nodes * torch.rand(count // 2, generator=generator).pow(2.5)).long()
    even = torch.randint(nodes, (count - count // 2,), generator=generator)
    to = torch.cat([popular, even])
    return torch.stack([torch.randint(nodes, (count,), generator=generator), to])


def pna(width: int, edges: Tensor, nodes: int) -> Any:
    degrees = torch.bincount(torch.bincount(edges[1], minlength=nodes))
    kinds = {"aggregators": ["mean", "max", "min", "std"], "scalers": ["identity", "attenuation"]}
    return layers.PNAConv(width, width, deg=degrees, towers=1, **kinds)


MODELS: dict[str, Callable[[int, Tensor, int], Any]] = {
    "GCN": lambda width, _edges, _nodes: layers.GCNConv(width, width),
    "GAT": lambda width, _edges, _nodes: layers.GATConv(width, width // 4, heads=4),
    "SAGE mean": lambda width, _edges, _nodes: layers.SAGEConv(width, width),
    "SAGE max": lambda width, _edges, _nodes: layers.SAGEConv(width, width, aggr="max"),
    "PNA": pna,
}


def step(model: Any, x: Tensor, edges: Tensor, target: Tensor) -> tuple[float, Tensor]:
    """A loss and the gradients of all parameters."""
    model.zero_grad()
    h = x
    for layer in model:
        h = layer(h, edges).relu()
    loss = (h.mean(1) - target).square().mean()
    loss.backward()
    return float(loss.detach()), torch.cat([p.grad.flatten() for p in model.parameters()])


def run(name: str, nodes: int, degree: int, width: int, steps: int) -> float:
    """Time both in turns; the largest difference of gradients, relative to the largest."""
    edges = graph(nodes, degree)
    generator = torch.manual_seed(1)
    x = torch.randn(nodes, width, generator=generator)
    target = torch.randn(nodes, generator=generator)
    model = torch.nn.ModuleList([MODELS[name](width, edges, nodes) for _ in range(2)])
    times: tuple[list[float], list[float]] = ([], [])
    found: list[tuple[float, Tensor]] = []
    gc.disable()
    for turn in range(steps + 1):
        found = []
        for switch, taken in zip((ours.uninstall, ours.install), times, strict=True):
            switch()
            begin = time.process_time()
            found.append(step(model, x, edges, target))
            if turn:  # the first warms up
                taken.append(time.process_time() - begin)
        gc.collect()
    gc.enable()
    (theirs, wanted), (mine, got) = found
    worst = float((got - wanted).abs().max() / wanted.abs().max())
    slow, fast = (1e3 * median(taken) for taken in times)
    print(
        f"{name}: loss {mine:.6f} (PyG {theirs:.6f}), gradients differ by {worst:.1e}, "
        f"{fast:.0f} ms a step (PyG {slow:.0f} ms, {slow / fast:.2f}x)",
        flush=True,
    )
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", choices=[*MODELS, []], help="models, by default all")
    parser.add_argument("--nodes", type=int, default=50_000)
    parser.add_argument("--degree", type=int, default=10, help="edges to a node, in the mean")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    pullback.set_num_threads(asked.threads)
    sizes = (asked.nodes, asked.degree, asked.width, asked.steps)
    worst = max(run(name, *sizes) for name in asked.names or MODELS)
    return 0 if worst < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
