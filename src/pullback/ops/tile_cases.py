"""Rows for GPU kernels that work on them by the tile: the hostile ones side by side, and extents
around the borders of tiles. For scans, recurrences and simplex maps alike."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pullback.ops.case import Array, Case, hostile_rows

# One below, at and above the blocks of the launch tables, and several blocks: along rows, across.
BORDERS = (
    *(1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257),
    *(511, 512, 513, 1023, 1024, 1025, 2500),
)
ACROSS = (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
LONG = 9000  # enough tiles for a row to be cut into chunks


def row_case(rng: np.random.Generator, name: str, x: Array, axis: int, reverse: bool) -> Case:
    """A case that all of them take."""
    # Products of ordinary numbers leave every range within a long row; these stay in it.
    values = np.sign(x) * (1 + 0.01 * x) if x.size > 1000 and name != "hostile" else x
    dy, b, h = (np.asarray(rng.standard_normal(x.shape)) for _ in range(3))
    arrays = {"x": np.asarray(values), "dy": dy, "dh": dy, "b": b, "h": h}
    arrays["a"] = arrays["discount"] = np.asarray(np.clip(x, -1, 1))
    return Case(name, arrays, {"axis": axis, "reverse": reverse})


def tile_rows(rng: np.random.Generator) -> Iterator[Case]:
    hostile = np.stack([row for _, row in hostile_rows(rng)])
    for axis, x in ((1, hostile), (0, hostile.T)):
        for reverse in (False, True):
            yield row_case(rng, "hostile", x, axis, reverse)
    for n in BORDERS:
        yield row_case(rng, f"{n}", rng.standard_normal((2, n)), 1, bool(n % 2))
    for n in ACROSS:
        yield row_case(rng, f"columns of {n}", rng.standard_normal((n, 3)), 0, bool(n % 2))
    yield row_case(rng, "columns", rng.standard_normal((2, 70, 9)), 1, False)
    yield row_case(rng, "many rows", rng.standard_normal((65, 9)), 1, True)
    yield row_case(rng, "long", rng.standard_normal(LONG), 0, False)
    yield row_case(rng, "long columns", rng.standard_normal((600, 3)), 0, True)
    yield row_case(rng, "rank 0", np.asarray(0.5), 0, False)
    yield row_case(rng, "nothing", np.zeros((0, 3)), 1, False)
    yield row_case(rng, "empty rows", np.zeros((3, 0)), 1, False)
