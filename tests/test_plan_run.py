"""The call cache of a plan: repeated runs hit it, with the same bits; all others miss it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.ops.scan.recomputed import SLACK
from pullback.ops.segment.contract import SegmentArgs
from pullback.plan.stream import Stream, Workspace
from pullback.verify.laws import same_bits

CPU, NONE = Stream.cpu(), Workspace.NONE
X = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
SUMS = np.cumsum(X, 1)


def a_plan() -> Any:
    """A plan that has run nothing yet."""
    desc = pb.ScanDescriptor(
        kind=pb.ScanKind.CUMSUM, input_shape=X.shape, scan_axis=1, element=pb.ElementKind.F32
    )
    return pb.ScanPlan(desc, "cpu", pb.BackendKind.NUMBA)


def args(x: Any = X, y: Any = None) -> Any:
    return pb.ScanArgs(x=x, y=np.full(X.shape, np.nan, np.float32) if y is None else y)


def test_a_repeated_run_hits_the_cache() -> None:
    plan, given = a_plan(), args()
    assert plan._lookup(CPU, NONE, given) is None
    plan.run(CPU, NONE, given)
    for stream in (CPU, Stream.cpu(3)):
        again = args()
        assert plan._lookup(stream, NONE, again) is not None
        assert same_bits(again.y, SUMS)


def test_a_repeated_run_of_a_carried_state_hits_the_cache() -> None:
    """With bits of the first; of every kind, from a state and from none."""
    kinds = (pb.ScanKind.CUMSUM, pb.ScanKind.CUMMAX, None)
    for kind in kinds:
        about = {"input_shape": X.shape, "scan_axis": 1, "element": pb.ElementKind.F32}
        if kind is None:
            desc: Any = pb.LinearScanDescriptor(stateful=True, **about)
            plan: Any = pb.LinearScanPlan(desc, "cpu", pb.BackendKind.NUMBA)
        else:
            desc = pb.ScanDescriptor(kind=kind, stateful=True, **about)
            plan = pb.ScanPlan(desc, "cpu", pb.BackendKind.NUMBA)
        memory, state = Workspace.allocate(plan), np.ones(3)
        for given in (None, state):
            results = []
            for _ in range(2):
                y, final = np.empty_like(X), np.empty(3)
                states = {"state": given, "final_state": final}
                plan.run(
                    CPU,
                    memory,
                    pb.LinearScanArgs(a=X, b=X, h=y, **states)
                    if kind is None
                    else pb.ScanArgs(x=X, y=y, **states),
                )
                results.append((y, final))
            (y, final), (again, last) = results
            assert same_bits(y, again)
            assert same_bits(final, last)
            np.testing.assert_array_equal(y[:, -1], final)


OTHERS: dict[str, tuple[Any, Any, Any]] = {
    "no stream": (None, NONE, args()),
    "no workspace": (CPU, None, args()),
    "no args": (CPU, NONE, None),
    "other args": (CPU, NONE, pb.ScanBackwardArgs(dy=X, dx=args().y, x=None, y=None)),
    "other strides": (CPU, NONE, args(x=X.T.copy().T)),
    "another dtype": (CPU, NONE, args(y=np.empty(X.shape))),
    "another dtype of the same size": (CPU, NONE, args(y=np.empty(X.shape, np.int32))),
    "no array": (CPU, NONE, args(x=X.tolist())),
    "nothing to write to": (CPU, NONE, args(y=np.broadcast_to(X[:1], X.shape))),
    "overlap": (
        CPU,
        NONE,
        args(*(lambda b: (b[:3], b[1:]))(np.ones((4, 4), np.float32))),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_runs_with_other_arguments_miss_the_cache(name: str) -> None:
    plan = a_plan()
    plan.run(CPU, NONE, args())
    assert plan._lookup(*OTHERS[name]) is None
    assert plan._lookup(CPU, NONE, args()) is not None


def test_alternating_layouts_of_a_plan_stay_in_the_cache() -> None:
    plan, layouts = a_plan(), [X, X.T.copy().T, np.repeat(X, 2, 1)[:, ::2], X[::-1].copy()[::-1]]
    for x in layouts:
        plan.run(CPU, NONE, args(x=x))
    for x in layouts * 2:
        given = args(x=x)
        assert plan._lookup(CPU, NONE, given) is not None
        assert same_bits(given.y, np.cumsum(x, 1))


@pytest.mark.parametrize("threads", [2**40, 2**63, 10**30])
def test_more_threads_than_a_word_can_count(threads: int) -> None:
    plan, before = a_plan(), pb.get_num_threads()
    try:
        pb.set_num_threads(threads)
        assert pb.get_num_threads() > before
        for stream in (CPU, Stream.cpu(threads)) * 2:
            given = args()
            plan.run(stream, NONE, given)
            assert same_bits(given.y, SUMS)
        assert plan._lookup(Stream("cpu", 2**63), NONE, args()) is None
    finally:
        pb.set_num_threads(before)


def test_a_slot_that_was_empty_may_be_given_next() -> None:
    desc = pb.ScanDescriptor(
        kind=pb.ScanKind.CUMMAX, input_shape=X.shape, scan_axis=1, element=pb.ElementKind.F32
    )
    plan = pb.ScanPlan(desc, "cpu", pb.BackendKind.NUMBA)
    for _ in range(2):
        plan.run(CPU, NONE, args())
    indices = np.full(X.shape, -7)
    plan.run(CPU, NONE, pb.ScanArgs(x=X, y=np.empty_like(X), indices=indices))
    assert (indices == np.arange(4)).all()


class _Lent:
    """Memory of an unknown library."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def test_memory_of_an_unknown_library_is_never_in_the_cache() -> None:
    plan = a_plan()
    for _ in range(2):
        given = pb.ScanArgs(x=_Lent(X), y=np.empty_like(X))
        assert plan._lookup(CPU, NONE, given) is None
        plan.run(CPU, NONE, given)
        assert same_bits(given.y, SUMS)


