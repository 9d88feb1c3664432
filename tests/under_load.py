"""What the processes of test_under_load.py do: module-level functions, since some are spawned."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import pullback as pb

RNG = np.random.default_rng(3)
X = RNG.normal(size=(37, 53)).astype(np.float32)
LONG = RNG.normal(size=400_000).astype(np.float32)
IDS = RNG.integers(0, 11, 37)

CALLS: dict[str, Any] = {
    "cumsum": lambda: pb.cumsum(X, 0),
    "cumsum of a long row": lambda: pb.cumsum(LONG),
    "softmax": lambda: pb.softmax(X),
    "segment_sum": lambda: pb.segment_sum(X, IDS, 11),
    "segment_sum into": lambda: pb.segment_sum(X, IDS, 11, out=np.empty((11, 53), np.float32)),
}


def bits() -> dict[str, bytes]:
    return {name: call().tobytes() for name, call in CALLS.items()}


def check(seed: int, known: dict[str, bytes], rounds: int = 40) -> int:
    """Random calls, each with the bits that are known."""
    rng = random.Random(seed)
    for _ in range(rounds):
        name = rng.choice(list(CALLS))
        assert CALLS[name]().tobytes() == known[name], name
    return seed


def long_sum(count: int = 1 << 27) -> Any:
    """A call of about a second. Rows that are all the same element take no memory."""
    rows, ids = np.broadcast_to(np.float32(1), (count,)), np.broadcast_to(np.int32(0), (count,))
    return pb.segment_sum(rows, ids, 1, indices_are_sorted=True)


class Sums:
    """A data set whose items are running sums."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        import torch

        return pb.cumsum(torch.full((500, 40), float(index)), 0)
