"""What a type checker makes of the package; `tests/test_typing.py` has mypy check this file. An
ignored error must be one: mypy is told to report those that are not."""

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import pullback as pb
from pullback import plans

Floats = NDArray[np.float32]


class Tensor:
    """An array of another library."""

    shape: tuple[int, ...]
    dtype: object


def results(x: Floats, y: Floats, ids: NDArray[np.int64], t: Tensor, flag: bool) -> None:
    assert_type(pb.cumsum(x), Floats)
    assert_type(pb.cumsum(t, 0, reverse=True), Tensor)
    assert_type(pb.softmax(x, axis=-1), Floats)
    assert_type(pb.segment_sum(x, ids, 3), Floats)
    assert_type(pb.segment_sum(x, offsets=ids), Floats)
    assert_type(pb.segment_sum(x, pb.prepare_segments(ids, 3)), Floats)
    assert_type(pb.embedding(x, ids), Floats)
    assert_type(pb.gather_segment_reduce(x, ids, ids, 3, reduce="max"), Floats)


def overloads(x: Floats, y: Floats, ids: NDArray[np.int64], t: Tensor, flag: bool) -> None:
    assert_type(pb.cummax(x), Floats)
    assert_type(pb.cummax(x, return_indices=False), Floats)
    assert_type(pb.cummax(x, return_indices=True), tuple[Floats, Any])
    assert_type(pb.cummax(x, return_indices=flag), Floats | tuple[Floats, Any])
    assert_type(pb.segment_max(t, ids, return_indices=True), tuple[Tensor, Any])
    assert_type(pb.embedding_backward(x, ids, 3), Floats)
    assert_type(pb.embedding_backward(x, ids, 3, sparse=True), tuple[Any, Floats])
    assert_type(pb.sparsemax_loss(x, ids), Floats)
    assert_type(pb.sparsemax_loss(x, ids, return_probabilities=True), tuple[Floats, Floats])


def by_argument(x: Floats, y: Floats, t: Tensor) -> None:
    assert_type(pb.cumsum_backward(x), Floats)
    assert_type(pb.cumsum_backward(x, initial=0.0), tuple[Floats, Floats])
    assert_type(pb.cumsum_backward(x, initial=y), tuple[Floats, Floats])
    assert_type(pb.linear_scan_backward(t, t, t), tuple[Tensor, Tensor])
    assert_type(pb.linear_scan_backward(t, t, t, initial=t), tuple[Tensor, Tensor, Tensor])
    assert_type(pb.lerp_backward(x, 0.5), tuple[Floats, Floats])
    assert_type(pb.lerp_backward(x, x, x, y), tuple[Floats, Floats, Floats])
    assert_type(pb.entmax_backward(x, y, 1.25), Floats)
    assert_type(pb.entmax_backward(x, y, y, x=x), tuple[Floats, Floats])


def mistakes(x: Floats, ids: NDArray[np.int64]) -> None:
    pb.cumsum("hello")  # type: ignore[type-var]
    pb.cumsum([1.0, 2.0])  # type: ignore[type-var]
    pb.cumsum(x, dim=0)  # type: ignore[call-arg]
    pb.cumsum_backward(x, reverse="yes")  # type: ignore[call-overload]
    pb.segment_sum(x, ids, ties="frist")  # type: ignore[arg-type]
    pb.segment_sum(x, ids, out_of_range="drop")  # type: ignore[arg-type]
    pb.cummax(x, ties="split")  # type: ignore[call-overload]
    pb.segment_sum(x, "ids")  # type: ignore[arg-type]


def plan_names(stream: pb.Stream) -> None:
    desc = plans.SparsemaxDescriptor(input_shape=(3,), softmax_axis=0, element=pb.ElementKind.F32)
    assert_type(plans.SparsemaxPlan.select(stream, desc), pb.SparsemaxPlan)
    plans.SparsemaxDescriptor(shape=(3,))  # type: ignore[call-arg]
    print(plans.cumsum)  # type: ignore[attr-defined]
