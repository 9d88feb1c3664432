"""Laws of products in segments: factors whose products leave the range of their element."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from pullback.contract.element import FLOATS, ElementKind
from pullback.ops.segment import oracle
from pullback.verify.ulp import worst


@pytest.mark.parametrize("element", FLOATS, ids=lambda e: e.name)
def test_products_leave_the_range_and_come_back(element) -> None:
    """Tiny and huge rows whose product is ordinary, in short and long segments, with zeros."""
    rng = np.random.default_rng(12)
    info = np.finfo(np.float32 if element is ElementKind.BF16 else element.dtype)
    small, large = float(info.smallest_normal), 1 / float(info.smallest_normal)
    for n in (7, 600):
        x = rng.choice([small, large], (2 * n, 5))
        x[n:] = 1 / x[:n]
        x = np.concatenate([x, rng.choice([0.5, 2.0, -1.0], (3, 5))])
        x[n, 1], x[2 * n, 2], x[3, 2] = 0, 0, 0
        x, dy = x.astype(element.dtype), np.full((1, 5), 1.5, element.dtype)
        ids = np.zeros(len(x), np.int64)
        order = np.argsort(np.arange(len(x)) % n, kind="stable")  # for an oracle without overflow
        want = oracle.segment_prod(x[order], ids, 1)
        assert worst(pb.segment_prod(x, ids, 1), want) <= 0.5
        want = np.empty(x.shape, np.longdouble)
        want[order] = oracle.segment_prod_backward(dy, x[order], ids)
        assert worst(pb.segment_prod_backward(dy, x, ids), want) <= 1


def test_small_factors_beside_an_infinite_one() -> None:
    """Their product is below what the oracle holds; it is infinite all the same."""
    x, ids = np.array([*[5e-324] * 40, -np.inf, -2.0]), np.zeros(42, np.int64)
    assert pb.segment_prod(x, ids, 1) == np.inf
    assert oracle.segment_prod(x, ids, 1) == np.inf
    x[0] = 0
    assert np.isnan(pb.segment_prod(x, ids, 1)).all()
    assert np.isnan(oracle.segment_prod(x, ids, 1)).all()


def test_a_gradient_of_zero_times_a_product_beyond_all_numbers_is_zero() -> None:
    x, ids, dy = np.full(130, 1e308), np.zeros(130, np.int64), np.zeros(1)
    assert not pb.segment_prod_backward(dy, x, ids).any()
    assert not np.any(oracle.segment_prod_backward(dy, x, ids))
    x[7] = np.inf
    assert np.isnan(np.delete(oracle.segment_prod_backward(dy, x, ids), 7)).all()
