"""What the distributed form of a function costs: all-gathers, and the bytes a rank gives to them.

The same table is what `sku.collectives` promises, what `pullback show` prints, and what checks
compare with the bytes that are really exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2, sqrt
from typing import Any

from pullback.contract.element import ElementKind
from pullback.distributed.forms import sends

_WIDE = 8  # bytes of a float64


@dataclass(frozen=True, slots=True)
class Collectives:
    """Of one call over an axis that is sharded: `count` all-gathers, to which a rank gives
    `bytes_per_row` for each row, and `bytes_besides`. `same_bits`: those of one machine, for any
    number of ranks."""

    operation: str
    count: int
    bytes_per_row: int
    bytes_besides: int
    same_bits: bool
    bytes_per_segment: int = 0

    def sent(self, rows: int, segments: int = 0) -> int:
        """Bytes that a rank gives. Of segments a row is a column of one that the rank has rows of
        (the rank that has rows of the most segments decides)."""
        return self.bytes_per_row * rows + self.bytes_per_segment * segments + self.bytes_besides

    def received(self, rows: int, ranks: int, segments: int = 0) -> int:
        """Bytes that a rank has afterwards."""
        return self.sent(rows, segments) * ranks

    def __str__(self) -> str:
        kept = "the bits of one machine" if self.same_bits else "folded in the order of ranks"
        times = f"{self.count} x {self.operation}" if self.count > 1 else self.operation
        besides = f" + {self.bytes_besides}" if self.bytes_besides else ""
        per = "column of a segment" if self.bytes_per_segment else "row"
        ids = f" + {self.bytes_per_segment} a segment" if self.bytes_per_segment else ""
        return f"{times}, {self.bytes_per_row} bytes a {per}{ids}{besides}, {kept}"


def collectives(name: str, element: ElementKind) -> Collectives | None:
    """Of a function by name; None where operands are gathered whole."""
    found = sends().get(name)
    if found is None:
        return None
    if element is ElementKind.F64:
        found = found.wide or found
    if element in (ElementKind.F16, ElementKind.BF16):
        found = found.half or found
    per_row, besides = found.rows * _WIDE, found.besides * _WIDE
    ids = found.segments * _WIDE
    return Collectives("all_gather", found.collectives, per_row, besides, found.same, ids)


def exact(operands: int, results: int, part: int) -> tuple[int, int]:
    """How many collectives `exact=True` takes where an axis is free, and the bytes that a rank
    gives to them: extents to an all-gather, and each operand and each result, of so many bytes
    here, to an all-to-all."""
    return 1 + operands + results, _WIDE * (1 + operands) + part * (operands + results)


def of_sku(sku: Any) -> Collectives | None:
    """Of a kernel."""
    suffix = "_backward" if sku.direction == "backward" else ""
    return collectives(str(sku.op.value) + suffix, sku.element)


@dataclass(frozen=True, slots=True)
class Network:
    """Between ranks: seconds for a message to begin, and bytes a second. Those of a fast network of
    today; put your own in."""

    latency: float = 5e-6
    bandwidth: float = 25e9

    def ring(self, sent: int, ranks: int) -> float:
        """Seconds of an all-gather that hands parts around."""
        return (ranks - 1) * (self.latency + sent / self.bandwidth)

    def doubling(self, sent: int, ranks: int) -> float:
        """Seconds of an all-gather that doubles what a rank has in each step."""
        return ceil(log2(ranks)) * self.latency + (ranks - 1) * sent / self.bandwidth

    def two_levels(self, sent: int, ranks: int) -> float:
        """Seconds of two of them: within groups of sqrt(ranks), and then of what groups amount to,
        over groups (a mesh of two dimensions)."""
        return 2 * self.doubling(sent, ceil(sqrt(ranks)))

    def exchange(self, sent: int, ranks: int) -> float:
        """Seconds of an all-to-all in which a rank sends so many bytes in all."""
        return (ranks - 1) * self.latency + sent * (ranks - 1) / ranks / self.bandwidth


def model() -> str:
    """What one all-gather of a cumsum in float32 costs, as Markdown: docs/distributed.md has it."""
    cost, network = collectives("cumsum", ElementKind.F32), Network()
    assert cost is not None
    lines = [
        "| rows | ranks | sent | received | ring, ms | doubling, ms | two levels, ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for rows in (64, 4096, 65536):
        for ranks in (64, 1024, 8192):
            sent = cost.sent(rows)
            ways = (network.ring, network.doubling, network.two_levels)
            times = " | ".join(f"{1e3 * way(sent, ranks):.2g}" for way in ways)
            received = cost.received(rows, ranks) / 2**20
            lines.append(f"| {rows} | {ranks} | {sent / 1024:g} KiB | {received:g} MiB | {times} |")
    return "\n".join(lines)


def table() -> str:
    """All forms with their costs in float32, as Markdown: docs/distributed.md has it, and a check
    compares."""
    lines = [
        "| function | all-gathers | bytes a row and rank | lower bound | more, because | others |",
        "|---|---|---|---|---|---|",
    ]
    for name, sent in sends().items():
        least = sent.rows if sent.least is None else sent.least
        unit = " a column of a segment" if sent.segments else ""
        besides = sent.segments * _WIDE
        more = f" + {besides} a segment" if besides else ""
        peers = sent.peers or ("whole parts" if sent.collectives else "-")
        cells = (
            name,
            str(sent.collectives),
            f"{sent.rows * _WIDE}{unit}{more}",
            str(least * _WIDE),
            sent.why or "-",
            peers,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
