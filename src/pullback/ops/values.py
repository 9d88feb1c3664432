"""Kinds of values that find faults, for the range of any element: ties, ends of the range, numbers
far apart. All are made in float64, which holds every element exactly; the caller casts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from pullback.contract.element import ElementKind
from pullback.ops.case import Array

Shape = tuple[int, ...]


class Range:
    """What an element can hold."""

    def __init__(self, element: ElementKind) -> None:
        info = ml_dtypes.finfo(element.dtype)
        self.low, self.high = int(info.minexp), int(info.maxexp)  # powers of two of normal numbers
        self.digits = int(info.nmant)
        self.most = float(info.max)
        self.normal = float(info.smallest_normal)
        self.least = float(info.smallest_subnormal)
        sizes = np.array([np.inf, 0.0, self.most, self.normal, self.least, 1.0])
        self.specials = np.concatenate([[np.nan], sizes, -sizes])


Make = Callable[[np.random.Generator, Shape, Range], Array]


@dataclass(frozen=True, slots=True)
class Style:
    """How an array is filled, how often, and whether special values may be strewn into it."""

    make: Make
    weight: float = 1.0
    special: bool = True


def _signs(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.choice(np.array([-1.0, 1.0]), shape)


def _wide(rng: np.random.Generator, shape: Shape, _: Range) -> Array:
    return rng.uniform(-4, 4, shape) * 2.0 ** rng.integers(-12, 8, shape)


def _all_exponents(rng: np.random.Generator, shape: Shape, held: Range) -> Array:
    """Every exponent there is is as likely as any other."""
    exponents = rng.integers(held.low - held.digits, held.high, shape)
    return _signs(rng, shape) * np.ldexp(rng.uniform(1, 2, shape), exponents).clip(max=held.most)


def _subnormal(rng: np.random.Generator, shape: Shape, held: Range) -> Array:
    return held.least * np.ldexp(rng.uniform(-1, 1, shape), rng.integers(0, held.digits + 2, shape))


def _huge(rng: np.random.Generator, shape: Shape, held: Range) -> Array:
    return _signs(rng, shape) * held.most * rng.uniform(0.1, 1, shape)


def _neighbours(rng: np.random.Generator, shape: Shape, held: Range) -> Array:
    """A few steps apart, and so large that the differences are about one, or far more."""
    start = min(held.digits + int(rng.integers(-3, 13)), held.high - 1)
    step = 2.0 ** int(rng.integers(0, min(held.digits, 8)))
    steps = step * rng.integers(-9, 10, shape)
    sign = rng.choice(np.array([-1.0, 1.0]))
    return np.asarray(sign * np.ldexp(1.5 + np.ldexp(steps, -held.digits), start - 1))


def _plain(rng: np.random.Generator, shape: Shape, _: Range) -> Array:
    return rng.integers(-2, 4, shape).astype(np.float64)


def _ties(rng: np.random.Generator, shape: Shape, _: Range) -> Array:
    return rng.integers(-1, 2, shape) * _signs(rng, shape)


def _ramp(rng: np.random.Generator, shape: Shape, _: Range) -> Array:
    count = int(np.prod(shape))
    return (rng.uniform(-3, 3) * np.arange(count) / max(count, 1) * 10).reshape(shape)


STYLES: dict[str, Style] = {
    "small integers": Style(_plain, 3),
    "normal": Style(lambda r, shape, _: r.standard_normal(shape), 8),
    "near one": Style(lambda r, shape, _: 1 + 0.02 * r.standard_normal(shape), 3),
    "wide": Style(_wide, 5),
    "ties": Style(_ties, 3),
    "constant": Style(lambda r, shape, _: np.full(shape, r.standard_normal())),
    "ramp": Style(_ramp),
    "all exponents": Style(_all_exponents, 1.5),
    "subnormal": Style(_subnormal, 0.7),
    "huge": Style(_huge, 0.7),
    "neighbours": Style(_neighbours, 0.7),
    "special only": Style(lambda r, shape, held: r.choice(held.specials, shape), 0.7, False),
}