def test_what_was_taken_away_is_missed() -> None:
    plan, given, bare = a_plan(), args(), Workspace.of(bytearray(8))
    plan.run(CPU, NONE, given)
    del given.x, bare.nbytes
    for workspace, some in ((NONE, given), (bare, args())):
        assert plan._lookup(CPU, workspace, some) is None
    with pytest.raises(pb.InvalidProblem):
        plan.run(CPU, NONE, given)


def test_a_workspace_too_small_is_refused_every_time() -> None:
    ids, y = np.array([1, 0, 1]), np.empty((2, 4), np.float32)
    function = pb.segment_sum.function
    call = function.body(**function.views(function.bind((X, ids, 2), {})))
    plan = call.plan.select(CPU, call.descriptor)
    given = SegmentArgs(input=X, segment_ids=ids, output=y)
    for _ in range(2):
        plan.run(CPU, Workspace.allocate(plan), given)
        with pytest.raises(pb.WorkspaceTooSmall):
            plan.run(CPU, Workspace.of(bytearray(plan.workspace_size - 1)), given)
    assert same_bits(y, np.stack([X[1], X[0] + X[2]]))


def _a_plan_with_a_workspace() -> tuple[Any, Any]:
    """It, and arguments in one buffer that has a workspace before them and one behind."""
    desc = pb.UnsortedSegmentSumDescriptor(
        num_inputs=9, embedding_dim=4, num_segments=3, element=pb.ElementKind.F32
    )
    plan = pb.UnsortedSegmentSumPlan(desc, "cpu", pb.BackendKind.NUMBA)
    buffer = np.zeros(2 * plan.workspace_size + 8 * 64, np.uint8)
    at = plan.workspace_size + -plan.workspace_size % 64
    arrays = []
    for dtype, shape in ((np.float32, (9, 4)), (np.int64, (9,)), (np.float32, (3, 4))):
        array = np.ndarray(shape, dtype, buffer, at)
        array[...] = 1
        arrays.append(array)
        at += array.nbytes + 64
    names = ("input", "segment_ids", "output")
    return plan, (buffer, at, SegmentArgs(**dict(zip(names, arrays, strict=True))))


SHARED = (
    r"unsorted_segment_sum: `workspace` must be memory apart from `\w+`, got memory that shares"
)


def test_a_workspace_is_apart_from_all_tensors() -> None:
    """Whether the run is the first or known again, and nothing is written."""
    plan, (buffer, end, given) = _a_plan_with_a_workspace()
    for _ in range(2):
        for name in ("input", "segment_ids", "output"):
            array = getattr(given, name)
            first = array.ctypes.data - buffer.ctypes.data
            for start in (first - plan.workspace_size + 1, first, first + array.nbytes - 1):
                before = buffer.copy()
                lent = Workspace.of(buffer[start : start + plan.workspace_size])
                with pytest.raises(pb.InvalidProblem, match=SHARED):
                    plan.run(CPU, lent, given)
                assert (buffer == before).all()
        for start in (0, end):
            plan.run(CPU, Workspace.of(buffer[start : start + plan.workspace_size]), given)
            assert (given.output == [[0] * 4, [9] * 4, [0] * 4]).all()
    assert plan._lookup(CPU, Workspace.allocate(plan), given) is not None


def test_references_are_neither_lost_nor_kept() -> None:
    plan, given, stream = a_plan(), args(), Stream.cpu(2)
    plan.run(stream, NONE, given)
    things = (given, given.x, given.y, stream, stream.threads, NONE, True, False, plan._lookup)
    before = [sys.getrefcount(thing) for thing in things]
    for _ in range(100):
        assert plan._lookup(stream, NONE, given)
        assert plan._lookup(stream, NONE, args(x=X[:2])) is None
        assert plan._lookup(stream, NONE, None) is None
    assert [sys.getrefcount(thing) for thing in things] == before


@pytest.mark.parametrize("kind", [pb.ScanKind.CUMPROD, pb.ScanKind.LOG_CUMSUM_EXP])
@pytest.mark.parametrize("n", [256, 257, 300, 512, 513, 1000])
def test_nothing_is_written_behind_a_workspace(n: int, kind: pb.ScanKind) -> None:
    desc = pb.ScanBackwardDescriptor(
        kind=kind, input_shape=(5, n), scan_axis=1, element=pb.ElementKind.F16
    )
    plan = pb.ScanBackwardPlan.select(CPU, desc)
    memory = np.full(plan.workspace_size + 4096, 7, np.uint8)
    x = np.full((5, n), 0.999, np.float16)
    end = plan.workspace_size - SLACK  # which is only read
    assert end > 0
    for _ in range(2):
        given = pb.ScanBackwardArgs(dy=x, dx=np.empty_like(x), x=x)
        plan.run(CPU, Workspace.of(memory[: plan.workspace_size]), given)
        assert (memory[end:] == 7).all()
