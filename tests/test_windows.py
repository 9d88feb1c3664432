"""Windows of arrays that are longer than memory: maps onto the simplex from states of rows, sorted
segments that stay open from window to window, and the examples of both."""

from __future__ import annotations

import runpy
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from pullback.distributed import windows as pbw
from pullback.verify.laws import same_bits

Array = np.ndarray[Any, Any]
DTYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
EXAMPLES = Path(__file__).parents[1] / "examples"
# Of 2,100 rows or steps: one window, uneven ones, empty ones at both ends, 2,048 and more.
CUTS: tuple[tuple[int, ...], ...] = (
    (),
    (1, 700, 700, 956, 957, 1999),
    (0, 0, 256, 512, 2100, 2100),
    tuple(range(1, 2100, 100)),
    tuple(range(1, 2048)),
)


def _slices(cuts: tuple[int, ...], extent: int) -> list[slice]:
    return [slice(*pair) for pair in pairwise((0, *cuts, extent))]


# --- segments -------------------------------------------------------------------------------------


def _in_windows(
    function: Any, x: Array, ids: Array, count: int, cuts: tuple[int, ...], **options: Any
) -> tuple[Array, Array, Any]:
    empty = options.get("empty")
    empty = float(function is pb.segment_prod) if empty is None else empty
    values = np.full((count, *x.shape[1:]), empty, x.dtype)
    positions, state = np.full(values.shape, -1), None
    for at in _slices(cuts, len(x)):
        found = pbw.reduced(function, x[at], ids[at], state, **options)
        own = slice(found.first, found.first + len(found.values))
        values[own], state = found.values, found.state
        if found.positions is not None:
            positions[own] = found.positions
        assert state is None or len(state.rows) <= 256  # however long the segment is
    return values, positions, state


def _rows(name: str, dtype: Any, case: int) -> tuple[Array, Array]:
    """Segments of one to 2,100 rows; sums that leave the range and come back."""
    rng = np.random.default_rng(case)
    ids = np.sort(
        [rng.integers(0, 12, 2100), np.full(2100, 5), np.minimum(np.arange(2100), 9)][case]
    )
    spread = (
        10.0 ** rng.integers(-5, 5, (2100, 3)) if case else 2.0 ** rng.integers(-2, 3, (2100, 3))
    )
    x = rng.normal(size=(2100, 3)) * spread
    if name in ("segment_max", "segment_min"):
        x = np.round(x)
        x[700, 1] = np.nan
    elif case == 1:
        largest = float(ml_dtypes.finfo(dtype).max)
        x[300:303, 2], x[1500:1502, 2] = largest * 0.75, -largest * 0.75
        x[900, 1] = np.inf
    with np.errstate(all="ignore"):
        return x.astype(dtype), ids


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", pbw.REDUCTIONS)
def test_windows_of_sorted_segments_have_the_bits_of_the_whole(name: str, dtype: Any) -> None:
    function = getattr(pb, name)
    extremum = name in ("segment_max", "segment_min")
    for case in range(3):
        x, ids = _rows(name, dtype, case)
        options: dict[str, Any] = [{}, {"empty": 7.0}, {"ties": "last"} if extremum else {}][case]
        whole = function(
            x,
            ids,
            13,
            indices_are_sorted=True,
            **({"return_indices": True} if extremum else {}),
            **options,
        )
        wanted, where = whole if extremum else (whole, None)
        for cuts in CUTS if case == 1 and dtype is np.float32 else CUTS[:4]:
            found, positions, state = _in_windows(function, x, ids, 13, cuts, **options)
            assert same_bits(found, wanted), (name, case, cuts[:5])
            assert where is None or np.array_equal(positions, where), (name, case, cuts[:5])
            assert (state.segment, state.seen) == (ids[-1], 2100)
            assert state.count == int((ids == ids[-1]).sum())


