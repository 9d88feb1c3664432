"""Inputs that entmax and the losses get wrong: `x`, `dy` along `axis`, `alpha`, targets."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from pullback.ops.case import Array, Case, Tiles, apart, hostile_rows, large_shapes
from pullback.ops.draw import Draw
from pullback.ops.tile_cases import ACROSS, BORDERS, LONG

ALPHAS = (1.0, 1.001, 1.25, 1.5, 1.75, 2.0, 2.5)
LENGTHS = (0, 1, 2, 3, 15, 16, 17, 33, 100)


def _rows_of(x: Array, axis: int) -> tuple[int, ...]:
    return x.shape[:axis] + x.shape[axis + 1 :] if x.ndim else ()


def _case(
    rng: np.random.Generator, name: str, x: Array, alpha: Any = 1.3, axis: int = -1
) -> Iterator[Case]:
    """The map of x, and its loss at a distribution and at classes."""
    at = axis % max(x.ndim, 1)
    arrays = {"x": x, "dy": np.asarray(rng.standard_normal(x.shape))}
    options: dict[str, Any] = {"axis": axis}
    if isinstance(alpha, np.ndarray):
        yield Case(name, {**arrays, "alpha": alpha}, options)
        return
    options["alpha"] = alpha
    yield Case(name, arrays, options)
    rows = _rows_of(x, at)
    g = np.asarray(rng.standard_normal(rows))
    weights = np.asarray(rng.random(x.shape) * (rng.random(x.shape) < 0.7) + 1e-3)
    target = weights / weights.sum(axis=at, keepdims=True) if x.ndim else np.ones(())
    yield Case(f"{name}, distribution", {"x": x, "dy": g, "target": target}, options)
    n = x.shape[at] if x.ndim else 1
    if n:
        classes = np.asarray(rng.integers(0, n, rows), np.int64)
        yield Case(f"{name}, classes", {"x": x, "dy": g, "target": classes}, options)


def cases(rng: np.random.Generator) -> Iterator[Case]:
    yield from _case(rng, "rank 0", np.asarray(rng.standard_normal()), axis=0)
    for k, n in enumerate(LENGTHS):
        alpha = ALPHAS[k % len(ALPHAS)]
        yield from _case(rng, f"rows of {n}", rng.standard_normal((3, n)), alpha)
        yield from _case(rng, f"columns of {n}", 2 * rng.standard_normal((n, 18)), 1.3, 0)
        alphas = rng.choice(ALPHAS, (4, 1))
        yield from _case(rng, f"alpha of rows of {n}", rng.standard_normal((4, n)), alphas)
    x = rng.standard_normal((2, 3, 5, 2))
    for axis in range(4):
        yield from _case(rng, f"rank 4, axis {axis}", x, 1.6, axis)
        shape = tuple(1 if k == axis else n for k, n in enumerate(x.shape))
        alphas = 1 + rng.random(shape)
        yield from _case(rng, f"rank 4, alpha, axis {axis}", x, alphas, axis)
    yield from _case(rng, "alpha of rank 0", x, np.asarray(1.4))
    yield from _case(rng, "alpha of fewer axes", x, 1 + rng.random((5, 1)))
    yield from _case(rng, "no rows", np.zeros((0, 7)))
    for k, (name, row) in enumerate(hostile_rows(rng, 33)):
        yield from _case(rng, name, np.stack([row, rng.standard_normal(33)]), ALPHAS[k % 7])
    masked = rng.standard_normal((5, 17))
    masked[rng.random(masked.shape) < 0.5] = -np.inf
    masked[2] = -np.inf
    yield from _case(rng, "masked at random, one row fully", masked, 1.3)
    yield from _case(rng, "masked, alpha of rows", masked, rng.choice(ALPHAS, (5, 1)))


def _tile_rows(rng: np.random.Generator) -> Iterator[Case]:
    """Extents around the borders of tiles, in turn with a distribution and with classes."""
    shapes: list[tuple[str, tuple[int, ...], int]]
    shapes = [(f"{n}", (2, n), -1) for n in (*BORDERS, 4095, 4096, 4097)]
    shapes += [(f"columns of {n}", (n, 3), 0) for n in ACROSS]
    shapes += [("columns", (2, 70, 9), 1), ("many rows", (65, 9), 1), ("long", (1, LONG), -1)]
    shapes += [("long columns", (600, 3), 0), ("empty rows", (3, 0), -1)]
    for turn, (name, shape, axis) in enumerate(shapes):
        alpha = ALPHAS[turn % len(ALPHAS)]
        found = list(_case(rng, name, rng.standard_normal(shape), alpha, axis))
        yield found[0]
        if name == "long":
            yield from _case(rng, name, rng.standard_normal(shape), np.array([[1.4]]), axis)
        losses = found[1:] if name.startswith("long") else found[1 + turn % 2 :][:1] or found[1:]
        for case in losses:
            yield replace(case, name=name)


TILES = Tiles(_tile_rows, every=9)


def large_cases(rng: np.random.Generator) -> Iterator[Case]:
    for k, (name, shape, axis) in enumerate(large_shapes()):
        x = rng.standard_normal(shape)
        yield from _case(rng, name, x, ALPHAS[k % len(ALPHAS)], axis)
        if k % 3 == 0:
            rows = tuple(1 if at == axis else n for at, n in enumerate(shape))
            yield from _case(rng, f"{name}, alpha of rows", x, rng.choice(ALPHAS, rows), axis)


def _alpha(draw: Draw, shape: tuple[int, ...], axis: int) -> Array:
    """An alpha of rows, or of fewer axes; rarely one that is too small."""
    at = axis % max(len(shape), 1)
    full = [1 if k == at or draw.chance(f"alpha.one.{k}", 0.3) else n for k, n in enumerate(shape)]
    kept = full[draw.integer("alpha.dropped", 0, len(full)) :]
    rng = draw.source("alpha.seed")
    found = np.asarray(rng.choice(ALPHAS, kept) + draw.pick("alpha.off", (0.0, 0.25)))
    if found.size and draw.chance("alpha.small", 0.03) and 0 not in shape:
        found.flat[rng.integers(found.size)] = draw.pick("alpha.bad", (0.5, np.nan, np.inf))
        draw.refuse("InvalidProblem")
    return found


def _target(draw: Draw, shape: tuple[int, ...], axis: int) -> Array:
    """Classes, or a distribution."""
    at = axis % max(len(shape), 1)
    n, rows = shape[at] if shape else 1, _rows_of(np.empty(shape), at)
    rng = draw.source("target.seed")
    if draw.chance("classes"):
        found = np.asarray(rng.integers(0, max(n, 1), rows), np.int64)
        bad = found.size and (n == 0 or draw.chance("target.hostile", 0.05))
        if bad:
            found.flat[rng.integers(found.size)] = draw.pick("target.bad", (n, -1, 1 << 30))
            draw.refuse("IndexOutOfRange")
        return found
    weights = rng.random(shape) + 1e-3
    return np.asarray(weights / weights.sum(axis=at, keepdims=True) if shape else np.ones(()))


def draw(draw: Draw, names: Collection[str]) -> Case:
    """One random problem for a function that takes these arguments."""
    shape = draw.shape()
    axis = draw.axis(shape)
    inside = -max(len(shape), 1) <= axis < max(len(shape), 1)
    at = axis if inside else 0
    arrays = {"x": draw.values("x", shape)}
    options: dict[str, Any] = {"axis": axis}
    rows = shape
    if "target" in names:
        arrays["target"] = _target(draw, shape, at)
        rows = _rows_of(np.empty(shape), at % max(len(shape), 1))
    if "dy" in names:
        arrays["dy"] = draw.values("dy", rows)
    if "alpha" in names and "target" not in names and draw.chance("alpha.array", 0.4):
        arrays["alpha"] = _alpha(draw, shape, at)
    elif "alpha" in names:
        options["alpha"] = draw.pick("alpha", (1.3, *ALPHAS))
    return Case("drawn", arrays, options, draw.refused)


# --- smooth ---------------------------------------------------------------------------------------


def smooth_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Even rows: at the edge of the support y has no derivative. alpha is a number or a tensor,
    targets are of both kinds."""
    x = {"x": apart(rng, 3, 4) / 20}
    yield Case("number", {**x, "dy": rng.standard_normal((3, 4))}, {"axis": 0, "alpha": 1.3})
    arrays = {**x, "dy": rng.standard_normal((3, 4)), "alpha": np.array([[1.2], [1.5], [1.7]])}
    yield Case("alpha of rows", arrays, {"axis": 1})
    yield Case("one alpha", {**arrays, "alpha": np.array(1.4)}, {"axis": 1})
    loss = {**x, "dy": rng.standard_normal(3)}
    target = rng.random((3, 4))
    target /= target.sum(1, keepdims=True)
    yield Case("distribution", {**loss, "target": target}, {"axis": 1, "alpha": 1.3})
    classes = {**x, "dy": rng.standard_normal(4), "target": np.array([2, 0, 1, 1])}
    yield Case("classes", classes, {"axis": 0, "alpha": 1.3})


def larger_smooth_cases(rng: np.random.Generator) -> list[Case]:
    """Even rows: every entry has a share."""
    x = 0.1 * rng.standard_normal((5, 7))
    weights = rng.random((5, 7))
    loss = {"x": x, "dy": rng.standard_normal(5)}
    data = {"x": x, "dy": rng.standard_normal((5, 7))}
    alpha = 1.2 + 0.5 * rng.random((5, 1))
    share = {"target": weights / weights.sum(1, keepdims=True)}
    return [
        Case("number", data, {"axis": 0, "alpha": 1.3}),
        Case("tensor", {**data, "alpha": alpha}, {"axis": 1}),
        Case("distribution", {**loss, **share}, {"axis": 1, "alpha": 1.3}),
        Case("classes", {**loss, "target": rng.integers(0, 7, 5)}, {"axis": 1, "alpha": 1.3}),
    ]
