"""How GPU plans are launched, as far as that shows without a GPU: what a run asks of the framework,
how torch tensors reach it, what a missing Triton says."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction

import pullback as pb
from pullback.contract.element import ElementKind
from pullback.contract.kinds import BackendKind
from pullback.frontends.torch_gpu import on_gpu
from pullback.gpu.errors import SLOTS, WORDS, ErrorTable
from pullback.gpu.program import Operand, Scratch, Sort
from pullback.gpu.report import records
from pullback.gpu.runner import TritonRunner
from pullback.gpu.sketch import Exhibit, programs
from pullback.plan.plan import Plan

TABLE = ErrorTable(torch.zeros((SLOTS, WORDS), dtype=torch.int64))
PROGRAMS = list(programs(records(), ElementKind.F32))


class Watched(TorchDispatchMode):
    """Writes down every operation that torch is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, dict[str, Any]]]:
    """Launches go into a list instead of to a GPU."""
    made: list[tuple[int, dict[str, Any]]] = []

    def record(kernel: JITFunction, grid: tuple[int, ...]) -> Any:
        return lambda **arguments: made.append((grid[0], arguments))

    monkeypatch.setattr(JITFunction, "__getitem__", record)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr("pullback.gpu.runner.arch", lambda device: "sm_90")
    monkeypatch.setattr("pullback.gpu.runner.table_of", lambda device: TABLE)
    return made


