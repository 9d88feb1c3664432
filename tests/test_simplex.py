"""Laws of maps onto the simplex that other families have no counterpart of."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import log2
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback
from pullback.cpu.rows import PANELED
from pullback.ops.simplex import oracle
from pullback.ops.simplex.cpu_backward import SKIPPED
from pullback.ops.simplex.cpu_softmax import KEPT
from pullback.ops.simplex.cpu_threshold import STEPS
from pullback.verify.laws import same_bits

DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
MAPS = ("softmax", "log_softmax", "sparsemax", "entmax15")
SPARSE = ("sparsemax", "entmax15")
SHAPES = {"short": (40, 7), "blocks": (7, 97), "long": (2, 5000)}

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: np.dtype(t).name)
maps = pytest.mark.parametrize("op", MAPS)
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def forward(op: str) -> Callable[..., Any]:
    return getattr(pullback, op)  # type: ignore[no-any-return]


def backward(op: str) -> Callable[..., Any]:
    return getattr(pullback, f"{op}_backward")  # type: ignore[no-any-return]


def rows(shape: tuple[int, ...], dtype: Any, scale: float = 2.0) -> Any:
    return (scale * np.random.default_rng(11).standard_normal(shape)).astype(dtype)


def epsilon(dtype: Any) -> float:
    return float(ml_dtypes.finfo(dtype).eps)


def half_range(dtype: Any) -> float:
    return float(ml_dtypes.finfo(dtype).max) / 2


def probabilities(op: str, x: Any) -> Any:
    y = forward(op)(x).astype(np.longdouble)
    return np.exp(y) if op == "log_softmax" else y


def same_values(got: Any, want: Any) -> None:
    """Equal, NaN included; in f64, since NumPy does not know the NaN of other packages' dtypes."""
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


@maps
@dtypes
@shapes
@pytest.mark.parametrize("offset", [0.0, 1e6, -1e6])
def test_rows_lie_on_the_simplex(op: str, dtype: Any, shape: Any, offset: float) -> None:
    offset = float(np.clip(offset, -half_range(dtype), half_range(dtype)))
    p = probabilities(op, (rows(shape, np.float64) + offset).astype(dtype))
    assert (p >= 0).all()
    # Each entry is rounded once; a log-probability is rounded before it becomes a probability.
    slack = epsilon(dtype) * (np.log(shape[-1]) + 40 if op == "log_softmax" else 1)
    np.testing.assert_allclose(p.sum(-1).astype(float), 1, atol=2 * slack)


@maps
@dtypes
def test_a_shift_that_is_exact_changes_nothing(op: str, dtype: Any) -> None:
    x = np.round(rows((5, 97), np.float64) * 4).astype(dtype) / dtype(4)
    shifted = x + dtype(16)
    assert ((shifted - dtype(16)) == x).all()
    got, want = (forward(op)(v).astype(float) for v in (shifted, x))
    np.testing.assert_allclose(got, want, rtol=4 * epsilon(dtype), atol=epsilon(dtype))


@maps
@dtypes
@shapes
def test_permutations_pass_through(op: str, dtype: Any, shape: Any) -> None:
    x = rows(shape, dtype)
    order = np.random.default_rng(3).permutation(shape[-1])
    got, want = forward(op)(x[:, order]), forward(op)(x)[:, order]
    if op in SPARSE:  # their sums are exact, so even the bits are the same
        np.testing.assert_array_equal(got, want)
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=4 * epsilon(dtype))


@dtypes
def test_rows_too_long_to_be_kept(dtype: Any) -> None:
    """Their exponentials are computed twice; across columns nothing is kept of any row."""
    x = rows((3, KEPT + 37), dtype)
    y = pullback.softmax(x)
    np.testing.assert_array_equal(pullback.softmax(np.asfortranarray(x)), y)
    p = np.exp(x.astype(np.longdouble))
    want = (p / p.sum(-1, keepdims=True)).astype(float)
    np.testing.assert_allclose(y.astype(float), want, rtol=4 * epsilon(dtype), atol=2.0**-25)


@maps
def test_jacobian_is_symmetric_and_sums_to_zero(op: str) -> None:
    y = forward(op)(rows((1, 24), np.float64))
    columns = backward(op)(np.eye(24), np.repeat(y, 24, 0))  # row i is the gradient of y[i]
    np.testing.assert_allclose(columns.sum(-1), 0, atol=1e-14)  # no shift along the ones
    if op == "log_softmax":  # diag(p) J is the symmetric one
        columns = np.exp(y).T * columns
    np.testing.assert_allclose(columns, columns.T, atol=1e-15)


