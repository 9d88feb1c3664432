"""Inputs that segment reductions get wrong: `x`, `segment_ids` or `offsets`, `dy` per segment."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pullback.ops.case import EXTENTS, Array, Case, Tiles, apart, hostile_rows
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
    yield from _forms(rng)


def _bordered(rng: np.random.Generator, name: str, sizes: Array, columns: int) -> Case:
    """Segments of these sizes, by their borders."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    n = int(offsets[-1])
    arrays = {"x": rng.standard_normal((n, columns)), "offsets": offsets}
    dy = rng.standard_normal((len(sizes), columns))
    return Case(name, {**arrays, "dy": dy}, {"num_inputs": n})


def _along(
    rng: np.random.Generator, shape: tuple[int, ...], axis: int, borders: bool = False
) -> Case:
    """Segments along another axis than the first."""
    n, segments = shape[axis], 7
    ids = rng.integers(0 if borders else -1, segments, n)
    at = axis % len(shape)
    dy = rng.standard_normal((*shape[:at], segments, *shape[at + 1 :]))
    arrays = {"x": rng.standard_normal(shape), "dy": dy}
    options = {"axis": axis, "num_segments": segments, "num_inputs": n}
    if borders:
        counts = np.bincount(ids, minlength=segments)
        arrays["offsets"] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    else:
        arrays["segment_ids"] = ids.astype(np.int64)
    kind = "borders" if borders else "ids"
    return Case(f"{kind} along axis {axis} of {shape}", arrays, options)


def _forms(rng: np.random.Generator) -> Iterator[Case]:
    """Borders in place of ids, and segments along other axes."""
    yield _bordered(rng, "borders", rng.integers(0, 9, 30), 5)
    yield _bordered(rng, "borders, one giant", np.array([3, 0, 700, 1, 0]), 3)
    yield _bordered(rng, "borders, all empty", np.zeros(4, np.int64), 2)
    yield _bordered(rng, "borders, no segments", np.zeros(0, np.int64), 2)
    yield _bordered(rng, "borders, each its own", np.ones(50, np.int64), 9)
    for shape, axis in (((4, 60, 3), 1), ((3, 60), -1), ((2, 3, 40, 2), 2), ((5, 2, 300), 2)):
        yield _along(rng, shape, axis)
        yield _along(rng, shape, axis, borders=True)


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
    yield _bordered(rng, "borders", rng.integers(0, 30, 2000), 8)
    yield _bordered(rng, "borders, giants", np.array([3, 0, 7000, 1, 9000, 0]), 5)
    yield _along(rng, (3, 9001, 5), 1)
    yield _along(rng, (8, 9001), 1, borders=True)


def draw(draw: Draw, names: Collection[str]) -> Case:
    """One random problem for a function that takes these arguments."""
    problem = drawn(draw)
    if "dy" in names:
        problem.arrays["dy"] = draw.values("dy", problem.per_segment)
    return problem.case(draw)


@dataclass
class Drawn:
    """Rows and segments of a random problem; what is left to a family are its gradients."""

    arrays: dict[str, Array]
    options: dict[str, Any]
    per_segment: tuple[int, ...]
    segments: int

    def case(self, draw: Draw) -> Case:
        known = self.options["num_segments"] is not None and "segment_ids" in self.arrays
        count = self.segments
        prepared = {"segment_ids": lambda given: prepare_segments(given, count)}
        return Case("drawn", self.arrays, self.options, draw.refused, prepared if known else {})


