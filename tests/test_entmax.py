"""entmax and the Fenchel-Young losses: what the laws of all families do not say."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from pullback.ops.entmax import oracle
from pullback.ops.entmax.cpu_rows import CAPACITY
from pullback.verify.laws import same_bits

DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
OWN = {1.0: "softmax", 1.5: "entmax15", 2.0: "sparsemax"}
LOSSES = {"softmax_loss": 1.0, "entmax15_loss": 1.5, "sparsemax_loss": 2.0}

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: np.dtype(t).name)
losses = pytest.mark.parametrize("name", LOSSES)


def rows(shape: tuple[int, ...], dtype: Any, scale: float = 2.0) -> Any:
    return (scale * np.random.default_rng(11).standard_normal(shape)).astype(dtype)


def epsilon(dtype: Any) -> float:
    return float(ml_dtypes.finfo(dtype).eps)


# --- the map ------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("alpha", OWN)
def test_alpha_of_a_named_map_has_its_bits(alpha: float, dtype: Any) -> None:
    """As a number and as a tensor, forward and backward."""
    x, dy = rows((6, 70), dtype), rows((6, 70), dtype)[::-1].copy()
    y = getattr(pb, OWN[alpha])(x)
    dx = getattr(pb, f"{OWN[alpha]}_backward")(dy, y)
    alphas = np.full((6, 1), alpha, dtype)
    alphas[1::2] = 1.25  # rows beside them that have another
    for given in (alpha, alphas):
        mine = slice(None) if isinstance(given, float) else slice(None, None, 2)
        assert same_bits(pb.entmax(x, given)[mine], y[mine])
        found = pb.entmax_backward(dy, y, given, x=None if given is alpha else x)
        assert same_bits((found if given is alpha else found[0])[mine], dx[mine])


@dtypes
@pytest.mark.parametrize("alpha", [1.0, 1.0001, 1.1, 1.33, 1.9, 2.0, 2.5, 4.0, 50.0])
def test_rows_lie_on_the_simplex(alpha: float, dtype: Any) -> None:
    """Whatever the offset, nothing is NaN, f16 included."""
    for shape in ((40, 7), (7, 97), (2, 5000)):
        for offset in (0.0, 1e4, -1e4):
            p = pb.entmax(rows(shape, dtype) + np.dtype(dtype).type(offset), alpha)
            assert (p >= 0).all()
            total = p.astype(np.longdouble).sum(-1).astype(float)
            np.testing.assert_allclose(total, 1, atol=epsilon(dtype) * (2 + shape[-1] / 4))


@dtypes
def test_ties_and_gradients_of_a_large_alpha(dtype: Any) -> None:
    """The threshold lies next to the maximum, nearer than numbers of its size are to each other."""
    x = np.zeros((3, 7), dtype)
    x[1, :4], x[2, 0] = 1, 1
    p = pb.entmax(x, 50.0).astype(float)
    want = [[1 / 7] * 7, [1 / 4] * 4 + [0] * 3, [1] + [0] * 6]
    np.testing.assert_allclose(p, want, rtol=epsilon(dtype))
    y = np.array([[0.5, 0.3, 0.2 - 1e-7, 1e-7]]).astype(dtype)
    for alpha in (2.5, 50.0):
        dx = pb.entmax_backward(np.array([[1, -2, 0.5, 0.25]], dtype), y, alpha)
        assert not np.isnan(dx).any()


@dtypes
@pytest.mark.parametrize("extent", [CAPACITY - 1, CAPACITY, CAPACITY + 1, 3 * CAPACITY + 5])
def test_candidates_that_do_not_fit_the_list(extent: int, dtype: Any) -> None:
    """A row so even that all have a share: listed in pieces, forward and backward."""
    x = rows((2, extent), dtype, 0.01)
    dy = rows((2, extent), dtype)
    for alpha in (1.25, 1.0001, 1.7):
        y = pb.entmax(x, alpha)
        want = oracle.entmax(x, alpha)
        np.testing.assert_allclose(
            y.astype(float), want.astype(float), rtol=8 * epsilon(dtype), atol=1e-7
        )
        dx = pb.entmax_backward(dy, y, alpha)
        size = float(np.abs(y.astype(float)).max() ** (2 - alpha)) * 8
        truth = oracle.entmax_backward(dy, y, alpha).astype(float)
        np.testing.assert_allclose(
            dx.astype(float), truth, rtol=4 * epsilon(dtype), atol=size * epsilon(dtype)
        )


@pytest.mark.parametrize("alpha", [1.0, 1.0001, 1.25, 1.5, 2.0])
def test_losses_of_candidates_that_do_not_fit_the_list(alpha: float) -> None:
    x = rows((4, 3 * CAPACITY + 5), np.float32, 0.01)
    classes = np.array([0, CAPACITY, 2 * CAPACITY + 3, 3 * CAPACITY + 4])
    got, p = pb.entmax_loss(x, classes, alpha, return_probabilities=True)
    want, q = oracle.entmax_loss(x, classes, alpha, return_probabilities=True)
    np.testing.assert_allclose(got, want.astype(float), rtol=1e-6)
    np.testing.assert_allclose(p, q.astype(float), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("alpha", [1.0, 1.25, 1.5, 2.0])
def test_a_nan_among_probabilities_spoils_its_row_alone(alpha: float) -> None:
    y = pb.entmax(rows((3, 50), np.float32), alpha)
    y[1, 7] = np.nan
    dx = pb.entmax_backward(rows((3, 50), np.float32), y, alpha)
    assert np.isnan(dx[1]).all()
    assert not np.isnan(dx[::2]).any()


def test_gradient_of_a_shared_alpha_has_the_same_bits_in_any_layout() -> None:
    """Rows are added up in the order of the shape, not of memory."""
    x, dy = rows((3, 4, 50, 6), np.float32), rows((3, 4, 50, 6), np.float32)[:, ::-1].copy()
    alpha = np.array(1.3, np.float32)
    y = pb.entmax(x, alpha, 2)
    want = pb.entmax_backward(dy, y, alpha, 2, x=x)
    for order in ((3, 2, 1, 0), (1, 3, 0, 2), (2, 0, 3, 1)):
        back = np.argsort(order)
        laid = [np.ascontiguousarray(a.transpose(order)).transpose(back) for a in (dy, y, x)]
        got = pb.entmax_backward(laid[0], laid[1], alpha, 2, x=laid[2])
        assert all(same_bits(g, w) for g, w in zip(got, want, strict=True))


def test_alpha_is_checked() -> None:
    x = rows((3, 4), np.float32)
    for bad in (0.5, float("nan"), float("inf"), -1.0):
        with pytest.raises(pb.InvalidProblem, match="entmax: `alpha` must be at least 1"):
            pb.entmax(x, bad)
        alpha = np.full((3, 1), 1.5, np.float32)
        alpha[1] = bad
        out = np.full((3, 4), 7, np.float32)
        with pytest.raises(pb.InvalidProblem, match="entmax: `alpha` must be at least 1"):
            pb.entmax(x, alpha, out=out)
        assert (out == 7).all()
    for shape in ((2, 1), (3, 4), (1, 3, 1)):
        with pytest.raises(pb.InvalidProblem, match=r"broadcasts to \(3, 4\) and has extent 1"):
            pb.entmax(x, np.full(shape, 1.5, np.float32))
    with pytest.raises(pb.InvalidProblem, match="entmax_backward: `x` must be given"):
        pb.entmax_backward(x, x, np.full((3, 1), 1.5, np.float32))


# --- losses -------------------------------------------------------------------------------------


def distributions(name: str, x: Any) -> Any:
    return getattr(pb, name)(x, np.zeros(x.shape[:-1], np.int64), return_probabilities=True)[1]


@losses
@dtypes
def test_a_loss_is_zero_exactly_where_the_map_is_the_target(name: str, dtype: Any) -> None:
    x, loss = rows((20, 33), dtype), getattr(pb, name)
    p = distributions(name, x)
    assert (loss(x, p) == 0).all()
    other = np.roll(p, 1, 0)
    assert (loss(x, other)[(other != p).any(-1)] > 0).all()
    sure = np.full((4, 33), -np.inf, dtype)
    sure[range(4), [0, 5, 31, 32]] = 1
    assert (loss(sure, np.array([0, 5, 31, 32])) == 0).all()
    sure[sure < 0] = -3  # softmax has some left, the others nothing
    found = loss(sure, np.array([0, 5, 31, 32]))
    assert (found > 0).all() if name == "softmax_loss" else (found == 0).all()
    assert (loss(sure, np.array([1, 4, 3, 2])) > 0).all()
    if name == "softmax_loss" and dtype is not np.float64:  # as little as the dtype has is enough
        least = max(float(ml_dtypes.finfo(dtype).smallest_subnormal), 2.0**-126)
        for share in (3, 40):
            x = np.array([[0, np.log(share * least), -np.inf]], np.float64).astype(dtype)
            assert (loss(x, np.array([0])) > 0).all()


@losses
@dtypes
def test_classes_are_distributions_with_one_entry(name: str, dtype: Any) -> None:
    x, classes = rows((30, 50), dtype), np.arange(30) % 50
    onehot = np.zeros((30, 50), dtype)
    onehot[range(30), classes] = 1
    loss = getattr(pb, name)
    by_class, p = loss(x, classes, return_probabilities=True)
    by_share, q = loss(x, onehot, return_probabilities=True)
    close = {"rtol": 2 * epsilon(dtype), "atol": epsilon(dtype) / 8}
    np.testing.assert_allclose(by_class.astype(float), by_share.astype(float), **close)
    np.testing.assert_allclose(p.astype(float), q.astype(float), **close)
    narrow = loss(x, classes.astype(np.int32))
    assert same_bits(narrow, by_class)
    assert same_bits(loss(x, classes), by_class)
    general = pb.entmax_loss(x, classes, LOSSES[name])
    assert same_bits(general, by_class)
    dy = rows((30,), dtype)
    found = getattr(pb, f"{name}_backward")(dy, p, classes)
    assert same_bits(found, getattr(pb, f"{name}_backward")(dy, p, onehot))


@losses
def test_softmax_loss_and_others_at_extremes(name: str) -> None:
    loss = getattr(pb, name)
    x = np.array([[0, -np.inf, 1], [-np.inf] * 3, [np.inf, 0, 1], [1e30, 0, 0], [np.nan, 0, 0]])
    value, p = loss(x, np.array([1, 0, 0, 1, 2]), return_probabilities=True)
    assert value[0] == np.inf
    assert value[1] == 0
    assert value[2] == 0
    assert value[3] > 1e29
    assert np.isnan(value[4])
    assert (p[1] == 0).all()
    assert np.isnan(p[4]).all()
    dx = getattr(pb, f"{name}_backward")(np.ones(5), p, np.array([1, 0, 0, 1, 2]))
    assert (dx[1] == 0).all()


def test_softmax_loss_of_large_values_is_cross_entropy() -> None:
    torch = pytest.importorskip("torch")
    x, classes = rows((64, 1000), np.float32, 30.0), np.arange(64) * 7 % 1000
    given = torch.from_numpy(x).requires_grad_()
    want = torch.nn.functional.cross_entropy(
        given.double(), torch.from_numpy(classes), reduction="none"
    )
    got = pb.softmax_loss(given, torch.from_numpy(classes))
    torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=1e-7)
    mine, theirs = (torch.autograd.grad(v.sum(), given, retain_graph=True)[0] for v in (got, want))
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


def test_a_class_out_of_range_is_named_by_its_position() -> None:
    """In the order of the target, whatever the order of memory."""
    x = np.asfortranarray(rows((4, 5, 3), np.float32))
    target = np.zeros((4, 5), np.int64)
    target[2, 1], target[1, 4] = 3, -1
    for given in (target, np.asfortranarray(target), target.astype(np.int32)):
        with pytest.raises(pb.IndexOutOfRange, match=r"in \[0, 3\), got -1 at position 9"):
            pb.softmax_loss(x, given)
    with pytest.raises(pb.InvalidProblem, match=r"classes of shape \(4, 5\), got shape \(5, 4\)"):
        pb.sparsemax_loss(x, target.T)
    with pytest.raises(pb.InvalidProblem, match=r"a distribution of shape \(4, 5, 3\)"):
        pb.sparsemax_loss(x, np.ones((4, 5), np.float32))


def test_descriptors_of_losses() -> None:
    def select(**fields: Any) -> Any:
        common = {"input_shape": (3, 4), "softmax_axis": 1, "element": pb.ElementKind.F32}
        desc = pb.SimplexLossDescriptor(**common, **fields)
        return pb.SimplexLossPlan.select(pb.Stream.cpu(), desc)

    kind = pb.EntmaxKind
    assert select(kind=kind.SOFTMAX_LOSS, alpha=None).sku.op is kind.SOFTMAX_LOSS
    with pytest.raises(pb.InvalidProblem, match=r"`alpha` must be None, being 1\.0, got 1\.0"):
        select(kind=kind.SOFTMAX_LOSS, alpha=1.0)
    with pytest.raises(pb.InvalidProblem, match="entmax_loss: `alpha`"):
        select(kind=kind.ENTMAX_LOSS, alpha=None)
    with pytest.raises(pb.InvalidProblem, match="`kind` must be that of a loss"):
        select(kind=kind.ENTMAX, alpha=1.5)


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0])
def test_a_target_has_a_gradient(alpha: float) -> None:
    """log_b t - log_b p on the support: against differences."""
    torch = pytest.importorskip("torch")
    x = torch.tensor([[0.3, -0.2, 0.1, -2.5]], dtype=torch.float64, requires_grad=True)
    t = torch.tensor([[0.2, 0.3, 0.1, 0.4]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: pb.entmax_loss(x.detach(), t, alpha), (t,))
    assert torch.autograd.gradgradcheck(lambda x, t: pb.entmax_loss(x, t, alpha), (x, t))
    none = torch.tensor([[0.0, 1.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    loss = pb.entmax_loss(torch.tensor([[0.0, 1.0, -torch.inf, 0.5]]).double(), none, alpha)
    assert torch.isfinite(torch.autograd.grad(loss.sum(), none)[0]).all()


@pytest.mark.parametrize("alpha", [1, 1.3, 1.5, 2])
def test_an_input_that_is_not_read_is_held_to_the_same(alpha: float) -> None:
    y = np.full(3, 1 / 3, np.float32)
    with pytest.raises(pb.Unsupported, match="`x` must be float32"):
        pb.entmax_backward(y, y, alpha, x=y.astype(np.float16))
    with pytest.raises(pb.InvalidProblem, match=r"`x` must be of shape \(3,\)"):
        pb.entmax_backward(y, y, alpha, x=np.ones(4, np.float32))
    dx = pb.entmax_backward(y, y, alpha, x=y)
    np.testing.assert_array_equal(dx, pb.entmax_backward(y, y, alpha))
