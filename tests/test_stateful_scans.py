"""Plans that carry a state: sequences scanned in windows, each from what the last one left."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from pullback.verify.laws import same_bits

CPU = pb.Stream.cpu()
DTYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
EXTREMA = (pb.ScanKind.CUMMAX, pb.ScanKind.CUMMIN)
KINDS = (*pb.ScanKind, "linear_scan")
NUMBA, REFERENCE = pb.BackendKind.NUMBA, pb.BackendKind.REFERENCE


def a_plan(kind: Any, x: Any, axis: int, backend: Any = NUMBA, **options: Any) -> Any:
    about = {"input_shape": x.shape, "scan_axis": axis, "element": pb.ElementKind.of(x), **options}
    pref = pb.PlanPreference(prefer_backend=backend)
    if kind == "linear_scan":
        desc = pb.LinearScanDescriptor(stateful=True, **about)
        return pb.LinearScanPlan.select(CPU, desc, pref)
    desc = pb.ScanDescriptor(kind=kind, stateful=True, **about)
    return pb.ScanPlan.select(CPU, desc, pref)


def run(
    plan: Any, x: Any, y: Any, state: Any, final: Any, indices: Any = None, **positions: Any
) -> None:
    states = {"state": state, "final_state": final, **positions}
    if isinstance(plan, pb.LinearScanPlan):
        args: Any = pb.LinearScanArgs(a=x, b=x, h=y, **states)
    else:
        args = pb.ScanArgs(x=x, y=y, indices=indices, **states)
    plan.run(CPU, pb.Workspace.allocate(plan), args)


def in_windows(
    kind: Any, x: Any, axis: int, cuts: tuple[int, ...], **options: Any
) -> tuple[Any, Any]:
    """The results of all windows, and the state after the last, in one memory all the while."""
    y, state = np.empty_like(x), np.empty(np.delete(x.shape, axis))
    windows = [slice(*pair) for pair in zip((0, *cuts), (*cuts, x.shape[axis]), strict=True)]
    windows = windows[::-1] if options.get("reverse") else windows
    for number, window in enumerate(windows):
        at = (*[slice(None)] * axis, window)
        plan = a_plan(kind, x[at], axis, **options)
        run(plan, x[at], y[at], state if number else None, state)
    return y, state


def ulps(found: Any, wanted: Any) -> Any:
    """How far apart, in units of the last place of what is wanted."""
    dtype, wide = found.dtype, wanted.astype(np.float64)
    room = np.spacing(np.abs(wide)) * np.exp2(52 - ml_dtypes.finfo(dtype).nmant)
    with np.errstate(invalid="ignore"):
        apart = np.abs(found.astype(np.float64) - wide) / room
    return np.where(found == wanted, 0.0, apart)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_windows_give_what_the_whole_gives(kind: Any, dtype: Any) -> None:
    values = np.random.default_rng(3).uniform(0.5, 1.5, (3, 29, 4)).astype(dtype)
    for axis, reverse, exclusive in ((1, False, False), (2, True, True), (0, True, False)):
        x = np.ascontiguousarray(np.moveaxis(values, 1, axis))
        options = {"reverse": reverse, "exclusive": exclusive}
        y, state = in_windows(kind, x, axis, (0, 7, 8, 8, 24), **options)
        scan = getattr(pb, kind if kind == "linear_scan" else kind.value)
        arrays = (x, x) if kind == "linear_scan" else (x,)
        # Each of six windows may round a state of float64 once.
        most = 6 if dtype is np.float64 else 1
        assert ulps(y, scan(*arrays, axis, **options)).max() <= most
        wide = scan(*(v.astype(np.float64) for v in arrays), axis, reverse=reverse)
        last = np.take(wide, 0 if reverse else -1, axis)
        np.testing.assert_allclose(state, last, rtol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
def test_windows_of_extrema_have_the_bits_of_the_whole(dtype: Any) -> None:
    """Zeros of either sign, infinities and NaN among them."""
    x = np.random.default_rng(4).integers(-3, 4, (5, 40)).astype(dtype)
    x[1, ::7], x[2, 11], x[3, 3], x[4, :9] = -0.0, np.nan, np.inf, -np.inf
    for kind in EXTREMA:
        for options in ({}, {"reverse": True}, {"exclusive": True, "ties": pb.TieRule.LAST}):
            found, _ = in_windows(kind, x, 1, (9, 10, 33), **options)
            whole = getattr(pb, kind.value)(x, **options)
            assert same_bits(found, whole)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_windows_of_recurrences_have_the_bits_of_the_whole(dtype: Any) -> None:
    x = np.random.default_rng(5).uniform(-1, 1, (3, 100)).astype(dtype)
    found, _ = in_windows("linear_scan", x, 1, (1, 50, 97))
    assert same_bits(found, pb.linear_scan(x, x))


def test_many_windows_lose_nothing_of_a_sum() -> None:
    """Carried as float16, or as float32, it would stop to grow."""
    for dtype in DTYPES[:3]:
        x = np.full((1, 4096), 1 / 64, dtype)
        y, state = in_windows(pb.ScanKind.CUMSUM, x, 1, tuple(range(64, 4096, 64)))
        assert (state, y[0, -1]) == (64, 64)


def test_results_are_rounded_once() -> None:
    """Rounded to float32 on the way, this would be half-way between two float16."""
    x, final = np.zeros(1, np.float16), np.empty(())
    y, state = np.empty_like(x), np.array(1 + 2.0**-11 + 2.0**-40)
    run(a_plan(pb.ScanKind.CUMSUM, x, 0), x, y, state, final)
    assert (y, final) == (1 + 2.0**-10, state)
    run(a_plan(pb.ScanKind.CUMSUM, x, 0), x, y, np.array(1 + 2.0**-11 - 2.0**-40), final)
    assert y == 1


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_states_are_those_of_the_definition(kind: Any) -> None:
    x = np.random.default_rng(6).uniform(-2, 2, (2, 6)).astype(np.float32)
    for steps, state in ((6, None), (6, np.array([0.5, -1.0])), (0, None), (0, np.ones(2))):
        found = [(np.empty((2, steps), np.float32), np.empty(2)) for _ in range(2)]
        for (y, final), backend in zip(found, (NUMBA, REFERENCE), strict=True):
            run(a_plan(kind, x[:, :steps], 1, backend), x[:, :steps], y, state, final)
        (y, final), (wanted, last) = found
        np.testing.assert_allclose(y, wanted, rtol=1e-6)
        np.testing.assert_allclose(final, last, rtol=1e-14)


def test_positions_before_the_window_are_minus_one() -> None:
    x, state, final = np.array([1.0, 3.0, 3.0, 2.0]), np.array(2.0), np.empty(())
    for options, wanted in (
        ({}, [-1, 1, 1, 1]),
        ({"ties": pb.TieRule.LAST}, [-1, 1, 2, 2]),
        ({"reverse": True}, [2, 2, 2, -1]),
        ({"exclusive": True}, [-1, -1, 1, 1]),
        ({"exclusive": True, "reverse": True}, [2, 2, -1, -1]),
    ):
        y, indices = np.empty_like(x), np.empty(4, np.int64)
        plan = a_plan(pb.ScanKind.CUMMAX, x, 0, **options)
        run(plan, x, y, state, final, indices)
        assert indices.tolist() == wanted
        assert final == 3


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_plan_without_results_leaves_the_same_state(kind: Any, dtype: Any) -> None:
    x = np.random.default_rng(7).uniform(0.5, 1.5, (3, 29, 4)).astype(dtype)
    for axis, reverse, exclusive in ((1, False, False), (2, True, True), (0, True, False)):
        options = {"reverse": reverse, "exclusive": exclusive}
        _, wanted = in_windows(kind, x, axis, (0, 1, 2, 2), **options)
        for backend in (NUMBA, REFERENCE):
            state, steps = np.empty_like(wanted), x.shape[axis]
            cuts = [(0, 0), (0, 1), (1, 2), (2, 2), (2, steps)]
            for number, (begin, end) in enumerate(cuts[::-1] if reverse else cuts):
                part = x[(*[slice(None)] * axis, slice(begin, end))]
                plan = a_plan(kind, part, axis, backend, results=False, **options)
                run(plan, part, None, state if number else None, state)
            if backend is NUMBA:
                assert same_bits(state, wanted)
            np.testing.assert_allclose(state, wanted, rtol=1e-14)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", [NUMBA, REFERENCE], ids=str)
def test_positions_count_in_the_whole_sequence(dtype: Any, backend: Any) -> None:
    x = np.random.default_rng(8).integers(-3, 4, (3, 40, 2)).astype(dtype)
    x[1, 11], x[2, :9] = np.nan, -np.inf
    for kind, axis, reverse, exclusive, ties in (
        (pb.ScanKind.CUMMAX, 1, False, False, pb.TieRule.FIRST),
        (pb.ScanKind.CUMMIN, 1, True, False, pb.TieRule.LAST),
        (pb.ScanKind.CUMMAX, 0, True, True, pb.TieRule.FIRST),
        (pb.ScanKind.CUMMIN, 2, False, True, pb.TieRule.LAST),
    ):
        own = np.ascontiguousarray(np.moveaxis(x, 1, axis))
        options = {"reverse": reverse, "exclusive": exclusive, "ties": ties}
        function = getattr(pb, kind.value)
        values, wanted = function(own, axis, return_indices=True, **options)
        last = function(own, axis, return_indices=True, reverse=reverse, ties=ties)[1]
        for results in (True, False):
            lines = np.delete(own.shape, axis)
            state, positions = np.empty(lines), np.zeros((2, *lines), np.int64)
            positions[1] = 40 if reverse else 0
            cuts = [(0, 0), (0, 13), (13, 14), (14, 14), (14, 40)]
            for number, (begin, end) in enumerate(cuts[::-1] if reverse else cuts):
                at = (*[slice(None)] * axis, slice(begin, end))
                y, indices = (np.empty(own[at].shape, t) for t in (dtype, np.int64))
                plan = a_plan(kind, own[at], axis, backend, results=results, **options)
                outs = (y, indices) if results else (None, None)
                before = state if number else None
                run(plan, own[at], outs[0], before, state, outs[1], positions=positions)
                if results:
                    assert same_bits(y, values[at])
                    assert np.array_equal(indices, wanted[at])
            assert np.array_equal(positions[0], np.take(last, 0 if reverse else -1, axis))
            assert np.all(positions[1] == (0 if reverse else 40))


def test_states_may_have_any_strides_and_stand_in_torch() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    states = torch.zeros(8, dtype=torch.float64)[::2]
    plan = a_plan(pb.ScanKind.CUMSUM, x, 1)
    for _ in range(2):
        y = torch.empty(6, 4).T
        run(plan, x, y, states, states)
    assert torch.equal(states, 2 * x.sum(1).double())
    assert torch.equal(y, x.sum(1, keepdim=True) + x.cumsum(1))


def test_a_state_excludes_what_it_stands_for() -> None:
    about = {"input_shape": (3, 4), "scan_axis": 1, "element": pb.ElementKind.F32}
    kind = {"kind": pb.ScanKind.CUMSUM, "stateful": True, **about}
    refused = (
        (pb.ScanPlan, pb.ScanDescriptor(initial_shape=(3,), **kind), "`initial` must be None"),
        (pb.ScanPlan, pb.ScanDescriptor(num_pieces=2, **kind), "`offsets` must be None"),
        (pb.ScanBackwardPlan, pb.ScanBackwardDescriptor(**kind), "only forward scans"),
        (
            pb.LinearScanBackwardPlan,
            pb.LinearScanBackwardDescriptor(stateful=True, **about),
            "only forward scans",
        ),
        (pb.ScanPlan, pb.ScanDescriptor(**{**kind, "stateful": 1}), "`stateful` must be True or"),
        (pb.ScanPlan, pb.ScanDescriptor(**{**kind, "results": 0}), "`results` must be True or"),
        (
            pb.ScanPlan,
            pb.ScanDescriptor(**{**kind, "stateful": False, "results": False}),
            "`results` must be True where no state is left",
        ),
    )
    for plan, desc, text in refused:
        with pytest.raises(pb.PullbackError, match=text):
            plan.select(CPU, desc)
    x = np.ones((3, 4), np.float32)
    stateful = a_plan(pb.ScanKind.CUMSUM, x, 1)
    with pytest.raises(pb.InvalidProblem, match="`final_state` must be memory for the state"):
        run(stateful, x, x.copy(), None, None)
    with pytest.raises(pb.Unsupported, match="`final_state`"):
        run(stateful, x, x.copy(), None, np.empty(3, np.float32))
    with pytest.raises(pb.InvalidProblem, match="`state`"):
        run(stateful, x, x.copy(), np.ones(4), np.empty(3))
