"""The call cache on torch tensors: repeated calls hit it, with the same bits; others miss it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import pullback as pb  # noqa: E402
from pullback.contract.element import ElementKind  # noqa: E402
from pullback.contract.errors import BufferTooSmall, IndexOutOfRange  # noqa: E402
from pullback.frontends import torch_launch  # noqa: E402
from pullback.frontends.torch_library import as_op  # noqa: E402
from pullback.verify.laws import same_bits, trials  # noqa: E402
from pullback.verify.subject import Subject, subjects  # noqa: E402
from tensors import array, several, tensors  # noqa: E402
from test_call_cache import lookup, with_empty_cache  # noqa: E402

# torch's own, where it loads forward mode
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

X = torch.arange(-6, 6, dtype=torch.float32).reshape(3, 4)
SUMS = X.cumsum(1)


@pytest.mark.parametrize("subject", subjects().values(), ids=str)
def test_a_repeated_call_hits_the_cache(subject: Subject) -> None:
    function = with_empty_cache(subject.name)
    _, arguments = next(trials(subject, ElementKind.F32))
    given = tensors(arguments)
    assert lookup(function, **given) is None
    first = several(function(**given))
    again = lookup(function, **given)
    if "accumulate_into" in function.parameters and given.get("accumulate_into") is not None:
        assert again is None
        return
    for want, got in zip(first, several(again), strict=True):
        assert type(got) is torch.Tensor
        assert same_bits(array(got), array(want))


class Sub(torch.Tensor):
    """A tensor of another type."""


OTHERS: dict[str, Any] = {
    "another shape": X[:2],
    "other strides": X.T.contiguous().T,
    "another dtype": X.double(),
    "another dtype of the same size": X.view(torch.int32),
    "another device": X.to("meta"),
    "another type": torch.nn.Parameter(X, requires_grad=False),
    "a subclass": X.as_subclass(Sub),
    "the negative of what is in memory": torch._neg_view(X),
    "not dense": X.to_sparse(),
    "an array": X.numpy(),
    "nothing": None,
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_arguments_miss_the_cache(name: str) -> None:
    function = with_empty_cache("cumsum")
    function(X, 1)
    assert lookup(function, OTHERS[name], 1) is None
    assert lookup(function, X, 1, out=torch.empty_like(X)) is None
    assert torch.equal(lookup(function, X, 1), SUMS)


def test_parameters_and_tensors_have_records_of_their_own() -> None:
    function, parameter = with_empty_cache("cumsum"), torch.nn.Parameter(X)
    for x in (X, parameter):
        function(x, 1)
        function(x, 1)
    assert torch.equal(lookup(function, X, 1), SUMS)
    assert lookup(function, parameter, 1).requires_grad


def test_views_are_known_by_their_layout() -> None:
    function, buffer = with_empty_cache("cumsum"), torch.arange(40.0).reshape(4, 10)
    function(buffer[:3, :4], 1)
    assert torch.equal(lookup(function, buffer[1:, 5:9], 1), buffer[1:, 5:9].cumsum(1))


class Nosy(TorchDispatchMode):
    """Sees every op."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def fake(visit: Callable[[Any], Any]) -> None:
    with FakeTensorMode() as mode:
        visit(X)
        visit(mode.from_tensor(X))


def nosy(visit: Callable[[Any], Any]) -> None:
    with Nosy():
        visit(X)


def dual(visit: Callable[[Any], Any]) -> None:
    with forward_ad.dual_level():
        visit(X)
        visit(forward_ad.make_dual(X, X))


def mapped(visit: Callable[[Any], Any]) -> None:
    def inside(row: Any) -> Any:
        visit(row)
        visit(X)
        return row

    torch.func.vmap(inside)(torch.stack((X, X)))


def differentiated(visit: Callable[[Any], Any]) -> None:
    def inside(x: Any) -> Any:
        visit(x)
        visit(X)
        return x.sum()

    torch.func.grad(inside)(X)


def left_over(visit: Callable[[Any], Any]) -> None:
    """The wrapper of a transform that is over."""
    kept = []
    torch.func.grad(lambda x: kept.append(x) or x.sum())(X)
    visit(kept[0])


