"""Scans over pieces as they are written without `offsets`: padded, in a loop, by flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

NEUTRAL = {"cumsum": 0.0, "cumprod": 1.0, "cummax": -float("inf"), "cummin": float("inf")}


def padded(op: str, scan: Callable[..., Any]) -> Callable[..., Any]:
    """A matrix with a row for each piece, as long as the longest."""
    import torch

    def run(x: Any, offsets: Any, **_: Any) -> Any:
        lengths = offsets.diff()
        row = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        column = torch.arange(len(x)) - offsets[row]
        shape = len(lengths), int(lengths.max())
        matrix = x.new_full(shape, NEUTRAL.get(op, -float("inf"))).index_put((row, column), x)
        return scan(matrix, 1)[row, column]

    return run


def looped(scan: Callable[..., Any]) -> Callable[..., Any]:
    """Piece by piece, then joined."""
    import torch

    def run(x: Any, offsets: Any, **_: Any) -> Any:
        return torch.cat([scan(piece, 0) for piece in x.split(offsets.diff().tolist())])

    return run


def flagged(combine: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """An associative scan over pairs: whether a piece starts among the elements, and their value
    since."""
    import jax
    import jax.numpy as jnp

    def run(x: Any, offsets: Any, **_: Any) -> Any:
        starts = jnp.zeros(len(x), bool).at[offsets[:-1]].set(True, mode="drop")

        def joined(left: Any, right: Any) -> Any:
            (began, a), (begins, b) = left, right
            return began | begins, jnp.where(begins, b, combine(a, b))

        return jax.lax.associative_scan(joined, (starts, x))[1]

    return run


def either(
    plain: Mapping[str, Callable[..., Any]], pieces: Mapping[str, Callable[..., Any]]
) -> dict[str, Callable[..., Any]]:
    """One function for each op: with offsets the second table's."""

    def choose(op: str) -> Callable[..., Any]:
        return lambda **given: (pieces if "offsets" in given else plain)[op](**given)

    return {op: choose(op) for op in plain}
