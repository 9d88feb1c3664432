"""Laws special to segments: how rows may be ordered, prepared, split, and what ids may do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import IndexOutOfRange, InvalidProblem, Unsupported
from pullback.contract.element import FLOATS, ElementKind
from pullback.ops.segment import oracle
from pullback.verify.laws import same_bits
from pullback.verify.ulp import worst

Array = Any
REDUCTIONS = ("sum", "mean", "max", "min", "prod")
SAVED = ("max", "min", "prod")
INT = {ElementKind.I32: np.iinfo(np.int32), ElementKind.I64: np.iinfo(np.int64)}
GUARD = 64


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(12)


def forward(reduction: str, x: Array, ids: Any, segments: int | None = None, **options: Any) -> Any:
    return getattr(pb, f"segment_{reduction}")(x, ids, segments, **options)


def backward(reduction: str, dy: Array, x: Array, ids: Any, **options: Any) -> Any:
    saved = (x,) if reduction in SAVED else ()
    return getattr(pb, f"segment_{reduction}_backward")(dy, *saved, ids, **options)


def problem(rng: np.random.Generator, element: ElementKind, n: int = 3000) -> tuple[Array, ...]:
    """One long segment, many short ones, some ids out of range."""
    ids = np.where(rng.random(n) < 0.3, 7, rng.integers(-2, 60, n))
    x = rng.standard_normal((n, 5)).astype(element.dtype)
    return x, ids, rng.standard_normal((50, 5)).astype(element.dtype)


@pytest.mark.parametrize("element", FLOATS, ids=lambda e: e.name)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_unsorted_is_sorted_after_a_stable_sort(reduction, element, rng) -> None:
    x, ids, dy = problem(rng, element)
    order = np.argsort(ids, kind="stable")
    options = {"out_of_range": "skip"}
    raw = forward(reduction, x, ids, 50, **options)
    known = {"indices_are_sorted": True, **options}
    assert same_bits(raw, forward(reduction, x[order], ids[order], 50, **known))
    raw = backward(reduction, dy, x, ids, **options)
    assert same_bits(raw[order], backward(reduction, dy, x[order], ids[order], **known))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_prepared_is_raw(reduction, ordered, dtype, rng) -> None:
    x, ids, dy = problem(rng, ElementKind.F32)
    ids = (np.sort(ids) if ordered else ids).astype(dtype)
    index = pb.prepare_segments(ids[::-1][::-1], 50)
    before = ids.copy()
    ids[:] = 0  # the index keeps a copy of its own
    for sure in (False, ordered):
        options = {"out_of_range": "skip", "indices_are_sorted": sure}
        raw = forward(reduction, x, before, 50, **options)
        assert same_bits(forward(reduction, x, index, **options), raw)
        assert same_bits(forward(reduction, x, index, 50, **options), raw)
        raw = backward(reduction, dy, x, before, **options)
        assert same_bits(backward(reduction, dy, x, index, **options), raw)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_plans_take_an_index(reduction, rng) -> None:
    x, ids, dy = problem(rng, ElementKind.F32)
    index = pb.prepare_segments(ids, 50)
    shared = {"num_inputs": 3000, "embedding_dim": 5, "num_segments": 50}
    name = f"UnsortedSegment{reduction.capitalize()}"
    for suffix in ("", "Backward"):
        desc = getattr(pb, f"{name}{suffix}Descriptor")(element=ElementKind.F32, **shared)
        plan = getattr(pb, f"{name}{suffix}Plan").select(pb.Stream.cpu(), desc)
        results = []
        for given in (ids, index):
            out = np.full_like(x if suffix else dy, np.nan)
            tensors = (
                {"d_output": dy, "input": x, "d_input": out}
                if suffix
                else {"input": x, "output": out}
            )
            args = getattr(pb, f"{name}{suffix}Args")(segment_ids=given, **tensors)
            plan.run(pb.Stream.cpu(), pb.Workspace.allocate(plan), args)
            results.append(out)
        assert same_bits(*results)
    assert plan.sku.aux_element is ElementKind.I64


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_rows_of_a_segment_may_change_places_where_that_is_exact(reduction, rng) -> None:
    n = 2000
    ids = np.sort(rng.integers(0, 3, n))
    x = rng.integers(-1, 2, (n, 9)).astype(np.float32)  # sums and products of these are exact
    order = np.concatenate([rng.permutation(np.flatnonzero(ids == s)) for s in range(3)])
    plain = forward(reduction, x, ids, 3) + np.float32(0)
    np.testing.assert_array_equal(forward(reduction, x[order], ids, 3) + np.float32(0), plain)
    dy = rng.standard_normal((3, 9)).astype(np.float32)
    ties = {} if reduction in ("sum", "mean", "prod") else {"ties": "split"}
    got = backward(reduction, dy, x[order], ids, **ties)
    np.testing.assert_array_equal(got, backward(reduction, dy, x, ids, **ties)[order])


def test_sum_backward_is_a_lookup(rng) -> None:
    dy, ids = rng.standard_normal((40, 3, 4)), rng.integers(-3, 45, 500)
    flat = pb.embedding(dy.reshape(40, 12), ids, out_of_range="skip").reshape(500, 3, 4)
    assert same_bits(pb.segment_sum_backward(dy, ids, out_of_range="skip"), flat)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("share", [1.0, 0.99])
def test_one_giant_segment_has_the_same_bits_on_any_threads(share, reduction, rng) -> None:
    n = 40_000
    ids = np.where(rng.random(n) < share, 2, rng.integers(0, 9, n))
    x, dy = 1 + 1e-3 * rng.standard_normal((n, 17)), rng.standard_normal((9, 17))
    found = []
    before = pb.get_num_threads()
    try:
        for threads in (1, 2, 3, 8):
            pb.set_num_threads(threads)
            found.append((forward(reduction, x, ids, 9), backward(reduction, dy, x, ids)))
    finally:
        pb.set_num_threads(before)
    for y, dx in found[1:]:
        assert same_bits(y, found[0][0])
        assert same_bits(dx, found[0][1])
    assert worst(found[0][0], getattr(oracle, f"segment_{reduction}")(x, ids, 9)) <= 2


@pytest.mark.parametrize("ties", ["first", "last", "split"])
@pytest.mark.parametrize("reduction", ["max", "min"])
def test_ties_in_a_long_segment(reduction, ties, rng) -> None:
    n = 3001
    x = rng.integers(0, 40, (n, 6)).astype(np.float64)
    x[rng.integers(0, n, 5), 0] = np.nan
    x[:, 1] = np.copysign(0.0, rng.standard_normal(n))
    ids, dy = np.zeros(n, np.int32), rng.standard_normal((1, 6))
    want = getattr(oracle, f"segment_{reduction}_backward")(dy, x, ids, ties=ties)
    assert worst(backward(reduction, dy, x, ids, ties=ties), want) <= 0.5
    y = forward(reduction, x, ids, 1)
    assert same_bits(y, getattr(oracle, f"segment_{reduction}")(x, ids, 1).astype(np.float64))


@pytest.mark.parametrize("width", range(1, 10))
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_narrow_rows_one_after_the_other_are_like_rows_apart(reduction, width, rng) -> None:
    """Several of the former are taken at a time."""
    ids = np.sort(np.where(rng.random(1200) < 0.4, 30, rng.integers(0, 90, 1200)))
    x = rng.integers(-3, 4, (1200, width)).astype(np.float32)
    for odd in (np.nan, -np.inf, -0.0, 0.0):
        x[rng.random(x.shape) < 0.02] = odd
    apart = np.zeros((1200, width + 1), np.float32)[:, :width]
    apart[...] = x
    dy = rng.standard_normal((90, width)).astype(np.float32)
    known = {"indices_are_sorted": True}
    assert same_bits(*(forward(reduction, v, ids, 90, **known) for v in (x, apart)))
    for ties in ("first", "last", "split") if reduction in ("max", "min") else (None,):
        ways = {**known, "ties": ties} if ties else known
        assert same_bits(*(backward(reduction, dy, v, ids, **ways) for v in (x, apart)))


@pytest.mark.parametrize("kind", INT, ids=lambda k: k.name)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_hostile_ids_touch_nothing_else(reduction, kind, rng) -> None:
    """Random ids from everywhere; the outputs stand between guard bands, the data is poisoned."""
    extremes = [INT[kind].min, INT[kind].min + 1, -1, 0, 3, 4, 2**30, INT[kind].max]
    for trial in range(6):
        n, d, segments = (
            int(rng.integers(0, 700)),
            int(rng.integers(0, 40)),
            int(rng.integers(0, 6)),
        )
        ids = rng.choice(extremes, n).astype(kind.dtype)
        x, dy = np.full((n, d), np.nan, np.float32), np.full((segments, d), np.inf, np.float32)
        options = {"indices_are_sorted": trial % 2 == 0, "out_of_range": "skip"}
        ids = np.sort(ids) if options["indices_are_sorted"] else ids
        for shape, call in (
            ((segments, d), lambda **o: forward(reduction, x, ids, segments, **o)),  # noqa: B023
            ((n, d), lambda **o: backward(reduction, dy, x, ids, **o)),  # noqa: B023
        ):
            buffer = np.full(shape[0] * d + 2 * GUARD, 7.0, np.float32)
            out = buffer[GUARD : GUARD + shape[0] * d].reshape(shape)
            call(out=out, **options)
            assert (buffer[:GUARD] == 7).all()
            assert (buffer[len(buffer) - GUARD :] == 7).all()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_bad_id_is_named_and_nothing_is_written(reduction, rng) -> None:
    ids = rng.integers(0, 5, 70_000)
    ids[[40_000, 60_000]] = 5, -9
    x, out = rng.standard_normal((70_000, 2)), np.full((5, 2), 7.0)
    for given in (ids, pb.prepare_segments(ids, 5)):
        with pytest.raises(IndexOutOfRange) as caught:
            forward(reduction, x, given, 5, out=out)
        assert str(caught.value) == (
            f"segment_{reduction}: `segment_ids` must be in [0, 5), got 5 at position 40000"
        )
        # Range comes before order.
        with pytest.raises(IndexOutOfRange, match="got 5 at position 40000"):
            forward(reduction, x, given, 5, indices_are_sorted=True)
        dx = np.full((70_000, 2), 7.0)
        with pytest.raises(
            IndexOutOfRange, match=f"segment_{reduction}_backward: .* position 40000"
        ):
            backward(reduction, np.ones((5, 2)), x, given, out=dx)
        assert (dx == 7).all()
    assert (out == 7).all()


def test_sorted_functions_insist_on_order(rng) -> None:
    ids = np.sort(rng.integers(0, 5, 50_000))
    ids[30_000] = 0
    x = rng.standard_normal((50_000, 1))
    for given in (ids, pb.prepare_segments(ids, 5)):
        with pytest.raises(InvalidProblem, match=r"ascending order .* got 0 at position 30000"):
            pb.segment_sum(x, given, 5, indices_are_sorted=True)
    # Skipped ids count too.
    with pytest.raises(InvalidProblem, match="got -3 at position 1"):
        pb.segment_max(x[:3], np.array([9, -3, 1]), 5, indices_are_sorted=True, out_of_range="skip")


@pytest.mark.parametrize("border", [8, 8191, 8192, 8193, 16384])
def test_ids_that_descend_at_the_border_of_a_chunk_are_named(border) -> None:
    """Ids are looked at in chunks of 8192, and eight at a time."""
    ids = np.arange(20_000)
    ids[border:] -= 5
    with pytest.raises(InvalidProblem, match=f"got {border - 5} at position {border}"):
        pb.segment_sum(np.ones((20_000, 1)), ids, 20_000, indices_are_sorted=True)


@pytest.mark.parametrize("position", [1, 30, 8192, 19_999])
def test_a_negative_id_alone_is_named(position) -> None:
    ids = np.arange(20_000) // 4
    ids[position] = -1
    for ordered in (False, True):  # range comes before order
        with pytest.raises(IndexOutOfRange, match=f"got -1 at position {position}$"):
            pb.segment_sum(np.ones((20_000, 1)), ids, 5000, indices_are_sorted=ordered)


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_equal_shares_of_a_nan(reduction) -> None:
    x, ids = np.array([np.nan, 1, np.nan, 2, 2]), np.array([0, 0, 0, 1, 1])
    dx = backward(reduction, np.ones(2), x, ids, ties="split")
    assert dx.tolist() == [0.5, 0, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("rows", [255, 256, 257, 512])
def test_segments_of_whole_blocks_are_written_once(rows) -> None:
    """Threads begin wherever their share of the rows does, also at the very end of a segment."""
    ids, before = np.repeat(np.arange(200), rows), pb.get_num_threads()
    x = np.ones((len(ids), 1), np.float32)
    try:
        pb.set_num_threads(4)
        for reduction, want in (("sum", rows), ("max", 1), ("prod", 1)):
            assert (forward(reduction, x, ids, 200, indices_are_sorted=True) == want).all()
    finally:
        pb.set_num_threads(before)


def test_an_index_of_other_segments_is_refused_though_calls_like_it_are_known(rng) -> None:
    ids, x = rng.integers(0, 3, 9), rng.standard_normal((9, 2))
    right, wrong = pb.prepare_segments(ids, 3), pb.prepare_segments(ids, 5)
    desc = pb.UnsortedSegmentSumDescriptor(
        num_inputs=9, embedding_dim=2, num_segments=3, element=ElementKind.F64
    )
    plan, cpu = pb.UnsortedSegmentSumPlan.select(pb.Stream.cpu(), desc), pb.Stream.cpu()
    space = pb.Workspace.allocate(plan)

    def run(index: Any) -> None:
        args = {"input": x, "segment_ids": index, "output": np.empty((3, 2))}
        plan.run(cpu, space, pb.UnsortedSegmentSumArgs(**args))

    for _ in range(3):
        pb.segment_sum(x, right, 3)
        run(right)
        with pytest.raises(InvalidProblem, match="for which the index"):
            pb.segment_sum(x, wrong, 3)
        with pytest.raises(InvalidProblem, match="for which the index"):
            run(wrong)


@pytest.mark.parametrize("element", FLOATS, ids=lambda e: e.name)
@pytest.mark.parametrize("rows", [1, 7, 256, 257, 3000])
def test_a_sum_of_negative_zeros_is_one(rows, element) -> None:
    for width in (1, 5, 64):
        x = np.full((rows, width), -0.0).astype(element.dtype)
        ids = np.zeros(rows, int)
        sums = pb.segment_sum(x, ids, 1), pb.embedding_backward(x, ids, 1)
        bags = pb.embedding_bag(x, np.arange(rows), np.array([0]), mode="sum")
        assert all(np.signbit(found.astype(float)).all() for found in (*sums, bags))


def test_other_errors_are_sentences(rng) -> None:
    x, ids = rng.standard_normal((4, 3)), np.array([0, 1, 1, 2])
    index = pb.prepare_segments(ids, 3)
    with pytest.raises(InvalidProblem, match="`num_segments` must be 3, for which the index"):
        pb.segment_sum(x, index, 4)
    with pytest.raises(InvalidProblem, match=r"`segment_ids` must be of shape \(4,\)"):
        pb.segment_sum(x, ids[:3], 3)
    with pytest.raises(InvalidProblem, match="`x` must be of rank 1 or more"):
        pb.segment_sum(np.float32(1), ids, 3)
    with pytest.raises(InvalidProblem, match="`num_segments`"):
        pb.segment_sum(x, ids, -1)
    with pytest.raises(InvalidProblem, match="`ties`"):
        pb.segment_max(x, ids, 3, ties="middle")
    with pytest.raises(InvalidProblem, match="`empty` must be a number"):
        pb.segment_max(x, ids, 3, empty="none")
    with pytest.raises(InvalidProblem, match="`x` must be of rows"):
        pb.segment_prod_backward(np.ones((3, 2)), x, ids)
    with pytest.raises(Unsupported, match="int64"):
        pb.segment_sum(x, ids.astype(np.int16), 3)
    with pytest.raises(Unsupported, match="int64"):
        pb.prepare_segments(ids.astype(np.float64), 3)
    with pytest.raises(InvalidProblem, match="rank 1"):
        pb.prepare_segments(ids.reshape(2, 2), 3)


def test_the_number_of_segments_follows_from_the_ids(rng) -> None:
    x, ids = rng.standard_normal((6, 2)), np.array([4, 0, 2, 2, 1, 0], np.int32)
    assert pb.segment_sum(x, ids).shape == (5, 2)
    assert same_bits(pb.segment_sum(x, ids), pb.segment_sum(x, ids, 5))
    ids[0] = 7  # the same call, other ids
    assert pb.segment_sum(x, ids).shape == (8, 2)
    assert pb.segment_sum(x[:0], ids[:0]).shape == (0, 2)
    assert pb.segment_sum(x, np.full(6, -3), out_of_range="skip").shape == (0, 2)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("n", "segments", "d"), [(0, 4, 3), (5, 0, 3), (5, 4, 0), (0, 0, 0)])
def test_empty_everything(n, segments, d, reduction) -> None:
    x, ids, dy = np.ones((n, d)), np.zeros(n, np.int64), np.ones((segments, d))
    neutral = 1.0 if reduction == "prod" else 0.0
    index = pb.prepare_segments(ids, segments)
    for given in (ids, index):
        for empty in (None, -2.5, np.inf):
            nothing = ids[:0] if given is ids else pb.prepare_segments(ids[:0], segments)
            y = forward(reduction, x[:0], nothing, segments, empty=empty)
            assert (y == (neutral if empty is None else empty)).all()
        if segments:
            assert backward(reduction, dy, x, given).shape == (n, d)
        elif n:
            with pytest.raises(IndexOutOfRange):
                forward(reduction, x, given, 0)


def test_every_layout_of_trailing_axes(rng) -> None:
    """Columns that no single stride walks are not copied, and give the same bits."""
    x, ids = rng.standard_normal((30, 4, 5, 6)), rng.integers(0, 7, 30)
    dy = rng.standard_normal((7, 4, 5, 6))
    for reduction in REDUCTIONS:
        plain = forward(reduction, x, ids, 7)
        gradient = backward(reduction, dy, x, ids)
        for axes in ((0, 3, 1, 2), (0, 2, 3, 1), (0, 3, 2, 1)):
            back = np.argsort(axes)
            turned = np.ascontiguousarray(x.transpose(axes)).transpose(back)
            out = np.empty(np.array(plain.shape)[list(axes)]).transpose(back)
            assert same_bits(forward(reduction, turned, ids, 7, out=out), plain)
            assert same_bits(backward(reduction, dy[:, ::-1][:, ::-1], turned, ids), gradient)
