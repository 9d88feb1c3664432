"""Inputs that gathered reductions get wrong: `x`, `gather_ids`, segments and `dy`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from pullback.ops.case import Array, Case, Tiles, apart
from pullback.ops.draw import Draw
from pullback.ops.segment.index import prepare_segments

REDUCTIONS = ("sum", "mean", "max", "min")


def _case(
    rng: np.random.Generator,
    name: str,
    x: Array,
    at: Array,
    segments: dict[str, Array],
    count: int,
    reduce: str,
    **options: Any,
) -> Case:
    dy = np.asarray(rng.standard_normal((count, x.shape[1])))
    arrays = {"x": x, "gather_ids": at.astype(np.int64), "dy": dy}
    arrays |= {key: value.astype(np.int64) for key, value in segments.items()}
    if reduce == "sum" and rng.random() < 0.5:
        arrays["weights"] = np.asarray(rng.standard_normal(len(at)))
    known = {"num_segments": count, "reduce": reduce, **options}
    return Case(f"{name}, {reduce}", arrays, known)


def _segments(rng: np.random.Generator, n: int) -> Iterator[tuple[str, dict[str, Array], int, Any]]:
    some = rng.integers(0, 12, n)
    yield "unsorted", {"segment_ids": some}, 13, {}
    yield "sorted", {"segment_ids": np.sort(some)}, 12, {"indices_are_sorted": True}
    yield "one giant", {"segment_ids": np.where(rng.random(n) < 0.9, 5, some)}, 12, {}
    yield "some outside", {"segment_ids": rng.integers(-2, 14, n)}, 12, {}
    yield "none", {"segment_ids": np.full(n, -1)}, 4, {}
    borders = np.concatenate([[0], np.cumsum(np.bincount(some, minlength=13))])
    yield "borders", {"offsets": borders}, 13, {}


def cases(rng: np.random.Generator) -> Iterator[Case]:
    for n, rows, width in ((60, 9, 5), (700, 40, 3), (40, 100, 33), (0, 3, 2), (17, 1, 1)):
        for name, segments, count, options in _segments(rng, n):
            for reduce in REDUCTIONS:
                x = rng.standard_normal((rows, width))
                if reduce in ("max", "min"):  # ties, and zeros of both signs
                    x = rng.integers(-2, 3, x.shape) * rng.choice([-1.0, 1.0], x.shape)
                at = rng.integers(-1, rows + 1, n) if name == "some outside" else None
                at = rng.integers(0, rows, n) if at is None else at
                shape = f"{n} of {rows}x{width}"
                yield _case(rng, f"{name}, {shape}", x, at, segments, count, reduce, **options)
    special = rng.standard_normal((20, 4))
    special[rng.random(special.shape) < 0.1] = np.nan
    special[rng.random(special.shape) < 0.1] = np.inf
    for reduce in REDUCTIONS:
        ids = {"segment_ids": rng.integers(0, 8, 90)}
        yield _case(rng, "special values", special, rng.integers(0, 20, 90), ids, 8, reduce)
    none = {"segment_ids": np.zeros(5)}
    yield _case(rng, "rows of no width", np.zeros((3, 0)), np.arange(5) % 3, none, 2, "sum")


def _pieces(rng: np.random.Generator) -> Iterator[Case]:
    """Segments of several blocks, and as many columns as tiles have, or one more or less."""
    sizes = (1, 63, 64, 65, 127, 129, 1023, 1025)
    shapes = [(n, 3, 1, REDUCTIONS[k % len(REDUCTIONS)]) for k, n in enumerate(sizes)]
    # As many extrema one after the other as meet every rule for ties in every element.
    widths = (7, 8, 9, 31, 32, 33, 127, 128, 129)
    shapes += [(5, 3, width, reduce) for width in widths for reduce in ("max", "min")]
    for number, (n, rows, width, reduce) in enumerate(shapes):
        x, at = rng.integers(-2, 3, (rows, width)) / 2.0, rng.integers(-1, rows + 1, n)
        name, segments = f"{n} of {rows}x{width}", {"segment_ids": np.minimum(np.arange(n), 1)}
        yield _case(rng, name, x, at, segments, 3, reduce, indices_are_sorted=bool(number % 2))
    n = 1300
    for reduce in REDUCTIONS:
        x, at = rng.standard_normal((40, 2)), np.where(rng.random(n) < 0.7, 7, np.arange(n) % 40)
        ids = {"segment_ids": np.where(rng.random(n) < 0.9, 3, rng.integers(-1, 6, n))}
        yield _case(rng, "long", x, at, ids, 5, reduce)


TILES = Tiles(_pieces, every=8)


def large_cases(rng: np.random.Generator) -> Iterator[Case]:
    for width in (1, 8, 70):
        n, rows = 12_007, 900
        x, at = rng.standard_normal((rows, width)), rng.integers(0, rows, n)
        for name, segments, count, options in _segments(rng, n):
            for reduce in REDUCTIONS:
                yield _case(
                    rng, f"{name}, rows of {width}", x, at, segments, count, reduce, **options
                )


def draw(draw: Draw, names: Collection[str]) -> Case:
    """One random problem for a function that takes these arguments."""
    n, width = draw.extent("positions", draw.size), draw.extent("columns", 130)
    most = max(draw.size // max(width, 1), 1)
    rows, segments = draw.extent("rows", most), draw.extent("segments", most)
    x, at = draw.values("x", (rows, width)), draw.ids("at", n, rows)
    reduce = draw.pick("reduce", REDUCTIONS) if "reduce" in names else "sum"
    arrays = {"x": x, "gather_ids": at}
    options: dict[str, Any] = {
        "num_segments": segments,
        "reduce": reduce,
        "out_of_range": draw.pick("out_of_range", ("skip", "error"), (1, 2)),
    }
    outside = bool(((at < 0) | (at >= rows)).any())
    prepared: dict[str, Any] = {}
    if draw.chance("borders", 0.25):
        arrays["offsets"] = np.append(draw.borders("borders", n, segments), n)
        options["indices_are_sorted"] = draw.chance("sorted")
        draw.refuse("InvalidProblem", when=not segments and n > 0)
    else:
        ids = arrays["segment_ids"] = draw.ids("ids", n, segments)
        outside = outside or bool(((ids < 0) | (ids >= segments)).any())
        ascending = bool((ids[1:] >= ids[:-1]).all())
        options["indices_are_sorted"] = draw.chance("sorted", 0.7 if ascending else 0.02)
        draw.refuse("InvalidProblem", when=bool(options["indices_are_sorted"]) and not ascending)
        prepared = {"segment_ids": lambda given: prepare_segments(given, segments)}
    draw.refuse("IndexOutOfRange", when=outside and options["out_of_range"] == "error")
    if "weights" in names and reduce == "sum" and draw.chance("weighted"):
        arrays["weights"] = draw.values("weights", (n,))
    if "dy" in names:
        arrays["dy"] = draw.values("dy", (segments, width))
    return Case("drawn", arrays, options, draw.refused, prepared)


# --- smooth ---------------------------------------------------------------------------------------


def smooth_cases(rng: np.random.Generator) -> Iterator[Case]:
    at, ids = np.array([4, 1, 1, 3, 0, 4, 2, -1]), np.array([2, 0, 2, 1, 0, 5, -1, 1])
    rows = {"x": apart(rng, 5, 2), "dy": rng.standard_normal((6, 2)), "gather_ids": at}
    for reduce in ("sum", "mean", "max", "min"):
        known = {"reduce": reduce, "num_segments": 6}
        yield Case(reduce, {**rows, "segment_ids": ids}, known)
    weights = rng.standard_normal(8)
    yield Case("weighted", {**rows, "segment_ids": ids, "weights": weights}, {"num_segments": 6})
    borders = {"offsets": np.array([0, 3, 3, 4, 4, 7, 8]), "gather_ids": np.abs(at)}
    known = {"reduce": "max", "num_segments": 6}
    yield Case("borders", {**rows, **borders}, known)


def larger_smooth_cases(rng: np.random.Generator) -> list[Case]:
    at, ids = rng.integers(0, 6, 20), rng.integers(0, 6, 20)
    at[2], ids[3] = -1, -1
    data = {"x": rng.standard_normal((6, 3)), "dy": rng.standard_normal((7, 3)), "gather_ids": at}
    found = [
        Case(reduce, {**data, "segment_ids": ids}, {"reduce": reduce, "num_segments": 7})
        for reduce in ("sum", "mean", "max", "min")
    ]
    weighted = {**data, "segment_ids": ids, "weights": rng.standard_normal(20)}
    return [*found, Case("weighted", weighted, {"num_segments": 7})]
