"""Mistakes in options: whatever is given, a function works, or says in one sentence of its own
which argument is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from jax import numpy as jnp

import pullback as pb
from pullback.contract.element import ElementKind
from pullback.verify.laws import same_bits
from pullback.verify.subject import Arguments, Subject, subjects

SUBJECTS = list(subjects().values())

VALUES: tuple[Any, ...] = (
    *(-1, 2**62, 2**63, 2**64, -(2**63) - 1, 10**400, np.uint64(2**63)),
    *(1.5, float("nan"), 1j, np.complex64(1), True, np.bool_(True), None),
    *("x", b"x", np.str_("sum"), [], (), {}, object(), int, np.array([1, 2])),
    *(memoryview(bytearray(8)), range(3), slice(None), float, Ellipsis),
    *(pb.TieRule.SPLIT, pb.IndexPolicy.SKIP, pb.EmbeddingKind.EMBEDDING),
)

CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda array: array,
    "torch": torch.from_numpy,
    "jax": lambda array: jnp.asarray(array.astype(np.int32) if array.dtype.kind == "i" else array),
}


# Every value in NumPy; the others lead to the same look at it, in a third of the cases each.
SHARES = {"numpy": slice(None), "torch": slice(0, None, 3), "jax": slice(1, None, 3)}


def arguments_of(subject: Subject) -> Arguments:
    """Some that the function takes, each array filled."""
    for case in subject.cases():
        if all(array.size for array in case.arrays.values()):
            found = subject.arguments(case, ElementKind.F32, ElementKind.I64, subject.variants[0])
            if found is not None:
                return found
    raise AssertionError


def complaint(subject: Subject, given: Arguments) -> Exception | None:
    try:
        subject.function(**given)
    except MemoryError:
        return None  # it would have worked on a larger machine
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("family", CONVERSIONS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_wrong_option_is_named(subject: Subject, family: str) -> None:
    given = arguments_of(subject)
    for name, value in given.items():
        if isinstance(value, np.ndarray):
            given[name] = CONVERSIONS[family](value)
    for name in subject.function.parameters:
        if subject.function.tensors.get(name) is False and family != "numpy":
            continue  # the same look at the same values
        for value in VALUES[SHARES[family]]:
            error = complaint(subject, {**given, name: value})
            named = isinstance(error, pb.PullbackError) and error.op == subject.name
            assert named or error is None, f"{name}={value!r}: {error!r}"


@pytest.mark.parametrize("count", [np.int8, np.uint8, np.int32, np.uint64])
def test_integers_of_numpy_do_not_overflow(count: Any) -> None:
    x, ids = np.ones((200, 2), np.float32), np.arange(200) % 100
    for subject in SUBJECTS:
        if subject.function.parameters[1:3] == ("segment_ids", "num_segments"):
            got, want = (subject.function(x, ids, n) for n in (count(100), 100))
            assert same_bits(got, want)
            assert len(pb.prepare_segments(ids, count(100)).offsets) == 102
    got, want = (pb.embedding_backward(x, ids, n, padding_idx=-1) for n in (count(100), 100))
    assert same_bits(got, want)
    shape = (count(100), count(100))
    desc = pb.SoftmaxDescriptor(
        kind=pb.SoftmaxKind.SOFTMAX, input_shape=shape, softmax_axis=1, element=ElementKind.F32
    )
    y = np.empty((100, 100), np.float32)
    plan = pb.SoftmaxPlan.select(pb.Stream.cpu(), desc)
    plan.run(pb.Stream.cpu(), pb.Workspace.allocate(plan), pb.SoftmaxArgs(x=np.zeros_like(y), y=y))
    assert (y == np.float32(0.01)).all()


def test_tensors_that_no_memory_can_hold() -> None:
    desc = pb.UnsortedSegmentSumDescriptor(
        num_inputs=3, embedding_dim=1 << 30, num_segments=1 << 33, element=ElementKind.F32
    )
    with pytest.raises(
        pb.InvalidProblem, match="unsorted_segment_sum: `output` must be of a shape"
    ):
        pb.UnsortedSegmentSumPlan.select(pb.Stream.cpu(), desc)
    with pytest.raises(pb.InvalidProblem, match="`num_segments` must be at most"):
        pb.prepare_segments(np.zeros(3, int), 1 << 62)


@pytest.mark.parametrize(
    "array",
    [np.ones(3, np.complex64), torch.ones(3, dtype=torch.complex64), jnp.ones(3, jnp.complex64)],
    ids=["numpy", "torch", "jax"],
)
def test_no_cast_that_drops_imaginary_parts_is_advised(array: Any) -> None:
    with pytest.raises(pb.Unsupported, match=r"x\.real and x\.imag are\), got") as caught:
        pb.cumsum(array)
    assert "cast" not in str(caught.value)


# --- tensors are called what the caller calls them ----------------------------------------------

TABLE = np.arange(12.0).reshape(6, 2)
IDS = np.array([0, 0, 1, 1, 2, 2])
SHARED = np.zeros(6)
ODD = np.zeros(6 * 8 + 1, np.uint8)[1:].view(np.float64).reshape(3, 2)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: pb.cumprod(SHARED, out=SHARED[::-1]), "`out` must be memory apart from `x` or"),
        (
            lambda: pb.cumprod(torch.from_numpy(SHARED)[1:], out=torch.from_numpy(SHARED)[:-1]),
            "`out` must be memory apart from `x` or",
        ),
        (
            lambda: pb.segment_sum(TABLE, IDS, 3, out=TABLE[:3]),
            "`out` must be memory apart from `x`,",
        ),
        (
            lambda: pb.segment_max_backward(TABLE[:3], TABLE.copy(), IDS, out=TABLE),
            "`out` must be memory apart from `dy`,",
        ),
        (
            lambda: pb.cummax(
                TABLE[:, 0], return_indices=True, out=(SHARED, SHARED.view(np.int64))
            ),
            r"`out\[0\]` must be memory apart from `out\[1\]`,",
        ),
        (lambda: pb.segment_sum(ODD, IDS[:3], 3), "`x` must be at a multiple of 8 bytes,"),
        (
            lambda: pb.segment_sum(TABLE[:3], IDS[:3], 3, out=ODD),
            "`out` must be at a multiple of 8 bytes,",
        ),
    ],
    ids=["numpy", "torch", "segment", "gradient", "two results", "odd input", "odd result"],
)
def test_errors_about_memory_name_the_argument(call: Callable[[], Any], sentence: str) -> None:
    """Not the slot of the plan; at a first call and at one that was seen before."""
    for _ in range(2):
        with pytest.raises(pb.PullbackError, match=sentence):
            call()
