"""What a visitor wants to know first: how fast against each peer, where not, and who is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from statistics import median

from pullback.bench.results import INTO, OURS, Results, RowResult


@dataclass(frozen=True)
class Standing:
    """A peer over all rows that it answers rightly."""

    peer: str
    rows: int
    median: float
    worst: float
    best: float
    behind: int
    wrong: int


@dataclass(frozen=True)
class Behind:
    """A row where a peer is faster, and the seconds of both under one rule of allocation."""

    row: RowResult
    peer: str
    times: float
    ours: float
    theirs: float


@dataclass(frozen=True)
class Wrong:
    """A result of a peer that is not what the op is defined to be."""

    family: str
    op: str
    peer: str
    words: tuple[str, ...]


def _peers(results: Results) -> list[str]:
    """Others than ourselves on another kind of array."""
    return [peer for peer in results.peers() if peer != "numpy array"]


def standings(results: Results) -> list[Standing]:
    """Every peer, those with most rows first."""
    found = []
    mistakes = [entry.peer for _, _, entry in wrong(results)]
    for peer in _peers(results):
        ratios = [r.speedup(peer) for r in results.rows if peer in r.timings]
        ratios = [ratio for ratio in ratios if isfinite(ratio)]
        if ratios:
            less = sum(ratio < 1 for ratio in ratios)
            ends = min(ratios), max(ratios)
            counted = mistakes.count(peer)
            found.append(Standing(peer, len(ratios), median(ratios), *ends, less, counted))
    return sorted(found, key=lambda one: -one.rows)


def behind(results: Results) -> list[Behind]:
    """All such rows, the worst first."""
    found = [
        Behind(row, peer, row.speedup(peer), row.time(_rule(peer)), row.time(peer))
        for row in results.rows
        for peer in _peers(results)
        if peer in row.timings and row.speedup(peer) < 1
    ]
    return sorted(found, key=lambda one: one.times)


def _rule(peer: str) -> str:
    return INTO if peer.endswith(" out") else OURS


def wrong(results: Results) -> Iterator[tuple[str, tuple[str, ...], Wrong]]:
    """The table that shows it, the words its row begins with, and what is wrong."""
    for row in results.rows:
        for peer, verdict in row.verdicts.items():
            if verdict.startswith("wrong") and peer != OURS:
                words = (*row.key[1:], peer, verdict)
                yield "speed", row.key, Wrong(row.family, row.op, peer, words)
    for entry in results.accuracy:
        for peer, verdict in entry.verdicts.items():
            if verdict.startswith("wrong") and peer != OURS:
                key = (entry.op, entry.direction, entry.nature, entry.dtype)
                words = (*key[1:], peer, verdict)
                yield "accuracy", key, Wrong(entry.family, entry.op, peer, words)
