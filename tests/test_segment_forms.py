"""Forms of segment functions: borders in place of ids, other axes, positions of extrema."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.verify.laws import same_bits

OFFSETS = np.array([0, 3, 3, 4, 9, 9, 12])
IDS = np.repeat(np.arange(6), np.diff(OFFSETS))
FORWARDS = [
    *(f"segment_{name}" for name in ("sum", "mean", "max", "min", "prod")),
    *(f"segment_{name}" for name in ("logsumexp", "var", "std", "softmax", "log_softmax")),
]


def _rows(*shape: int) -> Any:
    return np.random.default_rng(5).standard_normal(shape)


def _gradient(name: str, y: Any, x: Any) -> tuple[Any, ...]:
    """What its backward takes before the segments."""
    dy = np.cos(np.arange(y.size)).reshape(y.shape)
    if name in ("segment_sum", "segment_mean"):
        return (dy,)
    if name.endswith("softmax"):
        return dy, y
    return (dy, x, y) if name == "segment_logsumexp" else (dy, x)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("name", FORWARDS)
def test_offsets_give_the_bits_of_ids(name: str, index: Any) -> None:
    forward, backward = getattr(pb, name), getattr(pb, f"{name}_backward")
    x, offsets = _rows(12, 5), OFFSETS.astype(index)
    y = forward(x, IDS, 6)
    assert same_bits(forward(x, offsets=offsets), y)
    given = _gradient(name, y, x)
    count = {"num_segments": 6} if name.endswith("softmax") else {}
    want = backward(*given, IDS, **count)
    assert same_bits(backward(*given, offsets=offsets), want)
    assert same_bits(backward(*given, offsets=np.repeat(offsets, 2)[::2]), want)


@pytest.mark.parametrize("axis", [1, 2, -1])
@pytest.mark.parametrize("name", FORWARDS)
def test_axis_gives_the_bits_of_moved_rows(name: str, axis: int) -> None:
    forward, backward = getattr(pb, name), getattr(pb, f"{name}_backward")
    x = np.moveaxis(_rows(12, 4, 3), 0, axis)
    moved = np.ascontiguousarray(np.moveaxis(x, axis, 0))
    count = {"num_segments": 6} if name.endswith("softmax") else {}
    for segments in ({"segment_ids": IDS[::-1].copy()}, {"offsets": OFFSETS}):
        y = forward(x, num_segments=6, axis=axis, **segments)
        want = forward(moved, num_segments=6, **segments)
        assert y.flags.c_contiguous
        assert same_bits(np.moveaxis(y, axis, 0), want)
        out = np.moveaxis(np.zeros_like(want), 0, axis)
        assert forward(x, num_segments=6, axis=axis, out=out, **segments) is out
        assert same_bits(out, y)
        given = [np.ascontiguousarray(np.moveaxis(part, axis, 0)) for part in _gradient(name, y, x)]
        dx = backward(*_gradient(name, y, x), axis=axis, **segments, **count)
        assert same_bits(np.moveaxis(dx, axis, 0), backward(*given, **segments, **count))


BAD = [
    ([1, 12], "1 at position 0"),
    ([0, 5, 4, 12], "4 at position 2"),
    ([0, 5, 11], "11 at position 2"),
    ([0, 13, 12], "13 at position 1"),
    ([0, -1, 12], "-1 at position 1"),
    ([0], "0 at position 0"),
]


@pytest.mark.parametrize("name", FORWARDS)
@pytest.mark.parametrize(("offsets", "got"), BAD)
def test_offsets_that_are_no_borders_are_refused(name: str, offsets: Any, got: str) -> None:
    x, out = _rows(12, 2), np.full((12 if "softmax" in name else len(offsets) - 1, 2), 7.0)
    match = f"{name}: `offsets` must be from 0 to 12, never decreasing, got {got}"
    with pytest.raises(pb.InvalidProblem, match=match):
        getattr(pb, name)(x, offsets=np.array(offsets), out=out)
    assert (out == 7).all()


def test_offsets_that_decrease_between_chunks_are_refused() -> None:
    offsets = np.append(np.minimum(np.arange(20_000), 9_000), 9_000)
    offsets[8192:8200] = 5
    with pytest.raises(pb.InvalidProblem, match="got 5 at position 8192"):
        pb.segment_sum(np.ones(9_000), offsets=offsets)


def test_ids_and_offsets_exclude_each_other() -> None:
    x = _rows(12, 2)
    with pytest.raises(pb.InvalidProblem, match=r"`segment_ids` must be given, or `offsets`.*both"):
        pb.segment_softmax(x, IDS, offsets=OFFSETS)
    with pytest.raises(
        pb.InvalidProblem, match=r"`segment_ids` must be given, or `offsets`.*neither"
    ):
        pb.segment_sum(x)
    with pytest.raises(
        pb.InvalidProblem, match="`num_segments` must be 6, one less than there are"
    ):
        pb.segment_var(x, num_segments=7, offsets=OFFSETS)
    with pytest.raises(pb.InvalidProblem, match=r"`offsets` must be of shape \(7,\), for the rows"):
        pb.segment_sum_backward(_rows(6, 2), offsets=OFFSETS[:-1])
    with pytest.raises(pb.InvalidProblem, match="`offsets` must be of rank 1"):
        pb.segment_sum(x, offsets=pb.prepare_segments(IDS, 6))


@pytest.mark.parametrize("name", ["segment_max", "segment_min"])
@pytest.mark.parametrize("ties", ["first", "last", "split"])
def test_indices_are_the_rows_that_hold_the_extremum(name: str, ties: str) -> None:
    rng = np.random.default_rng(2)
    x, ids = rng.integers(-2, 3, (2000, 3)).astype(np.float32), rng.integers(0, 7, 2000)
    ids[500:1500] = 3  # a long segment
    ids[ids == 5] = 4
    values, positions = getattr(pb, name)(x, ids, 7, ties=ties, return_indices=True)
    assert same_bits(values, getattr(pb, name)(x, ids, 7))
    assert positions.dtype == np.int64
    assert (positions[5] == -1).all()
    for s in (0, 1, 2, 3, 4, 6):
        for c in range(3):
            holders = np.flatnonzero((ids == s) & (x[:, c] == values[s, c]))
            assert positions[s, c] == holders[-1 if ties == "last" else 0]


def test_indices_run_along_the_axis() -> None:
    x = _rows(3, 12, 2)
    values, positions = pb.segment_max(x, offsets=OFFSETS, axis=1, return_indices=True)
    assert values.shape == positions.shape == (3, 6, 2)
    taken = np.take_along_axis(x, np.maximum(positions, 0), 1)
    assert (np.where(positions < 0, 0, taken) == values).all()


def test_skipped_rows_of_a_softmax_have_no_mass() -> None:
    x, ids = _rows(6, 2), np.array([0, -1, 1, 9, 0, 1])
    y = pb.segment_softmax(x, ids, 2, out_of_range="skip")
    z = pb.segment_log_softmax(x, ids, 2, out_of_range="skip")
    assert (y[[1, 3]] == 0).all()
    assert (z[[1, 3]] == -np.inf).all()
    assert (
        pb.segment_softmax_backward(np.ones_like(y), y, ids, 2, out_of_range="skip")[1] == 0
    ).all()
    with pytest.raises(pb.IndexOutOfRange, match="-1 at position 1"):
        pb.segment_softmax(x, ids, 2)


def test_variance_of_equal_rows_far_from_zero_is_zero() -> None:
    x = np.full((1000, 2), 1e8 + 1 / 3)
    ids = np.arange(1000) % 3
    assert (pb.segment_var(x, ids, 3) == 0).all()
    assert (pb.segment_std_backward(np.ones((3, 2)), x, ids) == 0).all()
    near = x + np.random.default_rng(0).standard_normal(x.shape)
    want = np.stack([near[ids == s].var(0, ddof=1) for s in range(3)])
    np.testing.assert_allclose(pb.segment_var(near, ids, 3, ddof=1), want, rtol=1e-12)
    assert (pb.segment_var(near[:3], ids[:3], 3, ddof=1) == 0).all()


@pytest.mark.parametrize("name", ["segment_softmax_backward", "segment_log_softmax_backward"])
@pytest.mark.parametrize("rows", [2, 700])
def test_one_nan_in_y_fills_its_segment_of_the_gradient(rows: int, name: str) -> None:
    """No forward gives a NaN without others, but a caller may."""
    y = np.full((3 * rows, 2), 0.5, np.float32)
    y[rows + 1, 1] = np.nan
    ids = np.repeat(np.arange(3), rows)
    dx = getattr(pb, name)(np.ones_like(y), y, ids)
    assert np.isnan(dx[rows : 2 * rows, 1]).all()
    assert np.isfinite(np.delete(dx[:, 1], slice(rows, 2 * rows))).all()
    assert np.isfinite(dx[:, 0]).all()


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_a_first_block_without_mass_speaks_for_itself_alone(name: str) -> None:
    """Segments of 256 rows and more are joined of blocks."""
    x = _rows(1400, 2)
    x[700:1100, 0], x[:300] = -np.inf, -np.inf
    ids, dy = np.repeat([0, 1], 700), _rows(1400, 2) + 1
    y = getattr(pb, f"segment_{name}")(x, ids)
    dx = getattr(pb, f"segment_{name}_backward")(dy, y, ids)
    for segment in (slice(0, 700), slice(700, 1400)):
        want = getattr(pb, f"{name}_backward")(dy[segment], y[segment], 0)
        np.testing.assert_allclose(dx[segment], want, rtol=1e-12, atol=1e-12)
        assert (np.abs(dx[segment]) > 1e-9).sum() > 700
