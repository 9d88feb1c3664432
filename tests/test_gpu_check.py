"""`pullback gpu-check`, as far as it shows without a GPU."""

from __future__ import annotations

import sys
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("typer")

import torch

from pullback.cli import app, gpu_check


def test_a_machine_without_a_gpu_is_told_so_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    page = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["pullback", "gpu-check", "--write", str(page)])
    assert app.run() == 1
    said = capsys.readouterr().err.split()
    assert " ".join(said[:4]) == "gpu-check needs a GPU:"
    assert not page.exists()


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "find_spec", lambda name: None)
    assert gpu_check.missing_gpu() == (
        "gpu-check needs torch and triton: pip install 'pullback[torch,gpu]'"
    )


def test_one_case_of_each_op_is_compared_with_its_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    """On tensors of the CPU, in place of a GPU's."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    found = dict(gpu_check.checked("lerp"))
    assert found == {subject.name: "ok" for subject in gpu_check.subjects_on_gpu("lerp")}
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self + 1)
    assert "ok" not in dict(gpu_check.checked("lerp")).values()


def test_main_rows_are_measured_against_torch_and_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    monkeypatch.setattr(gpu_check, "_rate", lambda run, nbytes: str(ran.append(run()) or nbytes))
    monkeypatch.setattr(gpu_check, "_copy_rate", str)
    rows = list(gpu_check.measured("lerp"))
    assert rows
    assert all(len(row) == 4 for row in rows)
    assert len(ran) >= len(rows)
