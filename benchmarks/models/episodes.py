"""Returns and generalised advantages of episodes, trained beside a plain PyTorch twin.

    python benchmarks/models/episodes.py [--size N] [--steps N]

CartPole of gymnasium is played at random for so many steps. `returns`: a value network is fitted to
discounted returns. `gae`: an actor and a critic, with generalised advantage estimates. Both are
`discounted_sum` over the episodes; the twin walks every episode backwards. Prints losses of both,
the largest difference of gradients, and process time per step, in turns. Needs
`pip install gymnasium`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
from sequences import Loss, train
from torch import Tensor

import pullback

DISCOUNT, DECAY = 0.99, 0.95
Sums = Callable[[Tensor, float, Tensor], Tensor]


@dataclass(frozen=True)
class Episodes:
    """Steps of all episodes, end to end."""

    states: Tensor
    following: Tensor
    actions: Tensor
    rewards: Tensor
    ended: Tensor
    offsets: Tensor


def played(size: int) -> Episodes:
    world = gymnasium.make("CartPole-v1")
    world.action_space.seed(0)
    rows, borders, state = [], [0], world.reset(seed=0)[0]
    while len(rows) < size:
        action = world.action_space.sample()
        after, reward, ended, cut, _ = world.step(action)
        rows.append((state, after, action, reward, ended))
        state = after
        if ended or cut or len(rows) == size:
            borders.append(len(rows))
            state = world.reset()[0]
    columns = zip(*rows, strict=True)
    states, following, actions, rewards, over = (np.array(column) for column in columns)
    return Episodes(
        torch.tensor(states, dtype=torch.float32),
        torch.tensor(following, dtype=torch.float32),
        torch.tensor(actions),
        torch.tensor(rewards, dtype=torch.float32),
        torch.tensor(over, dtype=torch.float32),
        torch.tensor(borders),
    )


def summed(values: Tensor, discount: float, offsets: Tensor) -> Tensor:
    return pullback.discounted_sum(values, discount, offsets=offsets)


def walked(values: Tensor, discount: float, offsets: Tensor) -> Tensor:
    """The same, step by step."""
    found = []
    for begin, end in zip(offsets.tolist(), offsets.tolist()[1:], strict=False):
        total, own = values.new_zeros(()), []
        for n in range(end - 1, begin - 1, -1):
            total = values[n] + discount * total
            own.append(total)
        found += own[::-1]
    return torch.stack(found)


def network(outputs: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, outputs)
    )


def returns(about: Episodes) -> tuple[torch.nn.Module, Loss, Loss]:
    """Rewards are shaped by the network too, so that gradients go through the sums."""

    def loss(sums: Sums) -> Loss:
        def of(model: torch.nn.Module) -> Tensor:
            value, shaping = model(about.states).unbind(1)
            goal = sums(about.rewards + 0.01 * shaping, DISCOUNT, about.offsets)
            return (value - goal / 50).square().mean()

        return of

    return network(2), loss(summed), loss(walked)


def gae(about: Episodes) -> tuple[torch.nn.Module, Loss, Loss]:
    """One network: a value, and the logits of two actions. Advantages keep their gradient."""

    def loss(sums: Sums) -> Loss:
        def of(model: torch.nn.Module) -> Tensor:
            found = model(about.states)
            value, after = found[:, 0], model(about.following)[:, 0] * (1 - about.ended)
            surprise = about.rewards + DISCOUNT * after - value
            advantage = sums(surprise, DISCOUNT * DECAY, about.offsets)
            chosen = found[:, 1:].log_softmax(1).gather(1, about.actions[:, None])[:, 0]
            return (0.5 * advantage.square() - chosen * advantage).mean() / 100

        return of

    return network(3), loss(summed), loss(walked)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--size", type=int, default=20_000, help="steps that are played")
    parser.add_argument("--steps", type=int, default=5)
    asked = parser.parse_args()
    episodes, worst = played(asked.size), 0.0
    print(f"{len(episodes.offsets) - 1} episodes of {asked.size} steps in all")
    for name, model in {"returns": returns, "gae": gae}.items():
        torch.manual_seed(5)
        worst = max(worst, train(name, *model(episodes), asked.steps))
    return 0 if worst < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
