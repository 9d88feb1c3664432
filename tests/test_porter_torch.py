"""Calls on tensors like an earlier one: answered natively, by the same bits, and only those."""

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
from pullback.contract.errors import IndexOutOfRange  # noqa: E402
from pullback.frontends import torch_launch  # noqa: E402
from pullback.frontends.torch_library import as_op  # noqa: E402
from pullback.verify.laws import same_bits, trials  # noqa: E402
from pullback.verify.subject import Subject, subjects  # noqa: E402
from tensors import array, several, tensors  # noqa: E402
from test_porter import ask, stranger_to_all  # noqa: E402

# torch's own, where it loads forward mode
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

X = torch.arange(-6, 6, dtype=torch.float32).reshape(3, 4)
SUMS = X.cumsum(1)


@pytest.mark.parametrize("subject", subjects().values(), ids=str)
def test_a_call_is_known_again(subject: Subject) -> None:
    function = stranger_to_all(subject.name)
    _, arguments = next(trials(subject, ElementKind.F32))
    given = tensors(arguments)
    assert ask(function, **given) is None
    first = several(function(**given))
    again = ask(function, **given)
    if "accumulate_into" in function.parameters and given.get("accumulate_into") is not None:
        assert again is None
        return
    for want, got in zip(first, several(again), strict=True):
        assert type(got) is torch.Tensor
        assert same_bits(array(got), array(want))


class Sub(torch.Tensor):
    """A tensor of another type."""