@pytest.mark.parametrize("place", [fake, nosy, dual, mapped, differentiated, left_over])
def test_calls_under_modes_and_transforms_miss_the_cache(place: Any) -> None:
    function = with_empty_cache("cumsum")
    function(X, 1)
    seen = []
    place(lambda x: seen.append(lookup(function, x, 1)))
    assert seen
    assert all(answer is None for answer in seen)
    assert lookup(function, X, 1) is not None


def test_gradients_are_recorded_where_they_are_wanted() -> None:
    function, leaf = with_empty_cache("cumsum"), X.clone().requires_grad_(True)
    function(X, 1)
    assert lookup(function, leaf, 1) is None  # nobody has recorded such a call yet
    function(leaf, 1)
    known = lookup(function, leaf, 1)
    assert torch.equal(known, SUMS)
    (gradient,) = torch.autograd.grad(known, leaf, torch.ones_like(X), create_graph=True)
    assert torch.equal(gradient, X.new_ones(3, 4).flip(1).cumsum(1).flip(1))
    assert not lookup(function, X, 1).requires_grad
    for quietly in (torch.no_grad, torch.inference_mode):
        with quietly():
            assert not lookup(function, leaf, 1).requires_grad
    assert lookup(function, leaf, 1).grad_fn is not None


@pytest.mark.parametrize("subject", [s for s in subjects().values() if s.forward is None], ids=str)
def test_recorded_calls_have_the_gradients_of_the_first(subject: Subject) -> None:
    function = with_empty_cache(subject.name)
    _, arguments = next(trials(subject, ElementKind.F32))
    given = tensors(arguments)
    leaves = [
        t.requires_grad_(True)
        for t in given.values()
        if isinstance(t, torch.Tensor) and t.is_floating_point()
    ]
    results = [several(function(**given))[0] for _ in range(2)] + [
        several(lookup(function, **given))[0]
    ]
    gradients = [
        torch.autograd.grad(y, leaves, torch.ones_like(y), allow_unused=True) for y in results
    ]
    for found in gradients[1:]:
        for got, want in zip(found, gradients[0], strict=True):
            assert (got is None) == (want is None)
            assert got is None or same_bits(array(got), array(want))


def test_second_derivatives_of_recorded_calls() -> None:
    leaf = X.double().add(0.5).requires_grad_(True)
    pb.cumprod(leaf, 1)
    assert torch.autograd.gradgradcheck(lambda x: pb.cumprod(x, 1), (leaf,))


def test_an_error_of_the_launch_is_raised_every_time() -> None:
    embedding, ids = with_empty_cache("embedding"), torch.tensor([0, 1, 2])
    table = X.clone().requires_grad_(True)
    for weight in (X, table):
        ids[1] = 1
        embedding(weight, ids)
        ids[1] = 3
        for _ in range(2):
            with pytest.raises(IndexOutOfRange):
                embedding(weight, ids)


def test_references_are_neither_lost_nor_kept() -> None:
    function, x, leaf = with_empty_cache("cummax"), X.clone(), X.clone().requires_grad_(True)
    for given in (x, leaf):
        function(given, 1, return_indices=True)
        function(given, 1, return_indices=True)
    things = (x, leaf, function.lookup, X.dtype, False, None)
    before = [sys.getrefcount(thing) for thing in things[:4]]
    for _ in range(100):
        values, places = function(x, 1, return_indices=True)
        function(leaf, 1, return_indices=True)
        function(x[:2], 1)
        function(torch._neg_view(x), 1)
    assert sys.getrefcount(values) == sys.getrefcount(places) == 2
    after = [sys.getrefcount(thing) for thing in things[:4]]
    assert all(abs(a - b) < 10 for a, b in zip(after, before, strict=True))


def test_a_prepared_index_beside_tensors() -> None:
    function, ids = with_empty_cache("segment_sum"), torch.tensor([0, 1, 1])
    index = pb.prepare_segments(ids.numpy(), 2)
    function(X, index, 2)
    assert torch.equal(lookup(function, X, index, 2), pb.segment_sum(X, ids, 2))


def test_many_threads_share_one_cache() -> None:
    function = with_empty_cache("cumsum")
    rows = [torch.arange(n, dtype=torch.float64) for n in range(1, 24)]
    leaves = [row.clone().requires_grad_(True) for row in rows]

    def run(first: int) -> bool:
        order = torch.randperm(len(rows) * 10) % len(rows)
        return all(
            torch.equal(function((leaves if (i + first) % 2 else rows)[i], 0), rows[i].cumsum(0))
            for i in order.tolist()
        )

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(run, range(8)))


