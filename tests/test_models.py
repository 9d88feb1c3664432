"""The models of `benchmarks/models` train as their twins in PyTorch do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "models" / "sequences.py"


def test_models_over_pieces_have_the_gradients_of_their_twins() -> None:
    given = [sys.executable, str(PROGRAM), "--size", "120", "--steps", "2"]
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("gradients differ by") == 4
