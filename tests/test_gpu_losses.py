"""Fenchel-Young losses on the GPU: what the laws of all families do not say."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("triton")

from interpreted import SUBJECTS, Emulated, Interpreted, equals_the_oracle
from pullback.verify.emulated import emulated

DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
NAMES = ("softmax_loss", "entmax15_loss", "sparsemax_loss")
RNG = np.random.default_rng(11)

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: np.dtype(t).name)
names = pytest.mark.parametrize("name", NAMES)


def _subject(name: str) -> Interpreted:
    return next(subject for subject in SUBJECTS if subject.name == name)


def _loss(name: str, x: Any, target: Any) -> Any:
    return _subject(name).answer({"x": x, "target": target})[0]


@names
@dtypes
def test_a_loss_is_zero_exactly_where_the_map_is_the_target(name: str, dtype: Any) -> None:
    x = (2 * RNG.standard_normal((20, 33))).astype(dtype)
    asked = {"x": x, "target": np.zeros(20, np.int64), "return_probabilities": True}
    p = _subject(name).answer(asked)[1]
    assert (_loss(name, x, p) == 0).all()
    other = np.roll(p, 1, 0)
    assert (_loss(name, x, other)[(other != p).any(-1)] > 0).all()
    own = np.array([0, 5, 31, 32])
    sure = np.full((4, 33), -np.inf, dtype)
    sure[range(4), own] = 1
    assert (_loss(name, sure, own) == 0).all()
    sure[sure < 0] = -3  # softmax has some left, the others nothing
    found = _loss(name, sure, own)
    assert (found > 0).all() if name == "softmax_loss" else (found == 0).all()
    assert (_loss(name, sure, own[::-1].copy()) > 0).all()


@pytest.mark.parametrize("rows", [1, 3000])
def test_a_loss_as_small_as_numbers_are(rows: int) -> None:
    """In rows held whole and in tiles: what is left of a softmax beside its class is not rounded
    off against 1."""
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        least = max(float(ml_dtypes.finfo(dtype).smallest_subnormal), 2.0**-126)
        for share in (3, 40):
            row = [0, np.log(share * least), *[-np.inf] * rows]
            x = np.array([row], np.float64).astype(dtype)
            assert (_loss("softmax_loss", x, np.array([0])) > 0).all()


@names
def test_extremes(name: str) -> None:
    """A class with nothing, a row without mass, infinities, far apart, NaN."""
    x = np.array([[0, -np.inf, 1], [-np.inf] * 3, [np.inf, 0, 1], [1e30, 0, 0], [np.nan, 0, 0]])
    asked = {"x": x, "target": np.array([1, 0, 0, 1, 2]), "return_probabilities": True}
    for dtype in (np.float32, np.float64):
        value, p = _subject(name).answer({**asked, "x": x.astype(dtype)})
        assert value[0] == np.inf
        assert value[1] == value[2] == 0
        assert value[3] > 1e29
        assert np.isnan(value[4])
        assert (p[1] == 0).all()
        assert np.isnan(p[4]).all()
        back = {"dy": np.ones(5, dtype), "p": p, "target": asked["target"]}
        (dx,) = _subject(f"{name}_backward").answer(back)
        assert (dx[1] == 0).all()


@names
@pytest.mark.parametrize("extent", [50, 9000])
def test_classes_are_distributions_with_one_entry(name: str, extent: int) -> None:
    x, classes = RNG.standard_normal((3, extent)).astype(np.float32), np.array([0, 7, extent - 1])
    share = np.zeros_like(x)
    share[range(3), classes] = 1
    by_class, by_share = _loss(name, x, classes), _loss(name, x, share)
    np.testing.assert_allclose(by_class, by_share, rtol=2.4e-7)
    assert (_loss(name, x, classes.astype(np.int32)) == by_class).all()


@pytest.mark.parametrize("scale", [0.1, 3.0, 1e4])
def test_a_softmax_loss_of_even_targets_is_as_exact_as_one_in_f64(scale: float) -> None:
    """Logarithms of equal shares all round the same way; ten of them are more than the bound."""
    for extent in (700, 9000):
        x = (scale * RNG.standard_normal((2, extent))).astype(np.float32)
        target = np.full_like(x, 1 / extent)
        equals_the_oracle(_subject("softmax_loss"), {"x": x, "target": target})


def test_softmax_losses_of_f32_take_no_f64() -> None:
    """Rows of classes are read once where they fit, and twice where they do not."""
    subject = _subject("softmax_loss")
    for extent, passes in ((1000, 1), (9000, 2)):
        x = RNG.standard_normal((2, extent)).astype(np.float32)
        counts = emulated(subject, {"x": x, "target": np.array([3, 8])}, "sm_90").counts
        assert counts.instructions["f64"] == 0
        assert passes * x.nbytes <= counts.read_bytes < (passes + 1) * x.nbytes
        asked = {"x": x, "target": np.abs(x) / np.abs(x).sum(1, keepdims=True)}
        assert emulated(subject, asked, "sm_90").counts.instructions["f64"] == 0


@pytest.mark.parametrize("name", ["softmax_loss", "entmax15_loss_backward"])
def test_compiled_code_in_place(name: str) -> None:
    """The map may take the memory of x, and the gradient that of the target."""
    subject = _subject(name)
    compiled = Emulated(subject.function, subject.family, target="sm_80")
    x = RNG.standard_normal((2, 5000)).astype(np.float32)
    target = np.abs(x) / np.abs(x).sum(1, keepdims=True)
    if name == "softmax_loss":
        asked = {"x": x, "target": target, "return_probabilities": True}
        loss, p = subject.answer(asked)
        found = np.empty(2, np.float32)
        compiled.answer(asked, out=(found, x))
        np.testing.assert_allclose(found, loss, rtol=1e-6)
        np.testing.assert_allclose(x, p, rtol=1e-6)
    else:
        asked = {"dy": np.ones(2, np.float32), "p": target[::-1].copy(), "target": target}
        (dx,) = subject.answer(asked)
        compiled.answer(asked, out=target)
        np.testing.assert_array_equal(target, dx)
