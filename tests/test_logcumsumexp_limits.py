"""logcumsumexp where references change from powers of two to bases, and over long sums of f64."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from pullback.ops.scan import oracle
from pullback.verify.laws import same_bits
from pullback.verify.ulp import worst

LIMITS = {ml_dtypes.bfloat16: 2.0**20, np.float32: 2.0**20, np.float64: 2.0**49}
LINES, STEPS = 36, 67


def _around(limit: float, dtype: Any, seed: int) -> Any:
    """Lines on both sides of the limit, or of one of them, beside lines that are far from it."""
    rng = np.random.default_rng(seed)
    reach = rng.choice([4, 40, 120, 900, 3000], (LINES, 1))
    step = max(0.25, float(ml_dtypes.finfo(dtype).eps) * abs(limit) / 2)
    x = limit + rng.integers(-reach, reach + 1, (LINES, STEPS)) * step
    x[rng.random(LINES) < 0.2] -= limit
    later = (np.arange(STEPS) > rng.integers(1, STEPS, (LINES, 1))) & (rng.random((LINES, 1)) < 0.4)
    x[later] += (rng.choice([-1, 1], (LINES, STEPS)) * reach * step)[later]
    x[::3, [0, -1]] -= np.sign(limit) * 2 * step * reach[::3]  # references are near
    return x.astype(dtype)


def _layouts(f: Callable[..., Any], arrays: tuple[Any, ...]) -> Iterator[Any]:
    """What f makes of lines along rows, in every layout."""
    yield f(*arrays, 1)
    yield f(*(np.asfortranarray(a) for a in arrays), 1)
    yield f(*(np.repeat(a, 2, 1)[:, ::2] for a in arrays), 1)
    yield f(*(np.repeat(np.ascontiguousarray(a.T), 2, 1)[:, ::2] for a in arrays), 0).T
    middle = (np.ascontiguousarray(a.reshape(2, -1, STEPS).swapaxes(1, 2)) for a in arrays)
    yield f(*middle, 1).swapaxes(1, 2).reshape(LINES, STEPS)
    yield np.stack([f(*line, 0) for line in zip(*arrays, strict=True)])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", LIMITS, ids=lambda d: d.__name__)
@pytest.mark.parametrize("op", ["forward", "backward"])
def test_bits_around_the_limit_are_the_same_in_every_layout(
    op: str, dtype: Any, sign: int, exclusive: bool, reverse: bool
) -> None:
    options = {"exclusive": exclusive, "reverse": reverse}
    f = pb.logcumsumexp if op == "forward" else pb.logcumsumexp_backward
    for seed in range(10):
        x = _around(sign * LIMITS[dtype], dtype, seed)
        dy = np.random.default_rng(seed).standard_normal(x.shape).astype(dtype)
        arrays = (x,) if op == "forward" else (dy, x, pb.logcumsumexp(x, 1, **options))
        first, *others = _layouts(partial(f, **options), arrays)
        assert [same_bits(np.ascontiguousarray(v), first) for v in others] == [True] * 5


@pytest.mark.parametrize("size", [1.0, 1.7e308])
def test_f64_sums_of_long_lines_do_not_drift(size: float) -> None:
    """Equal terms dy·e^-y are rounded the same way at every step."""
    x = np.zeros(60_000)
    dy = np.arange(1, x.size + 1) * (size / x.size)
    y = pb.logcumsumexp(x)
    want = oracle.logcumsumexp_backward(dy, x, y)
    assert worst(pb.logcumsumexp_backward(dy, x, y), want) <= 4
