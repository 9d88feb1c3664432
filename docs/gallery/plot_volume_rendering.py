"""
Rendering a volume along rays of different lengths
==================================================

A ray collects the colour of its samples, each seen through all samples before it: the transmittance
is an exclusive running product, along pieces of different lengths. No padding: ``offsets`` says where
each ray begins. The scene is a landscape, elevations around a fault at Jacksboro, Tennessee.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.cbook import get_sample_data

import pullback as pb

with get_sample_data("jacksboro_fault_dem.npz") as scene:
    height = torch.tensor(scene["elevation"].astype(np.float32))
height = (height - height.min()) / (height.max() - height.min())
rows, columns = height.shape

# %%
# Rays go from a camera in the south over the land. Those that look down leave the box early: rays have
# from a few to 200 samples.
columns_seen, lines_seen = 240, 120
across = torch.linspace(0, columns - 1, columns_seen)
slopes = torch.linspace(-0.020, 0.004, lines_seen)
steps = torch.arange(200.0)
depth = 1.5 * steps
altitude = 1.6 + slopes[:, None] * depth
inside = (altitude > 0) & (altitude < 1.75)
lengths = inside.sum(1)
print(f"rays of {lengths.min()} to {lengths.max()} samples, {lengths.sum() * columns_seen} in all")

line, step = inside.nonzero().T
north = rows - 1 - depth[step].clamp(max=rows - 1)
spread = (0.35 + 0.65 * depth[step] / depth[-1])[None]
east = ((across - columns / 2)[:, None] * spread + columns / 2).long().clamp(0, columns - 1)
ground = height[north.long()[None].expand_as(east), east]
offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])


def render(ground):
    """Density is high below ground; what is left of the light is the sky's."""
    passed = torch.exp(-3 * torch.sigmoid(40 * (ground - altitude[line, step])))
    light = pb.cumprod(passed, 1, exclusive=True, offsets=offsets)
    weight = light * (1 - passed)
    return [
        pb.segment_sum(weight * value, offsets=offsets, axis=1).T
        for value in (1, ground, depth[step].expand_as(ground) / depth[-1])
    ]


opacity, elevation, distance = render(ground)
assert opacity.max() <= 1 + 1e-5

# %%
# The gradient of one pixel's distance says which samples matter to it: those around the surface. Raising
# the ground there brings it nearer.
leaf = ground.clone().requires_grad_()
render(leaf)[2][60, 120].backward()
begin, end = offsets[60], offsets[61]
assert 0 < leaf.grad.count_nonzero() <= end - begin

figure, axes = plt.subplots(1, 3, figsize=(12, 3), layout="constrained")
for axis, picture, title in (
    (axes[0], torch.where(opacity > 0.5, elevation, torch.nan), "elevation seen"),
    (axes[1], torch.where(opacity > 0.5, distance, torch.nan), "distance"),
):
    axis.imshow(picture, origin="lower", cmap="terrain", aspect="auto")
    axis.set(title=title, xticks=[], yticks=[])
axes[2].plot(depth[: end - begin], leaf.grad[120, begin:end])
axes[2].set(title="gradient along one ray", xlabel="distance")
plt.show()
