"""Sums of narrow f32 rows that are not grouped: the bits of grouped ones, whatever the layout."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import pullback as pb
from pullback.ops.segment import cpu_direct
from pullback.verify.laws import same_bits

SHAPES = [(1, 0), (700, 3), (3000, 2), (3000, 700), (2561, 4)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = pb.get_num_threads()
    pb.set_num_threads(1)
    yield
    pb.set_num_threads(before)


def drawn(rows: int, segments: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows + width)
    x = rng.standard_normal((rows, width)) * 10.0 ** rng.integers(-6, 6, (rows, 1))
    x[rng.random(x.shape) < 0.05] = -0.0
    x[rng.random(x.shape) < 0.001] = np.inf
    return x.astype(np.float32), rng.integers(-1, segments + 1, rows)


@pytest.mark.parametrize("width", [1, 2, 7, 8, 9, 16, 31, 32, 33])
@pytest.mark.parametrize(("rows", "segments"), SHAPES)
@pytest.mark.parametrize("op", ["segment_sum", "segment_mean"])
def test_bits_are_those_of_sorted_rows(op: str, rows: int, segments: int, width: int) -> None:
    x, ids = drawn(rows, segments, width)
    function, options = getattr(pb, op), {"out_of_range": "skip", "empty": 3.0}
    order = np.argsort(ids, kind="stable")
    want = function(x[order], ids[order], segments, indices_are_sorted=True, **options)
    for kind in (np.int32, np.int64):
        assert same_bits(function(x, ids.astype(kind), segments, **options), want)
    spread = np.full((rows, 2, width), 7, np.float32)
    spread[:, 1] = x
    assert same_bits(function(spread[:, 1], ids, segments, **options), want)
    wide = np.repeat(x, 2, axis=1)
    assert same_bits(function(wide[:, ::2], ids, segments, **options), want)
    cubes = np.stack([x, x, x], axis=2)[:, :, :2]
    assert same_bits(function(cubes, ids, segments, **options), np.stack([want, want], axis=2))
    assert same_bits(function(x[::-1], ids[::-1], segments, **options), function(
        x[::-1].copy(), ids[::-1].copy(), segments, **options
    ))  # fmt: skip
    pb.set_num_threads(cpu_direct.MOST_THREADS + 1)
    fresh = np.empty_like(want, shape=(segments, 2 * width))[:, ::2]  # a call not met before
    assert same_bits(function(x, ids, segments, out=fresh, **options), want)


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("bad", [-1, 40])
def test_the_first_bad_id_is_named_before_anything_is_written(bad: int, width: int) -> None:
    x, ids = drawn(500, 38, width)
    ids = np.clip(ids, 0, 39)
    ids[[123, 400]] = bad, -7
    out = np.full((40, width), 5, np.float32)
    with pytest.raises(pb.IndexOutOfRange, match=f"got {bad} at position 123"):
        pb.segment_sum(x, ids, 40, out=out)
    assert (out == 5).all()