@pytest.mark.parametrize("subject", subjects().values(), ids=str)
def test_registered_ops_look_in_the_cache_first(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, answers = subject.function, []
    _, arguments = next(trials(subject, ElementKind.F32))
    op, given = as_op(function, tensors(arguments))
    first, cached = several(op(**given)), function.lookup

    def overheard(*passed: Any) -> Any:
        answers.append(cached(*passed))
        return answers[-1]

    monkeypatch.setattr(function, "lookup", overheard)
    again = several(op(**given))
    if given.get("accumulate_into") is None:
        assert again == several(answers[0])
    for want, got in zip(first, again, strict=True):
        assert same_bits(array(got), array(want))


def test_ops_and_functions_share_a_cache() -> None:
    x, op = torch.rand(7, 3), torch.ops.pullback.cummax.return_indices
    op(x, 1, ties="last", return_indices=True)
    function, leaf = pb.cummax.function, x.clone().requires_grad_(True)
    assert lookup(function, x, 1, ties="last", return_indices=True) is not None
    pb.cummax(leaf, 1, ties="last", return_indices=True)
    assert lookup(function, leaf, 1, ties="last", return_indices=True)[0].grad_fn is not None
    assert op(leaf, 1, ties="last", return_indices=True)[0].grad_fn is not None


def test_ops_below_autograd_record_nothing() -> None:
    leaf = X.clone().requires_grad_(True)
    pb.cumsum(leaf, 1)
    with torch._C._AutoDispatchBelowAutograd():
        assert torch.ops.pullback.cumsum(leaf, 1).grad_fn is None


def test_compiled_graphs_hold_the_op_and_not_the_cache() -> None:
    pb.cumsum(X, 1)
    compiled = torch.compile(lambda x: pb.cumsum(x, 1) + 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(X), SUMS + 1)
    assert torch.equal(compiled(X), SUMS + 1)


def test_a_torch_that_describes_no_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    assert torch_launch._dispatch_guard() is None
    monkeypatch.setattr(torch_launch, "_GUARD", None)
    function, leaf = with_empty_cache("cumsum"), X.clone().requires_grad_(True)
    for x in (X, leaf, X, leaf):
        assert torch.equal(function(x, 1), SUMS)
        assert lookup(function, x, 1) is None


def test_tensors_and_arrays_are_no_options() -> None:
    function, ids = with_empty_cache("segment_sum"), torch.tensor([0, 1, 1])
    for count in (2, 3):
        for value in (torch.tensor(count), np.array(count)):
            with pytest.raises(pb.InvalidProblem, match="`num_segments` must be a value"):
                function(X, ids, value)
        for number in (np.int32(count), np.int64(count), count):
            assert function(X, ids, number).shape == (count, 4)


def test_a_repeated_call_with_out_tells_autograd() -> None:
    """The cache repeats calls that write into a tensor, and counts each write."""
    a, b = torch.zeros(3), torch.ones(3)
    for _ in range(3):
        before = a._version
        assert pb.lerp(a, b, 0.5, out=a) is a
        assert a._version == before + 1
    function = pb.lerp.function
    assert function.lookup(a, b, 0.5, a) is a
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(pb.InvalidProblem, match="gradient is recorded"):
        pb.lerp(x, b, 0.5, out=a)
    y = x * 2
    z = (y * y).sum()
    with torch.no_grad():
        pb.lerp(y, b, 0.5, out=y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_a_storage_that_shrank_is_missed() -> None:
    cumsum, x = with_empty_cache("cumsum"), torch.ones(64)
    cumsum(x)
    assert lookup(cumsum, x) is not None
    x.untyped_storage().resize_(128)
    assert lookup(cumsum, x) is None
    with pytest.raises(BufferTooSmall):
        cumsum(x)


def test_an_overlapping_out_misses_and_is_refused() -> None:
    cumsum, x = with_empty_cache("cumsum"), torch.arange(9.0)
    cumsum(x[:4], out=x[5:])
    assert lookup(cumsum, x[:4], out=x[5:]) is not None
    assert lookup(cumsum, x[:4], out=x[1:5]) is None
    with pytest.raises(pb.InvalidProblem, match="memory apart"):
        cumsum(x[:4], out=x[1:5])