def test_rows_of_any_shape_and_windows_without_rows() -> None:
    x = np.random.default_rng(0).normal(size=(600, 2, 3)).astype(np.float32)
    ids = np.repeat([1, 4], [520, 80])
    found, *_ = _in_windows(pb.segment_mean, x, ids, 6, (0, 0, 300, 300, 519, 520, 521))
    assert same_bits(found, pb.segment_mean(x, ids, 6))
    nothing = pbw.reduced(pb.segment_sum, x[:0], ids[:0])
    assert (nothing.first, nothing.values.shape, nothing.state) == (0, (0, 2, 3), None)
    hollow, *_ = _in_windows(pb.segment_sum, x[:, :0], ids, 6, (257, 511))
    assert hollow.shape == (6, 0, 3)
    flat, *_ = _in_windows(pb.segment_prod, x[:, 0, 0], ids, 6, (257, 511))
    assert same_bits(flat, pb.segment_prod(x[:, 0, 0], ids, 6))


def test_what_windows_of_segments_refuse() -> None:
    x, ids = np.ones((4, 2), np.float32), np.array([0, 1, 1, 2])
    state = pbw.reduced(pb.segment_sum, x, ids).state
    for args, said in (
        (
            (x, ids[::-1].copy()),
            "in ascending order from 0 on, over all windows, got 1 at position 1",
        ),
        ((x, ids, state), "got 0 at position 0"),
        ((x, ids - 1), "got -1 at position 0"),
        ((x[:, :1], ids + 2, state), r"rows of shape \(2,\) of float32, as before"),
        ((x.astype(np.float64), ids + 2, state), "of float32, as before"),
        ((x, ids[:3]), "4 integers"),
        ((x.tolist(), ids), "NumPy array"),
    ):
        with pytest.raises(pb.PullbackError, match=said):
            pbw.reduced(pb.segment_sum, *args)
    with pytest.raises(pb.Unsupported, match="segment_prod, got segment_var"):
        pbw.reduced(pb.segment_var, x, ids)


# --- maps onto the simplex ------------------------------------------------------------------------

MAPS: tuple[tuple[Any, dict[str, Any]], ...] = (
    (pb.softmax, {}),
    (pb.log_softmax, {}),
    (pb.sparsemax, {}),
    (pb.entmax15, {}),
    (pb.entmax, {"alpha": 1.3}),
)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("number", range(len(MAPS)))
def test_windows_of_rows_are_mapped_as_the_whole(number: int, dtype: Any) -> None:
    function, options = MAPS[number]
    x = np.random.default_rng(number).normal(size=(6, 2100)) * [[0.01], [1], [30], [1], [1], [1]]
    x[3], x[4, 1100:1102], x[5, 900] = -np.inf, np.inf, np.nan
    x = x.astype(dtype)
    wanted = function(x, **options)
    for cuts in CUTS if dtype is np.float32 else CUTS[:4]:
        state = None
        for at in _slices(cuts, 2100):
            state = pbw.summary(function, x[:, at], state, **options)
        assert all(part.dtype == np.float64 for part in state)
        parts = [pbw.applied(function, x[:, at], state, **options) for at in _slices(cuts, 2100)]
        found = np.concatenate(parts, 1)
        assert found.dtype == wanted.dtype
        _near(found, wanted)


def _near(found: Array, wanted: Array) -> None:
    """Within 1.5 ulp of the largest of a row; in float64, whose states are no wider, 64."""
    got, want = found.astype(np.float64), wanted.astype(np.float64)
    usual = np.isfinite(want)
    assert np.array_equal(got[~usual], want[~usual], equal_nan=True)
    ulp = float(ml_dtypes.finfo(wanted.dtype).eps)
    largest = np.max(np.where(usual, np.abs(want), 0.0), 1, keepdims=True)
    bound = (64 if wanted.dtype == np.float64 else 1.5) * ulp * np.broadcast_to(largest, want.shape)
    assert np.all(np.abs(got[usual] - want[usual]) <= bound[usual] + 1e-300)


