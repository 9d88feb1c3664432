"""Inputs that interpolation gets wrong: `a`, `b`, `dy`, and `weight` as array or as option."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from pullback.ops.case import EXTENTS, Case, Tiles, hostile_rows
from pullback.ops.draw import Draw

NUMBERS = (0, 1, 0.0, -0.0, 0.5, 0.3, 1 / 3, 1.0, -0.25, 1.75, 1e-30, 1 - 2**-53, np.nan)
"""The ends, both branches, outside [0, 1], and what single precision cannot hold."""

Shape = tuple[int, ...]
SHAPES: tuple[tuple[str, Shape, Shape, Shape], ...] = (
    ("one shape", (5, 7), (5, 7), (5, 7)),
    ("rank 0", (), (), ()),
    ("rank 0 weight", (4, 9), (4, 9), ()),
    ("weight per row", (4, 9), (4, 9), (4, 1)),
    ("row against column", (1, 9), (4, 1), (9,)),
    ("weight of higher rank", (3,), (3,), (2, 5, 3)),
    ("nothing times something", (0, 3), (1, 3), (3,)),
    ("rank 8", (2, 1, 3, 1, 2, 1, 2, 1), (1, 2, 1, 3, 1, 2, 1, 2), (2, 2)),
)


def cases(rng: np.random.Generator) -> Iterator[Case]:
    for n in EXTENTS:
        a, b, weight, dy = rng.standard_normal((4, n))
        yield Case(f"{n} by number", {"a": a, "b": b, "dy": dy}, {"weight": 0.3})
        yield Case(f"{n} by tensor", {"a": a, "b": b, "weight": weight, "dy": dy})
    for number in NUMBERS:
        a, b, dy = rng.standard_normal((3, 33)) * 10.0 ** rng.integers(-4, 4, (3, 33))
        yield Case(f"weight {number!r}", {"a": a, "b": b, "dy": dy}, {"weight": number})
        yield Case(f"a is b, weight {number!r}", {"a": a, "b": a, "dy": dy}, {"weight": number})
    for name, *shapes in SHAPES:
        a, b, weight = (np.asarray(rng.standard_normal(shape)) for shape in shapes)
        dy = np.asarray(rng.standard_normal(np.broadcast_shapes(*shapes)))
        yield Case(name, {"a": a, "b": b, "weight": weight, "dy": dy})
        dy = np.asarray(rng.standard_normal(np.broadcast_shapes(*shapes[:2])))
        yield Case(f"{name}, by number", {"a": a, "b": b, "dy": dy}, {"weight": 0.7})
    for name, row in hostile_rows(rng):
        other, weight, dy = rng.standard_normal((3, row.size))
        yield Case(f"a: {name}", {"a": row, "b": other, "weight": weight, "dy": dy})
        yield Case(f"b: {name}", {"a": other, "b": row, "weight": weight, "dy": dy})
        yield Case(f"weight: {name}", {"a": dy, "b": other, "weight": row, "dy": weight})
        yield Case(f"dy: {name}", {"a": other, "b": dy, "weight": weight, "dy": row})
    branches = np.array([-0.5, np.nextafter(-0.5, 0), 0.0, np.nextafter(0.5, 0), 0.5, 1.0])
    a, b, dy = rng.standard_normal((3, 6))
    yield Case("at the borders of the branches", {"a": a, "b": b, "weight": branches, "dy": dy})
    for top in (6e4, 3e38):  # b - a leaves the range of f16, or f32, and the result does not
        a, b, weight = np.full(9, -top), np.full(9, top), np.linspace(0, 1, 9)
        yield Case(f"{top:g} apart", {"a": a, "b": b, "weight": weight, "dy": np.full(9, 1e-3)})
    # The same numbers over and over: what a plain sum loses does not cancel.
    dy, a = np.tile(rng.uniform(0, 1, 9), (2000, 1)), np.zeros((2000, 9))
    yield Case("many rows added up", {"a": a, "b": np.asarray(0.0), "dy": dy}, {"weight": 1.0})
    weight = {"weight": np.asarray(0.7)}
    yield Case("many rows added up for a weight", {"a": a, "b": a + 1, "dy": dy, **weight})


def large_cases(rng: np.random.Generator) -> Iterator[Case]:
    shape = (301, 1031)
    a, b, dy = rng.standard_normal((3, *shape))
    yield Case("number", {"a": a, "b": b, "dy": dy}, {"weight": 0.3})
    yield Case("tensor", {"a": a, "b": b, "weight": rng.random(shape), "dy": dy})
    # What was broadcast gets the sum of its gradients: over columns, over rows, over everything.
    for name, one in (("per row", (301, 1)), ("per column", (1031,)), ("one for all", ())):
        few, weight = np.asarray(rng.standard_normal(one)), np.asarray(rng.random(one))
        yield Case(f"weight {name}", {"a": a, "b": b, "weight": weight, "dy": dy})
        yield Case(f"b {name}", {"a": a, "b": few, "weight": rng.random(shape), "dy": dy})
        yield Case(f"b {name}, number", {"a": a, "b": few, "dy": dy}, {"weight": 0.7})


def _operand(draw: Draw, label: str, shape: Shape) -> Shape:
    """A shape that broadcasts to this one: some axes of one, the leading ones left out."""
    kept = shape[draw.integer(f"{label}.dropped", 0, len(shape)) :]
    if not draw.chance(f"{label}.broadcast", 0.3):
        return shape
    return tuple(
        1 if draw.chance(f"{label}.one.{i}", 0.4) else extent for i, extent in enumerate(kept)
    )


def draw(draw: Draw, names: Collection[str]) -> Case:
    """One random problem for a function that takes these arguments."""
    shape = draw.shape()
    shapes = {name: _operand(draw, name, shape) for name in ("a", "b")}
    number = draw.chance("number", 0.4)
    if not number:
        shapes["weight"] = _operand(draw, "weight", shape)
    elif "dy" in names and draw.chance("alone", 0.4):
        shapes = {}  # gradients in the shape of dy
    shapes["dy"] = np.broadcast_shapes(*shapes.values()) if shapes else shape
    arrays = {name: draw.values(name, of) for name, of in shapes.items()}
    options = {"weight": draw.pick("weight", NUMBERS)} if number else {}
    return Case("drawn", arrays, options, draw.refused)


# --- smooth ---------------------------------------------------------------------------------------


def smooth_cases(rng: np.random.Generator) -> Iterator[Case]:
    arrays = {name: rng.standard_normal((3, 4)) for name in ("a", "b", "dy")}
    yield Case("number", arrays, {"weight": 0.3})
    yield Case("tensor", {**arrays, "weight": np.array([0.2, 0.7, -0.1, 1.4])})
    yield Case("broadcast", {**arrays, "a": arrays["a"][:1], "weight": np.array(0.7)})


def larger_smooth_cases(rng: np.random.Generator) -> list[Case]:
    shapes = [((4, 5), (4, 5), (4, 5)), ((4, 1), (5,), (1, 5)), ((), (4, 5), ())]
    found = []
    for a, b, w in shapes:
        whole = np.broadcast_shapes(a, b, w)
        data = {"a": rng.standard_normal(a), "b": rng.standard_normal(b)}
        data = {k: np.asarray(v) for k, v in data.items()}
        dy = {"dy": np.asarray(rng.standard_normal(whole))}
        weight = {"weight": np.asarray(0.1 + 0.3 * rng.random(w))}
        found.append(Case("tensor", {**data, **weight, **dy}))
        if w == (4, 5) or w == ():
            found.append(Case("number", {**data, **dy}, {"weight": 0.3}))
    return found


def _blends(rng: np.random.Generator) -> Iterator[Case]:
    """Blocks of elements, and operands that are broadcast along few or many of them."""
    for n in (1023, 1024, 1025, 2500):
        a, b, weight, dy = rng.standard_normal((4, n))
        yield Case(f"{n} by number", {"a": a, "b": b, "dy": dy}, {"weight": 0.3})
        yield Case(f"{n} by tensor", {"a": a, "b": b, "weight": weight, "dy": dy})
    for kept, summed in ((15, 63), (16, 64), (17, 65), (2, 511), (3, 512), (1, 513)):
        yield _sums(rng, f"{kept} sums of {summed}", kept, summed)
    a, b, weight = rng.standard_normal((3, 2, 1))
    long = {"a": a, "b": b, "weight": weight, "dy": rng.standard_normal((2, 17000))}
    yield Case("long sums", long)


def _sums(rng: np.random.Generator, name: str, kept: int, summed: int) -> Case:
    b, dy = rng.standard_normal((2, kept, summed))
    row, column = rng.standard_normal((1, summed)), rng.standard_normal((kept, 1))
    return Case(name, {"a": column, "b": b, "dy": dy, "weight": row})


TILES = Tiles(_blends, every=12)
