"""Where a backward recomputes the y it was not given: chunk by chunk, as its kernels and the
workspace of its plan agree. Kernels import this and not the contract, whose edits are none of
theirs."""

from __future__ import annotations

from typing import Any

RECOMPUTED = 256  # steps whose y is recomputed at once


def carried_bytes(extension: Any) -> int:
    """What is carried into each chunk, 16 bytes for each line; nothing into the only one."""
    n = extension.staged[extension.axis]
    chunks = -(-n // RECOMPUTED)
    if extension.pieces is not None:  # a chunk of each may be short
        chunks += extension.pieces
    return 16 * extension.lines * chunks if chunks > 1 else 0
