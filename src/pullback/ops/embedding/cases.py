"""Inputs that embeddings get wrong.

Lookups have `weight`, `indices` and `dout`. Bags have `offsets` and `per_sample_weights` as well
(the latter for sums only), and one row of `dout` for each bag.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from pullback.ops.case import EXTENTS, Array, Case, Tiles, apart, hostile_rows
from pullback.ops.draw import Draw
from pullback.ops.segment.index import prepare_segments

INT32 = np.iinfo(np.int32)


def _indices(rng: np.random.Generator, rows: int, n: int = 60) -> Iterator[tuple[str, Array]]:
    some = rng.integers(0, rows, n)
    yield "random", some
    yield "all the same row", np.full(n, rows - 1)
    yield "one hot row", np.where(rng.random(n) < 0.9, 3, some)
    yield "each row once", rng.permutation(rows)
    yield "Zipf", np.minimum(rng.zipf(1.3, n) - 1, rows - 1)
    yield "out of range", rng.choice([INT32.min, -rows, -1, 0, 1, rows, INT32.max], n)
    yield "all out of range", np.full(n, rows)
    yield "none", np.zeros(0)


def _padded(name: str, arrays: dict[str, Array], **options: object) -> Iterator[Case]:
    """The case without padding, and with a padding row named from either end."""
    rows = len(arrays["weight"])
    arrays = {**arrays, "indices": arrays["indices"].astype(np.int64)}
    for padding in (None, 3, -1, -rows):
        yield Case(f"{name}, padding {padding}", arrays, {"padding_idx": padding, **options})


def _lookups(rng: np.random.Generator) -> Iterator[Case]:
    weight = rng.standard_normal((11, 5))
    for name, indices in _indices(rng, 11):
        dout = rng.standard_normal((indices.size, 5))
        yield from _padded(name, {"weight": weight, "indices": indices, "dout": dout})
    for shape in ((), (3,), (2, 0), (2, 3, 4)):
        indices, dout = np.asarray(rng.integers(0, 11, shape)), rng.standard_normal((*shape, 5))
        yield from _padded(f"shape {shape}", {"weight": weight, "indices": indices, "dout": dout})
    for n in EXTENTS:
        indices = rng.integers(0, 5, n)
        arrays = {"weight": rng.standard_normal((5, 3)), "indices": indices}
        yield Case(f"{n} positions", {**arrays, "dout": rng.standard_normal((n, 3))})
        arrays = {"weight": rng.standard_normal((5, n)), "indices": np.array([1, 4, 1])}
        yield Case(f"rows of {n}", {**arrays, "dout": rng.standard_normal((3, n))})
    nothing = {"weight": np.zeros((0, 4)), "indices": np.zeros(0, np.int64)}
    yield Case("no vocabulary", {**nothing, "dout": np.zeros((0, 4))})
    values = np.stack([row for _, row in hostile_rows(rng)], axis=1)
    indices = rng.integers(0, len(values), 40)
    yield Case(
        "hostile values", {"weight": values, "indices": indices, "dout": values[indices[::-1]]}
    )


def _bags(rng: np.random.Generator, n: int) -> Iterator[tuple[str, list[int], bool]]:
    """Named offsets into `n` >= 4 positions, and whether the last of them is an end."""
    cuts = sorted(rng.integers(0, n, 6).tolist())
    yield "random", [0, *cuts], False
    yield "random, with the end", [0, *cuts, n], True
    yield "empty at both ends", [0, 0, 0, 2, n, n], False
    yield "one", [0], False
    yield "one, with the end", [0, n], True
    yield "one for each position", list(range(n)), False
    yield "all empty but the last", [0] * 5, False
    yield "all empty", [0] * 5, True
    yield "positions in no bag", [0, 1, 1, 4], True
    yield "none", [], False
    yield "none, with the end", [0], True


def _bag_case(
    rng: np.random.Generator, weight: Array, indices: Array, offsets: list[int], last: bool
) -> dict[str, Array]:
    return {
        "weight": weight,
        "indices": indices.astype(np.int64),
        "offsets": np.array(offsets, np.int64),
        "per_sample_weights": rng.standard_normal(indices.size),
        "dout": rng.standard_normal((len(offsets) - last, weight.shape[1])),
    }


def _bags_of_rows(rng: np.random.Generator) -> Iterator[Case]:
    """Bags without offsets: rows of a matrix of indices, of weights too."""
    weight = rng.standard_normal((11, 5))
    for shape in ((4, 3), (1, 60), (60, 1), (3, 0), (0, 3), (0, 0), (2, 300)):
        for values in ("in range", "out of range"):
            low, high = (0, 11) if values == "in range" else (-2, 13)
            arrays = {
                "weight": weight,
                "indices": rng.integers(low, high, shape),
                "per_sample_weights": rng.standard_normal(shape),
                "dout": rng.standard_normal((shape[0], 5)),
            }
            yield from _padded(f"rows of indices {shape}, {values}", arrays)


def cases(rng: np.random.Generator) -> Iterator[Case]:
    yield from _lookups(rng)
    yield from _bags_of_rows(rng)
    weight = rng.standard_normal((11, 5))
    ties = rng.integers(-1, 2, (11, 5)) * rng.choice([-1.0, 1.0], (11, 5))
    hostile = np.stack([row for _, row in hostile_rows(rng)], axis=1)
    for name, indices in _indices(rng, 11):
        if not indices.size:
            yield Case("no positions, bags: 3", _bag_case(rng, weight, indices, [0] * 3, False))
            continue
        for shape, offsets, last in _bags(rng, indices.size):
            arrays = _bag_case(rng, weight, indices, offsets, last)
            yield from _padded(f"{name}, bags: {shape}", arrays, include_last_offset=last)
    for shape, offsets, last in _bags(rng, 60):
        for name, table in (("ties", ties), ("hostile values", hostile)):
            arrays = _bag_case(rng, table, rng.integers(0, len(table), 60), offsets, last)
            yield Case(f"{name}, bags: {shape}", arrays, {"include_last_offset": last})
    for n in EXTENTS:
        arrays = _bag_case(rng, weight[:, :2], rng.integers(0, 11, n), [0], False)
        yield Case(f"{n} positions in one bag", arrays)
        table = rng.standard_normal((5, n))
        yield Case(
            f"bags of rows of {n}", _bag_case(rng, table, np.array([1, 4, 1]), [0, 2], False)
        )
    # Gradients of a row that many positions hold are summed in blocks, as are long bags.
    table, indices, dout = rng.standard_normal((3, 3)), np.ones(600, np.int64), np.ones((600, 3))
    table[1, 0], dout[0, 0], dout[300, 1] = np.inf, np.inf, -np.inf
    yield Case("infinities in a hot row", {"weight": table, "indices": indices, "dout": dout})
    arrays = _bag_case(rng, table, indices, list(range(600)), False)
    yield Case("infinities in a hot row of bags", {**arrays, "dout": dout})
    yield Case("infinities in a long bag", _bag_case(rng, table, indices, [0], False))


def large_cases(rng: np.random.Generator) -> Iterator[Case]:
    """One row takes half of the positions; rows of widths that are treated apart."""
    n, rows, bags = 20_011, 900, 800
    indices = np.where(rng.random(n) < 0.5, 7, rng.integers(0, rows, n))
    offsets = [0, *np.sort(rng.integers(0, n, bags - 1)).tolist()]
    for width in (1, 3, 13, 64):
        weight, some = rng.standard_normal((rows, width)), indices[: n // width + 800]
        dout = rng.standard_normal((some.size, width))
        yield Case(f"rows of {width}", {"weight": weight, "indices": some, "dout": dout})
        yield Case(
            f"rows of {width}, rows of the gradient",
            {"weight": weight, "indices": some, "dout": dout},
            {"sparse": True, "padding_idx": 5},
        )
        within = [min(at, some.size) for at in offsets]
        arrays = _bag_case(rng, weight, some, within, False)
        yield Case(f"bags of rows of {width}", arrays, {"padding_idx": 5})
        yield Case(f"long bags of rows of {width}", _bag_case(rng, weight, some, [0, 9], False))


def _drawn_offsets(draw: Draw, n: int, options: dict[str, Any]) -> Array:
    last = options["include_last_offset"] = draw.chance("include_last_offset")
    bags = draw.extent("bags", max(min(n + 8, draw.size), 1))
    return draw.borders("offsets", n, bags + last)


def _draw_mode(draw: Draw, names: Collection[str], options: dict[str, Any]) -> None:
    if "mode" in names:
        options["mode"] = draw.pick("mode", ("sum", "mean", "max"))
    if "return_indices" in names and options["mode"] == "max":
        options["return_indices"] = draw.chance("return_indices")
    else:
        options["return_indices"] = False


def draw(draw: Draw, names: Collection[str]) -> Case:
    """One random problem for a function that takes these arguments."""
    columns = draw.extent("columns", min(draw.size, 5000))
    most = max(draw.size // max(columns, 1), 1)
    rows = draw.extent("rows", most)
    options: dict[str, Any] = {"num_embeddings": rows}
    shape: tuple[int, ...] = (draw.extent("positions", most),)
    if "offsets" not in names and draw.chance("shaped", 0.3):
        shape = draw.shape("indices", size=most)
    elif "offsets" in names and draw.chance("rows_of_indices", 0.3):
        bags = draw.extent("bags", most)
        shape = bags, draw.extent("length", max(most // max(bags, 1), 1))
    count = int(np.prod(shape))
    ids = draw.ids("ids", count, rows)
    arrays = {"indices": ids.reshape(shape), "weight": draw.values("weight", (rows, columns))}
    lead = shape
    if "offsets" in names:
        lead, options["include_last_offset"] = shape[:1], False
        if len(shape) == 1:
            arrays["offsets"] = _drawn_offsets(draw, count, options)
            lead = (len(arrays["offsets"]) - options["include_last_offset"],)
        _draw_mode(draw, names, options)
        if options.get("mode", "") == "sum" and draw.chance("weighted"):
            arrays["per_sample_weights"] = draw.values("per_sample_weights", shape)
    if "dout" in names:
        arrays["dout"] = draw.values("dout", (*lead, columns))
    if options.get("mode") == "max" and "output_index" in names and draw.chance("winners", 0.2):
        winners = draw.ids("output_index", lead[0] * columns, rows) - draw.chance("empty")
        arrays["output_index"] = winners.reshape(*lead, columns)
    if rows and draw.chance("padded", 0.3):
        options["padding_idx"] = draw.integer("padding_idx", -rows, rows - 1)
    options["out_of_range"] = draw.pick("out_of_range", ("skip", "error"), (2, 1))
    outside = bool(((ids < 0) | (ids >= rows)).any())
    winners = arrays.get("output_index", ids)
    outside |= bool(((winners < -1) | (winners >= rows)).any())
    draw.refuse("IndexOutOfRange", when=outside and options["out_of_range"] == "error")
    options["sparse"] = "sparse" in names and draw.chance("sparse", 0.1)
    if "accumulate_into" in names and not options["sparse"] and draw.chance("accumulate", 0.2):
        arrays["accumulate_into"] = draw.values("accumulate_into", (rows, columns))
    prepared = {"indices": lambda given: prepare_segments(given.reshape(-1), rows)}
    flat = "dout" in names and "offsets" not in names
    wide = ("output_index",)
    return Case("drawn", arrays, options, draw.refused, prepared if flat else {}, wide)


# --- smooth ---------------------------------------------------------------------------------------


def smooth_cases(rng: np.random.Generator) -> Iterator[Case]:
    table = {"weight": apart(rng, 5, 2)}
    indices = np.array([[4, 1, 1], [-1, 0, 4]])
    lookup = {**table, "indices": indices, "dout": rng.standard_normal((2, 3, 2))}
    yield Case("lookup", lookup, {"padding_idx": 0})
    bags = {
        **table,
        "indices": np.array([4, 1, 1, 9, 0, 4, 2]),
        "offsets": np.array([0, 2, 2, 5]),
        "per_sample_weights": rng.standard_normal(7),
        "dout": rng.standard_normal((4, 2)),
    }
    yield Case("bags", bags, {"padding_idx": 0})


def larger_smooth_cases(rng: np.random.Generator) -> list[Case]:
    indices = rng.integers(0, 6, 20)
    data = {"weight": rng.standard_normal((6, 3)), "indices": indices}
    bagged = {
        **data,
        "offsets": np.array([0, 4, 4, 11]),
        "per_sample_weights": rng.standard_normal(20),
        "dout": rng.standard_normal((4, 3)),
    }
    return [
        Case("plain", {**data, "dout": rng.standard_normal((20, 3))}, {"padding_idx": 2}),
        Case("bags", bagged, {"padding_idx": 2}),
    ]


def _blocks(rng: np.random.Generator) -> Iterator[Case]:
    """As many positions as blocks hold, and one bag of them among small ones; bags by the tile."""
    for n in (63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 2500):
        indices, weight = rng.integers(-1, 5, n), rng.standard_normal((5, 2))
        arrays = {"weight": weight, "indices": indices}
        yield Case(f"{n} positions", {**arrays, "dout": rng.standard_normal((n, 2))})
        bags = {"offsets": np.array([0, 3, n - 2]), "dout": rng.standard_normal((3, 2))}
        bags["per_sample_weights"] = rng.standard_normal(n)
        yield Case(f"a bag of {n - 5}", {**arrays, **bags})
    for n in (15, 16, 17):
        arrays = {"weight": rng.standard_normal((5, 3)), "indices": rng.integers(0, 5, 2 * n)}
        arrays |= {"offsets": 2 * np.arange(n), "dout": rng.standard_normal((n, 3))}
        yield Case(f"{n} bags", {**arrays, "per_sample_weights": rng.standard_normal(2 * n)})
    arrays = {"weight": rng.standard_normal((5, 150)), "indices": rng.integers(0, 5, 6)}
    yield Case("wide rows", {**arrays, "dout": rng.standard_normal((6, 150))})
    arrays |= {"offsets": np.array([0, 2]), "dout": rng.standard_normal((2, 150))}
    yield Case("bags of wide rows", {**arrays, "per_sample_weights": rng.standard_normal(6)})


TILES = Tiles(_blocks, every=40)