def drawn(draw: Draw) -> Drawn:
    """Rows in segments, by ids or by borders, along any axis."""
    n = draw.extent("rows", draw.size)
    columns = draw.shape("columns", size=max(draw.size // max(n, 1), 1))
    most = max(draw.size // max(int(np.prod(columns)), 1), 1)
    segments = draw.extent("segments", min(2 * n + 8, most))
    at = draw.integer("axis.at", 0, len(columns)) if draw.chance("axis.moved", 0.3) else 0

    def shape(extent: int) -> tuple[int, ...]:
        return (*columns[:at], extent, *columns[at:])

    options: dict[str, Any] = {
        "axis": at - len(columns) - 1 if draw.chance("axis.negative", 0.3) else at,
        "num_segments": segments,
        "out_of_range": draw.pick("out_of_range", ("skip", "error"), (2, 1)),
    }
    if draw.chance("axis.wrong", 0.01):
        options["axis"] = draw.pick("axis.far", (len(columns) + 1, -len(columns) - 2))
        draw.refuse("InvalidProblem")
    arrays = {"x": draw.values("x", shape(n))}
    if draw.chance("borders", 0.25):
        starts = draw.borders("borders", n, segments)
        arrays["offsets"] = np.append(starts, n)
        options |= {"num_inputs": n, "indices_are_sorted": draw.chance("sorted")}
        draw.refuse("InvalidProblem", when=not segments and n > 0)
        if draw.chance("counted", 0.3):
            options["num_segments"] = None
        return Drawn(arrays, options, shape(segments), segments)
    ids = arrays["segment_ids"] = draw.ids("ids", n, segments)
    outside = bool(((ids < 0) | (ids >= segments)).any())
    ascending = bool((ids[1:] >= ids[:-1]).all())  # differences may overflow
    options["indices_are_sorted"] = draw.chance("sorted", 0.7 if ascending else 0.02)
    if ascending and not outside and draw.chance("counted", 0.1):
        options["num_segments"] = None
    draw.refuse("IndexOutOfRange", when=outside and options["out_of_range"] == "error")
    draw.refuse("InvalidProblem", when=bool(options["indices_are_sorted"]) and not ascending)
    return Drawn(arrays, options, shape(segments), segments)


# --- smooth ---------------------------------------------------------------------------------------


def smooth_cases(rng: np.random.Generator) -> Iterator[Case]:
    ids = np.array([2, 0, 2, 1, 0, 5, -1])
    yield Case(
        "rows", {"x": apart(rng, 7, 2), "dy": rng.standard_normal((6, 2)), "segment_ids": ids}
    )
    columns = {"x": apart(rng, 2, 7), "dy": rng.standard_normal((2, 6)), "segment_ids": ids}
    yield Case("columns", columns, {"axis": -1, "num_segments": 6})
    borders = {"offsets": np.array([0, 3, 3, 7]), "dy": rng.standard_normal((2, 3, 1))}
    options = {"axis": 1, "num_segments": 3, "num_inputs": 7}
    yield Case("borders", {"x": apart(rng, 2, 7, 1), **borders}, options)


def larger_smooth_cases(rng: np.random.Generator) -> list[Case]:
    ids = rng.integers(0, 6, 20)
    ids[3] = -1
    data = {"x": rng.standard_normal((20, 3)), "dy": rng.standard_normal((7, 3))}
    turned = {"x": rng.standard_normal((2, 20)), "dy": rng.standard_normal((2, 7))}
    options = {"axis": 1, "num_segments": 7, "num_inputs": 20}
    offsets = np.array([0, 4, 4, 5, 9, 9, 15, 20])
    return [
        Case("ids", {**data, "segment_ids": ids}),
        Case("ids along axis 1", {**turned, "segment_ids": ids}, options),
        Case("borders", {**data, "offsets": offsets}, {"num_inputs": 20}),
        Case("borders along axis 1", {**turned, "offsets": offsets}, options),
    ]


def _pieces(rng: np.random.Generator) -> Iterator[Case]:
    """Many columns, and groups of several pieces: the families' own cases have neither."""
    ids = np.where(rng.random(1300) < 0.9, 3, rng.integers(-1, 6, 1300))
    x = 1 + 0.01 * rng.standard_normal((1300, 2))
    yield Case("long", {"x": x, "segment_ids": ids, "dy": rng.standard_normal((5, 2))})
    ids = rng.integers(0, 3, 9)
    x = rng.integers(-2, 3, (9, 150)).astype(np.float64)
    yield Case("wide", {"x": x, "segment_ids": ids, "dy": rng.standard_normal((3, 150))})
    for n in (1, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025):
        x, ids = 1 + 0.01 * rng.standard_normal((n, 1)), np.ones(n, np.int64)
        yield Case(f"a piece of {n}", {"x": x, "segment_ids": ids, "dy": np.full((3, 1), 0.7)})
    for n in (7, 8, 9, 31, 32, 33, 127, 128, 129):
        x, ids = rng.standard_normal((5, n)), rng.integers(-1, 3, 5)
        dy = rng.standard_normal((3, n))
        yield Case(f"{n} columns", {"x": x, "segment_ids": ids, "dy": dy})


TILES = Tiles(_pieces, every=16)