def test_states_merge_in_any_order_and_say_the_threshold() -> None:
    x = np.random.default_rng(3).normal(size=(3, 90, 2))
    for function, options in MAPS:
        parts = [pbw.summary(function, x[:, at], axis=1, **options) for at in _slices((20, 50), 90)]
        one = pbw.merged(
            function, pbw.merged(function, parts[2], parts[0], **options), parts[1], **options
        )
        whole = pbw.summary(function, x, axis=1, **options)
        for a, b in zip(one, whole, strict=True):
            np.testing.assert_allclose(a[..., : b.shape[-1]], b, rtol=1e-14)
        y = pbw.applied(function, x, one, axis=1, **options)
        np.testing.assert_allclose(y, function(x, axis=1, **options), rtol=1e-9, atol=1e-14)
    state = pbw.summary(pb.sparsemax, x, axis=1)
    tau = pbw.threshold(pb.sparsemax, state)[:, None]
    np.testing.assert_allclose(np.maximum(x - tau, 0), pb.sparsemax(x, 1), atol=1e-14)
    state = pbw.summary(pb.entmax, x, axis=1, alpha=1.5)
    tau = pbw.threshold(pb.entmax, state, alpha=1.5)[:, None]
    np.testing.assert_allclose(np.maximum(x / 2 - tau, 0) ** 2, pb.entmax15(x, 1), atol=1e-14)


def test_what_windows_of_rows_refuse() -> None:
    x = np.ones((2, 3))
    for call, said in (
        (
            lambda: pbw.summary(pb.cumsum, x),
            "log_softmax, sparsemax, entmax15 or entmax, got cumsum",
        ),
        (lambda: pbw.summary(pb.entmax, x), "a number greater than 1 in windows, got None"),
        (lambda: pbw.summary(pb.entmax, x, alpha=1.0), "greater than 1 in windows, got 1.0"),
        (lambda: pbw.summary(pb.softmax, x.tolist()), "NumPy array"),
        (lambda: pbw.summary(np.sum, x), "one of pullback"),
    ):
        with pytest.raises(pb.PullbackError, match=said):
            call()


# --- examples -------------------------------------------------------------------------------------


def test_a_file_of_ten_times_the_memory_has_the_bits_of_the_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runpy.run_path(str(EXAMPLES / "out_of_core.py"))["main"](limit=1 << 23)
    first, *files = capsys.readouterr().out.splitlines()
    limited = "limited" if sys.platform == "linux" else "no limit"
    assert first == f"10.0 times the memory, {limited}"
    assert [line.split(":")[0] for line in files] == [
        "cumsum", "cummax", "linear_scan", "segment_sum", "segment_max"
    ]  # fmt: skip
    assert all("151 windows, 0 of " in line for line in files), files


@pytest.mark.parametrize("chunks", [(20, -1), (20, 700), (7, (1, 999, 4000))])
def test_blocks_of_dask(chunks: Any) -> None:
    """Of one and of several blocks along the axis."""
    da = pytest.importorskip("dask.array")
    example = runpy.run_path(str(EXAMPLES / "dask_blocks.py"))
    for dtype in (np.float16, np.float32, np.float64):
        x = np.random.default_rng(0).normal(size=(60, 5000)).astype(dtype)
        blocks = da.from_array(x, chunks=chunks)
        for name in ("cumsum", "softmax"):
            found = example[name](blocks)
            assert (found.chunks, found.dtype) == (blocks.chunks, blocks.dtype)
            _near(found.compute(), getattr(pb, name)(x))
    x = np.random.default_rng(1).normal(size=(60, 5000)).astype(np.float32)
    found = example["cumsum"](da.from_array(x, chunks=chunks))
    assert same_bits(found.compute(), pb.cumsum(x))


@pytest.mark.parametrize("ties", ["first", "last"])
def test_extrema_of_windows_are_those_with_positions(ties: str) -> None:
    """Of zeros of either sign, which tie, the one at the position is copied."""
    x = np.array([[0.0, -0.0, -1.0], [-0.0, 0.0, -1.0]], np.float32)
    ids = np.zeros(2, np.int64)
    want, places = pb.segment_max(x, ids, 1, ties=ties, return_indices=True)
    begun = pbw.reduced(pb.segment_max, x[:1], ids[:1], ties=ties)
    found = pbw.reduced(pb.segment_max, x[1:], ids[1:], begun.state, ties=ties)
    assert found.values.tobytes() == want.tobytes()
    np.testing.assert_array_equal(found.positions, places)
