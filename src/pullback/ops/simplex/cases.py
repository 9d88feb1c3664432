"""Inputs that simplex maps get wrong: `x` and `dy` along `axis`."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from pullback.ops.case import (
    EXTENTS,
    Array,
    Case,
    Tiles,
    hostile_rows,
    large_shapes,
    larger_smooth_rows,
    smooth_rows,
)
from pullback.ops.draw import Draw
from pullback.ops.tile_cases import row_case, tile_rows


def _case(rng: np.random.Generator, name: str, x: Array, axis: int = -1) -> Case:
    return Case(name, {"x": x, "dy": np.asarray(rng.standard_normal(x.shape))}, {"axis": axis})


def _masked(rng: np.random.Generator) -> Iterator[Case]:
    x = rng.standard_normal((5, 33))
    x[rng.random(x.shape) < 0.5] = -np.inf
    x[2] = -np.inf
    yield _case(rng, "masked at random, one row fully", x)
    yield _case(rng, "causal mask", np.where(np.tri(17, dtype=bool), 0.5, -np.inf))


def _on_the_threshold(rng: np.random.Generator) -> Iterator[Case]:
    """Entries exactly at tau, where the support of a sparse map begins."""
    yield _case(rng, "sparsemax, second at tau", np.array([1.0, 0.0]))
    yield _case(rng, "sparsemax, third at tau", np.array([0.5, 0.0, 0.5]))
    yield _case(rng, "entmax15, second at tau", np.array([2.0, 0.0]))
    yield _case(rng, "many at tau", np.concatenate([[1.0], np.zeros(64)]))


def cases(rng: np.random.Generator) -> Iterator[Case]:
    yield _case(rng, "rank 0", np.asarray(rng.standard_normal()), 0)
    for n in EXTENTS:
        yield _case(rng, f"rows of {n}", rng.standard_normal((3, n)))
        yield _case(rng, f"columns of {n}", rng.standard_normal((n, 3)), 0)
        yield _case(rng, f"planes of {n}", 3 * rng.standard_normal((2, n, 9)), 1)
        yield _case(rng, f"{n} equals", np.zeros((1, n)))
        yield _case(rng, f"{n} nearly equal", 1e-3 * rng.standard_normal((2, n)))
    yield _case(rng, "no rows", np.zeros((0, 7)))
    for axis in range(8):
        x = rng.standard_normal((2, 1, 3, 2, 1, 2, 3, 2))
        yield _case(rng, f"rank 8, axis {axis}", x, axis)
    hostile = list(hostile_rows(rng))
    for name, row in hostile:
        yield _case(rng, name, row)
    # One lane of a vector must not leak into its neighbours.
    yield _case(rng, "all hostile rows", np.stack([row for _, row in hostile]))
    yield _case(rng, "all hostile rows as columns", np.stack([row for _, row in hostile], 1), 0)
    yield from _masked(rng)
    yield from _on_the_threshold(rng)
    peaked = np.array([[9.0, 0.0, 8.5, 0.0, -np.inf]])
    for name, value in (("NaN", np.nan), ("+inf", np.inf)):
        dy = np.array([[1.0, value, 2.0, value, value]])
        yield Case(f"dy is {name} off the support", {"x": peaked, "dy": dy}, {"axis": -1})
        dy = np.array([[value, 1.0, 2.0, 3.0, 4.0]])
        yield Case(f"dy is {name} on the support", {"x": peaked, "dy": dy}, {"axis": -1})
    yield Case("dy is constant", {"x": peaked, "dy": np.ones((1, 5))}, {"axis": -1})
    for size in (1e-37, 1e-307):  # normal numbers of f32 and f64, but not by much
        x, dy = rng.standard_normal((4, 33)), size * rng.standard_normal((4, 33))
        yield Case(f"dy of size {size}", {"x": x, "dy": dy}, {"axis": -1})
        yield Case(f"one dy of size {size}", {"x": x[:, :1], "dy": abs(dy[:, :1])}, {"axis": -1})


def large_cases(rng: np.random.Generator) -> Iterator[Case]:
    for name, shape, axis in large_shapes():
        yield _case(rng, name, rng.standard_normal(shape), axis)
        yield _case(rng, f"{name}, peaked", 9 * rng.standard_normal(shape), axis)


def draw(draw: Draw, names: Collection[str]) -> Case:
    """One random problem for a function that takes these arguments."""
    shape = draw.shape()
    arrays = {
        name: draw.values(name, shape) for name in ("x", "dy") if name in names or name == "x"
    }
    return Case("drawn", arrays, {"axis": draw.axis(shape)}, draw.refused)


# --- smooth ---------------------------------------------------------------------------------------


smooth_cases = smooth_rows


def smooth_backward_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Rows so even that every entry has a share: at the edge of the support y has no derivative."""
    for case in smooth_rows(rng):
        yield Case(case.name, {**case.arrays, "x": case.arrays["x"] / 20}, case.options)


larger_smooth_cases = larger_smooth_rows


def _whole_rows(rng: np.random.Generator) -> Iterator[Case]:
    yield from tile_rows(rng)
    for n in WHOLE:
        yield row_case(rng, f"{n}", rng.standard_normal((2, n)), 1, False)
    # From 1 to 91: what was summed in one tile counts for next to nothing in a later one.
    yield row_case(rng, "rising", np.linspace(0, 9000, 9000)[None], 1, False)


WHOLE = (4095, 4096, 4097, 8191, 8192, 8193)  # the longest rows held whole
TILES = Tiles(_whole_rows, alone=True)
