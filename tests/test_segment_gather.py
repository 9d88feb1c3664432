"""Gathered reductions: the bits of the composed form, without its memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.contract.element import ElementKind
from pullback.ops.segment_gather import oracle
from pullback.verify.laws import same_bits

N, ROWS, SEGMENTS = 3000, 70, 50
REDUCTIONS = ("sum", "mean", "max", "min")


def _problem(dtype: Any, ties: bool = False) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(3)
    x = rng.integers(-3, 4, (ROWS, 9)) if ties else rng.standard_normal((ROWS, 9))
    ids = rng.integers(0, SEGMENTS, N)
    ids[:900] = 7  # a long segment
    return x.astype(dtype), rng.integers(0, ROWS, N), ids


@pytest.mark.parametrize("element", [ElementKind.F16, ElementKind.F32, ElementKind.F64])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_has_the_bits_of_the_composed_form(reduce: str, element: ElementKind) -> None:
    x, at, ids = _problem(element.dtype)
    segment = getattr(pb, f"segment_{reduce}")
    want = segment(pb.embedding(x, at), ids, SEGMENTS)
    assert same_bits(pb.gather_segment_reduce(x, at, ids, SEGMENTS, reduce=reduce), want)
    index = pb.prepare_segments(ids, SEGMENTS)
    assert same_bits(pb.gather_segment_reduce(x, at, index, reduce=reduce), want)
    order = np.argsort(ids, kind="stable")
    offsets = np.searchsorted(ids[order], np.arange(SEGMENTS + 1))
    for known in ({"offsets": offsets}, {"segment_ids": ids[order], "indices_are_sorted": True}):
        got = pb.gather_segment_reduce(x, at[order], num_segments=SEGMENTS, reduce=reduce, **known)
        assert same_bits(got, want)


@pytest.mark.parametrize("ties", ["first", "last"])
@pytest.mark.parametrize("reduce", ["sum", "max", "min"])
def test_gradients_have_the_bits_of_the_composed_form(reduce: str, ties: str) -> None:
    x, at, ids = _problem(np.float32, ties=True)
    dy = np.random.default_rng(1).standard_normal((SEGMENTS, 9)).astype(np.float32)
    if reduce == "sum":
        rows = pb.segment_sum_backward(dy, ids)
    else:
        back = getattr(pb, f"segment_{reduce}_backward")
        rows = back(dy, pb.embedding(x, at), ids, ties=ties)
    want = pb.embedding_backward(rows, at, ROWS)
    for given in (ids, pb.prepare_segments(ids, SEGMENTS)):
        got = pb.gather_segment_reduce_backward(dy, x, at, given, reduce=reduce, ties=ties)
        assert same_bits(got, want)


def test_an_id_out_of_range_is_named() -> None:
    x, at, ids = _problem(np.float32)
    at[5] = ROWS
    with pytest.raises(pb.IndexOutOfRange, match=r"`gather_ids` must be in \[0, 70\), got 70 at"):
        pb.gather_segment_reduce(x, at, ids, SEGMENTS)
    at[5], ids[8] = 0, -3
    with pytest.raises(pb.IndexOutOfRange, match=r"`segment_ids` must be in \[0, 50\), got -3 at"):
        pb.gather_segment_reduce_backward(np.zeros((SEGMENTS, 9), np.float32), x, at, ids)
    with pytest.raises(pb.InvalidProblem, match="`weights` must be None unless reduce is 'sum'"):
        pb.gather_segment_reduce(x, at, ids, 60, reduce="max", weights=x[:, 0])


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_nothing_is_made_for_each_position_and_column(reduce: str) -> None:
    """A few words for each position, not a row."""
    n, width = 40_000, 64
    rng = np.random.default_rng(0)
    x = rng.standard_normal((100, width)).astype(np.float32)
    at, ids = rng.integers(0, 100, n), rng.integers(0, 90, n)
    dy = np.ones((90, width), np.float32)
    plans = []
    for call in (
        lambda: pb.gather_segment_reduce(x, at, ids, 90, reduce=reduce),
        lambda: pb.gather_segment_reduce_backward(dy, x, at, ids, reduce=reduce),
        lambda: pb.gather_segment_reduce_weights_backward(dy, x, at, ids),
    ):
        call()
        tracemalloc.start()
        call()
        plans.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    function = pb.gather_segment_reduce.function
    views = function.views({"x": x, "gather_ids": at, "segment_ids": ids})
    made = function.body(**views, num_segments=90, reduce=reduce)
    scratch = made.plan.select(pb.Stream.cpu(), made.descriptor).workspace_size
    assert max(*plans, scratch) < n * width * 4 / 2


@pytest.mark.parametrize("reduce", ["mean", "weighted", "max"])
def test_dropped_positions_count_for_nothing(reduce: str) -> None:
    """Rows and segments out of range, on either side, in the result and in the gradient of x."""
    rng = np.random.default_rng(3)
    x, dy = rng.standard_normal((5, 3)), rng.standard_normal((4, 3))
    gather_ids, segment_ids = rng.integers(-2, 8, 60), rng.integers(-1, 6, 60)
    known: dict[str, Any] = {"reduce": reduce.replace("weighted", "sum"), "out_of_range": "skip"}
    if reduce == "weighted":
        known["weights"] = rng.standard_normal(60)
    y = pb.gather_segment_reduce(x, gather_ids, segment_ids, 4, **known)
    wanted = oracle.gather_segment_reduce(x, gather_ids, segment_ids, 4, **known)
    np.testing.assert_allclose(y, wanted.astype(float), atol=1e-14)
    dx = pb.gather_segment_reduce_backward(dy, x, gather_ids, segment_ids, **known)
    wanted = oracle.gather_segment_reduce_backward(dy, x, gather_ids, segment_ids, **known)
    np.testing.assert_allclose(dx, wanted.astype(float), atol=1e-14)
