"""What backwards need of the workspace, as their kernels and the contracts of their plans agree.
Kernels import this and not the contract, whose edits are none of theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pullback.cpu.scan_words import block_steps

SLACK = 512  # bytes: tiles that a line does not fill read on, whatever is there


@dataclass(frozen=True)
class Kept:
    """So many bytes for each line and each of so many steps."""

    steps: int
    size: int
    slack: int = 0

    def nbytes(self, extension: Any) -> int:
        blocks = -(-extension.staged[extension.axis] // self.steps)
        if extension.pieces is not None:  # one of each may be short
            blocks += extension.pieces
        return self.size * extension.lines * blocks + self.slack if blocks else 0


def of_blocks(itemsize: int, size: int) -> Kept:
    """Of each block of a scan: see cpu/saved."""
    return Kept(block_steps(itemsize), size, slack=SLACK)
