"""Exclusive scans, initial values and pieces: what the cases of scans and recurrences share."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from pullback.ops.case import Array, Case
from pullback.ops.draw import Draw

# Shape, axis, borders (None: one piece), and the shape of the initial value: short lines and long
# ones, pieces of one element and of none, longer than a chunk and than a tile.
_SHAPES: tuple[tuple[tuple[int, ...], int, tuple[int, ...] | None, tuple[int, ...]], ...] = (
    ((), 0, None, ()),
    ((), 0, (0, 0, 1), (2,)),
    ((0,), 0, (0,), (0,)),
    ((0,), 0, (0, 0), (1,)),
    ((3, 0), 1, None, (3,)),
    ((5,), 0, None, (1,)[1:]),
    ((1,), 0, (0, 1), (1,)),
    ((33,), 0, (0, 1, 1, 2, 9, 9, 33), (6,)),
    ((3, 17), 1, None, (3,)),
    ((3, 17), 1, (0, 4, 5, 17), (3, 3)),
    ((17, 20), 0, None, (20,)),
    ((17, 20), 0, (0, 8, 17), (1, 20)),
    ((2, 70, 9), 1, (0, 0, 64, 65, 70), (2, 1, 1)),
    ((2, 70, 9), 1, None, (9,)),
    ((4, 300), 1, (0, 300), ()),
    ((2, 1100), -1, (0, 5, 521, 1100), (2, 3)),
    ((600, 3), 0, (0, 300, 300, 600), (3, 1)),
)


def extensions(
    rng: np.random.Generator,
) -> Iterator[tuple[str, dict[str, Array], dict[str, Any]]]:
    """Names, arrays and options; "shape" among the arrays has the shape that is scanned."""
    number = 0
    for shape, axis, borders, initial in _SHAPES:
        for exclusive in (False, True):
            for starts in (False, True):
                if borders is None and not exclusive and not starts:
                    continue
                number += 1
                arrays: dict[str, Array] = {"shape": np.empty(shape)}
                if borders is not None:
                    arrays["offsets"] = np.array(borders)
                if starts:
                    full = initial
                    arrays["initial"] = np.asarray(1 + 0.5 * rng.standard_normal(full))
                options = {"axis": axis, "reverse": number % 2 == 1, "exclusive": exclusive}
                words = [f"{len(borders) - 1} pieces"] if borders is not None else []
                words += ["exclusive"] * exclusive + ["from an initial value"] * starts
                yield f"{shape}, {', '.join(words)}", arrays, options


def draw_extension(
    draw: Draw, names: Collection[str], shape: tuple[int, ...], axis: int
) -> dict[str, Array]:
    """Borders and an initial value, for functions that take them."""
    arrays: dict[str, Array] = {}
    full = shape or (1,)
    if not -len(full) <= axis < len(full):
        return arrays
    axis %= len(full)
    steps, pieces = full[axis], None
    if "offsets" in names and draw.chance("pieces", 0.3):
        pieces = draw.extent("pieces.count", max(steps, 3), 0 if steps == 0 else 1)
        starts = draw.borders("offsets", steps, pieces)
        arrays["offsets"] = np.append(starts, steps)
    if "initial" in names and draw.chance("initial", 0.3):
        middle = () if pieces is None else (pieces,)
        own = (*full[:axis], *middle, *full[axis + 1 :])
        if draw.chance("initial.narrow", 0.3):
            own = tuple(1 if draw.chance("initial.one") else extent for extent in own)
            own = own[draw.integer("initial.dropped", 0, len(own)) :]
        arrays["initial"] = draw.values("initial", own)
    return arrays


# --- smooth ---------------------------------------------------------------------------------------


def smooth_extended(cases: Iterator[Case], rng: np.random.Generator) -> Iterator[Case]:
    """Also exclusive, from an initial value, in pieces, and all of these."""
    for case in cases:
        yield case
        rest = 4 if case.options["axis"] == 0 else 3
        extent = 3 if case.options["axis"] == 0 else 4
        exclusive = {**case.options, "exclusive": True}
        if "a" in case.arrays:  # the identity of others is infinite, which has no differences
            yield Case("exclusive", case.arrays, exclusive)
        arrays = {**case.arrays, "initial": rng.uniform(0.4, 0.6, rest)}
        yield Case("initial", arrays, case.options)
        yield Case("exclusive, initial", {**arrays, "initial": np.array(0.45)}, exclusive)
        arrays = {**case.arrays, "offsets": np.array([0, 1, 1, extent])}
        yield Case("pieces", arrays, case.options)
        shape = (3, rest) if case.options["axis"] == 0 else (rest, 3)
        yield Case("all", {**arrays, "initial": rng.uniform(0.4, 0.6, shape)}, exclusive)
