"""entmax for any alpha on the GPU: what the laws of all families do not say."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("triton")

import pullback as pb
from interpreted import SUBJECTS, Emulated, Interpreted, equals_the_oracle

DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
RNG = np.random.default_rng(12)

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: np.dtype(t).name)


def _subject(name: str) -> Interpreted:
    return next(subject for subject in SUBJECTS if subject.name == name)


def _map(x: Any, alpha: Any) -> Any:
    return _subject("entmax").answer({"x": x, "alpha": alpha})[0]


@dtypes
@pytest.mark.parametrize("alpha", [1.0001, 1.1, 1.9, 2.5])
def test_rows_lie_on_the_simplex(alpha: float, dtype: Any) -> None:
    """Whatever the offset, nothing is NaN, f16 included; held whole and in tiles."""
    for shape in ((5, 97), (1, 3000)):
        for offset in (0.0, 1e4):
            x = (2 * RNG.standard_normal(shape)).astype(dtype) + np.dtype(dtype).type(offset)
            p = _map(x, alpha).astype(float)
            assert (p >= 0).all()
            eps = float(ml_dtypes.finfo(dtype).eps)
            np.testing.assert_allclose(p.sum(-1), 1, atol=eps * (2 + shape[-1] / 4))


@dtypes
def test_ties_and_gradients_of_a_large_alpha(dtype: Any) -> None:
    """The threshold lies next to the maximum, nearer than numbers of its size are to each other."""
    x = np.zeros((3, 7), dtype)
    x[1, :4], x[2, 0] = 1, 1
    want = [[1 / 7] * 7, [1 / 4] * 4 + [0] * 3, [1] + [0] * 6]
    eps = float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(_map(x, 50.0).astype(float), want, rtol=eps)
    y = np.array([[0.5, 0.3, 0.2 - 1e-7, 1e-7]]).astype(dtype)
    dy = np.array([[1, -2, 0.5, 0.25]], dtype)
    for alpha in (2.5, 50.0):
        (dx,) = _subject("entmax_backward").answer({"dy": dy, "y": y, "alpha": alpha})
        assert not np.isnan(dx).any()


@pytest.mark.parametrize("shape", [(), (4,), (1, 1), (3, 1, 1), (3, 4, 1)])
def test_gradients_of_alphas_that_rows_share(shape: tuple[int, ...]) -> None:
    """Summed to the shape that alpha had, on either kind of axis."""
    x, dy = RNG.standard_normal((2, 3, 4, 9)).astype(np.float32)
    alpha = np.asarray(1.1 + RNG.random(shape), np.float32)
    axis = -1 if shape != (4,) else 1
    if shape == (4,):
        alpha, x, dy = alpha[None, :], x[:, :, :4], dy[:, :, :4]
    y = _subject("entmax").answer({"x": x, "alpha": alpha, "axis": axis})[0]
    asked = {"dy": dy, "y": y, "alpha": alpha, "x": x, "axis": axis}
    equals_the_oracle(_subject("entmax_backward"), asked)


@pytest.mark.parametrize("name", ["entmax", "entmax_backward"])
def test_a_wrong_alpha_is_found_on_the_device(name: str) -> None:
    """And nothing is written."""
    x = RNG.standard_normal((2000, 4)).astype(np.float32)
    for bad in (0.5, np.nan, np.inf):
        alpha = np.full((2000, 1), 1.5, np.float32)
        alpha[1500] = bad
        asked, out = {"x": x, "alpha": alpha}, np.full_like(x, 7)
        outs: Any = out
        if name == "entmax_backward":
            asked |= {"dy": x, "y": x}
            outs = (out, np.full_like(alpha, 7))
        with pytest.raises(pb.InvalidProblem, match=f"{name}: `alpha` must be at least 1"):
            _subject(name).answer(asked, out=outs)
        assert all((each == 7).all() for each in (outs if type(outs) is tuple else (outs,)))


@pytest.mark.parametrize("extent", [33, 2500])
def test_compiled_code_of_alphas_by_rows(extent: int) -> None:
    """Softmax, sparsemax and others side by side, whole and in tiles."""
    x, dy = RNG.standard_normal((2, 3, extent)).astype(np.float32)
    alpha = np.array([[1.0], [1.4], [2.5]], np.float32)
    names = ("entmax", "entmax_backward")
    forward, backward = (
        Emulated(_subject(n).function, _subject(n).family, target="sm_90") for n in names
    )
    equals_the_oracle(forward, {"x": x, "alpha": alpha})
    y = forward.answer({"x": x, "alpha": alpha})[0]
    equals_the_oracle(backward, {"dy": dy, "y": y, "alpha": alpha, "x": x})
