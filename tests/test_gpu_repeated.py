"""Repeated calls on GPU tensors: what Python does for them, and that they are what the first was.

Tensors here say they are on a GPU and lie in CPU memory; launches are caught, or run by Triton's
interpreter."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
from triton.runtime.jit import JITFunction

import pullback as pb
from pullback.frontends import torch as front
from pullback.frontends import torch_gpu, torch_launch
from pullback.gpu import runner
from pullback.gpu.errors import SLOTS, WORDS, ErrorTable
from pullback.gpu.interpreter import interpret
from pullback.gpu.runner import TritonRunner
from pullback.tensor.view import array_at


class Cuda(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda, is_cpu, device = True, False, torch.device("cuda:0")
    __torch_function__ = torch._C._disabled_torch_function_impl


def _cuda(tensor: torch.Tensor) -> Any:
    return tensor.as_subclass(Cuda)


def _cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(torch.Tensor)


EMPTY = torch.empty


def _empty(*shape: Any, device: Any = None, **options: Any) -> torch.Tensor:
    return _cuda(EMPTY(*shape, **options)) if device is not None else EMPTY(*shape, **options)


def _tensor(runner: TritonRunner, scratch: Any, workspace: int) -> torch.Tensor:
    array = array_at(workspace + scratch.offset, (scratch.count,), (1,), scratch.element)
    return torch.from_numpy(np.asarray(array))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Launches of kernels, and what is done with them: nothing, if nothing is put here."""
    does: list[Any] = []

    def launcher(kernel: JITFunction, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda **arguments: [do(kernel, grid[0], arguments) for do in does] and None

    plain = frozenset((*torch_launch.PLAIN, Cuda))
    for module in (front, torch_gpu, torch_launch):
        monkeypatch.setattr(module, "PLAIN", plain)
    monkeypatch.setattr(torch_gpu, "_PREPARED", {})
    monkeypatch.setattr(JITFunction, "__getitem__", launcher)
    monkeypatch.setattr(torch, "empty", _empty)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(TritonRunner, "_tensor", _tensor)
    table = ErrorTable(torch.zeros((SLOTS, WORDS), dtype=torch.int64))
    monkeypatch.setattr("pullback.gpu.runner.table_of", lambda device: table)
    monkeypatch.setattr("pullback.gpu.runner.arch", lambda device: "sm_90")
    monkeypatch.setattr("pullback.gpu.device.arch", lambda device: "sm_90")
    yield does
    table.check()


@pytest.fixture
def interpreted(launches: list[Any]) -> None:
    launches.append(interpret)


def _calls(run: Callable[[], Any]) -> int:
    """Calls of Python functions in a repeated call, but for those of this file."""
    found = 0

    def seen(frame: Any, event: str, _: Any) -> None:
        nonlocal found
        found += event == "call" and frame.f_code.co_filename != __file__

    run(), run()
    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.usefixtures("launches")
def test_a_repeated_call_is_few_calls_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches and the sort are the framework's own."""
    monkeypatch.setattr(TritonRunner, "_sort", lambda self, step, workspace: None)
    x, indices = _cuda(torch.ones(64, 300)), _cuda(torch.zeros(64, dtype=torch.int64))
    assert _calls(lambda: pb.cumsum(x)) <= 25
    assert _calls(lambda: pb.cumsum(x, axis=0, exclusive=True)) <= 25
    assert _calls(lambda: pb.softmax(x)) <= 25
    assert _calls(lambda: pb.embedding(x, indices)) <= 60
    assert _calls(lambda: pb.embedding_backward(x, indices, 50)) <= 60
    assert _calls(lambda: pb.segment_max_backward(x, x, indices)) <= 60


@pytest.mark.usefixtures("interpreted")
def test_a_repeated_call_gives_its_own_result() -> None:
    """Other numbers, at other addresses, from the middle of a tensor, into memory of the caller."""
    data = torch.randn(5, 40, dtype=torch.float64)
    for start in (0, 1, 3, 8):
        x = _cuda(data.clone()[:, start : start + 20])
        torch.testing.assert_close(_cpu(pb.cumsum(x)), _cpu(x).cumsum(1))
    out = _cuda(torch.zeros(5, 20, dtype=torch.float64))
    for sign in (1, -1):
        x = _cuda(sign * data[:, :20])
        assert pb.cumsum(x, out=out) is out
        torch.testing.assert_close(_cpu(out), _cpu(x).cumsum(1))
        values, places = pb.cummax(x, return_indices=True)
        want = _cpu(x).cummax(1)
        torch.testing.assert_close(_cpu(values), want.values)
        torch.testing.assert_close(_cpu(x).gather(1, _cpu(places)), want.values)
    assert len(torch_gpu._PREPARED) == 3  # fresh, into memory of the caller, cummax


@pytest.mark.usefixtures("interpreted")
def test_repeated_gradients_of_tables() -> None:
    for seed in (1, 2, 3):
        torch.manual_seed(seed)
        dout, indices = torch.randn(30, 3), torch.randint(0, 7, (30,))
        want = torch.zeros(7, 3).index_add_(0, indices, dout)
        got = pb.embedding_backward(_cuda(dout), _cuda(indices), 7)
        torch.testing.assert_close(_cpu(got), want)
        table = _cuda(torch.ones(7, 3))
        got = pb.embedding_backward(_cuda(dout), _cuda(indices), 7, accumulate_into=table)
        assert got is table
        torch.testing.assert_close(_cpu(table), want + 1)


@pytest.mark.usefixtures("interpreted")
def test_what_ids_say_is_asked_each_time() -> None:
    """The number of segments is in the ids: two calls of one shape have results of two."""
    x = _cuda(torch.ones(4, 2))
    for most in (2, 5, 3):
        ids = _cuda(torch.tensor([0, 0, 1, most]))
        assert pb.segment_sum(x, ids).shape == (most + 1, 2)
        assert pb.segment_sum(x, ids, num_segments=4, out_of_range="skip").shape == (4, 2)


@pytest.mark.usefixtures("interpreted")
def test_a_repeated_call_checks_what_addresses_decide() -> None:
    data = torch.ones(4, 20)
    for _ in range(2):
        pb.cumsum(_cuda(data[:, :10]), out=_cuda(data[:, 10:]))
    with pytest.raises(pb.InvalidProblem, match="memory apart from `x`"):
        pb.cumsum(_cuda(data[:, :10]), out=_cuda(data[:, 5:15]))
    x = _cuda(torch.ones(10))
    assert pb.cumsum(x).shape == pb.cumsum(x).shape == (10,)
    x.untyped_storage().resize_(16)
    with pytest.raises(pb.PullbackError):
        pb.cumsum(x)


@pytest.mark.usefixtures("interpreted")
def test_a_failed_check_of_a_repeated_call_is_reported() -> None:
    weight = _cuda(torch.ones(3, 2))
    table = runner.table_of("cuda:0")
    pb.embedding(weight, _cuda(torch.tensor([0, 2])), out_of_range="error")
    pb.embedding(weight, _cuda(torch.tensor([0, 7])), out_of_range="error")
    with pytest.raises(pb.IndexOutOfRange, match="7 at position 1"):
        table.check()
