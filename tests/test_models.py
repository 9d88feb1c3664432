"""The models of `benchmarks/models` train as their twins in PyTorch do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAMS = Path(__file__).parents[1] / "benchmarks" / "models"


def output(program: str, *options: str) -> str:
    given = [sys.executable, str(PROGRAMS / program), *options]
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_models_over_pieces_have_the_gradients_of_their_twins() -> None:
    assert output("sequences.py", "--size", "120", "--steps", "2").count("gradients differ by") == 4


def test_parts_of_training_loops_have_the_gradients_of_their_twins() -> None:
    pytest.importorskip("jax")
    assert output("training.py", "--size", "16", "--turns", "1").count("agree") == 2
