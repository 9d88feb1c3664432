"""What the tests of the oracles mean by agreeing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Function = Callable[..., Any]


def close(got: Any, want: Any, rtol: float = 1e-12, atol: float = 1e-13) -> None:
    for g, w in zip(*((v if isinstance(v, tuple) else (v,)) for v in (got, want)), strict=True):
        value = w.detach().numpy() if isinstance(w, torch.Tensor) else np.asarray(w)
        assert np.shape(g) == value.shape
        np.testing.assert_allclose(np.asarray(g, np.float64), value, rtol=rtol, atol=atol)


def same(got: Any, want: Any) -> None:
    """Equal bits, signs of zero included; one NaN is as good as another."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    np.testing.assert_array_equal(got, want)
    sure = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[sure], np.signbit(want)[sure])


def torch_pullback(f: Function, dy: np.ndarray, *arrays: np.ndarray) -> tuple[torch.Tensor, ...]:
    inputs = [torch.tensor(a, requires_grad=True) for a in arrays]
    return torch.autograd.grad(f(*inputs), inputs, torch.tensor(dy))


def numeric_pullback(f: Function, dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Central differences, where 64 bits of mantissa leave about 12 digits."""
    step, dx = np.longdouble(2) ** -20, np.zeros(x.shape, np.longdouble)
    for at in np.ndindex(x.shape):
        up, down = x.astype(np.longdouble), x.astype(np.longdouble)
        up[at], down[at] = up[at] + step, down[at] - step
        dx[at] = (dy * (f(up) - f(down))).sum() / (2 * step)
    return dx
