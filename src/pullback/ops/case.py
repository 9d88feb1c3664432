"""A named adversarial input, and the values and extents that every family suffers from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Around every width a kernel may unroll, tile or block by.
EXTENTS = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1000, 4097)


@dataclass(frozen=True)
class Case:
    """Arrays by argument name, and the options that forward and backward both take.

    Floats are float64 and ids int64, in the range of int32: whoever runs the case casts them to the
    dtypes under test, and crosses it with the options of single ops (ties, mode, ...).

    `refused` names the errors of which a call on it must raise one. `alternatives` are other forms
    of an argument that must change nothing: made of the array by the function given. Arrays of the
    names in `wide` stay int64.
    """

    name: str
    arrays: dict[str, Array]
    options: dict[str, Any] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    alternatives: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    wide: tuple[str, ...] = ()


def _with(row: Array, value: float, *where: int | slice) -> Array:
    changed = row.copy()
    for at in where:
        changed[at] = value
    return changed


def hostile_rows(rng: np.random.Generator, n: int = 65) -> Iterator[tuple[str, Array]]:
    """Named rows of `n` >= 5 values: each breaks some plausible kernel."""
    steps, plain = np.arange(n, dtype=np.float64), rng.standard_normal(n)
    signs = np.where(steps % 2 == 0, 1.0, -1.0)
    first, middle, last = 0, n // 2, n - 1
    yield "zeros", np.zeros(n)
    yield "zeros of both signs", np.copysign(0.0, -signs)
    yield "constant", np.full(n, -1.5)
    yield "few distinct values", rng.integers(-2, 3, n).astype(np.float64)
    yield "ascending", np.sort(plain)
    yield "descending", np.sort(plain)[::-1].copy()
    yield "steep ramp up", 40 * steps
    yield "steep ramp down", -40 * steps
    yield "cliff", np.where(steps < middle, 1e4, -1e4)
    yield "alternating 1e30", 1e30 * signs
    yield "spikes of 1e30", _with(plain, 1e30, middle, last)
    yield "magnitudes apart", plain * 10.0 ** rng.integers(-9, 10, n)
    yield "huge offset", 1e6 + plain
    yield "huge negative offset", -1e6 + plain
    yield "near one", 1 + 1e-3 * plain
    yield "twos", np.full(n, 2.0)
    yield "halves", np.full(n, 0.5)
    for name, tiny in (("f64", 5e-324), ("f32", 1e-45), ("f16", 6e-8)):
        yield f"denormals of {name}", tiny * rng.integers(-9, 10, n)
    yield "one zero", _with(plain, 0.0, middle)
    yield "zero first and last", _with(plain, 0.0, first, last)
    yield "three zeros", _with(plain, 0.0, 1, middle, last)
    for name, value in (("+inf", np.inf), ("-inf", -np.inf), ("NaN", np.nan)):
        yield f"{name} first", _with(plain, value, first)
        yield f"{name} in the middle", _with(plain, value, middle)
        yield f"{name} last", _with(plain, value, last)
        yield f"{name} twice", _with(plain, value, 1, middle)
        yield f"{name} everywhere", np.full(n, value)
        yield f"{name} prefix", _with(plain, value, slice(0, middle))
        yield f"{name} suffix", _with(plain, value, slice(middle, n))
    yield "both infinities", _with(_with(plain, np.inf, middle), -np.inf, 1, last)
    yield "NaN after +inf", _with(_with(plain, np.inf, 1), np.nan, middle)
    yield "+inf after NaN", _with(_with(plain, np.nan, 1), np.inf, middle)
    yield "zero after +inf", _with(_with(plain, np.inf, 1), 0.0, middle)
    yield "+inf after -inf prefix", _with(_with(plain, -np.inf, slice(0, 4)), np.inf, middle)
    yield "negative NaN", _with(plain, -np.nan, middle)


# --- large enough to be split ---------------------------------------------------------------------

# Shape and axis: rows, one long line, columns; a few long lines, short lines, short lines that step
# over memory, narrow ones.
LARGE = (
    ((101, 1031), 1),
    ((150_007,), 0),
    ((1031, 101), 0),
    ((2, 70_001), 1),
    ((2003, 40), 1),
    ((1009, 90), 1),
    ((40, 90, 21), 1),
    ((4001, 5), 1),
)


def large_shapes() -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Named shapes and axes that reach every walk of a kernel along an axis."""
    for shape, axis in LARGE:
        yield f"{' x '.join(map(str, shape))}, axis {axis}", shape, axis


# --- smooth ---------------------------------------------------------------------------------------


def apart(rng: np.random.Generator, *shape: int) -> Array:
    """Values that no small step makes equal."""
    return (rng.permutation(int(np.prod(shape))) / 5 + 0.3).reshape(shape)


def smooth_rows(rng: np.random.Generator) -> Iterator[Case]:
    """Rows without ties: small, for tests that differentiate."""
    for axis, reverse in ((0, False), (1, True)):
        arrays = {"x": apart(rng, 3, 4), "dy": rng.standard_normal((3, 4))}
        yield Case("rows", arrays, {"axis": axis, "reverse": reverse})


def larger_smooth_rows(rng: np.random.Generator) -> list[Case]:
    """The same for central differences of the definition."""
    shape = (5, 23)
    data = {"x": rng.standard_normal(shape), "dy": rng.standard_normal(shape)}
    return [
        Case(f"axis {axis}, {reverse}", data, {"axis": axis, "reverse": reverse})
        for axis in (0, 1)
        for reverse in (False, True)
    ]


# --- tiles of GPU kernels -------------------------------------------------------------------------


@dataclass(frozen=True)
class Tiles:
    """What tests of GPU kernels are given for a family: the cases that tiles add to its own, or
    that take their place (`alone`), and of how many of its own the quick suite runs one; whether
    rows are cut into chunks, which have tests of their own."""

    cases: Callable[[np.random.Generator], Iterator[Case]]
    alone: bool = False
    every: int = 1
    chunked: bool = False
