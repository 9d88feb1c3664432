"""Failed checks on a GPU are read when somebody waits for it anyway. Launches on a stand-in for a
device run in Triton's interpreter."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
from triton.runtime.jit import JITFunction

import pullback as pb
from pullback import gpu
from pullback.contract.element import ElementKind
from pullback.contract.kinds import BackendKind, IndexPolicy
from pullback.frontends.torch_autograd import AutogradPlan
from pullback.gpu import errors
from pullback.gpu.errors import SLOTS, WORDS, ErrorTable
from pullback.gpu.interpreter import interpret
from pullback.gpu.runner import TritonRunner

COMPILER = {"num_warps", "enable_fp_fusion", "maxnreg"}


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ErrorTable:
    """The table of a device whose memory is the host's, and whose launches are interpreted."""
    made = ErrorTable(torch.zeros((SLOTS, WORDS), dtype=torch.int64))

    def launched(kernel: JITFunction, grid: tuple[int, ...]) -> Any:
        def launch(**given: Any) -> None:
            interpret(kernel, grid[0], {k: v for k, v in given.items() if k not in COMPILER})

        return launch

    monkeypatch.setattr(JITFunction, "__getitem__", launched)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr("pullback.gpu.runner.arch", lambda device: "sm_90")
    monkeypatch.setattr(errors, "_TABLES", {"cuda:0": made})
    return made


class Lookup:
    """An embedding of four rows on that device."""

    def __init__(self) -> None:
        sizes = {"num_embeddings": 4, "embedding_dim": 2, "num_indices": 3}
        desc = pb.EmbeddingDescriptor(**sizes, element=ElementKind.F32, policy=IndexPolicy.ERROR)
        self.plan = pb.EmbeddingPlan(desc, "cpu", BackendKind.TRITON)
        self.weight = np.arange(8, dtype=np.float32).reshape(4, 2)
        self.indices, self.out = np.array([3, 0, 2]), np.full((3, 2), 7, np.float32)
        tensors = [self.weight, self.indices, self.out, None, None]
        self.runner = TritonRunner(self.plan.program(tensors), "cuda:0", self.plan.fail)
        self.scratch = np.empty(self.plan.workspace_size, np.uint8)

    def run(self, *ids: int) -> Any:
        self.indices[:] = ids
        arrays = (self.weight, self.indices, self.out)
        addresses = [array.ctypes.data for array in arrays]
        return self.runner(addresses, self.scratch.ctypes.data, 1)


def test_a_failed_check_is_raised_by_the_next_check(table: ErrorTable) -> None:
    lookup = Lookup()
    assert lookup.run(1, 9, 2) == (0, 0, 0)
    assert (lookup.out == 7).all()
    assert lookup.run(1, 1, 2) == (0, 0, 0)
    assert (lookup.out == lookup.weight[[1, 1, 2]]).all()
    with pytest.raises(pb.IndexOutOfRange, match=r"^embedding: `indices`.* 9 at position 1"):
        gpu.check()
    gpu.check()
    assert len(table.free) == SLOTS


def test_every_failed_check_is_raised_once_and_in_order(table: ErrorTable) -> None:
    lookup = Lookup()
    for ids in ((0, 0, 5), (1, 1, 1), (6, 0, 0)):
        lookup.run(*ids)
    for said in ("5 at position 2", "6 at position 0"):
        with pytest.raises(pb.IndexOutOfRange, match=said):
            gpu.check()
    gpu.check()


def test_a_captured_check_is_read_after_every_replay(
    table: ErrorTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup = Lookup()
    with monkeypatch.context() as capture:
        capture.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        lookup.run(0, 1, 2)
    gpu.check()
    ((slot, _),) = table.captured
    for value in (8, 9):  # what replays write
        table.words[slot] = torch.tensor([1, 2, value])
        with pytest.raises(pb.IndexOutOfRange, match=f"{value} at position 2"):
            gpu.check()
        gpu.check()


def test_a_full_table_is_checked_and_then_reused(table: ErrorTable) -> None:
    raised = []
    for _ in range(SLOTS):
        table.take(lambda *words: raised.append(words), capturing=False)
    with pytest.raises(pb.Unsupported, match=r"pullback.gpu.check\(\)"):
        table.take(print, capturing=True)
    table.words[5] = torch.tensor([1, 2, 3])
    table.take(print, capturing=False)
    assert raised == [(1, 2, 3)]
    assert len(table.pending) == 1


def test_a_gradient_on_a_gpu_does_not_check_again() -> None:
    """The call has checked the same ids; on the CPU, where a check costs nothing, it does."""
    given = {"weight": torch.ones(3, 2), "indices": torch.tensor([0, 1])}
    autograd = AutogradPlan(pb.embedding.function, pb.embedding.function.bind((), given))

    class OnGpu:
        is_cuda = True

    assert autograd._checked_before((OnGpu(),))["out_of_range"] == "skip"  # type: ignore[arg-type]
    assert autograd._checked_before((OnGpu(),))["options"]["out_of_range"] == "skip"  # type: ignore[arg-type]
    assert autograd._checked_before((torch.ones(1),)) == {}
