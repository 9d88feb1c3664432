"""Optional tuning of warps: measured by a clock of the test, kept where Triton caches."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction

from pullback.contract.element import ElementKind
from pullback.gpu import tuning
from pullback.gpu.program import Step
from pullback.gpu.report import records
from pullback.gpu.runner import TritonRunner
from pullback.gpu.sketch import programs

# Three steps: states of chunks, joined, and again from there.
PROGRAM = next(
    shown.program
    for shown in programs(records(), ElementKind.F32)
    if shown.title == "Scan cumsum row"
)
SLOWER = {1: 9.0, 2: 3.0, 4: 5.0, 8: 1.0, 16: 4.0}  # seconds on so many warps


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, int]]:
    """Launches on a GPU that is not there: which kernel, on how many warps."""
    made: list[tuple[str, int]] = []

    def record(kernel: JITFunction, grid: tuple[int, ...]) -> Any:
        def launch(**arguments: Any) -> None:
            if kernel.__name__ == "thread" and arguments["num_warps"] == 8:
                raise OutOfResources(2, 1, "shared memory")
            made.append((kernel.__name__, arguments["num_warps"]))

        return launch

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(JITFunction, "__getitem__", record)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr("pullback.gpu.runner.arch", lambda device: "sm_90")
    tuning._measured.cache_clear()
    yield made
    tuning._measured.cache_clear()


def _tune(made: list[tuple[str, int]]) -> dict[str, int]:
    launch = SimpleNamespace(runner=TritonRunner(PROGRAM, "cuda:0"))
    plan = SimpleNamespace(
        _prepare=lambda args: (launch, [1 << 20] * 3, []), sku=SimpleNamespace(arch="sm_90")
    )

    def clock(call: Any) -> float:
        made.clear()
        call()
        return sum(SLOWER[warps] for _, warps in made)

    return tuning.tune(plan, SimpleNamespace(address=1 << 30), None, clock)


def _warps(device: str = "cuda:0") -> list[int]:
    return TritonRunner(PROGRAM, device).warps


def test_tables_rule_until_something_is_measured(launched: Any) -> None:
    assert _warps() == [step.warps for step in PROGRAM.steps if isinstance(step, Step)]


def test_the_best_is_found_and_kept(launched: Any) -> None:
    """The fastest that runs at all, for plans to come and for processes to come."""
    found = _tune(launched)
    assert sorted(found.values()) == [2, 8, 8]
    assert _warps() == [8, 2, 8]
    tuning._measured.cache_clear()  # as a new process
    assert _warps() == [8, 2, 8]
    TritonRunner(PROGRAM, "cuda:0")([1 << 20] * 3, 1 << 30, 1)
    assert launched[-3:] == [("sweep", 8), ("thread", 2), ("sweep", 8)]


def test_another_gpu_is_another_matter(launched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _warps()
    _tune(launched)
    monkeypatch.setattr("pullback.gpu.runner.arch", lambda device: "gfx942")
    assert _warps() == before
