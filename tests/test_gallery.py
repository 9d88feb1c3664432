"""The examples of the gallery run; each asserts what it shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

for name in ("torch", "matplotlib", "sklearn", "networkx"):
    pytest.importorskip(name)

EXAMPLES = sorted((Path(__file__).parent.parent / "docs" / "gallery").glob("plot_*.py"))
FAST = ("plot_cox_ties", "plot_cumprod_zeros", "plot_reproducibility")


def run(example: Path) -> None:
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, str(example)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.slow
def test_the_example_runs(example: Path) -> None:
    run(example)


@pytest.mark.parametrize("name", FAST)
def test_a_fast_example_runs(name: str) -> None:
    assert len(EXAMPLES) >= 10
    run(next(path for path in EXAMPLES if path.stem == name))
