"""The examples of the gallery run; each asserts what it shows."""

from __future__ import annotations

import os
import runpy
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
def test_a_fast_example_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, where what it imports is imported already."""
    import matplotlib.pyplot as plt

    assert len(EXAMPLES) >= 10
    plt.switch_backend("Agg")
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(next(path for path in EXAMPLES if path.stem == name)))
    plt.close("all")
