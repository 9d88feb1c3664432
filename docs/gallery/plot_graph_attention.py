"""
Graph attention on the karate club
==================================

A graph attention layer weighs the neighbours of each node by a softmax over its edges. That is
``segment_softmax`` over edges, and ``gather_segment_reduce`` for the weighted sum of neighbours: no
matrix of the size of edges times features is made, forward or backward.
"""

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import torch

import pullback as pb

graph = nx.karate_club_graph()
truth = torch.tensor([int(graph.nodes[n]["club"] != "Mr. Hi") for n in graph])
edges = torch.tensor([*graph.edges, *[(b, a) for a, b in graph.edges], *[(n, n) for n in graph]])
edges = edges[edges[:, 1].argsort(stable=True)]
source, target = edges.T.contiguous()
count = len(graph)


class Attention(torch.nn.Module):
    """One head."""

    def __init__(self, width_in, width_out):
        super().__init__()
        self.project = torch.nn.Linear(width_in, width_out, bias=False)
        self.score = torch.nn.Linear(width_out, 2, bias=False)

    def weights(self, h):
        sent, received = self.score(h).unbind(1)
        scores = torch.nn.functional.leaky_relu(sent[source] + received[target], 0.2)
        return pb.segment_softmax(scores, target, count, indices_are_sorted=True)

    def forward(self, x):
        h = self.project(x)
        given = dict(weights=self.weights(h), indices_are_sorted=True)
        return pb.gather_segment_reduce(h, source, target, count, **given)


# %%
# Two nodes are labelled: the instructor and the administrator. The rest is to be found.
torch.manual_seed(4)
first, second = Attention(count, 8), Attention(8, 2)
optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.02)
known, losses = torch.tensor([0, 33]), []
for _ in range(120):
    optimizer.zero_grad()
    logits = second(torch.tanh(first(torch.eye(count))))
    loss = torch.nn.functional.cross_entropy(logits[known], truth[known])
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
found = logits.argmax(1)
right = (found == truth).float().mean().item()
print(f"loss {losses[0]:.2f} to {losses[-1]:.4f}; {right:.0%} of the members are in the right club")
assert right > 0.8

# %%
# What the layer attends to: the width of an edge is its weight in the first layer.
weight = first.weights(first.project(torch.eye(count))).detach().numpy()
place = nx.spring_layout(graph, seed=3)
xy = np.array([place[n] for n in graph])
figure, axes = plt.subplots(figsize=(7, 5), layout="constrained")
for (a, b), w in zip(edges.tolist(), weight, strict=True):
    axes.plot(*xy[[a, b]].T, color="0.6", linewidth=4 * w, zorder=0)
axes.scatter(*xy.T, c=found, cmap="coolwarm", s=120, edgecolors="k")
axes.scatter(*xy[found != truth].T, marker="x", c="k", s=60)
axes.set(title="clubs found, attention as width; crosses are wrong", xticks=[], yticks=[])
plt.show()
