"""What the distributed form of a function costs: all-gathers, and the bytes a rank gives to them.

The same table is what `sku.collectives` promises, what `pullback show` prints, and what checks
compare with the bytes that are really exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
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


def of_sku(sku: Any) -> Collectives | None:
    """Of a kernel."""
    suffix = "_backward" if sku.direction == "backward" else ""
    return collectives(str(sku.op.value) + suffix, sku.element)


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
