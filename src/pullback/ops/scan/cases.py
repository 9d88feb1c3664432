"""Inputs that scans get wrong: `x` and `dy` along `axis`, in both directions."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

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
from pullback.ops.scan_cases import draw_extension, extensions, smooth_extended
from pullback.ops.tile_cases import tile_rows


def _case(rng: np.random.Generator, name: str, x: Array, axis: int, reverse: bool) -> Case:
    dy = np.asarray(rng.standard_normal(x.shape))
    way = "backwards" if reverse else "forwards"
    return Case(f"{name}, {way}", {"x": x, "dy": dy}, {"axis": axis, "reverse": reverse})


def _shaped(rng: np.random.Generator) -> Iterator[tuple[str, Array, int]]:
    yield "rank 0", np.asarray(rng.standard_normal()), 0
    yield "rank 0, last axis", np.asarray(rng.standard_normal()), -1
    for n in EXTENTS:
        yield f"rows of {n}", rng.standard_normal((3, n)), -1
        yield f"columns of {n}", rng.standard_normal((n, 3)), 0
        yield f"planes of {n}", rng.standard_normal((2, n, 9)), 1
    yield "no rows", np.zeros((0, 7)), 1
    yield "no columns", np.zeros((7, 0)), 0
    for axis in range(8):
        yield f"rank 8, axis {axis}", rng.standard_normal((2, 1, 3, 2, 1, 2, 3, 2)), axis


def cases(rng: np.random.Generator) -> Iterator[Case]:
    for name, x, axis in _shaped(rng):
        # Products of ordinary numbers fade out of a half's range; these stay in it.
        mild = np.asarray(np.sign(x) * (1 + 0.02 * x))
        for reverse in (False, True):
            yield _case(rng, name, x, axis, reverse)
            yield _case(rng, f"{name}, near one", mild, axis, reverse)
    hostile = list(hostile_rows(rng))
    for name, row in hostile:
        for reverse in (False, True):
            yield _case(rng, name, row, 0, reverse)
    # One lane of a vector must not leak into its neighbours.
    side_by_side = np.stack([row for _, row in hostile], axis=1)
    yield _case(rng, "all hostile rows as columns", side_by_side, 0, False)
    yield _case(rng, "all hostile rows as columns", side_by_side, 0, True)
    for n in (9, 64, 1000):
        for name, row in hostile_rows(rng, n):
            yield _case(rng, f"{name}, {n} long", row, 0, bool(rng.integers(2)))
    for axis in range(4):  # permuted, the lines of these can be mistaken for adjacent ones
        x = 1 + 0.02 * rng.standard_normal((3, 5, 4, 6))
        yield _case(rng, f"rank 4, axis {axis}", x, axis, bool(axis % 2))
    # Exponents so far apart that neighbouring steps belong to different paths of a kernel, and a
    # last tile that is short.
    for axis, shape in ((0, (83, 64)), (1, (64, 83))):
        x = rng.uniform(-4, 4, shape) * 2.0 ** rng.integers(-12, 8, shape)
        yield _case(rng, f"wide range, axis {axis}", x, axis, bool(axis))


def extended_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Exclusive scans, initial values and pieces, in every combination."""
    for number, (name, arrays, options) in enumerate(extensions(rng)):
        shape, axis = arrays.pop("shape").shape, options["axis"]
        x = rng.standard_normal(shape)
        if number % 3 == 0:  # ties, zeros, and what special values do to the pieces after them
            x = rng.integers(-2, 3, shape).astype(np.float64)
        if number % 3 == 1 and x.size:
            x[rng.random(shape) < 0.05] = rng.choice([np.inf, -np.inf, np.nan, 0.0, 1e30])
        case = _case(rng, name, x, axis, options["reverse"])
        yield Case(case.name, {**case.arrays, **arrays}, {**case.options, **options})


def large_cases(rng: np.random.Generator) -> Iterator[Case]:
    for number, (name, shape, axis) in enumerate(large_shapes()):
        x = rng.standard_normal(shape)
        mild = np.sign(x) * (1 + 0.02 * x)  # as above: products that stay in range
        yield _case(rng, name, x, axis, number % 2 == 1)
        yield _case(rng, f"{name}, near one", mild, axis, number % 2 == 0)


def draw(draw: Draw, names: Collection[str]) -> Case:
    """One random problem for a function that takes these arguments."""
    shape = draw.shape()
    arrays = {
        name: draw.values(name, shape) for name in ("x", "dy") if name in names or name == "x"
    }
    options: dict[str, Any] = {"axis": draw.axis(shape)}
    arrays |= draw_extension(draw, names, shape, options["axis"])
    if "ties" in names:
        options["ties"] = draw.pick("ties", ("first", "last", "split"), (10, 10, 1))
        draw.refuse("Unsupported", when=options["ties"] == "split")
    return Case("drawn", arrays, options, draw.refused)


# --- smooth ---------------------------------------------------------------------------------------


def smooth_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Small ones without ties, in every form."""
    for number, case in enumerate(smooth_extended(smooth_rows(rng), rng)):
        # Of the lines of a map no two elements are alike; an initial value must be none of them.
        initial = case.arrays.get("initial")
        more = {} if initial is None else {"initial": np.asarray(initial + 0.03 + number)}
        yield Case(case.name, {**case.arrays, **more}, case.options)


larger_smooth_cases = larger_smooth_rows

TILES = Tiles(tile_rows, alone=True, every=8, chunked=True)
