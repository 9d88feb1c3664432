"""Faults that kernels once had, each by the smallest call that showed it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from pullback import IndexOutOfRange
from pullback.contract.element import FLOATS, ElementKind
from pullback.ops.scan import oracle
from pullback.verify.laws import same_bits
from pullback.verify.ulp import worst


@pytest.mark.parametrize("element", FLOATS, ids=lambda e: e.name)
def test_cumsum_of_permuted_strided_rank_4_equals_its_contiguous_copy(element: ElementKind) -> None:
    stored = np.random.default_rng(0).random((4, 5, 3, 10)).astype(element.dtype)
    x = stored.transpose(2, 1, 0, 3)[..., ::2]
    assert same_bits(pb.cumsum(x, 0), pb.cumsum(np.ascontiguousarray(x), 0))
    if element in (ElementKind.F32, ElementKind.F64):
        np.testing.assert_allclose(pb.cumsum(x, 0), np.cumsum(x, 0), rtol=1e-6)


@pytest.mark.parametrize("element", FLOATS, ids=lambda e: e.name)
@pytest.mark.parametrize("reduction", ["mean", "max", "min", "prod"])
@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_sorted_segment_backward_with_reversed_rows_of_out_writes_nothing_outside(
    width: int, reduction: str, element: ElementKind
) -> None:
    x, ids = np.ones((40, width), element.dtype), np.sort(np.arange(40) % 3)
    dy = np.ones((3, width), element.dtype)
    backward = getattr(pb, f"segment_{reduction}_backward")
    saved = () if reduction == "mean" else (x,)
    buffer = np.full((42, width + 2), 7, element.dtype)
    out = buffer[40:0:-1, 1:-1]
    backward(dy, *saved, ids, indices_are_sorted=True, out=out)
    assert same_bits(out, backward(dy, *saved, ids))
    out[...] = 7
    assert (buffer == 7).all()


@pytest.mark.parametrize("width", [1, 3, 16])
def test_f64_sum_of_a_long_segment_with_an_infinity_is_not_nan(width: int) -> None:
    for rows in (256, 257, 1000):
        ids = np.zeros(rows, np.int64)
        for value in (np.inf, -np.inf):
            x = np.ones((rows, width))
            x[0] = value
            assert (pb.segment_sum(x, ids, 1) == value).all()
            assert (pb.segment_mean(x, ids, 1) == value).all()
            assert (pb.embedding_backward(x, ids, 1) == value).all()
            table = np.full((1, width), value)
            assert (pb.embedding_bag(table, ids, np.array([0]), mode="sum") == value).all()
        x[300:] = np.nan
        assert np.isnan(pb.segment_sum(x, ids, 1)).all() == (rows > 300)


def test_f64_sum_of_a_long_segment_that_overflows_is_infinite() -> None:
    ids, x = np.zeros(1000, np.int64), np.full((1000, 2), 1e306)
    x[:, 1] = -1e306
    assert (pb.segment_sum(x, ids, 1) == [np.inf, -np.inf]).all()
    assert (pb.embedding_backward(x, ids, 1) == [np.inf, -np.inf]).all()


def test_logcumsumexp_backward_of_wide_range_has_the_same_bits_with_a_column_stride() -> None:
    rng = np.random.default_rng(1)

    def strided(array: Any) -> Any:
        return np.repeat(array, 2, 1)[:, ::2]

    for n in range(51, 130, 3):
        x = rng.uniform(-4, 4, (n, 16)) * 2.0 ** rng.integers(-12, 8, (n, 16))
        x, dy = x.astype("f4"), rng.standard_normal((n, 16)).astype("f4")
        y = pb.logcumsumexp(x, 0)
        got = pb.logcumsumexp_backward(strided(dy), strided(x), strided(y), 0)
        assert same_bits(got, pb.logcumsumexp_backward(dy, x, y, 0))


@pytest.mark.parametrize("rows", [478, 5000])
def test_lerp_backward_in_f64_sums_a_broadcast_gradient_without_drift(rows: int) -> None:
    rng = np.random.default_rng(3)
    dy = np.ascontiguousarray(np.broadcast_to(rng.uniform(0, 1, 65), (rows, 65)))
    (_, db) = pb.lerp_backward(dy, 1.0, np.zeros((rows, 65)), np.zeros(()))
    total = dy.astype(np.longdouble).sum()
    assert abs(db - total) <= np.spacing(np.float64(total))


def test_log_softmax_backward_of_the_smallest_normal_gradients() -> None:
    for dtype in (np.float64, np.float32, ml_dtypes.bfloat16):
        tiny = ml_dtypes.finfo(dtype).smallest_normal
        one = pb.log_softmax_backward(np.array([tiny], dtype), np.zeros(1, dtype))
        assert one[0] == 0
        y = np.log(np.array([0.5, 0.25, 0.25])).astype(dtype)
        got = pb.log_softmax_backward(np.array([4 * tiny, 0, 0], dtype), y)
        np.testing.assert_allclose(
            got.astype(np.longdouble) / np.longdouble(tiny), [2, -1, -1], rtol=1e-2
        )


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_log_softmax_backward_with_an_infinite_gradient_reaches_tiny_probabilities(
    dtype: Any,
) -> None:
    y, dy = np.array([0, -3, -2000, -np.inf], dtype), np.array([1, np.inf, 1, 1], dtype)
    got = pb.log_softmax_backward(dy, y)
    np.testing.assert_array_equal(got.astype(float), [-np.inf, np.nan, -np.inf, np.nan])


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32, np.float64])
def test_logcumsumexp_backward_below_the_smallest_normal_number(dtype: Any) -> None:
    finite = ml_dtypes.finfo(dtype)
    # The first two get e^(x - last) of the last gradient.
    for depth in (-np.log(float(finite.smallest_normal)) + 2, 1000.0):
        x, dy = np.array([0, 0.5, np.ceil(depth)], dtype), np.array([0, 0, 1], dtype)
        y = pb.logcumsumexp(x)
        got = pb.logcumsumexp_backward(dy, x, y).astype(np.longdouble)
        want = np.exp(x.astype(np.longdouble) - np.longdouble(x[2]))
        smallest = np.longdouble(finite.smallest_subnormal)
        assert (abs(got[:2] - want[:2]) <= 2 * smallest + want[:2] * finite.eps).all()


@pytest.mark.parametrize("sparse", [False, True])
def test_output_index_out_of_range_is_an_error_where_asked_for(sparse: bool) -> None:
    dout, indices, offsets = np.ones((3, 2), "f4"), np.array([0, 1, 1]), np.array([0, 1, 3])
    given = {"mode": "max", "sparse": sparse}
    right = np.array([[0, 0], [1, 1], [-1, -1]])  # the last bag is empty
    pb.embedding_bag_backward(dout, indices, offsets, 3, output_index=right, **given)
    for value in (3, 7, -2):
        wrong = right.copy()
        wrong[1, 0], wrong[0, 1] = value, -1
        for winners in (wrong, np.asfortranarray(wrong)):
            with pytest.raises(IndexOutOfRange, match=rf"`output_index`.* {value} at position 2"):
                pb.embedding_bag_backward(dout, indices, offsets, 3, output_index=winners, **given)
        skipped = {"output_index": wrong, "out_of_range": "skip", "mode": "max"}
        got = pb.embedding_bag_backward(dout, indices, offsets, 3, **skipped)
        assert (got == [[1, 0], [0, 1], [0, 0]]).all()


def test_a_plan_refuses_an_output_index_out_of_range_before_it_writes() -> None:
    shape = {"num_embeddings": 3, "embedding_dim": 2, "num_indices": 3, "num_bags": 2}
    for backend in (pb.BackendKind.NUMBA, pb.BackendKind.REFERENCE):
        for policy in pb.IndexPolicy:
            desc = pb.EmbeddingBagBackwardDescriptor(
                **shape, element=ElementKind.F32, mode="max", policy=policy
            )
            pref = pb.PlanPreference(prefer_backend=backend)
            plan = pb.EmbeddingBagBackwardPlan.select(pb.Stream.cpu(), desc, pref)
            dweight = np.full((3, 2), 5, "f4")
            args = pb.EmbeddingBagBackwardArgs(
                dout=np.ones((2, 2), "f4"),
                indices=np.array([0, 1, 1]),
                offsets=np.array([0, 1]),
                dweight=dweight,
                output_index=np.array([[0, -1], [7, 0]]),
            )
            if policy is pb.IndexPolicy.SKIP:
                plan.run(pb.Stream.cpu(), pb.Workspace.allocate(plan), args)
                assert (dweight == [[6, 6], [5, 5], [5, 5]]).all()
            else:
                with pytest.raises(IndexOutOfRange, match="got 7 at position 2"):
                    plan.run(pb.Stream.cpu(), pb.Workspace.allocate(plan), args)
                assert (dweight == 5).all()


def test_sparse_gradients_of_max_bags_name_a_missing_output_index() -> None:
    with pytest.raises(pb.InvalidProblem, match="output_index"):
        pb.embedding_bag_backward(
            np.zeros((1, 2), np.float32), np.array([0]), np.array([0]), 3, mode="max", sparse=True
        )


@pytest.mark.parametrize("name", ["a", "b"])
def test_lerp_backward_refuses_operands_of_another_dtype(name: str) -> None:
    operands = {"a": np.ones(3, np.float32), "b": np.ones(3, np.float32)}
    operands[name] = np.ones(3, np.float16)
    with pytest.raises(pb.Unsupported, match=f"`{name}` must be float32"):
        pb.lerp_backward(np.ones(3, np.float32), 0.5, **operands)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_logcumsumexp_backward_keeps_the_digits_of_subnormal_gradients(dtype: Any) -> None:
    least = ml_dtypes.finfo(dtype).smallest_subnormal
    dy = (np.arange(1, 21) * 3).astype(dtype) * least
    x = np.zeros(20, dtype)
    x[0] = 20 if dtype == np.float16 else 60  # takes nearly all the weight
    got = pb.logcumsumexp_backward(dy, x, pb.logcumsumexp(x))
    total = dy.astype(np.longdouble).sum()
    assert abs(got[0].astype(np.longdouble) - total) <= 3 * np.longdouble(least)
    one = pb.logcumsumexp_backward(dy[:1], x[1:2], x[1:2])
    assert one[0] == dy[0]


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32, np.float64])
def test_logcumsumexp_backward_of_the_largest_gradients_does_not_overflow_on_the_way(
    dtype: Any,
) -> None:
    top = ml_dtypes.finfo(dtype).max
    for n in (7, 64, 200):
        x, dy = np.zeros((n, 3), dtype), np.full((n, 3), top, dtype)
        dy[1::2, 0] *= -1  # sums of the last column are n times as large as its results may be
        dy[n // 2 :, 1] = 0
        y = pb.logcumsumexp(x, 0)
        got = pb.logcumsumexp_backward(dy, x, y, 0)
        want = oracle.logcumsumexp_backward(dy, x, None if dtype == ml_dtypes.bfloat16 else y, 0)
        assert worst(got[:, :2], want[:, :2], np.longdouble(top)) <= 64
        for axis_major in (np.asfortranarray, lambda a: np.repeat(a, 2, 0)[::2]):
            relaid = pb.logcumsumexp_backward(axis_major(dy), axis_major(x), axis_major(y), 0)
            assert same_bits(relaid, got)
    x, dy = np.zeros(200, dtype), np.zeros(200, dtype)
    x[-1], dy[-1] = (175 if dtype == ml_dtypes.bfloat16 else 174), top  # weights below 2^-250
    y = pb.logcumsumexp(x)
    got = pb.logcumsumexp_backward(dy, x, y).astype(np.longdouble)
    want = np.exp(-np.longdouble(x[-1])) * np.longdouble(top)
    np.testing.assert_allclose(got[:-1], want, rtol=float(ml_dtypes.finfo(dtype).eps) * 100)


def test_logcumsumexp_backward_in_bf16_of_neighbours_that_are_far_apart() -> None:
    x = np.array([1e38, 1.01e38], ml_dtypes.bfloat16)
    assert x[0] != x[1]
    dy = np.array([0, 3e38], ml_dtypes.bfloat16)
    got = pb.logcumsumexp_backward(dy, x, x)
    assert got[0] == 0
    assert got[1] == dy[1]


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("rows", [3, 300, 1026])
def test_segment_sums_that_leave_the_range_come_back(rows: int, dtype: Any) -> None:
    top = ml_dtypes.finfo(dtype).max
    x, ids = np.full((rows, 4), top, dtype), np.zeros(rows, np.int64)
    x[1::2, 1] = -top
    x[:, 2] = np.where(np.arange(rows) < rows // 3, top, -top / 2)
    x[rows - 1, 3] = -np.inf
    whole = x.astype(np.longdouble).sum(0)
    size = np.longdouble(top) * rows
    for form in ({}, {"indices_are_sorted": True}):
        mean = pb.segment_mean(x, ids, 1, **form)[0]
        assert worst(mean, whole / rows, np.longdouble(top)) <= 2
        total = pb.segment_sum(x, ids, 1, **form)[0]
        assert worst(total, whole, size) <= 2
    twice = np.full(rows, 2, dtype)
    bag = pb.embedding_bag(x, np.arange(rows), ids[:1], mode="sum", per_sample_weights=twice)
    assert worst(bag[0], whole * 2, size * 2) <= 2
    table = pb.embedding_backward(x, ids, 1, scale_grad_by_freq=True)
    assert worst(table[0], whole / rows, np.longdouble(top)) <= 2
    kept = np.full((1, 4), -top, dtype)
    pb.embedding_backward(x, ids, 1, accumulate_into=kept)
    assert worst(kept[0], whole - np.longdouble(top), size) <= 2


def test_lerp_backward_sums_that_leave_the_range_of_f64_come_back() -> None:
    top = np.finfo(np.float64).max
    dy = np.full((6, 3), top)
    dy[3:, 0] = -top
    dy[5, 1] = -np.inf
    for weight in (1.0, np.ones(3)):
        db = pb.lerp_backward(dy, weight, np.zeros(3), np.zeros(3))[1]
        assert (db == [0, -np.inf, np.inf]).all()
    # b - a overflows, dy·(b - a) does not
    for shape in ((3,), (6, 3)):
        a, b = np.full((6, 3), -top), np.full((6, 3), top)
        dweight = pb.lerp_backward(np.full((6, 3), 0.0625), np.ones(shape), a, b)[2]
        assert (dweight == top / 8 * 6 ** (len(shape) == 1)).all()


def _weight_gradients(dy: Any, x: Any) -> tuple[Any, Any]:
    """The product of two rows, as both functions that form one give it."""
    zero = np.zeros(1, np.int64)
    gathered = pb.gather_segment_reduce_weights_backward(dy[None], x[None], zero, zero)
    bagged = pb.embedding_bag_per_sample_weights_backward(dy[None], x[None], zero, zero)
    return gathered[0], bagged[0]


@pytest.mark.parametrize("columns", [3, 9, 40])
@pytest.mark.parametrize("element", [ElementKind.BF16, ElementKind.F64], ids=lambda e: e.name)
def test_product_of_rows_whose_terms_overflow_is_what_their_sum_rounds_to(
    element: ElementKind, columns: int
) -> None:
    root = 2.0 ** (64 if element is ElementKind.BF16 else 512)  # its square is too large by a bit
    x, dy = (np.zeros(columns, element.dtype) for _ in range(2))
    x[[0, 1, -1]], dy[[0, 1, -1]] = (root, root / 16, -root), root
    assert _weight_gradients(dy, x) == (root / 16 * root,) * 2
    dy[-1] *= 4
    assert _weight_gradients(dy, x) == (-np.inf, -np.inf)
    x[1], dy[[1, -1]] = 1 / root / root, (np.inf, root)
    assert _weight_gradients(dy, x) == (np.inf, np.inf)
    x[1] = 0
    assert np.isnan(_weight_gradients(dy, x)).all()


DISTANT = [s * 2.0**k for k in (48.9, 49, 49.5, 50, 51, 53, 59.8, 62, 100, 1000) for s in (1, -1)]


@pytest.mark.parametrize("start", DISTANT)
def test_logcumsumexp_f64_tells_neighbours_apart_however_large(start: float) -> None:
    """Where exponents of e^x do not fit f64, only differences tell what counts."""
    rng, step = np.random.default_rng(0), np.spacing(start)
    for n in (2, 9, 40, 100):
        x = start + step * rng.integers(0, 9, n) * rng.choice([1, 8, max(1, 64 // abs(step))])
        x[n // 2] += rng.choice([0.0, 1e16, -1e16, -start, -np.inf])
        dy = rng.standard_normal(n) * rng.choice([1.0, 1e300])
        y = pb.logcumsumexp(x)
        assert worst(y, oracle.logcumsumexp(x), 1) <= 16
        truth, size = (oracle.logcumsumexp_backward(g, x, y) for g in (dy, np.abs(dy)))
        dx = pb.logcumsumexp_backward(dy, x, y)
        assert worst(dx, truth, size) <= 32
        beside = np.stack([x, rng.standard_normal(n), x], 1)  # as columns, beside others
        again = pb.logcumsumexp(beside, 0)
        assert same_bits(again[:, 2], y)
        gradients = pb.logcumsumexp_backward(np.stack([dy, dy, dy], 1), beside, again, 0)
        assert same_bits(gradients[:, 0], dx)


def test_logcumsumexp_f32_past_its_range_of_exponents_has_the_same_bits_in_every_layout() -> None:
    x = 3145728 + np.random.default_rng(0).integers(-9, 9, (40, 66)).astype("f4") * 4
    y = pb.logcumsumexp(x)
    assert worst(y, oracle.logcumsumexp(x), 1) <= 2
    assert same_bits(np.ascontiguousarray(pb.logcumsumexp(np.asfortranarray(x))), y)
    assert same_bits(np.stack([pb.logcumsumexp(line) for line in x]), y)


def test_logcumsumexp_f64_just_past_its_range_of_exponents() -> None:
    x = 2.0**50 + np.array([25.0, 0.0])
    assert (pb.logcumsumexp(x) == x[0]).all()
    assert np.isnan(pb.logcumsumexp(np.array([1e18, np.nan, 1e19]))).tolist() == [False, True, True]
    x = 1e18 + np.array([0, 1e6, 2e6])
    dx = pb.logcumsumexp_backward(np.array([1.0, 2.0, 3.0]), x, pb.logcumsumexp(x))
    assert (dx == [1, 2, 3]).all()


def test_logcumsumexp_f64_of_a_long_line_far_out_is_the_same_with_any_threads() -> None:
    x = 2.0**52 + np.random.default_rng(0).integers(0, 4, 100_000).astype(float)
    x[40_000:] -= 2.0**52
    x[70_000:] += 2.0**51
    dy = np.random.default_rng(1).standard_normal(x.size)
    results, before = [], pb.get_num_threads()
    for threads in (1, 3, before):
        pb.set_num_threads(threads)
        y = pb.logcumsumexp(x)
        results += [y, pb.logcumsumexp_backward(dy, x, y)]
    assert same_bits(results[0], results[2])
    assert same_bits(results[1], results[3])
    assert abs(results[0][-1] - x.max() - np.log(np.exp(x - x.max()).sum())) <= 1


@pytest.mark.parametrize("ties", ["first", "last"])
@pytest.mark.parametrize(("shape", "axis"), [((1304,), 0), ((100_000,), 0), ((5000, 12), 0)])
def test_gradients_of_one_extremum_are_summed_without_bias(
    shape: tuple[int, ...], axis: int, ties: str
) -> None:
    """Equal terms are rounded the same way at every step: a plain sum drifts by 17 to 47 ulp."""
    x, dy = np.zeros(shape), np.full(shape, 0.1257302210933933)
    x[5] = -1
    want = (np.longdouble(shape[axis] - 5) * dy[0]).astype(np.float64)
    got = pb.cummin_backward(dy, x, axis=axis, ties=ties)[5]
    assert worst(got, want) <= 1


@pytest.mark.parametrize("large", [1e280, 4e297])
@pytest.mark.parametrize("before", [1e100, 1.7e308])
def test_large_gradients_of_infinite_sums_reach_the_first_infinity(
    before: float, large: float
) -> None:
    x = np.array([-2.0, 2, 3, 3, -1, 2, 2, 3, before, np.inf, 1, -1, 3, 0, -1, 3, 1, 1])
    dy = np.ones_like(x)
    dy[15] = large
    dx = pb.logcumsumexp_backward(dy, x, pb.logcumsumexp(x))
    assert dx[9] == large
    assert not dx[10:].any()


@pytest.mark.parametrize("element", FLOATS, ids=lambda e: e.name)
def test_zero_gradients_of_initial_values_have_one_sign_in_every_layout(
    element: ElementKind,
) -> None:
    """What fills up the last tile of a line must not turn -0.0 into 0.0."""
    rng, shape = np.random.default_rng(0), (64, 140)
    x, dy = (rng.integers(-2, 4, shape).astype(element.dtype) for _ in range(2))
    initial = np.ones(64, element.dtype)
    turned = np.ascontiguousarray(x[:, ::-1])[:, ::-1]
    y, h = pb.cumprod(x, initial=initial), pb.linear_scan(x, dy, initial=initial)
    for backward, saved in (pb.cumprod_backward, y), (pb.linear_scan_backward, h):
        plain = backward(dy, x, saved, initial=initial)[-1]
        assert same_bits(backward(dy, turned, saved, initial=initial)[-1], plain)
