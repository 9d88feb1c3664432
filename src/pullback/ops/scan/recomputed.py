"""Where a backward recomputes the y it was not given: chunk by chunk, as its kernels and the
workspace of its plan agree. Kernels import this and not the contract, whose edits are none of
theirs."""

from __future__ import annotations

from math import prod

RECOMPUTED = 256  # steps whose y is recomputed at once


def carried_bytes(shape: tuple[int, ...], axis: int) -> int:
    """What is carried into each chunk, 16 bytes for each line; nothing into the only one."""
    n = shape[axis] if shape else 1
    chunks = -(-n // RECOMPUTED)
    return 16 * (prod(shape) // max(n, 1)) * chunks if chunks > 1 else 0
