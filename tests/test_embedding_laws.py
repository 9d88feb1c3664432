"""Laws special to embeddings: sparse and dense, accumulated, bags, and what indices may do."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from pullback import IndexOutOfRange, InvalidProblem, Unsupported
from pullback.contract.element import FLOATS, ElementKind
from pullback.ops.embedding import oracle
from pullback.verify.laws import same_bits
from pullback.verify.ulp import worst

Array = Any
GUARD = 64
KINDS = [ElementKind.I32, ElementKind.I64]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(14)


def hot(rng: np.random.Generator, n: int = 2000, rows: int = 90) -> Array:
    """One hot row, many cold ones, some indices out of range."""
    return np.where(rng.random(n) < 0.4, 5, rng.integers(-3, rows + 3, n))


OFFSETS = np.array([0, 0, 3, 3, 700, 1999])
BAGS = [
    {"mode": "sum"},
    {"mode": "mean"},
    {"mode": "sum", "weighted": True},
    {"mode": "max"},
    {"mode": "mean", "include_last_offset": True},
]


def bag_gradient(rng: np.random.Generator, indices: Array, **options: Any) -> tuple[Any, ...]:
    """dout, indices, offsets, number of rows, and the options of the backward."""
    bags = len(OFFSETS) - options.get("include_last_offset", False)
    dout = rng.standard_normal((bags, 11)).astype(np.float32)
    options = {"padding_idx": -4, "out_of_range": "skip", **options}
    weights = rng.standard_normal(len(indices)).astype(np.float32)
    if options.pop("weighted", False):
        options["per_sample_weights"] = weights
    if options["mode"] == "max":
        weight = rng.integers(-3, 3, (90, 11)).astype(np.float32)
        _, options["output_index"] = pb.embedding_bag(
            weight, indices, OFFSETS, return_indices=True, **options
        )
    return dout, indices, OFFSETS, 90, options


@pytest.mark.parametrize("freq", [False, True])
@pytest.mark.parametrize("padding", [None, 5, -1])
def test_sparse_is_dense(padding, freq, rng) -> None:
    indices = hot(rng).reshape(4, 500)
    dout = rng.standard_normal((4, 500, 7)).astype(np.float32)
    options = {"padding_idx": padding, "scale_grad_by_freq": freq, "out_of_range": "skip"}
    dense = pb.embedding_backward(dout, indices, 90, **options)
    for given in (indices, pb.prepare_segments(indices.reshape(-1), 90)):
        rows, gradients = pb.embedding_backward(dout, given, 90, sparse=True, **options)
        kept = np.unique(indices[(indices >= 0) & (indices < 90)])
        kept = kept if padding is None else kept[kept != padding % 90]
        assert rows.dtype == np.int64
        np.testing.assert_array_equal(rows, kept)
        assert same_bits(gradients, dense[rows])
    assert not np.delete(dense, rows, axis=0).any()


@pytest.mark.parametrize("freq", [False, True])
@pytest.mark.parametrize("options", BAGS, ids=str)
def test_sparse_bags_are_dense(options, freq, rng) -> None:
    *args, options = bag_gradient(rng, hot(rng), **options)
    options = {**options, "scale_grad_by_freq": freq}
    dense = pb.embedding_bag_backward(*args, **options)
    rows, gradients = pb.embedding_bag_backward(*args, sparse=True, **options)
    want, _ = oracle.embedding_bag_backward(*args, sparse=True, **options)
    np.testing.assert_array_equal(rows, want)
    assert same_bits(gradients, dense[rows])
    assert not np.delete(dense, rows, axis=0).any()


@pytest.mark.parametrize("element", FLOATS, ids=lambda e: e.name)
def test_accumulating_rounds_once(element, rng) -> None:
    indices = hot(rng)
    dout = rng.standard_normal((len(indices), 9)).astype(element.dtype)
    old = (10 * rng.standard_normal((90, 9))).astype(element.dtype)
    into = old.copy()
    options = {"padding_idx": 3, "out_of_range": "skip"}
    got = pb.embedding_backward(dout, indices, 90, accumulate_into=into, **options)
    assert got is into
    want = oracle.embedding_backward(dout, indices, 90, accumulate_into=old, **options)
    scale = oracle.embedding_backward(abs(dout), indices, 90, accumulate_into=abs(old), **options)
    assert worst(got, want, scale) <= 1
    untouched = np.setdiff1d(np.arange(90), indices[indices != 3])
    assert same_bits(got[untouched], old[untouched])


@pytest.mark.parametrize("options", BAGS, ids=str)
def test_bags_accumulate_too(options, rng) -> None:
    *args, options = bag_gradient(rng, hot(rng), **options)
    old = rng.standard_normal((90, 11)).astype(np.float32)
    into = old.copy()
    assert pb.embedding_bag_backward(*args, accumulate_into=into, **options) is into
    want = oracle.embedding_bag_backward(*args, accumulate_into=old, **options)
    np.testing.assert_allclose(into, want.astype(np.float64), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("options", BAGS[:4], ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_prepared_is_raw(kind, options, rng) -> None:
    indices = hot(rng).astype(kind.dtype)
    index = pb.prepare_segments(indices, 90)
    shared = {"padding_idx": 5, "out_of_range": "skip"}
    weight = rng.standard_normal((90, 11)).astype(np.float32)
    assert same_bits(pb.embedding(weight, index, **shared), pb.embedding(weight, indices, **shared))
    dout = rng.standard_normal((len(indices), 3)).astype(np.float32)
    raw = pb.embedding_backward(dout, indices, 90, **shared)
    assert same_bits(pb.embedding_backward(dout, index, 90, **shared), raw)
    folded = dout.reshape(20, 100, 3)
    assert same_bits(pb.embedding_backward(folded, index, 90, **shared), raw)
    dout, _, offsets, rows, options = bag_gradient(rng, indices, **options)
    forward = {k: v for k, v in options.items() if k != "output_index"}
    bags = [pb.embedding_bag(weight, given, offsets, **forward) for given in (indices, index)]
    assert same_bits(*bags)
    bags = [
        pb.embedding_bag_backward(dout, given, offsets, rows, **options)
        for given in (indices, index)
    ]
    assert same_bits(*bags)


@pytest.mark.parametrize("element", FLOATS, ids=lambda e: e.name)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_bag_of_one_is_a_lookup(mode, element, rng) -> None:
    weight = rng.standard_normal((30, 5))
    weight[rng.random((30, 5)) < 0.3] *= 0.0  # zeros of both signs
    weight = weight.astype(element.dtype)
    indices = rng.integers(-2, 32, 50)
    options = {"padding_idx": 4, "out_of_range": "skip"}
    bags = pb.embedding_bag(weight, indices, np.arange(50), mode=mode, **options)
    assert same_bits(bags, pb.embedding(weight, indices, **options))


@pytest.mark.parametrize("sizes", [(2000, 3), (300_000, 1)])
def test_a_hot_row_has_the_same_bits_on_any_threads(sizes, rng) -> None:
    n, d = sizes
    indices, dout = np.where(rng.random(n) < 0.99, 5, hot(rng, n)), rng.standard_normal((n, d))
    bags = np.array([0, n // 3])
    found, before = [], pb.get_num_threads()
    try:
        for threads in (1, 2, 3, 8):
            pb.set_num_threads(threads)
            shared = {"out_of_range": "skip"}
            found.append(
                (
                    pb.embedding_backward(dout, indices, 90, **shared),
                    pb.embedding_bag(dout[:90], indices, bags, **shared),
                    pb.embedding_bag(dout[:90], indices, bags, mode="max", **shared),
                    pb.embedding_bag_backward(dout[:2], indices, bags, 90, **shared),
                )
            )
    finally:
        pb.set_num_threads(before)
    for results in found[1:]:
        assert all(map(same_bits, results, found[0]))


def test_a_bf16_gradient_of_many_ones_is_right() -> None:
    n = 1 << 17
    dout = np.ones((n, 2), ml_dtypes.bfloat16)
    got = pb.embedding_backward(dout, np.zeros(n, np.int32), 2)
    np.testing.assert_array_equal(got.astype(np.float64), [[n, n], [0, 0]])


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_hostile_indices_touch_nothing_else(kind, rng) -> None:
    info = np.iinfo(kind.dtype)
    extremes = [info.min, info.min + 1, -1, 0, 3, 4, 2**30, info.max]
    for _ in range(10):
        n, d, rows = int(rng.integers(1, 400)), int(rng.integers(0, 40)), int(rng.integers(1, 6))
        indices = rng.choice(extremes, n).astype(kind.dtype)
        offsets = np.sort(rng.integers(0, n + 1, 4)).astype(kind.dtype)
        offsets[0] = 0
        winners = rng.choice([-(2**63), -1, 0, rows - 1, rows, 2**63 - 1], (4, d))
        weight, dout = np.full((rows, d), np.nan, "f4"), np.full((n, d), np.inf, "f4")
        skip = {"out_of_range": "skip"}
        calls = {
            (n, d): lambda **o: pb.embedding(weight, indices, **o),  # noqa: B023
            (rows, d): lambda **o: pb.embedding_backward(dout, indices, rows, **o),  # noqa: B023
            (4, d): lambda **o: pb.embedding_bag(weight, indices, offsets, **o),  # noqa: B023
            (rows, d, 0): lambda **o: pb.embedding_bag_backward(
                np.ones((4, d), "f4"), indices, offsets, rows, **o  # noqa: B023
            ),
            (rows, d, 1): lambda **o: pb.embedding_bag_backward(
                np.ones((4, d), "f4"), indices, offsets, rows, mode="max", output_index=winners, **o  # noqa: B023
            ),
            (n,): lambda **o: pb.embedding_bag_per_sample_weights_backward(
                np.ones((4, d), "f4"), weight, indices, offsets, **o  # noqa: B023
            ),
        }  # fmt: skip
        for key, call in calls.items():
            shape = key[:2]
            size = int(np.prod(shape))
            buffer = np.full(size + 2 * GUARD, 7.0, np.float32)
            call(out=buffer[GUARD : GUARD + size].reshape(shape), **skip)
            assert (buffer[:GUARD] == 7).all()
            assert (buffer[len(buffer) - GUARD :] == 7).all()


@pytest.mark.parametrize("offsets", [[1, 2], [0, 5, 3], [0, 61], [0, -1], [0, 2**40]])
def test_bad_offsets_are_named_and_nothing_is_written(offsets, rng) -> None:
    indices, weight = rng.integers(0, 9, 60), rng.standard_normal((9, 3))
    out = np.full((len(offsets), 3), 7.0)
    wrong = next(i for i, v in enumerate(offsets) if (v, i) not in [(0, 0), (5, 1)])
    want = (
        "embedding_bag: `offsets` must be from 0 on, never decreasing, at most 60, "
        f"got {offsets[wrong]} at position {wrong}"
    )
    with pytest.raises(InvalidProblem) as caught:
        pb.embedding_bag(weight, indices, np.array(offsets), out=out)
    assert str(caught.value) == want
    assert (out == 7).all()
    with pytest.raises(InvalidProblem, match="embedding_bag_backward: `offsets`"):
        pb.embedding_bag_backward(out, indices, np.array(offsets), 9)


def test_a_bad_index_is_named_and_nothing_is_written(rng) -> None:
    indices = rng.integers(0, 9, (3, 20_000))
    indices[1, 7], indices[2, 3] = 9, -1
    weight, offsets = rng.standard_normal((9, 3)), np.array([0, 4])
    into, out = np.full((9, 3), 7.0), np.full((3, 20_000, 3), 7.0)
    sentence = "`indices` must be in [0, 9), got 9 at position 20007"
    flat, dout = indices.reshape(-1), rng.standard_normal((2, 3))
    for call in (
        lambda: pb.embedding(weight, indices, out=out),
        lambda: pb.embedding_backward(out, indices, 9, accumulate_into=into),
        lambda: pb.embedding_backward(out, indices, 9, sparse=True),
        lambda: pb.embedding_backward(out, pb.prepare_segments(flat, 9), 9),
        lambda: pb.embedding_bag(weight, flat, offsets),
        lambda: pb.embedding_bag_backward(dout, flat, offsets, 9, accumulate_into=into),
        lambda: pb.embedding_bag_per_sample_weights_backward(dout, weight, flat, offsets),
    ):
        with pytest.raises(IndexOutOfRange) as caught:
            call()
        assert str(caught.value).endswith(sentence)
    assert (into == 7).all()
    assert (out == 7).all()


@pytest.mark.parametrize("position", [0, 5, 30, 8191, 8192, 19_999])
def test_a_negative_index_alone_is_named(position) -> None:
    indices = np.ones(20_000, int)
    indices[position] = -1
    weight, offsets = np.ones((3, 2)), np.array([0])
    for call in (
        lambda: pb.embedding(weight, indices),
        lambda: pb.embedding_bag(weight, indices, offsets),
        lambda: pb.embedding_backward(np.ones((20_000, 2)), indices, 3),
    ):
        with pytest.raises(IndexOutOfRange, match=f"got -1 at position {position}$"):
            call()


def test_other_errors_are_sentences(rng) -> None:
    weight, indices, offsets = rng.standard_normal((9, 3)), np.array([1, 2, 3]), np.array([0, 1])
    dout = rng.standard_normal((2, 3))
    cases: list[tuple[Any, str]] = [
        (lambda: pb.embedding(weight, indices, padding_idx=9), r"None or in \[-9, 9\)"),
        (lambda: pb.embedding(weight[0], indices), "`weight` must be of rank 2"),
        (lambda: pb.embedding_bag(weight, indices, offsets, mode="median"), "`mode` must be one"),
        (
            lambda: pb.embedding_bag(weight, indices, offsets, per_sample_weights=np.ones(3)),
            "`per_sample_weights` must be None where the mode is not 'sum'",
        ),
        (
            lambda: pb.embedding_bag(weight, indices, offsets, return_indices=True),
            "`return_indices` must be False unless",
        ),
        (lambda: pb.embedding_bag(weight, indices[None], offsets), "`indices` must be of rank 1"),
        (
            lambda: pb.embedding_bag_backward(dout, indices, offsets, 9, mode="max"),
            "`output_index` must be the forward's output_index, got None",
        ),
        (lambda: pb.embedding_backward(dout, indices, 9), "`dout` must be of shape"),
        (
            lambda: pb.embedding_backward(
                weight[:3], indices, 9, sparse=True, accumulate_into=np.zeros((9, 3))
            ),
            "`accumulate_into` must be None with sparse=True",
        ),
        (
            lambda: pb.embedding_backward(weight[:3], indices, 9, accumulate_into=np.zeros((8, 3))),
            r"`accumulate_into` must be of shape \(9, 3\)",
        ),
        (
            lambda: pb.embedding_backward(weight[:3], pb.prepare_segments(indices, 8), 9),
            "`num_embeddings` must be 8, for which the index was prepared",
        ),
    ]
    for call, sentence in cases:
        with pytest.raises(InvalidProblem, match=sentence):
            call()
    with pytest.raises(Unsupported):
        pb.embedding(weight, indices.astype(np.uint8))


def test_empty_everything() -> None:
    none, few = np.zeros(0, np.int64), np.zeros((0, 4), np.float32)
    table = np.ones((3, 4), np.float32)
    assert pb.embedding(table, none).shape == (0, 4)
    assert pb.embedding(few, none).shape == (0, 4)
    assert pb.embedding(table[:, :0], np.zeros((2, 3), np.int32)).shape == (2, 3, 0)
    np.testing.assert_array_equal(pb.embedding_backward(few, none, 3), np.zeros((3, 4)))
    rows, gradients = pb.embedding_backward(few, none, 3, sparse=True)
    assert (rows.shape, gradients.shape) == ((0,), (0, 4))
    assert pb.embedding_bag(table, none, none).shape == (0, 4)
    out, winners = pb.embedding_bag(
        table, none, np.zeros(3, np.int64), mode="max", return_indices=True
    )
    assert (out == 0).all()
    assert (winners == -1).all()
    skipped = pb.embedding(table, np.array([7, -1]), out_of_range="skip")
    assert (skipped == 0).all()


def test_winners_of_long_bags_follow_ids_of_either_width() -> None:
    """A bag cut into blocks reads its ids again when the blocks are combined."""
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((900, 5)).astype(np.float32)
    ids, offsets = rng.permutation(900), np.array([0, 3])
    best, winners = pb.embedding_bag(weight, ids, offsets, mode="max", return_indices=True)
    narrow = ids.astype(np.int32)
    again = pb.embedding_bag(weight, narrow, offsets, mode="max", return_indices=True)
    assert (best == np.stack([weight[ids[:3]].max(0), weight[ids[3:]].max(0)])).all()
    assert (best == again[0]).all()
    assert (winners == again[1]).all()
    assert (np.take_along_axis(weight, winners, 0) == best).all()


@pytest.mark.parametrize("padded", [(256, 800), (0, 600), (900, 1500)])
def test_long_bags_pass_over_blocks_that_are_all_padding(padded) -> None:
    """Every value is below 0: what a block without rows leaves must not win, nor be forgotten."""
    rng = np.random.default_rng(4)
    weight = -1 - rng.random((1500, 5)).astype(np.float32)
    ids = rng.permutation(np.arange(1, 1501) % 1500)
    ids[slice(*padded)] = 0
    got, winners = pb.embedding_bag(
        weight, ids, np.array([0]), mode="max", padding_idx=0, return_indices=True
    )
    assert (got == weight[ids[ids > 0]].max(0)).all()
    assert (np.take_along_axis(weight, winners, 0) == got).all()


def test_winners_that_no_position_holds_are_not_scaled() -> None:
    ids, dout = np.array([1, 1, 2]), np.ones((1, 2))
    got = pb.embedding_bag_backward(
        dout, ids, np.array([0]), 4, mode="max",
        output_index=np.array([[1, 3]]), scale_grad_by_freq=True,
    )  # fmt: skip
    assert got.tolist() == [[0, 0], [0.5, 0], [0, 0], [0, 1]]


@pytest.mark.parametrize("border", [8191, 8192, 8193, 16384])
def test_offsets_that_descend_at_the_border_of_a_chunk_are_named(border) -> None:
    """Offsets are looked at in chunks of 8192."""
    offsets = np.arange(20_000)
    offsets[border:] -= 5
    with pytest.raises(InvalidProblem, match=f"got {border - 5} at position {border}"):
        pb.embedding_bag(np.ones((2, 1)), np.zeros(20_000, int), offsets)


def test_prepared_indices_are_checked_once(rng) -> None:
    """Calls that refuse ids out of range take a prepared index as it is."""
    ids = rng.integers(0, 90, 64)
    index, offsets = pb.prepare_segments(ids, 90), np.arange(0, 64, 4)
    weight = rng.standard_normal((90, 5)).astype(np.float32)
    for mode in ("sum", "max"):
        bags = [pb.embedding_bag(weight, given, offsets, mode=mode) for given in (ids, index)]
        assert same_bits(*bags)
    assert same_bits(pb.embedding(weight, index), pb.embedding(weight, ids))
    backward = [pb.segment_sum_backward(weight, given) for given in (ids, index)]
    assert same_bits(*backward)
