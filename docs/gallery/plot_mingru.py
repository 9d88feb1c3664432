"""
A minGRU on an electroencephalogram
===================================

A minimal gated recurrent unit keeps a share of its state and adds a share of a candidate, and neither
depends on the state. So the whole series is one ``linear_scan``, h[t] = a[t] h[t-1] + b[t], instead of
a loop over time. It learns to predict the next sample of four EEG channels from those before.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.cbook import get_sample_data

import pullback as pb

with get_sample_data("eeg.dat") as file:
    series = np.frombuffer(file.read(), np.float64).reshape(800, 4)
series = torch.tensor((series - series.mean(0)) / series.std(0), dtype=torch.float32)


class MinGRU(torch.nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.gates = torch.nn.Linear(channels, 2 * width)
        self.read = torch.nn.Linear(width, channels)
        torch.nn.init.zeros_(self.read.weight)  # at first: the next sample is like the last

    def forward(self, x, state=None):
        update, candidate = self.gates(x).chunk(2, -1)
        update = update.sigmoid()
        h = pb.linear_scan(1 - update, update * candidate, axis=0, initial=state)
        return x + self.read(h), h[-1]  # what changes is learned


# %%
# Trained on the first 600 samples.
torch.manual_seed(0)
model = MinGRU(4, 24)
optimizer, losses = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=1.0), []
for _ in range(60):
    optimizer.zero_grad()
    predicted, _ = model(series[:599])
    loss = (predicted - series[1:600]).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

# %%
# A series may be cut: the state that one part ends with is what the next begins with (``initial``).
with torch.no_grad():
    whole, _ = model(series)
    start, state = model(series[:300])
    rest, _ = model(series[300:], state)
assert torch.allclose(torch.cat([start, rest]), whole, atol=1e-5)

error = (whole[600:-1] - series[601:]).square().mean().item()
last = (series[600:-1] - series[601:]).square().mean().item()
print(f"squared error on unseen samples: {error:.3f}; repeating the last sample: {last:.3f}")

figure, axes = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
axes[0].semilogy(losses)
axes[0].set(title="training", xlabel="step", ylabel="squared error")
axes[1].plot(np.arange(620, 700), series[620:700, 0], label="measured")
axes[1].plot(np.arange(620, 700), whole[619:699, 0], label="predicted from before")
axes[1].set(title="first channel, unseen part", xlabel="sample")
axes[1].legend()
plt.show()
assert error < last
