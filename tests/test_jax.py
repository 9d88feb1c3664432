"""JAX: the same bits as NumPy in every function and element, eager, compiled and batched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.contract.element import FLOATS, ElementKind
from pullback.ops.case import Case
from pullback.verify.laws import same_bits, trials
from pullback.verify.subject import Arguments, Subject, subjects

jax = pytest.importorskip("jax")
jnp = jax.numpy

SUBJECTS = list(subjects().values())

# Each case is one more custom call to compile: a fair share of them, and none that is long. What
# differs between elements are the kernels, and those have laws of their own.
CASES = {ElementKind.F32: 12, ElementKind.F64: 5, ElementKind.F16: 5, ElementKind.BF16: 5}
LONGEST = 400


@pytest.fixture(autouse=True)
def _x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def some(subject: Subject, element: ElementKind, count: int) -> list[Arguments]:
    """Cases of a function from all over its family's list."""

    def short(case: Case) -> bool:
        return subject.takes(case) and all(a.size <= LONGEST for a in case.arrays.values())

    every = max(sum(map(short, subject.cases())) // count, 1)
    return [arguments for _, arguments in trials(subject, element, every, short)]


def split(arguments: Arguments) -> tuple[Arguments, Arguments]:
    """Arrays, now JAX's, and the rest. Unlike `jnp.asarray`, this compiles nothing."""
    arrays = {k: jax.device_put(v) for k, v in arguments.items() if isinstance(v, np.ndarray)}
    return arrays, {k: v for k, v in arguments.items() if k not in arrays}


def results(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def agree(got: Any, want: Any) -> None:
    for mine, theirs in zip(results(got), results(want), strict=True):
        assert isinstance(mine, jax.Array)
        assert mine.dtype == theirs.dtype
        assert same_bits(np.asarray(mine), theirs)


@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_same_bits_as_numpy(subject: Subject, element: ElementKind) -> None:
    cases = some(subject, element, CASES[element]) or pytest.skip("its family has no cases for it")
    parts = [split(arguments) for arguments in cases]

    @jax.jit
    def compiled(operands: list[Arguments]) -> list[Any]:
        return [
            subject.function(**arrays, **rest)
            for arrays, (_, rest) in zip(operands, parts, strict=True)
        ]

    found = compiled([arrays for arrays, _ in parts])
    for arguments, got in zip(cases, found, strict=True):
        agree(got, subject.function(**arguments))
    arrays, rest = parts[len(parts) // 2]
    agree(subject.function(**arrays, **rest), subject.function(**cases[len(parts) // 2]))


def members(arguments: Arguments, names: list[str]) -> list[Arguments]:
    """Two different members of a batch."""
    turned = {name: arguments[name][..., ::-1] for name in names if arguments[name].ndim}
    return [arguments, {**arguments, **turned}]


@pytest.mark.parametrize("ids_too", [False, True], ids=["floats", "ids too"])
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_batch_has_the_bits_of_its_members(subject: Subject, ids_too: bool) -> None:
    batches, mapped = [], []
    for given in some(subject, ElementKind.F32, 3):
        arguments = given
        if ids_too and "indices_are_sorted" in arguments:  # those of the other member are not
            arguments = {**arguments, "indices_are_sorted": False}
        arrays, rest = split(arguments)
        names = [
            name
            for name, value in arrays.items()
            if name != "offsets" and (ids_too or jnp.issubdtype(value.dtype, jnp.floating))
        ]
        pair = members(arguments, names)
        stacked = {name: np.stack([member[name] for member in pair]) for name in names}
        axes = ({name: 0 if name in names else None for name in arrays},)

        def function(arrays: Arguments, rest: Arguments = rest) -> Any:
            return subject.function(**arrays, **rest)

        batches.append((pair, {**arrays, **jax.device_put(stacked)}))
        mapped.append(jax.vmap(function, axes))

    @jax.jit
    def compiled(operands: list[Arguments]) -> list[Any]:
        return [f(arrays) for f, arrays in zip(mapped, operands, strict=True)]

    found = compiled([batch for _, batch in batches])
    assert len(found) > 1 or pytest.skip("its family has no cases for it")
    for (pair, _), got in zip(batches, found, strict=True):
        rows = [np.asarray(array) for array in results(got)]
        for place, member in enumerate(pair):
            for row, want in zip(rows, results(subject.function(**member)), strict=True):
                assert row.dtype == want.dtype
                assert same_bits(row[place], want)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_without_x64_positions_are_narrow(subject: Subject) -> None:
    with jax.enable_x64(False):
        for arguments in some(subject, ElementKind.F32, 3):
            arrays, rest = split(arguments)
            found = results(subject.function(**arrays, **rest))
            for got, want in zip(found, results(subject.function(**arguments)), strict=True):
                assert got.dtype == (np.int32 if want.dtype == np.int64 else want.dtype)
                assert same_bits(np.asarray(got).astype(want.dtype), want)


def test_constants_within_a_trace() -> None:
    x, ids = jnp.ones((3, 2)), jnp.asarray([0, 1, 1])
    want = pb.segment_sum(x, ids, 2)
    _, twice = jax.lax.scan(lambda _, __: (_, pb.segment_sum(x, ids, 2)), 0, None, length=2)
    inside = jax.jit(lambda: pb.segment_sum(x, ids, 2))()
    assert all(map(jnp.array_equal, (*twice, inside), [want] * 3))
    with pytest.raises(jax.errors.JaxRuntimeError, match="position 2"):
        jax.jit(lambda: pb.segment_sum(x, ids.at[2].set(7), 2))().block_until_ready()


def test_the_two_zeros_of_an_option_are_two_programs() -> None:
    x, ids = jnp.ones((1, 2)), jnp.array([1])
    for empty in (0.0, -0.0, 0.0):
        found = np.asarray(pb.segment_max(x, ids, num_segments=2, empty=empty))
        assert (np.signbit(found[0]) == np.signbit(empty)).all()
