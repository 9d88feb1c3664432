"""torch.jit.trace, torch.fx and the profiler: calls are recorded, not their results."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pullback as pb  # noqa: E402
import pullback.torch.nn as pbnn  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

X, LONGER = torch.randn(6, 4), torch.randn(9, 4)
IDS, MORE_IDS = torch.tensor([0, 1, 1, 2, 3, 3]), torch.arange(9) // 2
TABLE = torch.randn(10, 3)
STARTS, MORE_STARTS = torch.tensor([0, 2]), torch.tensor([0, 3, 4])

Tensors = tuple[Any, ...]

# A function of tensors, what it is traced with, and what it is called with later.
CALLS: dict[str, tuple[Callable[..., Any], Tensors, Tensors]] = {
    "cumsum": (lambda x: pb.cumsum(torch.relu(x), 0) + 1, (X,), (LONGER,)),
    "cumprod as the last op": (lambda x: pb.cumprod(x, 0), (X,), (LONGER,)),
    "indices": (lambda x: pb.cummax(x, 0, return_indices=True)[0], (X,), (LONGER,)),
    "linear_scan": (lambda x: pb.linear_scan(x, x, 0), (X,), (LONGER,)),
    "number": (lambda x: pb.lerp(x, 2 * x, 0.3), (X,), (LONGER,)),
    "size": (lambda x, i: pb.segment_sum(x, i, x.size(0)), (X, IDS), (LONGER, MORE_IDS)),
    "shape": (lambda x, i: pb.segment_max(x, i, x.shape[0] + 1), (X, IDS), (LONGER, MORE_IDS)),
    "counted": (lambda x, i: pb.segment_mean(x, i), (X, IDS), (LONGER, MORE_IDS)),
    "rows": (
        lambda x, i: pb.embedding_backward(x, i, x.size(0)),
        (X, IDS),
        (LONGER, MORE_IDS),
    ),
    "out": (lambda x: pb.cumsum(x * 2, 0, out=torch.empty_like(x)), (X,), (LONGER,)),
    "Embedding": (pbnn.Embedding(10, 3), (IDS,), (MORE_IDS,)),
    "EmbeddingBag": (pbnn.EmbeddingBag(10, 3), (IDS, STARTS), (MORE_IDS, MORE_STARTS)),
    "EmbeddingBag of a matrix": (
        pbnn.EmbeddingBag(10, 3, mode="max"),
        (IDS.view(2, 3),),
        (MORE_IDS.view(3, 3),),
    ),
    "SegmentPool": (pbnn.SegmentPool("prod"), (X, IDS), (LONGER, MORE_IDS)),
    "Sparsemax": (pbnn.Sparsemax(0), (X,), (LONGER,)),
}


def _leaves(tensors: Tensors, grad: bool) -> Tensors:
    return tuple(
        t.clone().requires_grad_(grad) if t.is_floating_point() else t.clone() for t in tensors
    )


def _same(one: Callable[..., Any], other: Callable[..., Any], given: Tensors, grad: bool) -> None:
    mine, yours = _leaves(given, grad), _leaves(given, grad)
    value, wanted = one(*mine), other(*yours)
    assert torch.equal(value, wanted)
    if not grad:
        return
    pairs = [(t, u) for t, u in zip(mine, yours, strict=True) if t.requires_grad]
    gradients = zip(
        torch.autograd.grad(value.sin().sum(), [t for t, _ in pairs]) if pairs else (),
        torch.autograd.grad(wanted.sin().sum(), [u for _, u in pairs]) if pairs else (),
        strict=True,
    )
    assert all(torch.equal(got, want) for got, want in gradients)


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("grad", [False, True], ids=["", "grad"])
@pytest.mark.parametrize("name", CALLS)
def test_jit_trace_records_calls(name: str, grad: bool, warm: bool) -> None:
    function, given, later = CALLS[name]
    if name == "out" and grad:
        pytest.skip("no gradient is recorded into `out`")
    if warm:
        function(*_leaves(given, grad))
        function(*_leaves(given, grad))
    traced = torch.jit.trace(function, _leaves(given, grad))
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    for graph in (traced, torch.jit.load(file)):
        for tensors in (given, tuple(-t if t.is_floating_point() else t for t in given), later):
            _same(graph, function, tensors, grad)


@pytest.mark.parametrize("options", [{"sparse": True}, {"scale_grad_by_freq": True}], ids=str)
@pytest.mark.parametrize("mode", ["", "sum", "max"])
def test_jit_trace_of_gradients_of_their_own_kind(options: dict[str, bool], mode: str) -> None:
    """The gradient belongs to the ids of the call, not to those of the trace."""
    module = pbnn.EmbeddingBag(10, 3, mode=mode, **options) if mode else pbnn.Embedding(10, 3)
    starts = (STARTS,) if mode else ()
    traced = torch.jit.trace(module, (IDS, *starts))
    for ids in (IDS, 9 - IDS, MORE_IDS):
        found = []
        for call in (traced, module):
            (gradient,) = torch.autograd.grad(call(ids, *starts).sin().sum(), module.weight)
            found.append(gradient.to_dense())
        assert torch.equal(*found)


def test_jit_trace_refuses_what_would_be_a_constant() -> None:
    ones = torch.ones(6)
    calls = (
        lambda ids: pb.segment_sum(ones, pb.prepare_segments(ids, 4)),
        lambda ids: pb.embedding_backward(ones[:, None], ids, 4, sparse=True)[1],
    )
    for function in calls:
        function(IDS)
        with pytest.raises(pb.Unsupported, match=r"outside of torch\.jit\.trace"):
            torch.jit.trace(function, (IDS,))


def test_overload_of_a_flag_names_the_flag() -> None:
    op = torch.ops.pullback.cummax.return_indices
    with pytest.raises(pb.InvalidProblem, match="`return_indices` must be True"):
        op(X, 0, return_indices=False)


# --- torch.jit.script -----------------------------------------------------------------------------


def _scripted(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    values, positions = pb.cummax(pb.cumsum(x, 0), axis=0, return_indices=True)
    blended = pb.lerp(values, x, 0.3)
    return pb.segment_sum(blended, ids, num_segments=x.size(0)) + positions.sum()


def test_jit_script_takes_functions_for_their_ops() -> None:
    script = torch.jit.script(_scripted)
    file = io.BytesIO()
    torch.jit.save(script, file)
    file.seek(0)
    for graph in (script, torch.jit.load(file)):
        _same(graph, _scripted, (X, IDS), grad=True)
        _same(graph, _scripted, (LONGER, MORE_IDS), grad=True)
    for module in (pbnn.Sparsemax(0), pbnn.Entmax15()):
        assert torch.equal(torch.jit.script(module)(X), module(X))


@pytest.mark.parametrize("name", ["Embedding", "EmbeddingBag of a matrix", "SegmentPool"])
def test_jit_script_of_other_modules_is_refused_in_one_sentence(name: str) -> None:
    module = CALLS[name][0]
    for given in (module, torch.nn.Sequential(module)):
        with pytest.raises(pb.Unsupported, match=r"must be traced .* or exported"):
            torch.jit.script(given)


# --- torch.export ---------------------------------------------------------------------------------


class _Whole(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.table, self.bags = pbnn.Embedding(10, 4), pbnn.EmbeddingBag(10, 4, mode="max")
        self.pool, self.map = pbnn.SegmentPool("mean"), pbnn.Sparsemax()

    def forward(self, ids: torch.Tensor, starts: torch.Tensor, groups: torch.Tensor) -> Any:
        rows = pb.linear_scan(torch.sigmoid(self.table(ids)), self.table(ids), 0)
        pooled = self.pool(pb.cumsum(rows, 0), groups, ids.shape[0])
        return self.map(pooled).sum() + self.bags(ids, starts).sum()


@pytest.mark.slow
def test_strict_export_after_compile_saves_and_loads() -> None:
    def given(count: int) -> Tensors:
        return torch.arange(count) % 10, torch.arange(0, count, 3), torch.arange(count) // 2

    module = _Whole()
    compiled = torch.compile(module, backend="aot_eager")
    for count in (9, 12, 15):
        compiled(*given(count)).backward()
    extents = tuple({0: torch.export.Dim.AUTO} for _ in range(3))
    program = torch.export.export(module, given(9), strict=True, dynamic_shapes=extents)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for count in (9, 12, 21):
        assert torch.equal(loaded(*given(count)), module(*given(count)))


# --- torch.fx -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CALLS)
def test_fx_makes_a_call_a_node(name: str) -> None:
    function, given, later = CALLS[name]
    graph = torch.fx.symbolic_trace(function)
    again = pickle.loads(pickle.dumps(graph))
    for tensors in (given, later):
        _same(graph, function, tensors, grad=name != "out")
        _same(again, function, tensors, grad=False)


def test_fx_proxies_in_any_place() -> None:
    calls: tuple[tuple[Callable[..., Any], Any], ...] = (
        (lambda ids: pb.embedding(TABLE, ids), IDS),
        (lambda w: pb.lerp(TABLE, 2 * TABLE, w), torch.tensor(0.3)),
        (
            lambda w: pb.embedding_bag(TABLE, IDS, STARTS, mode="sum", per_sample_weights=w),
            torch.randn(6),
        ),
        (lambda ids: pb.embedding_backward(X, ids, 4, sparse=True)[1], IDS),
    )
    for function, given in calls:
        graph = torch.fx.symbolic_trace(function)
        assert torch.equal(graph(given), function(given))


# --- the profiler ---------------------------------------------------------------------------------


def test_profiler_names_functions_and_their_gradients() -> None:
    leaf = X.clone().requires_grad_(True)
    pb.cumprod(leaf, 0).sum().backward()
    with torch.profiler.profile() as profile:
        pb.cumprod(leaf, 0).sum().backward()
        pb.cumsum(X, 0)
    names = {event.key for event in profile.key_averages()}
    assert {"pullback::cumprod", "pullback::cumprod_backward", "pullback::cumsum"} <= names
    function = pb.cumsum.function
    assert function.lookup(*function.values((X, 0), {}), None) is not None  # and is fast again
