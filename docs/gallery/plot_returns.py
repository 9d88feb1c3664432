"""
Returns of episodes
===================

Learning by policy gradient needs, for each step, the discounted rewards that follow in its own episode.
Episodes have different lengths; they lie end to end, and ``discounted_sum`` starts anew at each border.
The task is to balance a pole on a cart (the equations of Barto, Sutton and Anderson, 1983).
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import pullback as pb


def move(state, push):
    """A fiftieth of a second of cart and pole."""
    _, v, angle, spin = state.T
    force = np.where(push, 10.0, -10.0)
    common = (force + 0.05 * spin**2 * np.sin(angle)) / 1.1
    turn = (9.8 * np.sin(angle) - np.cos(angle) * common) / (
        0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1)
    )
    speed = common - 0.05 * turn * np.cos(angle) / 1.1
    return state + 0.02 * np.stack([v, speed, spin, turn], 1)


def play(policy, rng, count=16, limit=200):
    """Episodes side by side, given back end to end."""
    state, alive = rng.uniform(-0.05, 0.05, (count, 4)), np.ones(count, bool)
    seen, pushed, going = [], [], []
    for _ in range(limit):
        with torch.no_grad():
            chance = policy(torch.tensor(state, dtype=torch.float32)).sigmoid().numpy()[:, 0]
        push = rng.random(count) < chance
        seen.append(state)
        pushed.append(push)
        going.append(alive)
        state = np.where(alive[:, None], move(state, push), state)
        alive = alive & (np.abs(state[:, 0]) < 2.4) & (np.abs(state[:, 2]) < 0.21)
        if not alive.any():
            break
    going = np.stack(going, 1)
    states = np.stack(seen, 1)[going].astype(np.float32)
    offsets = np.concatenate([[0], going.sum(1).cumsum()])
    return torch.tensor(states), torch.tensor(np.stack(pushed, 1)[going]), torch.tensor(offsets)


# %%
# REINFORCE: every step is weighed by its return.
torch.manual_seed(0)
rng = np.random.default_rng(0)
policy = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer, lengths = torch.optim.Adam(policy.parameters(), lr=0.02), []
for _ in range(30):
    states, pushes, offsets = play(policy, rng)
    returns = pb.discounted_sum(torch.ones(len(states)), 0.98, offsets=offsets)
    weight = (returns - returns.mean()) / (returns.std() + 1e-6)
    logits = policy(states)[:, 0]
    losses = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, pushes.float(), reduction="none"
    )
    optimizer.zero_grad()
    (losses * weight).mean().backward()
    optimizer.step()
    lengths.append(offsets.diff().float().mean().item())

# %%
# The returns of one episode do not see the next one.
whole = pb.discounted_sum(torch.ones(len(states)), 0.98, offsets=offsets)
first = pb.discounted_sum(torch.ones(int(offsets[1])), 0.98)
assert torch.equal(whole[: offsets[1]], first)
print(f"mean length of an episode: {lengths[0]:.0f} at first, {lengths[-1]:.0f} in the end")
assert lengths[-1] > 1.5 * lengths[0]

figure, axes = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
axes[0].plot(lengths)
axes[0].set(title="steps until the pole falls", xlabel="update")
axes[1].plot(whole[: offsets[4]])
for border in offsets[1:4]:
    axes[1].axvline(border, color="0.7", linestyle=":")
axes[1].set(title="returns of four episodes, end to end", xlabel="step")
plt.show()
