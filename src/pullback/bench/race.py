"""Timing: all contestants in one process, in turns, in a new order each round."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from statistics import quantiles
from typing import Any

import numpy as np

Run = Callable[[], Any]


@dataclass(frozen=True)
class Effort:
    """How long a row may take. A contestant leaves when it has had `rounds` samples, or `seconds`
    and at least `least` samples, or ten times `seconds`; a sample lasts `sample` seconds or one
    call."""

    rounds: int = 15
    seconds: float = 0.12
    least: int = 3
    sample: float = 2e-4


FULL = Effort()
RATIO = Effort(rounds=101, seconds=0.6, least=7)  # two contestants alone
QUICK = Effort(rounds=7, seconds=0.08, least=2, sample=1e-4)


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median, and the quartiles around it."""

    median: float
    low: float
    high: float
    samples: int


Sampler = Callable[[int], float]
"""Runs a contestant this many times; the seconds that took."""


def race(
    runs: Mapping[str, Run], effort: Effort = FULL, slow: Collection[str] = ()
) -> dict[str, Timing]:
    """Time every contestant. All have run before: this is about the steady state. Those known to be
    `slow` are not tried out first."""
    samplers = {name: partial(sample, run) for name, run in runs.items()}
    repeats = {
        name: 1 if name in slow else calls_per_sample(sampler, effort.sample)
        for name, sampler in samplers.items()
    }
    tracked = gc.isenabled()
    gc.disable()
    try:
        samples = take_turns(samplers, repeats, effort)
    finally:
        if tracked:
            gc.enable()
    return {name: summary(times) for name, times in samples.items()}


def take_turns(
    samplers: Mapping[str, Sampler], repeats: Mapping[str, int], effort: Effort
) -> dict[str, list[float]]:
    """Seconds per call of each contestant, a sample a round, in a new order each round."""
    order = random.Random(0)
    names = list(samplers)
    samples: dict[str, list[float]] = {name: [] for name in names}
    spent = dict.fromkeys(names, 0.0)
    while names:
        order.shuffle(names)
        for name in names:
            took = samplers[name](repeats[name])
            samples[name].append(took / repeats[name])
            spent[name] += took
        names = [name for name in names if not _done(samples[name], spent[name], effort)]
    return samples


def _done(times: list[float], spent: float, effort: Effort) -> bool:
    enough = effort.seconds if len(times) >= effort.least else 10 * effort.seconds
    return len(times) >= effort.rounds or spent >= enough


def sample(run: Run, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return time.perf_counter() - start


def calls_per_sample(sampler: Sampler, seconds: float) -> int:
    """How many calls make a sample long against the clock."""
    took = sampler(1)
    if took < 10 * seconds:  # a short call is judged when it has found its caches
        took = sampler(1)
    if took >= seconds:
        return 1
    return max(1, int(seconds / max(sampler(8) / 8, 1e-7)))


def summary(times: list[float]) -> Timing:
    if len(times) < 2:
        return Timing(times[0], times[0], times[0], len(times))
    low, median, high = quantiles(times, n=4, method="inclusive")
    return Timing(median, low, high, len(times))


# --- the yardstick --------------------------------------------------------------------------------

# Below this, waking a second thread costs a copy more than it gives.
_WORTH_SPLITTING = 1 << 20


@cache
def _copiers(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads - 1)


def copy_of(nbytes: int, threads: int) -> Run:
    """A plain copy that reads and writes `nbytes` in all, on as many threads as everybody has."""
    half = max(nbytes // 2, 1)
    source, target = np.ones(half, np.uint8), np.zeros(half, np.uint8)
    if threads == 1 or nbytes < _WORTH_SPLITTING:
        return lambda: np.copyto(target, source)
    cuts = [half * part // threads // 64 * 64 for part in range(threads)] + [half]
    pieces = [(target[a:b], source[a:b]) for a, b in pairwise(cuts)]
    pool = _copiers(threads)

    def run() -> None:
        others = [pool.submit(np.copyto, *piece) for piece in pieces[1:]]
        np.copyto(*pieces[0])
        for other in others:
            other.result()

    return run
