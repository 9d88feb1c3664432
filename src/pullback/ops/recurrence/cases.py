"""Inputs that recurrences get wrong: `a`, `b`, `dh` and some `h` along `axis`, both ways."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from pullback.ops.case import EXTENTS, Array, Case, hostile_rows, large_shapes
from pullback.ops.draw import Draw


def _case(rng: np.random.Generator, name: str, a: Array, axis: int, reverse: bool) -> Case:
    b, dh, h = map(np.asarray, rng.standard_normal((3, *a.shape)))
    way = "backwards" if reverse else "forwards"
    return Case(
        f"{name}, {way}", {"a": a, "b": b, "dh": dh, "h": h}, {"axis": axis, "reverse": reverse}
    )


def cases(rng: np.random.Generator) -> Iterator[Case]:
    for reverse in (False, True):
        yield _case(rng, "rank 0", np.asarray(0.5), 0, reverse)
        yield _case(rng, "no rows", np.zeros((0, 7)), 1, reverse)
        for n in EXTENTS:
            yield _case(rng, f"rows of {n}", rng.uniform(-1, 1, (3, n)), -1, reverse)
            yield _case(rng, f"columns of {n}", rng.uniform(-1, 1, (n, 19)), 0, reverse)
            yield _case(rng, f"planes of {n}", rng.uniform(-1, 1, (2, n, 9)), 1, reverse)
        for name, row in hostile_rows(rng):
            # Products of large factors leave every range; what is left are zeros, ties and NaN.
            yield _case(rng, name, np.clip(row, -1.25, 1.25), 0, reverse)


def large_cases(rng: np.random.Generator) -> Iterator[Case]:
    for number, (name, shape, axis) in enumerate(large_shapes()):
        yield _case(rng, name, rng.uniform(-1, 1, shape), axis, number % 2 == 1)


def draw(draw: Draw, names: Collection[str]) -> Case:
    """One random problem for a function that takes these arguments."""
    shape = draw.shape()
    arrays = {name: draw.values(name, shape) for name in ("a", "b", "dh")}
    if not draw.chance("steep", 0.1):
        arrays["a"] = np.clip(arrays["a"], -1.25, 1.25)
    return Case("drawn", arrays, {"axis": draw.axis(shape)}, draw.refused)
