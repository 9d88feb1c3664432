"""Scans that are exclusive, start from an initial value, or anew at borders: what they give, what
they refuse, and that no front end differs. The laws compare them with their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.contract.element import ElementKind
from pullback.contract.kinds import ScanKind
from pullback.plan.stream import Stream, Workspace

X = np.array([2.0, 0.0, 3.0, 1.0, 5.0])
OFFSETS = np.array([0, 2, 2, 5])
SCANS = (pb.cumsum, pb.cumprod, pb.cummax, pb.cummin, pb.logcumsumexp)


def test_exclusive_scans_begin_with_the_identity() -> None:
    firsts = [scan(X, exclusive=True)[0] for scan in SCANS]
    assert firsts == [0, 1, -np.inf, np.inf, -np.inf]
    lasts = [scan(X, exclusive=True, reverse=True)[-1] for scan in SCANS]
    assert lasts == firsts
    np.testing.assert_array_equal(pb.cumsum(X, exclusive=True), [0, 2, 2, 5, 6])
    np.testing.assert_array_equal(pb.linear_scan(X, X, exclusive=True), [0, 2, 0, 3, 4])


def test_an_initial_value_comes_before_the_first_element() -> None:
    np.testing.assert_array_equal(pb.cumsum(X, initial=10.0), [12, 12, 15, 16, 21])
    np.testing.assert_array_equal(pb.cumprod(X, initial=10.0, exclusive=True), [10, 20, 0, 0, 0])
    np.testing.assert_array_equal(
        pb.cummax(X, initial=np.array(2.5), reverse=True), [5, 5, 5, 5, 5]
    )
    np.testing.assert_array_equal(pb.linear_scan(0.5, X, initial=4.0), [4, 2, 4, 3, 6.5])
    rows = pb.cumsum(np.ones((2, 3)), 1, initial=np.array([1.0, 2.0]))
    np.testing.assert_array_equal(rows, [[2, 3, 4], [3, 4, 5]])


def test_a_scan_starts_anew_at_borders() -> None:
    np.testing.assert_array_equal(pb.cumsum(X, offsets=OFFSETS), [2, 2, 3, 4, 9])
    np.testing.assert_array_equal(pb.cumsum(X, offsets=OFFSETS, reverse=True), [2, 0, 9, 6, 5])
    initial = np.array([10.0, 20.0, 30.0])
    found = pb.cumsum(X, offsets=OFFSETS, initial=initial, exclusive=True)
    np.testing.assert_array_equal(found, [10, 12, 30, 33, 34])
    dx, d_initial = pb.cumsum_backward(X, offsets=OFFSETS, initial=initial)
    np.testing.assert_array_equal(dx, [2, 0, 9, 6, 5])
    np.testing.assert_array_equal(d_initial, [2, 0, 9])


def test_threads_that_share_a_line_start_from_the_initial_value_once() -> None:
    x = np.random.default_rng(2).integers(-8, 9, 200_000).astype(np.float64)
    found = pb.cumsum(x, initial=10.0)
    np.testing.assert_array_equal(found, 10 + np.cumsum(x))
    np.testing.assert_array_equal(pb.cumsum(x, initial=10.0, exclusive=True)[1:], found[:-1])
    dx, d_initial = pb.cumsum_backward(x, initial=np.array(10.0), exclusive=True)
    np.testing.assert_array_equal(dx, x.sum() - np.cumsum(x))
    assert d_initial == x.sum()


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_the_last_element_is_in_no_exclusive_result(value: float) -> None:
    """Whatever it is, gradients are those of any other."""
    x = np.array([2.0, 3.0, 4.0, 5.0, 6.0])
    odd = np.where(x == 6, value, x)
    for backward, forward in (
        (pb.cumprod_backward, lambda v: (v, pb.cumprod(v, exclusive=True))),
        (pb.linear_scan_backward, lambda v: (v, pb.linear_scan(v, v, exclusive=True))),
    ):
        want = backward(X, *forward(x), exclusive=True)
        found = backward(X, *forward(odd), exclusive=True)
        np.testing.assert_array_equal(found, want)
        assert np.ravel(found)[4] == 0


def test_positions_of_initial_values_are_minus_one() -> None:
    """It wins ties with "first" and loses them with "last"; an empty prefix has no position."""
    x = np.array([1.0, 2.0, 1.0, 3.0])
    for ties, want in (("first", [-1, -1, -1, 3]), ("last", [-1, 1, 1, 3])):
        _, found = pb.cummax(x, initial=2.0, ties=ties, return_indices=True)
        np.testing.assert_array_equal(found, want)
    _, found = pb.cummax(x, exclusive=True, offsets=np.array([0, 2, 4]), return_indices=True)
    np.testing.assert_array_equal(found, [-1, 0, -1, 2])
    dx, d_initial = pb.cummax_backward(np.ones(4), x, initial=2.0)
    np.testing.assert_array_equal(dx, [0, 0, 0, 1])
    assert d_initial.shape == ()
    assert d_initial == 3


def test_the_gradient_of_a_broadcast_initial_value_has_its_shape() -> None:
    dy = np.arange(24.0).reshape(2, 3, 4)
    for shape in ((2, 4), (1, 4), (4,), (2, 1), ()):
        dx, d_initial = pb.cumsum_backward(dy, 1, initial=np.zeros(shape))
        full = dy.sum(1)
        want = full.sum(tuple(range(2 - len(shape)))) if len(shape) < 2 else full
        axes = tuple(k for k, n in enumerate(shape) if n == 1)
        np.testing.assert_array_equal(d_initial, want.sum(axes, keepdims=True).reshape(shape))
        np.testing.assert_array_equal(dx, pb.cumsum_backward(dy, 1))


@pytest.mark.parametrize("offsets", [[0, 0, 1], [0, 1, 1], [0, 0, 1, 1]])
def test_a_scalar_in_pieces_starts_from_the_initial_value_of_its_own(offsets: list[int]) -> None:
    """Which broadcasts, or lies with gaps; what is next to it in memory is no part of it."""
    x, borders = np.array(3.0), np.array(offsets)
    firsts, own = np.array([5.0, 7.0, 9.0]), offsets.index(1) - 1
    memory = np.stack([firsts, np.full(3, np.nan)], 1)
    for initial in (firsts[: len(offsets) - 1], memory[: len(offsets) - 1, 0], memory[:1, 0]):
        first = initial[min(own, initial.size - 1)]
        given = {"axis": 0, "offsets": borders, "initial": initial}
        assert pb.cumsum(x, **given) == 3 + first
        assert pb.cumprod(x, **given) == 3 * first
        assert pb.cummax(x, **given) == first
        assert pb.linear_scan(np.array(2.0), x, **given) == 3 + 2 * first
        _, d_initial = pb.cumsum_backward(x, **given)
        want = np.zeros(initial.size)
        want[min(own, initial.size - 1)] = 3
        np.testing.assert_array_equal(d_initial, want)


def test_factors_broadcast_and_their_gradients_are_summed() -> None:
    rng = np.random.default_rng(0)
    b, dh = rng.standard_normal((2, 3, 5))
    for a in (np.array(0.5), rng.standard_normal((3, 1)), rng.standard_normal(5)):
        full = np.broadcast_to(a, b.shape).copy()
        h = pb.linear_scan(full, b)
        np.testing.assert_array_equal(pb.linear_scan(a, b), h)
        da, db = pb.linear_scan_backward(dh, a, h)
        wide, want = pb.linear_scan_backward(dh, full, h)
        np.testing.assert_array_equal(db, want)
        axes = tuple(k for k, n in enumerate((1, *a.shape)[-2:]) if n == 1) if a.ndim else (0, 1)
        np.testing.assert_allclose(da, wide.sum(axes, keepdims=True).reshape(a.shape), rtol=1e-13)


def test_discounted_sums_are_returns_of_rewards() -> None:
    found = pb.discounted_sum(X, 0.5)
    want = X.copy()
    for j in (3, 2, 1, 0):
        want[j] += 0.5 * want[j + 1]
    np.testing.assert_array_equal(found, want)
    episodes = pb.discounted_sum(X, 0.5, offsets=OFFSETS)
    np.testing.assert_array_equal(episodes[:2], pb.discounted_sum(X[:2], 0.5))
    np.testing.assert_array_equal(episodes[2:], pb.discounted_sum(X[2:], 0.5))


@pytest.mark.parametrize("n", [1 << 17, 40_000])
def test_many_short_pieces_and_a_few_long_ones(n: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal(n).astype(np.float32)
    for count in (n // 3, 3):
        inner = np.sort(rng.integers(0, n + 1, count - 1))
        offsets = np.concatenate([[0], inner, [n]])
        found = pb.cumsum(x, offsets=offsets)
        for piece in (0, count // 2, count - 1):
            begin, end = offsets[piece], offsets[piece + 1]
            np.testing.assert_array_equal(found[begin:end], pb.cumsum(x[begin:end]))


@pytest.mark.parametrize(
    ("offsets", "got"),
    [
        ([1, 5], "1 at position 0"),
        ([0, 3], "3 at position 1"),
        ([0, 4, 3, 5], "3 at position 2"),
        ([0, 9, 5], "9 at position 1"),
        ([0, -1, 5], "-1 at position 1"),
    ],
)
def test_borders_that_are_none_are_refused_before_anything_is_written(
    offsets: list[int], got: str
) -> None:
    out = np.full(5, 7.0)
    with pytest.raises(pb.InvalidProblem, match=f"`offsets` must be borders from 0 to 5.*{got}"):
        pb.cumsum(X, offsets=np.array(offsets), out=out)
    assert (out == 7).all()


def test_what_is_no_initial_value_is_refused() -> None:
    with pytest.raises(pb.InvalidProblem, match="cumsum: `initial` must be of a shape that broad"):
        pb.cumsum(np.ones((2, 3)), 1, initial=np.ones(3))
    with pytest.raises(pb.InvalidProblem, match="with the number of pieces in place of the axis"):
        pb.cumsum(X, offsets=OFFSETS, initial=np.ones(2))
    with pytest.raises(pb.Unsupported, match="`initial` must be float64"):
        pb.cumsum(X, initial=np.float32(1)[None][0:1].reshape(()))
    with pytest.raises(pb.InvalidProblem, match="`exclusive` must be True or False"):
        pb.cumsum(X, exclusive=1)
    with pytest.raises(pb.InvalidProblem, match="`offsets` must be 1-D"):
        pb.cumsum(X, offsets=np.zeros((1, 2), np.int64))


def test_plans_have_the_fields() -> None:
    desc = pb.ScanDescriptor(
        kind=ScanKind.CUMSUM,
        input_shape=(5,),
        scan_axis=0,
        element=ElementKind.F64,
        exclusive=True,
        initial_shape=(3,),
        num_pieces=3,
    )
    plan = pb.ScanPlan.select(Stream.cpu(), desc)
    y = np.empty(5)
    args = pb.ScanArgs(x=X, y=y, initial=np.array([10.0, 20.0, 30.0]), offsets=OFFSETS)
    plan.run(Stream.cpu(), Workspace.allocate(plan), args)
    np.testing.assert_array_equal(y, [10, 12, 30, 33, 34])
    with pytest.raises(pb.InvalidProblem, match="initial"):
        plan.can_implement(pb.ScanArgs(x=X, y=y, offsets=OFFSETS))


def _of_torch(value: Any) -> Any:
    torch = pytest.importorskip("torch")
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _of_jax(value: Any) -> Any:
    jnp = pytest.importorskip("jax.numpy")
    return jnp.asarray(value) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("convert", [_of_torch, _of_jax])
def test_front_ends_give_the_same_bits(convert: Any) -> None:
    x = np.random.default_rng(2).standard_normal((3, 5)).astype(np.float32)
    initial = np.random.default_rng(3).standard_normal((3, 3)).astype(np.float32)
    for scan in SCANS:
        for initial_ in (initial, 0.5):
            options = {"offsets": OFFSETS, "initial": initial_, "exclusive": True, "reverse": True}
            given = {name: convert(value) for name, value in options.items()}
            want = scan(x, 1, **options)
            np.testing.assert_array_equal(np.asarray(scan(convert(x), 1, **given)), want)
