"""
Superpixels with gradients
==========================

Pixels of like colour that lie together are one superpixel, whose colour is the mean of its pixels:
``segment_mean``. Being differentiable, it may stand inside a loss: here the offsets of the pixels in a
photograph are found that make its superpixels have given colours, with the smallest change.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_sample_image

import pullback as pb

image = torch.tensor(load_sample_image("china.jpg")[::4, ::4] / 255, dtype=torch.float32)
height, width, _ = image.shape
pixels = image.reshape(-1, 3)

# %%
# Clustering by colour and place, from a grid, as SLIC does: means of segments, and each pixel to the
# nearest of the centres around it.
grid = 12
y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
home = (y * grid // height) * grid + x * grid // width
points = torch.cat([pixels, 0.25 * torch.stack([y, x], -1).reshape(-1, 2) / (width / grid)], 1)
near = torch.tensor([[a, b] for a in (-1, 0, 1) for b in (-1, 0, 1)])
cell = torch.stack([home // grid, home % grid], -1).reshape(-1, 1, 2) + near
cell = cell.clamp(0, grid - 1)
candidates = cell[..., 0] * grid + cell[..., 1]
labels = home.reshape(-1)
for _ in range(8):
    centres = pb.segment_mean(points, labels, grid**2)
    distance = (points[:, None] - centres[candidates]).square().sum(-1)
    labels = candidates.gather(1, distance.argmin(1, keepdim=True))[:, 0]
index = pb.prepare_segments(labels, grid**2)  # used many times below
means = pb.segment_mean(pixels, index)
spread = pb.segment_std(pixels, index).mean()
print(
    f"{len(labels.unique())} superpixels; deviation inside them {spread:.3f}, of all {pixels.std():.3f}"
)
assert spread < pixels.std()

# %%
# A loss over superpixels: make them grey, and change the pixels as little as possible. The gradient of
# a mean spreads over the pixels of its segment.
wanted = means.mean(1, keepdim=True).expand(-1, 3)
change = torch.zeros_like(pixels, requires_grad=True)
optimizer = torch.optim.SGD([change], lr=10.0)
losses = []
for _ in range(40):
    optimizer.zero_grad()
    loss = (pb.segment_mean(pixels + change, index) - wanted).square().sum()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.3f} to {losses[-1]:.5f}")
assert losses[-1] < 0.2 * losses[0]

changed = (pixels + change.detach()).clamp(0, 1)
figure, axes = plt.subplots(1, 3, figsize=(12, 3.2), layout="constrained")
for axis, colours, title in (
    (axes[0], pixels, "photograph"),
    (axes[1], means[labels], "its superpixels"),
    (axes[2], changed, "superpixels made grey, details kept"),
):
    axis.imshow(np.asarray(colours).reshape(height, width, 3))
    axis.set(title=title, xticks=[], yticks=[])
plt.show()
