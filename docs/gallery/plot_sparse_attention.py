"""
Attention maps: softmax, entmax, sparsemax
==========================================

Softmax gives every key some weight. Sparsemax and entmax give most of them none, and their gradients
are zero there too. The maps below attend from one handwritten digit to others by likeness.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits

import pullback as pb

images, labels = load_digits(return_X_y=True)
order = np.argsort(labels[:120], kind="stable")
images = torch.tensor(images[:120][order] / 16)
scores = images @ images.T * 1.5

# %%
# The map in between has an ``alpha`` of its own, which can be learned: it has a gradient.
maps = {
    "softmax": pb.softmax(scores),
    "entmax, alpha 1.25": pb.entmax(scores, 1.25),
    "entmax15": pb.entmax15(scores),
    "sparsemax": pb.sparsemax(scores),
}
for name, p in maps.items():
    assert torch.allclose(p.sum(-1), torch.ones(120, dtype=p.dtype))
    print(f"{name:20} {(p > 0).double().mean():.0%} of the weights are not zero")

figure, axes = plt.subplots(1, 4, figsize=(11, 3), layout="constrained")
for axis, (name, p) in zip(axes, maps.items(), strict=True):
    axis.imshow(p.sqrt(), cmap="magma")
    axis.set(title=name, xticks=[], yticks=[])
plt.show()

# %%
# A learned alpha: how sparse must attention be to find a digit of the same class?
same = torch.tensor(np.equal.outer(labels[:120][order], labels[:120][order]))
same.fill_diagonal_(False)
scores = scores.masked_fill(torch.eye(120, dtype=torch.bool), -torch.inf)
alpha = torch.full((1, 1), 1.1, dtype=torch.float64, requires_grad=True)
optimizer, path = torch.optim.Adam([alpha], lr=0.05), []
for _ in range(25):
    optimizer.zero_grad()
    wrong = pb.entmax(scores, alpha).masked_fill(same, 0).sum(-1).mean()
    wrong.backward()
    optimizer.step()
    path.append((alpha.item(), wrong.item()))
print(
    f"alpha {path[0][0]:.2f} to {path[-1][0]:.2f}, wrong mass {path[0][1]:.2f} to {path[-1][1]:.2f}"
)
assert path[-1][1] < path[0][1]

plt.figure(figsize=(5, 3), layout="constrained")
plt.plot(*np.array(path).T, ".-")
plt.xlabel("alpha")
plt.ylabel("weight on digits of another class")
plt.show()
