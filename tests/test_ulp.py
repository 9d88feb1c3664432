"""Rounding and distances, for every float dtype."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from agreement import same
from pullback.verify.ulp import round_to, ulp_error, worst

INF, NAN = np.inf, np.nan


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240611)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_rounding_is_to_nearest_even_in_one_step(rng: np.random.Generator, dtype: Any) -> None:
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[np.dtype(dtype).itemsize]
    info = ml_dtypes.finfo(dtype)
    top = int(np.array(info.max, dtype).view(bits))
    below = rng.integers(0, top, 500, dtype=bits)
    below[:3] = [0, 1, top - 1]
    low, high = (v.view(dtype).astype(np.longdouble) for v in (below, below + bits(1)))
    middle, nudge = (low + high) / 2, (high - low) / 2**7
    even = np.where(below % 2 == 0, low, high)
    for value, want in ((low, low), (middle - nudge, low), (middle, even), (middle + nudge, high)):
        np.testing.assert_array_equal(round_to(value, dtype).astype(np.longdouble), want)
        np.testing.assert_array_equal(round_to(-value, dtype).astype(np.longdouble), -want)
    half = (ulp_error(low.astype(dtype), middle), ulp_error(high.astype(dtype), middle))
    np.testing.assert_array_equal(half, np.full((2, 500), 0.5))


def test_ulp_specials() -> None:
    sticky = np.longdouble(1) + np.longdouble(2) ** -11 + np.longdouble(2) ** -60
    assert round_to(sticky, np.float16) == np.float16(1 + 2**-10)
    same(round_to([65519.9, 65520, -1e-30, -INF], np.float16), [65504, INF, -0.0, -INF])
    got = np.array([1, INF, NAN, 0, INF, 1, NAN, -INF, 3], np.float32)
    want = [1 + 2**-23, 1e39, NAN, 2.0**-150, 3, NAN, 1, INF, 1e39]
    same(ulp_error(got, want), [1, 0, 0, 0.5, INF, INF, INF, INF, INF])
    top = np.longdouble(np.finfo(np.float32).max)
    step = np.longdouble(2) ** 104
    got = np.array([INF, INF, -INF, top, top, -top, INF], np.float32)
    want = [top, top - step, -top, top + step, INF, top, -top]
    same(ulp_error(got, want), [1, 2, 1, 1, INF, 2**25 - 2, INF])
    # A sum of f16 in f32 that rounds to 65520, and from there to infinity: half a step.
    assert 0.5 < worst(np.float16([-INF]), np.longdouble([-65519.99999994])) < 0.51
    assert worst(np.float32([2**-24]), np.longdouble([0]), scale=1) == 0.5
    assert worst(np.zeros(0, np.float32), np.zeros(0, np.longdouble)) == 0
    with pytest.raises(ValueError):
        worst(np.zeros(2), np.zeros(3))