STRANGERS: dict[str, Any] = {
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


@pytest.mark.parametrize("name", STRANGERS)
def test_strangers_are_not_let_in(name: str) -> None:
    function = stranger_to_all("cumsum")
    function(X, 1)
    assert ask(function, STRANGERS[name], 1) is None
    assert ask(function, X, 1, out=torch.empty_like(X)) is None
    assert torch.equal(ask(function, X, 1), SUMS)


def test_parameters_are_guests_beside_tensors() -> None:
    function, parameter = stranger_to_all("cumsum"), torch.nn.Parameter(X)
    for x in (X, parameter):
        function(x, 1)
        function(x, 1)
    assert torch.equal(ask(function, X, 1), SUMS)
    assert ask(function, parameter, 1).requires_grad


def test_views_are_known_by_their_layout() -> None:
    function, room = stranger_to_all("cumsum"), torch.arange(40.0).reshape(4, 10)
    function(room[:3, :4], 1)
    assert torch.equal(ask(function, room[1:, 5:9], 1), room[1:, 5:9].cumsum(1))


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
def test_at_other_places_calls_go_the_long_way(place: Any) -> None:
    function = stranger_to_all("cumsum")
    function(X, 1)
    seen = []
    place(lambda x: seen.append(ask(function, x, 1)))
    assert seen
    assert all(answer is None for answer in seen)
    assert ask(function, X, 1) is not None


def test_gradients_are_recorded_where_they_are_wanted() -> None:
    function, leaf = stranger_to_all("cumsum"), X.clone().requires_grad_(True)
    function(X, 1)
    assert ask(function, leaf, 1) is None  # nobody has recorded such a call yet
    function(leaf, 1)
    known = ask(function, leaf, 1)
    assert torch.equal(known, SUMS)
    (gradient,) = torch.autograd.grad(known, leaf, torch.ones_like(X), create_graph=True)
    assert torch.equal(gradient, X.new_ones(3, 4).flip(1).cumsum(1).flip(1))
    assert not ask(function, X, 1).requires_grad
    for quietly in (torch.no_grad, torch.inference_mode):
        with quietly():
            assert not ask(function, leaf, 1).requires_grad
    assert ask(function, leaf, 1).grad_fn is not None


@pytest.mark.parametrize("subject", [s for s in subjects().values() if s.forward is None], ids=str)
def test_recorded_calls_have_the_gradients_of_the_first(subject: Subject) -> None:
    function = stranger_to_all(subject.name)
    _, arguments = next(trials(subject, ElementKind.F32))
    given = tensors(arguments)
    leaves = [
        t.requires_grad_(True)
        for t in given.values()
        if isinstance(t, torch.Tensor) and t.is_floating_point()
    ]
    results = [several(function(**given))[0] for _ in range(2)] + [
        several(ask(function, **given))[0]
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
    embedding, ids = stranger_to_all("embedding"), torch.tensor([0, 1, 2])
    table = X.clone().requires_grad_(True)
    for weight in (X, table):
        ids[1] = 1
        embedding(weight, ids)
        ids[1] = 3
        for _ in range(2):
            with pytest.raises(IndexOutOfRange):
                embedding(weight, ids)


def test_references_are_neither_lost_nor_kept() -> None:
    function, x, leaf = stranger_to_all("cummax"), X.clone(), X.clone().requires_grad_(True)
    for given in (x, leaf):
        function(given, 1, return_indices=True)
        function(given, 1, return_indices=True)
    things = (x, leaf, function.ask, X.dtype, False, None)
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
    function, ids = stranger_to_all("segment_sum"), torch.tensor([0, 1, 1])
    index = pb.prepare_segments(ids.numpy(), 2)
    function(X, index, 2)
    assert torch.equal(ask(function, X, index, 2), pb.segment_sum(X, ids, 2))


def test_many_threads_meet_one_porter() -> None:
    function = stranger_to_all("cumsum")
    rows = [torch.arange(n, dtype=torch.float64) for n in range(1, 24)]
    leaves = [row.clone().requires_grad_(True) for row in rows]

    def visit(first: int) -> bool:
        order = torch.randperm(len(rows) * 10) % len(rows)
        return all(
            torch.equal(function((leaves if (i + first) % 2 else rows)[i], 0), rows[i].cumsum(0))
            for i in order.tolist()
        )

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(visit, range(8)))


@pytest.mark.parametrize("subject", subjects().values(), ids=str)
def test_registered_ops_ask_first(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    function, answers = subject.function, []
    _, arguments = next(trials(subject, ElementKind.F32))
    op, given = as_op(function, tensors(arguments))
    first, porter = several(op(**given)), function.ask

    def overheard(*passed: Any) -> Any:
        answers.append(porter(*passed))
        return answers[-1]

    monkeypatch.setattr(function, "ask", overheard)
    again = several(op(**given))
    if given.get("accumulate_into") is None:
        assert again == several(answers[0])
    for want, got in zip(first, again, strict=True):
        assert same_bits(array(got), array(want))


def test_ops_and_functions_have_the_same_guests() -> None:
    x, op = torch.rand(7, 3), torch.ops.pullback.cummax.return_indices
    op(x, 1, ties="last", return_indices=True)
    function, leaf = pb.cummax.function, x.clone().requires_grad_(True)
    assert ask(function, x, 1, ties="last", return_indices=True) is not None
    pb.cummax(leaf, 1, ties="last", return_indices=True)
    assert ask(function, leaf, 1, ties="last", return_indices=True)[0].grad_fn is not None
    assert op(leaf, 1, ties="last", return_indices=True)[0].grad_fn is not None


def test_ops_below_autograd_record_nothing() -> None:
    leaf = X.clone().requires_grad_(True)
    pb.cumsum(leaf, 1)
    with torch._C._AutoDispatchBelowAutograd():
        assert torch.ops.pullback.cumsum(leaf, 1).grad_fn is None


def test_compiled_graphs_know_nothing_of_porters() -> None:
    pb.cumsum(X, 1)
    compiled = torch.compile(lambda x: pb.cumsum(x, 1) + 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(X), SUMS + 1)
    assert torch.equal(compiled(X), SUMS + 1)


def test_a_torch_that_describes_no_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    assert torch_launch._known_manners() is None
    monkeypatch.setattr(torch_launch, "_MANNERS", None)
    function, leaf = stranger_to_all("cumsum"), X.clone().requires_grad_(True)
    for x in (X, leaf, X, leaf):
        assert torch.equal(function(x, 1), SUMS)
        assert ask(function, x, 1) is None


def test_tensors_and_arrays_are_no_options() -> None:
    function, ids = stranger_to_all("segment_sum"), torch.tensor([0, 1, 1])
    for count in (2, 3):
        for value in (torch.tensor(count), np.array(count)):
            with pytest.raises(pb.InvalidProblem, match="`num_segments` must be a value"):
                function(X, ids, value)
        for number in (np.int32(count), np.int64(count), count):
            assert function(X, ids, number).shape == (count, 4)
