"""Every array of a call in another layout: the bits are those of plain ones.

The laws lay all arrays of a call out alike, so a kernel that looks at the strides of one tensor and
not at those of another goes unnoticed there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pullback
from pullback.contract.element import ElementKind
from pullback.ops.case import Case
from pullback.ops.lerp.cpu_elementwise import PIECE
from pullback.verify.laws import same_bits
from pullback.verify.layouts import LAYOUTS, buffer_of, poison
from pullback.verify.subject import Arguments, Subject, subjects

WAYS = (np.copy, *LAYOUTS.values())
SHAPE = (20, 70)  # rows and columns in whole squares and some more


def _problems(subject: Subject) -> Iterator[Case]:
    """A matrix for each tensor where they have one shape, both ways; else the largest case."""
    rng, names = np.random.default_rng(9), subject.function.parameters
    if subject.function.indices or {"alpha", "target"} & set(names):
        taken = (case for case in subject.cases() if subject.takes(case))
        yield max(taken, key=lambda case: sum(array.size for array in case.arrays.values()))
        return
    floats = {"x", "y", "dy", "dh", "h", "a", "b", "weight", *subject.function.tensors}
    arrays = {name: rng.uniform(0.1, 0.9, SHAPE) for name in floats}
    for axis in (0, 1) if "axis" in names else (None,):
        for reverse in (False, True) if "reverse" in names else (None,):
            options = {"axis": axis, "reverse": reverse}
            yield Case("matrix", arrays, {k: v for k, v in options.items() if v is not None})


def _choices(count: int) -> Iterator[list[int]]:
    """Which layout each of so many arrays has: all of them another, or one alone not the first."""
    for turn in range(len(WAYS)):
        yield [(turn + 3 * place) % len(WAYS) for place in range(count)]
    for place in range(count):
        for number in range(1, len(WAYS)):
            yield [number if other == place else 0 for other in range(count)]


def _laid_out(array: Any, number: int) -> Any:
    return WAYS[number](array) if array.ndim else array


def _check(subject: Subject, arguments: Arguments) -> None:
    plain = subject.answer(arguments)
    names = [name for name, value in arguments.items() if isinstance(value, np.ndarray)]
    for chosen in _choices(len(names) + len(plain)):
        inputs, outputs = chosen[: len(names)], chosen[len(names) :]
        given = {n: _laid_out(arguments[n], k) for n, k in zip(names, inputs, strict=True)}
        blank = [np.full_like(array, poison(array)) for array in plain]
        out = [_laid_out(array, k) for array, k in zip(blank, outputs, strict=True)]
        subject.answer({**arguments, **given}, out=tuple(out) if len(out) > 1 else out[0])
        for got, want in zip(out, plain, strict=True):
            assert same_bits(got, want), chosen
            got[...] = poison(got)
            outside = buffer_of(got)
            assert same_bits(outside, np.full_like(outside, poison(outside))), chosen


@pytest.mark.parametrize("subject", subjects().values(), ids=str)
def test_every_array_in_another_layout(subject: Subject) -> None:
    tried = 0
    for case in _problems(subject):
        for variant in subject.variants:
            arguments = subject.arguments(
                case, ElementKind.F32, ElementKind.I64, variant, exact=False
            )
            if arguments is not None:
                _check(subject, arguments)
                tried += 1
    assert tried


@pytest.mark.parametrize("n", [PIECE - 1, PIECE, PIECE + 1, 2 * PIECE])
def test_rows_of_whole_pieces_are_walked_once(n: int) -> None:
    """Elementwise kernels cut long rows into pieces; these rows do not join into one."""
    wide = np.random.default_rng(3).random((2, 3, n + 5), np.float32)
    a, b = wide[..., :n]
    for got, want in (
        (pullback.lerp(a, b, 0.25), pullback.lerp(a.copy(), b.copy(), 0.25)),
        (pullback.lerp(a, b, b), pullback.lerp(a.copy(), b.copy(), b.copy())),
        (pullback.lerp_backward(a, 0.25)[0], pullback.lerp_backward(a.copy(), 0.25)[0]),
    ):
        assert same_bits(got, want)
    np.testing.assert_allclose(pullback.lerp(a, b, 0.25), a + 0.25 * (b - a), rtol=1e-5)
