"""Inputs that recurrences get wrong: `a`, `b`, `dh` and some `h` along `axis`, both ways."""

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
)
from pullback.ops.draw import Draw
from pullback.ops.scan_cases import draw_extension, extensions, smooth_extended
from pullback.ops.tile_cases import tile_rows


def _case(rng: np.random.Generator, name: str, a: Array, axis: int, reverse: bool) -> Case:
    b, dh, h = map(np.asarray, rng.standard_normal((3, *a.shape)))
    way = "backwards" if reverse else "forwards"
    arrays = {"a": a, "b": b, "dh": dh, "h": h, "x": b, "discount": a}
    return Case(f"{name}, {way}", arrays, {"axis": axis, "reverse": reverse})


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


def extended_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Factors that broadcast; exclusive scans, initial values and pieces."""
    for name, arrays, options in extensions(rng):
        shape, axis = arrays.pop("shape").shape, options["axis"]
        case = _case(rng, name, rng.uniform(-1, 1, shape), axis, options["reverse"])
        yield Case(case.name, {**case.arrays, **arrays}, {**case.options, **options})
    for shape, narrow in (((4, 9, 5), (5,)), ((4, 9, 5), (4, 1, 5)), ((4, 9, 5), (1, 9, 1))):
        for a_shape in (narrow, ()):
            case = _case(rng, f"factors of shape {a_shape}", rng.standard_normal(shape), 1, True)
            a = np.asarray(rng.uniform(-1, 1, a_shape))
            arrays = {**case.arrays, "a": a, "discount": a}
            yield Case(case.name, arrays, case.options)
            more = {"initial": rng.standard_normal((4, 1)), "offsets": np.array([0, 4, 4, 9])}
            more["initial"] = rng.standard_normal((4, 3, 1))
            yield Case(f"{case.name}, pieces", {**arrays, **more}, case.options)


def large_cases(rng: np.random.Generator) -> Iterator[Case]:
    for number, (name, shape, axis) in enumerate(large_shapes()):
        yield _case(rng, name, rng.uniform(-1, 1, shape), axis, number % 2 == 1)


def draw(draw: Draw, names: Collection[str]) -> Case:
    """One random problem for a function that takes these arguments."""
    shape = draw.shape()
    factors = "discount" if "discount" in names else "a"
    arrays = {name: draw.values(name, shape) for name in ("b", "dh", "x")}
    narrow = shape
    if draw.chance("narrow", 0.25):
        narrow = tuple(1 if draw.chance("one") else extent for extent in shape)
        narrow = narrow[draw.integer("dropped", 0, len(narrow)) :]
    arrays[factors] = draw.values(factors, narrow)
    if not draw.chance("steep", 0.1):
        arrays[factors] = np.clip(arrays[factors], -1.25, 1.25)
    axis = draw.axis(shape)
    arrays |= draw_extension(draw, names, shape, axis)
    return Case("drawn", arrays, {"axis": axis}, draw.refused)


# --- smooth ---------------------------------------------------------------------------------------


def _recurrent_rows(rng: np.random.Generator) -> Iterator[Case]:
    names = ("a", "b", "dh", "h", "x", "discount")
    for axis, reverse in ((0, False), (1, True)):
        arrays = {name: rng.standard_normal((3, 4)) for name in names}
        yield Case("rows", arrays, {"axis": axis, "reverse": reverse})


def smooth_cases(rng: np.random.Generator) -> Iterator[Case]:
    yield from smooth_extended(_recurrent_rows(rng), rng)
    case = next(_recurrent_rows(rng))
    narrow = {"a": np.array([[0.3], [0.7], [-0.4]]), "discount": np.array(0.9)}
    yield Case("broadcast", {**case.arrays, **narrow}, case.options)


def _recurrent(rng: np.random.Generator, x: Array) -> dict[str, Array]:
    b, dh = rng.standard_normal((2, *x.shape))
    return {"a": x / 4, "b": b, "dh": dh}


def larger_smooth_cases(rng: np.random.Generator) -> list[Case]:
    return [
        Case(c.name, _recurrent(rng, c.arrays["x"]), c.options) for c in larger_smooth_rows(rng)
    ]


TILES = Tiles(tile_rows, alone=True, every=8, chunked=True)
