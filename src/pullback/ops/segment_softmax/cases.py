"""Inputs that softmax within segments gets wrong: those of segments, with a `dy` for each row."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from pullback.ops.case import Case, Tiles
from pullback.ops.draw import Draw
from pullback.ops.segment import cases as segment
from pullback.ops.segment_statistics import cases as statistics


def _per_row(rng: np.random.Generator, case: Case) -> Case:
    """The same segments, with a gradient for each row."""
    x, dy = case.arrays["x"], case.arrays["dy"]
    axis = case.options.get("axis", 0)
    arrays = {**case.arrays, "dy": np.asarray(rng.standard_normal(x.shape))}
    options = {**case.options, "num_segments": dy.shape[axis]}
    options.pop("num_inputs", None)
    return replace(case, arrays=arrays, options=options)


def cases(rng: np.random.Generator) -> Iterator[Case]:
    for case in segment.cases(rng):
        if "in a product" not in case.name:
            yield _per_row(rng, case)
    x = rng.standard_normal((60, 8))
    x[rng.random(x.shape) < 0.5] = -np.inf
    x[20:40] = -np.inf
    masked = Case("masked, one segment fully", {"x": x, "segment_ids": np.arange(60) // 20})
    yield replace(
        masked,
        arrays={**masked.arrays, "dy": rng.standard_normal(x.shape)},
        options={"num_segments": 4},
    )
    x = 1e4 * rng.standard_normal((900, 3)) + 1e6
    far = {"x": x, "segment_ids": np.arange(900) % 2, "dy": rng.standard_normal(x.shape)}
    yield Case("far from zero, long segments", far, {"num_segments": 2})


def _pieces(rng: np.random.Generator) -> Iterator[Case]:
    for case in islice(segment.TILES.cases(rng), None, None, 3):
        yield _per_row(rng, case)


TILES = Tiles(_pieces, every=60)


def large_cases(rng: np.random.Generator) -> Iterator[Case]:
    for case in segment.large_cases(rng):
        yield _per_row(rng, case)


def draw(draw: Draw, names: Collection[str]) -> Case:
    """One random problem for a function that takes these arguments."""
    problem = segment.drawn(draw)
    if "dy" in names:
        problem.arrays["dy"] = draw.values("dy", problem.arrays["x"].shape)
    return problem.case(draw)


# --- smooth ---------------------------------------------------------------------------------------


def smooth_cases(rng: np.random.Generator) -> Iterator[Case]:
    """The segments of statistics, with a gradient for each row."""
    for case in statistics.smooth_cases(rng):
        x, dy = case.arrays["x"], case.arrays["dy"]
        count = dy.shape[case.options.get("axis", 0)]
        arrays = {**case.arrays, "dy": rng.standard_normal(x.shape)}
        yield Case(case.name, arrays, {**case.options, "num_segments": count})


def larger_smooth_cases(rng: np.random.Generator) -> list[Case]:
    """The same segments with a gradient for each row."""
    found = []
    for case in segment.larger_smooth_cases(rng):
        x = case.arrays["x"]
        arrays = {**case.arrays, "dy": rng.standard_normal(x.shape)}
        found.append(Case(case.name, arrays, {**case.options, "num_segments": 7}))
    return found