@pytest.mark.parametrize("shown", PROGRAMS, ids=lambda shown: shown.title)
def test_a_run_launches_and_does_nothing_else(
    shown: Exhibit, launches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No operation of the framework means no allocation and no waiting: a captured graph may hold
    it. Only a sort is the framework's own."""
    sorts: list[Sort] = []
    monkeypatch.setattr(TritonRunner, "_sort", lambda self, step, workspace: sorts.append(step))
    with Watched() as watched:
        status = TritonRunner(shown.program, "cuda:0")([1 << 20] * 12, 1 << 30, 1)
    assert status == (0, 0, 0)
    assert watched.seen == []
    assert len(launches) + len(sorts) == len(shown.program.steps)
    for grid, arguments in launches:
        assert grid > 0
        assert not any(isinstance(value, Operand | Scratch) for value in arguments.values())


@pytest.mark.parametrize("shown", PROGRAMS, ids=lambda shown: shown.title)
def test_kernels_say_what_they_move(shown: Exhibit) -> None:
    """Each tensor once at least, except tables of which only some rows are met, and alphas, which
    are sketched whole but have one for each row."""
    assert all(step.traffic > 0 for step in shown.program.steps)
    if not any(name in shown.title for name in ("Embedding", "alpha of rows")):
        assert shown.nbytes * 0.99 <= shown.program.traffic <= shown.nbytes * 12


@pytest.mark.parametrize("title", ["Scan cumsum rows", "Softmax softmax rows", "LinearScan rows"])
def test_one_pass_moves_each_element_once(title: str) -> None:
    (shown,) = (one for one in PROGRAMS if one.title == title)
    assert shown.program.traffic == shown.nbytes


@pytest.mark.parametrize(
    ("title", "passes"),
    [("Softmax softmax long rows", 3), ("SoftmaxBackward softmax long rows", 5)],
)
def test_rows_in_tiles_count_every_reading(title: str, passes: int) -> None:
    """Maximum and sum together, and the result, read x; sums and results each read dy and y."""
    (shown,) = (one for one in PROGRAMS if one.title == title)
    assert shown.program.traffic == passes * shown.elements * 4


# --- torch tensors ------------------------------------------------------------------------------


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are those of the GPU, run in the interpreter."""

    def select(cls: Any, stream: Any, desc: Any) -> Any:
        return cls(desc, "cpu", BackendKind.TRITON)

    monkeypatch.setattr(Plan, "select", classmethod(select))


def _on_gpu(face: Any, **arguments: Any) -> Any:
    return on_gpu(face.function, **face.function.bind((), arguments))


@pytest.mark.usefixtures("interpreted")
def test_segments_of_any_rank() -> None:
    x = torch.arange(36, dtype=torch.float32).reshape(6, 3, 2).transpose(1, 2)
    ids = torch.tensor([0, 2, 0, 1, 2, 2])
    got = _on_gpu(pb.segment_sum, x=x, segment_ids=ids, num_segments=4)
    assert got.shape == (4, 2, 3)
    torch.testing.assert_close(got, torch.zeros(4, 2, 3).index_add(0, ids, x))
    assert _on_gpu(pb.segment_max_backward, dy=got, x=x, segment_ids=ids).shape == x.shape


@pytest.mark.usefixtures("interpreted")
def test_several_results_and_folded_indices() -> None:
    x = torch.tensor([[1.0, 3.0, 2.0, 3.0]])
    values, indices = _on_gpu(pb.cummax, x=x, return_indices=True)
    torch.testing.assert_close(values, torch.tensor([[1.0, 3.0, 3.0, 3.0]]))
    assert indices.tolist() == [[0, 1, 1, 1]]
    weight, rows = torch.eye(4), torch.tensor([[1, 2], [3, 0]])
    out = _on_gpu(pb.embedding, weight=weight, indices=rows)
    torch.testing.assert_close(out, weight[rows])


@pytest.mark.usefixtures("interpreted")
def test_a_gradient_is_added_to_what_is_there() -> None:
    table = torch.ones(3, 2)
    got = _on_gpu(
        pb.embedding_backward,
        dout=torch.ones(2, 2),
        indices=torch.tensor([1, 1]),
        num_embeddings=3,
        accumulate_into=table,
    )
    assert got is table
    assert table.tolist() == [[1, 1], [3, 3], [1, 1]]


# --- tensors on two devices ---------------------------------------------------------------------


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., torch.Tensor]]:
    """Makes tensors that say they are on a GPU, and have no memory."""
    monkeypatch.setattr("pullback.gpu.device.arch", lambda device: "sm_90")
    with FakeTensorMode(allow_non_fake_inputs=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch: a fake tensor is asked for its address
        yield partial(torch.empty, device="cuda")


IDS = pb.prepare_segments(np.array([0, 0, 1]), 2)
HERE = torch.ones(3, 2), torch.tensor([0, 0, 1]), torch.tensor([0, 1, 3])
NAMED = r"must be a tensor on cuda:0 \(a SegmentIndex .*\), got a SegmentIndex$"


def test_a_prepared_index_for_gpu_tensors_is_named(on_cuda: Any) -> None:
    x = on_cuda(3, 2)
    with pytest.raises(pb.Unsupported, match=f"^segment_sum: `segment_ids` {NAMED}"):
        pb.segment_sum(x, IDS)
    with pytest.raises(pb.Unsupported, match=f"^embedding_backward: `indices` {NAMED}"):
        pb.embedding_backward(x, IDS, 2)


def test_a_prepared_index_for_a_gpu_plan_is_named(on_cuda: Any) -> None:
    shape = {"num_inputs": 3, "embedding_dim": 2, "num_segments": 2}
    desc = pb.SegmentSumDescriptor(element=pb.ElementKind.F32, **shape)
    stream = pb.Stream.cuda()
    plan = pb.SegmentSumPlan.select(stream, desc)
    args = pb.SegmentSumArgs(input=on_cuda(3, 2), segment_ids=IDS, output=on_cuda(2, 2))
    with pytest.raises(pb.Unsupported, match=f"^segment_sum: `segment_ids` {NAMED}"):
        plan.can_implement(args)
    with pytest.raises(pb.Unsupported, match=f"^segment_sum: `segment_ids` {NAMED}"):
        plan.run(stream, pb.Workspace.NONE, args)


def test_sparse_gradients_of_two_devices_are_refused(on_cuda: Any) -> None:
    """Rows are found on the host: an address of the GPU must not be read there."""
    dout, indices, offsets = HERE
    far = on_cuda(3, dtype=torch.int64)
    sentence = "^{}: `{}` must be on {}, as `dout`, got a tensor on {}$"
    elsewhere = sentence.format("embedding_backward", "indices", "cpu", "cuda:0")
    with pytest.raises(pb.Unsupported, match=elsewhere):
        pb.embedding_backward(dout, far, 2, sparse=True)
    elsewhere = sentence.format("embedding_backward", "indices", "cuda:0", "cpu")
    with pytest.raises(pb.Unsupported, match=elsewhere):
        pb.embedding_backward(on_cuda(3, 2), indices, 2, sparse=True)
    elsewhere = sentence.format("embedding_bag_backward", "offsets", "cpu", "cuda:0")
    with pytest.raises(pb.Unsupported, match=elsewhere):
        pb.embedding_bag_backward(dout, indices, far, 2, mode="sum", sparse=True)
    with pytest.raises(
        pb.Unsupported, match=r"^embedding_backward: `sparse` must be False where indices are not"
    ):
        pb.embedding_backward(on_cuda(3, 2), far, 2, sparse=True)
    elsewhere = sentence.format("embedding_bag_backward", "indices", "cpu", "cuda:0")
    with pytest.raises(pb.Unsupported, match=elsewhere):
        pb.embedding_bag_backward(dout, far, offsets, 2, mode="sum", sparse=True)


# --- no Triton ----------------------------------------------------------------------------------


def test_a_gpu_without_triton_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pullback.gpu.device.find_spec", lambda name: None)
    monkeypatch.setattr(pb.Stream, "current", staticmethod(lambda array: pb.Stream.cuda()))
    sentence = (
        r"^cumsum: `device` must be on cpu, or on a GPU with Triton "
        r"\(pip install 'pullback\[gpu\]'\), got cuda:0\.?$"
    )
    with pytest.raises(pb.Unsupported, match=sentence):
        _on_gpu(pb.cumsum, x=torch.ones(3))
