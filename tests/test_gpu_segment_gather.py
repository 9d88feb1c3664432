"""Gathered rows reduced by segment on the GPU: what the laws of all families do not say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

import pullback as pb
from interpreted import SUBJECTS, Emulated, Interpreted, equals_the_oracle
from pullback.contract.kinds import BackendKind
from pullback.verify.emulated import emulated

RNG = np.random.default_rng(8)
REDUCTIONS = ("sum", "mean", "max", "min")


def _subject(name: str) -> Interpreted:
    return next(subject for subject in SUBJECTS if subject.name == name)


FORWARD = _subject("gather_segment_reduce")
BACKWARD = _subject("gather_segment_reduce_backward")


def _asked(n: int, rows: int, width: int, segments: int) -> dict[str, Any]:
    return {
        "x": RNG.standard_normal((rows, width)).astype(np.float32),
        "gather_ids": RNG.integers(0, rows, n),
        "segment_ids": RNG.integers(0, segments, n),
    }


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("unsorted", [False, True])
def test_a_prepared_index_is_a_permutation_at_hand(reduce: str, unsorted: bool) -> None:
    """The order of the index groups by segment; positions by row are sorted all the same."""
    asked = _asked(300, 9, 5, 7)
    ids = asked["segment_ids"] if unsorted else np.sort(asked["segment_ids"])
    index = pb.prepare_segments(ids, 7)
    plain = {**asked, "segment_ids": ids, "reduce": reduce}
    desc = {"num_inputs": 300, "embedding_dim": 5, "num_segments": 7, "num_rows": 9}
    desc |= {"element": pb.ElementKind.F32, "reduce": pb.GatherReduceKind(reduce)}
    out, dx = np.zeros((7, 5), np.float32), np.zeros((9, 5), np.float32)
    dy = RNG.standard_normal((7, 5)).astype(np.float32)
    forward = pb.GatherSegmentReducePlan(
        pb.GatherSegmentReduceDescriptor(**desc), "cpu", BackendKind.TRITON
    )
    args = {"x": asked["x"], "segment_ids": index, "gather_ids": asked["gather_ids"]}
    _run(forward, pb.GatherSegmentReduceArgs(**args, out=out))
    np.testing.assert_array_equal(out, FORWARD.answer({**plain, "num_segments": 7})[0])
    backward = pb.GatherSegmentReduceBackwardPlan(
        pb.GatherSegmentReduceBackwardDescriptor(**desc), "cpu", BackendKind.TRITON
    )
    _run(backward, pb.GatherSegmentReduceBackwardArgs(**args, dy=dy, dx=dx))
    np.testing.assert_array_equal(dx, BACKWARD.answer({**plain, "dy": dy})[0])


def _run(plan: Any, args: Any) -> None:
    plan.run(pb.Stream.cpu(), pb.Workspace.allocate(plan), args)


def test_nothing_has_a_row_for_each_position() -> None:
    """A million positions of 256 columns are a gigabyte; what is borrowed does not know columns but
    in parts of blocks, and for extrema in cells of the segments."""
    sizes = {"num_inputs": 1 << 20, "embedding_dim": 256, "num_segments": 1000, "num_rows": 1000}
    for reduce in pb.GatherReduceKind:
        fields = {**sizes, "element": pb.ElementKind.F32, "reduce": reduce}
        plans = (
            pb.GatherSegmentReducePlan(
                pb.GatherSegmentReduceDescriptor(**fields), "cpu", BackendKind.TRITON
            ),
            pb.GatherSegmentReduceBackwardPlan(
                pb.GatherSegmentReduceBackwardDescriptor(**fields), "cpu", BackendKind.TRITON
            ),
        )
        for plan in plans:
            assert plan.workspace_size < 100 << 20


@pytest.mark.parametrize("ties", ["first", "last", "split"])
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_extrema_that_are_gathered_several_times(reduce: str, ties: str) -> None:
    """A row may hold an extremum at several positions: equals of its own."""
    asked = _asked(60, 4, 3, 5)
    asked["x"] = np.array([[1, -1, np.nan], [1, 2, 0], [-0.0, 2, 0], [0, -1, 5]], np.float32)
    dy = RNG.standard_normal((5, 3)).astype(np.float32)
    for subject in (BACKWARD, Emulated(BACKWARD.function, BACKWARD.family, target="sm_80")):
        equals_the_oracle(subject, {**asked, "dy": dy, "reduce": reduce, "ties": ties})


@pytest.mark.parametrize("ids", ["segment_ids", "gather_ids"])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_a_failed_check_of_either_ids_writes_nothing(reduce: str, ids: str) -> None:
    """Segments are checked before rows."""
    asked = {**_asked(40, 6, 3, 5), "reduce": reduce, "out_of_range": "error"}
    asked["gather_ids"][[7, 9]] = 6
    expected = r"`gather_ids`.* in \[0, 6\), got 6 at position 7"
    if ids == "segment_ids":
        asked["segment_ids"][30] = -1
        expected = r"`segment_ids`.* -1 at position 30"
    out = np.full((5, 3), 5, np.float32)
    with pytest.raises(pb.IndexOutOfRange, match=expected):
        FORWARD.answer({**asked, "num_segments": 5}, out=out)
    assert (out == 5).all()
    out, dy = np.full((6, 3), 5, np.float32), np.ones((5, 3), np.float32)
    with pytest.raises(pb.IndexOutOfRange, match=expected):
        BACKWARD.answer({**asked, "dy": dy}, out=out)
    assert (out == 5).all()


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_sums_of_f32_take_hardly_any_f64(reduce: str) -> None:
    asked = {**_asked(2048, 300, 32, 90), "reduce": reduce}
    if reduce == "sum":
        asked["weights"] = RNG.standard_normal(2048).astype(np.float32)
    counts = emulated(FORWARD, {**asked, "num_segments": 90}, "sm_90").counts
    assert counts.instructions["f64"] <= 4 * 2048 * 32
    asked["dy"] = RNG.standard_normal((90, 32)).astype(np.float32)
    counts = emulated(BACKWARD, asked, "sm_90").counts
    assert counts.instructions["f64"] <= 4 * 2048 * 32
