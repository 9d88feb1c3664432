"""Inputs that segment reductions get wrong: `x`, `segment_ids`, and `dy` with a row per segment."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from pullback.ops.case import EXTENTS, Array, Case, hostile_rows
from pullback.ops.draw import Draw
from pullback.ops.segment.index import prepare_segments

INT32 = np.iinfo(np.int32)


def _case(rng: np.random.Generator, name: str, x: Array, ids: Array, segments: int) -> Case:
    dy = np.asarray(rng.standard_normal((segments, *x.shape[1:])))
    return Case(name, {"x": x, "segment_ids": ids.astype(np.int64), "dy": dy})


def _ids(rng: np.random.Generator, n: int = 100) -> Iterator[tuple[str, Array, int]]:
    """Named ids of `n` rows and the number of segments they are meant for."""
    some = rng.integers(0, 12, n)
    yield "sorted", np.sort(some), 12
    yield "unsorted", some, 12
    yield "reversed", np.sort(some)[::-1], 12
    yield "round robin", np.arange(n) % 7, 7
    yield "each its own", np.arange(n), n
    yield "each its own, shuffled", rng.permutation(n), n
    yield "one segment", np.zeros(n), 1
    yield "one giant among empty ones", np.full(n, 40), 90
    yield "one giant, some small", np.sort(np.where(rng.random(n) < 0.9, 5, some)), 12
    yield "empty first, middle and last", np.sort(np.array([2, 3, 7, 8])[some % 4]), 11
    yield "more segments than rows", np.sort(rng.integers(0, 5 * n, n)), 5 * n
    yield "below and above the range", rng.integers(-5, 17, n), 12
    yield "sorted, both ends out of range", np.sort(rng.integers(-5, 17, n)), 12
    yield "extreme ids", rng.choice([INT32.min, -1, 0, 3, 4, INT32.max], n), 4
    yield "all out of range", np.full(n, -1), 3
    yield "no segments", np.zeros(n), 0


def cases(rng: np.random.Generator) -> Iterator[Case]:
    """Every other case whose ids are sorted says so: kernels take another path then."""
    known = False
    for case in _cases(rng):
        ids = case.arrays["segment_ids"]
        if bool((ids[1:] >= ids[:-1]).all()):
            known = not known
            yield replace(case, options={"indices_are_sorted": True}) if known else case
        else:
            yield case


def _cases(rng: np.random.Generator) -> Iterator[Case]:
    for name, ids, segments in _ids(rng):
        yield _case(rng, name, rng.standard_normal((ids.size, 5)), ids, segments)
        # Small integers: ties, zeros of both signs, and several zeros in a segment.
        small = rng.integers(-2, 3, (ids.size, 3)) * rng.choice([-1.0, 1.0], (ids.size, 3))
        yield _case(rng, f"{name}, small integers", small, ids, segments)
        yield _case(rng, f"{name}, rank 1", rng.standard_normal(ids.size), ids, segments)
    for n in EXTENTS:
        x = 1 + 0.02 * rng.standard_normal((n, 2))
        yield _case(rng, f"{n} rows in one segment", x, np.zeros(n), 1)
        yield _case(rng, f"{n} rows in three", x, np.sort(rng.integers(0, 3, n)), 3)
        wide = rng.standard_normal((6, n))
        yield _case(rng, f"rows of {n}", wide, np.array([0, 2, 2, 1, 0, 4]), 5)
    yield _case(rng, "rank 4", rng.standard_normal((9, 2, 3, 2)), np.arange(9) // 2, 6)
    yield _case(rng, "rows of no width", np.zeros((9, 2, 0)), np.arange(9) // 2, 6)
    for zeros in range(4):
        x = rng.standard_normal((8, 8))
        for column in range(8):
            x[rng.permutation(8)[:zeros], column] = 0
        yield _case(rng, f"{zeros} zeros in a product", x, np.zeros(8), 1)
    columns = np.stack([row for _, row in hostile_rows(rng)], axis=1)
    n = len(columns)
    yield _case(rng, "hostile columns, one segment", columns, np.zeros(n), 1)
    yield _case(rng, "hostile columns, sorted", columns, np.arange(n) // 16, 6)
    yield _case(rng, "hostile columns, unsorted", columns, rng.integers(0, 4, n), 4)
    x, ids = rng.standard_normal((20, 3)), np.arange(20) // 5
    yield Case("dy is hostile", {"x": x, "segment_ids": ids, "dy": columns[[0, 1, 32, 64], -3:]})
    # Long segments are summed in blocks.
    x = 1 + 0.02 * rng.standard_normal((600, 3))
    x[0, 0], x[300, 1], x[599, 2] = np.inf, -np.inf, np.inf
    yield _case(rng, "infinities in one long segment", x, np.zeros(600), 1)
    yield _case(rng, "infinities in two long segments", x, np.arange(600) % 2, 2)


def large_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Segments of all lengths, and rows of all widths that are treated apart."""
    n, segments = 20_011, 700
    uniform = rng.integers(0, segments, n)
    skewed = np.where(rng.random(n) < 0.97, 5, uniform)
    both = rng.integers(-3, segments + 3, n)
    for name, ids in (("uniform", uniform), ("skewed", skewed), ("one", np.zeros(n))):
        x = 1 + 0.02 * rng.standard_normal((n, 13))
        yield _case(rng, name, x, ids, segments)
        case = _case(rng, f"{name}, sorted", rng.standard_normal((n, 13)), np.sort(ids), segments)
        yield Case(case.name, case.arrays, {"indices_are_sorted": True})
    for width in (1, 2, 3, 5, 8, 24, 40, 70, 130):
        rows = n // width // 2
        x = rng.standard_normal((rows, width))
        yield _case(rng, f"some skipped, rows of {width}", x, both[:rows], segments)
        yield _case(rng, f"few segments, rows of {width}", x, uniform[:rows] % 9, 9)


def draw(draw: Draw, names: Collection[str]) -> Case:
    """One random problem for a function that takes these arguments."""
    n = draw.extent("rows", draw.size)
    columns = draw.shape("columns", size=max(draw.size // max(n, 1), 1))
    most = max(draw.size // max(int(np.prod(columns)), 1), 1)
    segments = draw.extent("segments", min(2 * n + 8, most))
    ids = draw.ids("ids", n, segments)
    arrays = {"x": draw.values("x", (n, *columns)), "segment_ids": ids}
    if "dy" in names:
        arrays["dy"] = draw.values("dy", (segments, *columns))
    outside = bool(((ids < 0) | (ids >= segments)).any())
    ascending = bool((np.diff(ids) >= 0).all())
    options = {
        "num_segments": segments,
        "out_of_range": draw.pick("out_of_range", ("skip", "error"), (2, 1)),
        "indices_are_sorted": draw.chance("sorted", 0.7 if ascending else 0.02),
    }
    if ascending and not outside and draw.chance("counted", 0.1):
        options["num_segments"] = None
    draw.refuse("IndexOutOfRange", when=outside and options["out_of_range"] == "error")
    draw.refuse("InvalidProblem", when=bool(options["indices_are_sorted"]) and not ascending)
    prepared = {"segment_ids": lambda given: prepare_segments(given, segments)}
    known = options["num_segments"] is not None
    return Case("drawn", arrays, options, draw.refused, prepared if known else {})
