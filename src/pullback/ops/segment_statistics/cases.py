"""Inputs that statistics of segments get wrong: those of segments, and columns far from zero."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

import numpy as np

from pullback.ops.case import Case, Tiles, apart
from pullback.ops.draw import Draw
from pullback.ops.segment import cases as segment


def cases(rng: np.random.Generator) -> Iterator[Case]:
    for case in segment.cases(rng):
        if "in a product" not in case.name:
            yield case
    x = 1e4 * rng.standard_normal((900, 3)) + 1e6
    arrays = {"x": x, "segment_ids": np.arange(900) % 2, "dy": rng.standard_normal((2, 3))}
    yield Case("far from zero, long segments", arrays)
    x = rng.standard_normal((60, 8))
    x[rng.random(x.shape) < 0.5] = -np.inf
    x[20:40] = -np.inf
    arrays = {"x": x, "segment_ids": np.arange(60) // 20, "dy": rng.standard_normal((4, 8))}
    yield Case("masked, one segment fully", arrays)


TILES = Tiles(lambda rng: islice(segment.TILES.cases(rng), None, None, 3), every=60)


def large_cases(rng: np.random.Generator) -> Iterator[Case]:
    yield from segment.large_cases(rng)


def draw(draw: Draw, names: Collection[str]) -> Case:
    """One random problem for a function that takes these arguments."""
    problem = segment.drawn(draw)
    if "dy" in names:
        problem.arrays["dy"] = draw.values("dy", problem.per_segment)
        problem.options["num_segments"] = problem.segments  # as many as there are rows of dy
    if "ddof" in names:
        problem.options["ddof"] = draw.pick("ddof", (0, 1, 3))
    return problem.case(draw)


# --- smooth ---------------------------------------------------------------------------------------


def smooth_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Segments with rows, and rows with segments: -inf has no derivative."""
    ids = np.array([2, 0, 2, 1, 0, 3, 1])
    dy = rng.standard_normal((4, 2))
    yield Case("rows", {"x": apart(rng, 7, 2) / 4, "dy": dy, "segment_ids": ids})
    options = {"axis": 1, "num_segments": 3}
    arrays = {"offsets": np.array([0, 3, 4, 7]), "dy": rng.standard_normal((2, 3, 1))}
    yield Case("borders", {"x": apart(rng, 2, 7, 1) / 4, **arrays}, options)


larger_smooth_cases = segment.larger_smooth_cases