@pytest.mark.parametrize("op", SPARSE)
@dtypes
def test_support_is_an_upper_set_and_shrinks_with_scale(op: str, dtype: Any) -> None:
    x = rows((30, 65), dtype)
    y = forward(op)(x)
    least = np.where(y > 0, x, np.inf).min(-1)
    most = np.where(y > 0, -np.inf, x).max(-1)
    assert (least.astype(float) > most.astype(float)).all()
    sizes = [(forward(op)(x * dtype(s)) > 0).sum(-1) for s in (0.25, 0.5, 1, 2, 4)]
    assert all((a >= b).all() for a, b in pairwise(sizes))


@maps
@dtypes
def test_limits_of_temperature(op: str, dtype: Any) -> None:
    x = np.random.default_rng(4).permuted(np.tile(np.arange(64.0), (9, 1)), axis=-1).astype(dtype)
    hot, cold = probabilities(op, x * dtype(0)), probabilities(op, x * dtype(500))
    np.testing.assert_allclose(hot.astype(float), 1 / 64, rtol=16 * epsilon(dtype))
    peak = np.where(x == x.max(-1, keepdims=True), 1.0, 0.0)
    np.testing.assert_allclose(cold.astype(float), peak, rtol=0, atol=1e-200)


@pytest.mark.parametrize("op", SPARSE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@shapes
def test_agrees_with_the_entmax_package(op: str, dtype: Any, shape: Any) -> None:
    entmax, torch = pytest.importorskip("entmax"), pytest.importorskip("torch")
    x, dy = rows(shape, dtype), rows(shape[::-1], dtype).T
    leaf = torch.tensor(x, requires_grad=True)
    y = getattr(entmax, op)(leaf, dim=-1)
    (dx,) = torch.autograd.grad(y, leaf, torch.tensor(dy.copy()))
    ours = forward(op)(x)
    np.testing.assert_allclose(ours, y.detach().numpy(), rtol=0, atol=16 * epsilon(dtype))
    np.testing.assert_allclose(
        backward(op)(dy, ours), dx.numpy(), rtol=0, atol=2e3 * epsilon(dtype)
    )


@pytest.mark.parametrize("op", SPARSE)
def test_dy_is_not_read_off_the_support(op: str) -> None:
    y = forward(op)(rows((8, 100), np.float32, 4.0))
    dy = rows((8, 100), np.float32)
    poisoned = np.where(y == 0, np.nan, dy).astype(np.float32)
    dx = backward(op)(poisoned, y)
    np.testing.assert_array_equal(dx, backward(op)(dy, y))
    assert (dx[y == 0] == 0).all()


# --- rows that no formula covers ----------------------------------------------------------------

INF, NAN = np.inf, np.nan
SPECIAL: dict[str, tuple[list[float], list[float]]] = {
    "one element": ([5.0], [1.0]),
    "NaN": ([1.0, NAN, 2.0], [NAN, NAN, NAN]),
    "NaN beside +inf": ([INF, NAN, -INF], [NAN, NAN, NAN]),
    "only NaN": ([NAN, NAN], [NAN, NAN]),
    "one +inf": ([0.0, INF, 3.0], [0.0, 1.0, 0.0]),
    "two +inf": ([INF, -INF, INF], [0.5, 0.0, 0.5]),
    "four +inf": ([INF, 9.0, INF, INF, INF], [0.25, 0.0, 0.25, 0.25, 0.25]),
    "one that is not masked": ([-INF, 2.0, -INF], [0.0, 1.0, 0.0]),
    "fully masked": ([-INF, -INF, -INF], [0.0, 0.0, 0.0]),
}


@maps
@dtypes
@pytest.mark.parametrize("name", SPECIAL)
def test_special_rows_are_exact(op: str, dtype: Any, name: str) -> None:
    x, p = (np.array([row], dtype) for row in SPECIAL[name])
    with np.errstate(divide="ignore"):
        want = np.log(p.astype(np.float64)).astype(dtype) if op == "log_softmax" else p
    same_values(forward(op)(x), want)
    # Beside ordinary rows, and as a column among ordinary columns.
    plain = rows((5, x.size), dtype)
    together = np.concatenate([plain, x])
    expected = np.concatenate([forward(op)(plain), want])
    same_values(forward(op)(together), expected)
    same_values(forward(op)(together.T, 0).T, expected)


@maps
@dtypes
def test_gradients_of_special_rows(op: str, dtype: Any) -> None:
    for name, (row, _) in SPECIAL.items():
        y = forward(op)(np.array([row], dtype))
        dx = backward(op)(rows(y.shape, dtype), y)
        if np.isnan(row).any():
            assert np.isnan(dx).all(), name
        elif name in ("fully masked", "one element"):
            assert (dx == 0).all(), name
        else:
            assert np.isfinite(dx).all(), name


@maps
@dtypes
@pytest.mark.parametrize("n", [31, 256, 1100, SKIPPED + 40])
def test_a_gradient_does_not_depend_on_the_rows_beside_it(op: str, dtype: Any, n: int) -> None:
    """While one row is written, the next is summed, whatever either holds."""
    x, dy = rows((9, n), dtype), rows((9, n), dtype, 3.0)
    x[2], x[3, n // 2] = -INF, NAN
    dy[5, 0], dy[6, -1] = INF, NAN
    y = forward(op)(x)
    alone = np.concatenate([backward(op)(dy[k : k + 1], y[k : k + 1]) for k in range(9)])
    across = backward(op)(np.ascontiguousarray(dy.T), np.ascontiguousarray(y.T), 0).T
    in_dy, in_y = dy.copy(), y.copy()
    backward(op)(in_dy, y, out=in_dy)
    backward(op)(dy, in_y, out=in_y)
    for together in (backward(op)(dy, y), across, in_dy, in_y):
        assert np.ascontiguousarray(together).tobytes() == alone.tobytes()


@dtypes
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("shape", [(3, 5), (40, 5), (40, 33), (3, 300)])
def test_nan_of_any_sign_is_seen_in_its_row_alone(shape: Any, sign: int, dtype: Any) -> None:
    y, dy = -np.abs(rows(shape, dtype)), rows(shape, dtype)
    y[1, 3], y[2, 0] = np.copysign(NAN, sign), -INF
    for op in ("softmax", "log_softmax"):
        dx = backward(op)(dy, y).astype(np.float64)
        assert np.isnan(dx[1]).all(), op
        assert np.isfinite(np.delete(dx, [1, 2], 0)).all(), op


def bits(array: Any) -> Any:
    return array.view(f"u{array.dtype.itemsize}")


@maps
@dtypes
@pytest.mark.parametrize("n", [1, 9, 16, 27, PANELED[3] + 1, PANELED[2], PANELED[2] + 1])
def test_many_short_rows_have_the_bits_of_each(op: str, dtype: Any, n: int) -> None:
    """Several are taken at a time, or turned into columns; strides of any sign, special values and
    rows that fill no group or panel included, in place too."""
    x, dy = rows((75, n), dtype), rows((75, n), dtype)[::-1].copy()
    x[3], x[40, 0], x[70, -1], dy[5, 0], dy[72] = -INF, INF, NAN, INF, 0
    y = np.stack([forward(op)(row) for row in x])
    dx = np.stack([backward(op)(*pair) for pair in zip(dy, y, strict=True)])
    spaced = np.zeros((75, 3, n, 2), dtype)[:, 1, ::-1, 1]
    spaced[:] = x
    part = np.zeros((5, 17, n + 3), dtype)[:, 2:, 1:-2]
    part[:] = x.reshape(part.shape)
    for given in (x, spaced, part):
        assert (bits(forward(op)(given)).reshape(x.shape) == bits(y)).all()
    assert (bits(backward(op)(dy[::-1], y[::-1]))[::-1] == bits(dx)).all()
    assert (bits(backward(op)(dy, y, out=dy)) == bits(dx)).all()


@maps
def test_rows_without_elements(op: str) -> None:
    nothing = np.zeros((3, 0), np.float32)
    assert forward(op)(nothing).shape == (3, 0)
    assert backward(op)(nothing, nothing).shape == (3, 0)
    assert forward(op)(nothing, 0).shape == (3, 0)


# --- the search for the threshold ---------------------------------------------------------------


def climb(z: Any, norm: float) -> tuple[float, int]:
    """Newton's method on (Σ max(z - t, 0)^norm)^(1/norm) - 1 from t = -1, and how many steps."""
    t = -1.0
    for count in range(1000):
        u = np.maximum(z - t, 0)
        size = (u**norm).sum() ** (1 / norm)
        slope = (u > 0).sum() if norm == 1 else u.sum() / size
        step = (size - 1) / slope
        if not step > 2.0**-53 or t + step == t:
            return t, count
        t += step
    raise AssertionError("no end")


def hard_rows(n: int) -> dict[str, Any]:
    """Rows that make every step drop few entries."""
    k = np.arange(n)
    return {
        "geometric": -1 + 2.0 ** -(k % 50.0),
        "harmonic": -1 + 1 / (1.0 + k),
        "nested": -np.cumsum(1 / (1.0 + k)) / np.sum(1 / (1.0 + k)),
        "square root": -np.sqrt(k / n),
        "one low, many high": np.where(k == 0, 0.0, -1 + 2.0**-40 * k),
    }


@pytest.mark.parametrize("norm", [1, 2], ids=SPARSE)
@pytest.mark.parametrize("n", [100, 10_000, 300_000])
def test_no_row_needs_many_steps(norm: int, n: int) -> None:
    for name, z in hard_rows(n).items():
        z = z - z.max()
        t, steps = climb(z, norm)
        assert steps <= log2(n) + 30, name
        assert abs((np.maximum(z - t, 0) ** norm).sum() - 1) < 1e-9


@pytest.mark.parametrize("op", SPARSE)
@pytest.mark.parametrize("n", [100, 4097, 70_000])
def test_hard_rows_are_solved_within_the_steps_there_are(op: str, n: int) -> None:
    """A kernel looks at a row at most STEPS times, whatever its length; it must need no more."""
    assert log2(n) + 30 < STEPS
    scale = 1 if op == "sparsemax" else 2
    x = scale * np.stack(list(hard_rows(n).values()))
    np.testing.assert_allclose(forward(op)(x).sum(-1), 1, atol=1e-12)
    # Across columns nothing is set aside, and the steps are the same to the last bit.
    np.testing.assert_array_equal(forward(op)(np.asfortranarray(x)), forward(op)(x))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_peaked_rows_keep_their_small_log_probabilities(dtype: Any) -> None:
    """log(1 + e) of a small e, not of the rounded 1 + e."""
    gaps = np.array([5.0, 10, 20, 40, 60, 80])
    for shape in ((6, 2), (6, 40)):
        x = np.full(shape, -np.inf, dtype)
        x[:, 0], x[:, 1] = 0, -gaps
        for given, axis in ((x, 1), (x.T.copy(), 0)):
            top = pullback.log_softmax(given, axis).max(axis)
            want = -np.log1p(np.exp(-gaps.astype(np.longdouble)))
            assert np.abs(top / want - 1).max() < 4 * np.finfo(dtype).eps


@pytest.mark.parametrize("op", ["sparsemax", "entmax15"])
@pytest.mark.parametrize("n", [20, 100, 700])
def test_columns_whose_support_is_everything(n: int, op: str) -> None:
    """More candidates than are set aside for a column; beside it some with few."""
    x = np.zeros((n, 40), np.float32)
    x[0, ::3] = 5
    y = getattr(pullback, op)(x, 0)
    np.testing.assert_allclose(y[:, 1::3], 1 / n, rtol=1e-6)
    assert (y[:, ::3] == (np.arange(n) == 0)[:, None]).all()
    assert same_bits(y, getattr(pullback, op)(x.T.copy(), 1).T.copy())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_of_log_probabilities_far_above_zero(dtype: Any) -> None:
    """No y of ours is, but whatever is given is what the formula is of."""
    y = np.array([[30, 39.5, 41, 60, 80], [-1, -50, 50, 85, 0]], dtype)
    dy = np.array([[1, 2, -3, 0.5, 1], [0.25, 1, 1, -2, 3]], dtype)
    want = oracle.log_softmax_backward(dy, y)
    for given, axis in (((dy, y), 1), ((dy.T.copy(), y.T.copy()), 0)):
        got = pullback.log_softmax_backward(*given, axis)
        got = got if axis else got.T
        np.testing.assert_allclose(got, want.astype(dtype), rtol=8 * np.finfo(dtype).eps)


@pytest.mark.parametrize("op", ["sparsemax", "entmax15"])
@pytest.mark.parametrize("n", [5, 9, 20, 40, 70, 300])
def test_bf16_elements_at_the_threshold_have_the_same_bits_in_any_layout(n: int, op: str) -> None:
    """A search that begins elsewhere must end at the same threshold; results there are 0."""
    rng = np.random.default_rng(n)
    x = rng.integers(-2, 3, (n, 1024)) / rng.choice([1, 2, 4, 8], (1, 1024))
    x = x.astype(ml_dtypes.bfloat16)
    y = getattr(pullback, op)(x, 0)
    assert same_bits(y, getattr(pullback, op)(x.T.copy(), 1).T.copy())
    assert same_bits(y, getattr(pullback, op)(x[:, ::-1], 0)[:, ::-1].copy())
    assert same_bits(y, getattr(pullback, op)(np.repeat(x, 2, 0)[::2], 0))
    assert ((y == 0) | (y > 1e-12)).all()
