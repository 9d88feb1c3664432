"""The oracles of segments and embeddings against peers, literal groups and differentiation."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from agreement import close, numeric_pullback, same, torch_pullback
from pullback.ops.embedding import oracle as embedding
from pullback.ops.segment import oracle as segment

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import jax
    import jax.numpy as jnp

INF, NAN = np.inf, np.nan


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240611)


# Segments ---------------------------------------------------------------------------------------

REDUCTIONS = ("sum", "mean", "max", "min", "prod")


@pytest.mark.parametrize("tail", [(), (4,), (2, 3), (0,)])
def test_segments_agree_with_jax_and_literal_groups(
    rng: np.random.Generator, tail: tuple[int, ...]
) -> None:
    ids = rng.integers(-2, 9, 30)
    ids[ids == 4] = 3
    x = rng.integers(-3, 4, (30, *tail)).astype(np.float64)
    literal = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod}
    for name in REDUCTIONS:
        got = getattr(segment, "segment_" + name)(x, ids, 7)
        for s in range(7):
            fill = np.full(tail, 1.0 if name == "prod" else 0.0)
            hits = ids == s
            close(got[s], literal[name](x[hits], axis=0) if hits.any() else fill)
        if name != "mean":
            with jax.enable_x64(True):
                peer = getattr(jax.ops, "segment_" + name)
                want = np.asarray(peer(jnp.array(x), jnp.array(np.where(ids < 0, 99, ids)), 7))
            present = np.isin(np.arange(7), ids)
            close(got[present], want[present])


@pytest.mark.parametrize("name", REDUCTIONS)
def test_segment_backwards_are_derivatives(rng: np.random.Generator, name: str) -> None:
    ids = np.array([2, 0, 2, -1, 5, 0, 2, 3, 9, 0])
    x, dy = rng.standard_normal((10, 2)), rng.standard_normal((6, 2))
    if name == "prod":
        x[1] = x[2, 0] = x[6, 0] = 0
    forward = getattr(segment, "segment_" + name)
    given = () if name in ("sum", "mean") else (x,)
    for fill in (None, 7.0):
        want = numeric_pullback(lambda v, e=fill: forward(v, ids, 6, empty=e), dy, x)
        close(getattr(segment, f"segment_{name}_backward")(dy, *given, ids), want, 1e-10, 1e-11)


def test_segment_products_leave_the_range_of_numbers_and_come_back() -> None:
    """Factors whose running product passes 1e-30000 and 1e30000, which long double has not."""
    there = np.repeat([1e-300, 1e300], 1000)
    factors = np.concatenate([there, there[::-1], [-2.5]])
    order = np.random.default_rng(3).permutation(len(factors))
    product = factors.astype(np.longdouble)
    near = (product[:1000] * product[1000:2000]).prod() ** 2 * -2.5
    close(segment.segment_prod(factors, np.zeros(4001, np.int64), 1), near[None])
    close(segment.segment_prod(factors[order], np.zeros(4001, np.int64), 1), near[None])
    ends = {-0.0: 0.0, INF: -INF, NAN: NAN}
    for last, product_of_all in ends.items():
        rows = np.concatenate([factors[order], [last]])
        same(segment.segment_prod(rows, np.zeros(4002, np.int64), 1), np.array([product_of_all]))
    rows = np.concatenate([factors[order], [-INF, -0.0]])
    same(segment.segment_prod(rows, np.zeros(4003, np.int64), 1), np.array([NAN]))


@pytest.mark.parametrize("name", ["max", "min"])
def test_segment_ties(name: str) -> None:
    sign = 1.0 if name == "max" else -1.0
    x = sign * np.array([-0.0, 0.0, -1.0, 0.0, NAN, 5.0, NAN])
    ids, dy = np.array([0, 0, 0, 0, 1, 1, 1]), np.array([6.0, 4.0])
    forward = getattr(segment, "segment_" + name)
    backward = getattr(segment, f"segment_{name}_backward")
    same(forward(x, ids, 2), [-0.0 * sign, NAN])
    same(backward(dy, x, ids), [6, 0, 0, 0, 4, 0, 0])
    same(backward(dy, x, ids, ties="last"), [0, 0, 0, 6, 0, 0, 4])
    same(backward(dy, x, ids, ties="split"), [2, 2, 0, 2, 2, 0, 2])
    lengths = torch.tensor([4, 3])
    (want,) = torch_pullback(
        lambda t: torch.segment_reduce(t, name, lengths=lengths, unsafe=True), dy, x
    )
    close(backward(dy, x, ids, ties="split"), want)


def test_segment_edges() -> None:
    none, ids = np.zeros((0, 2)), np.zeros(0, np.int32)
    same(segment.segment_prod(none, ids, 3), np.ones((3, 2)))
    same(segment.segment_max(none, ids, 1, empty=-INF), [[-INF, -INF]])
    assert segment.segment_sum(none, ids).shape == (0, 2)
    assert segment.segment_max_backward(np.zeros((3, 2)), none, ids).shape == (0, 2)
    same(segment.segment_mean(np.array([1.0, 2.0, 9.0]), np.array([1, 1, 5]), 2), [0, 1.5])
    same(segment.segment_max(np.array([-INF, -INF]), np.array([0, 0])), [-INF])
    with pytest.raises(IndexError, match="id 7 at position 1"):
        segment.segment_sum(np.ones(3), np.array([0, 7, -1]), 2, out_of_range="error")


# Embeddings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("freq", [False, True])
@pytest.mark.parametrize("padding", [None, 3, -1])
def test_embedding_agrees_with_torch(
    rng: np.random.Generator, freq: bool, padding: int | None
) -> None:
    weight, indices = rng.standard_normal((6, 4)), rng.integers(0, 6, (2, 5))
    if padding is not None:
        weight[padding] = 0  # where the two forwards agree
    dout = rng.standard_normal((2, 5, 4))

    def peer(w: torch.Tensor) -> torch.Tensor:
        ids = torch.tensor(indices)
        return torch.nn.functional.embedding(ids, w, padding, scale_grad_by_freq=freq)

    options = {"padding_idx": padding, "scale_grad_by_freq": freq}
    close(embedding.embedding(weight, indices, padding_idx=padding), peer(torch.tensor(weight)))
    (want,) = torch_pullback(peer, dout, weight)
    got = embedding.embedding_backward(dout, indices, 6, **options)
    close(got, want)
    rows, values = embedding.embedding_backward(dout, indices, 6, **options, sparse=True)
    dense = np.zeros((6, 4))
    dense[rows] = values
    close(dense, want)
    assert set(rows) == set(indices.flat) - {None if padding is None else padding % 6}
    old = rng.standard_normal((6, 4))
    close(embedding.embedding_backward(dout, indices, 6, **options, accumulate_into=old), old + got)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("padding", [None, 2, -6])
def test_embedding_bag_agrees_with_torch(
    rng: np.random.Generator, mode: str, last: bool, padding: int | None
) -> None:
    weight = rng.standard_normal((6, 3))
    indices, offsets = rng.integers(0, 6, 14), np.array([0, 0, 3, 4, 10, 14, 14])
    shares = rng.standard_normal(14) if mode == "sum" else None
    bags = len(offsets) - last
    dout = rng.standard_normal((bags, 3))

    def peer(w: torch.Tensor, p: torch.Tensor | None = None) -> torch.Tensor:
        return torch.nn.functional.embedding_bag(
            torch.tensor(indices),
            w,
            torch.tensor(offsets),
            mode=mode,
            per_sample_weights=p,
            include_last_offset=last,
            padding_idx=padding,
        )

    given = () if shares is None else (shares,)
    place: dict[str, Any] = {"padding_idx": padding, "include_last_offset": last}
    options = {**place, "mode": mode, "per_sample_weights": shares}
    out, winners = embedding.embedding_bag(weight, indices, offsets, **options, return_indices=True)
    close(out, peer(*map(torch.tensor, (weight, *given))))
    want = torch_pullback(peer, dout, weight, *given)
    options["output_index"] = winners if mode == "max" else None
    got = embedding.embedding_bag_backward(dout, indices, offsets, 6, **options)
    close(got, want[0])
    if shares is not None:
        backward = embedding.embedding_bag_per_sample_weights_backward
        close(backward(dout, weight, indices, offsets, **place), want[1])


def test_embedding_skips_and_specials() -> None:
    weight = np.array([[1.0, NAN], [2.0, -0.0], [2.0, 0.0]])
    indices, offsets = np.array([1, 7, 2, 0, -1, 1]), np.array([0, 3, 4, 4])
    out, at = embedding.embedding_bag(weight, indices, offsets, mode="max", return_indices=True)
    same(out, [[2, -0.0], [1, NAN], [0, 0], [2, -0.0]])
    np.testing.assert_array_equal(at, [[1, 1], [0, 0], [-1, -1], [1, 1]])
    options: dict[str, Any] = {"mode": "max", "output_index": at, "sparse": True}
    rows, sums = embedding.embedding_bag_backward(np.ones((4, 2)), indices, offsets, 3, **options)
    np.testing.assert_array_equal(rows, [0, 1])
    same(sums, [[1, 1], [2, 2]])
    mean = embedding.embedding_bag(weight[:, :1], indices, offsets, padding_idx=-3)
    same(mean, [[2], [0], [0], [2]])
    same(embedding.embedding(weight, np.array(-1)), [0, 0])
    assert embedding.embedding_backward(np.ones((0, 2)), np.zeros(0, int), 3).shape == (3, 2)
    assert embedding.embedding_bag(weight, np.zeros(0, int), np.zeros(0, int)).shape == (0, 2)
    cut = np.array([0, 1])
    dw = embedding.embedding_bag_backward(
        np.ones((1, 1)), indices, cut, 3, include_last_offset=True, scale_grad_by_freq=True
    )
    same(dw, [[0], [1], [0]])
    with pytest.raises(IndexError, match="id 7 at position 1"):
        embedding.embedding(weight, indices, out_of_range="error")
