"""A type checker sees what the functions return, and mistakes in calls."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pullback

pytest.importorskip("mypy")

ROOT = Path(__file__).parent.parent
USAGE = ROOT / "tests" / "typed" / "usage.py"
PATH = str(Path(pullback.__file__).parent.parent)


def check(file: Path) -> tuple[int, str]:
    """What mypy says of a file; `make lint` has filled its cache."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--warn-unused-ignores", str(file)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": PATH},
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_types_of_results_and_options(tmp_path: Path) -> None:
    status, said = check(USAGE)
    assert status == 0, said
    text = USAGE.read_text()
    assert text.count("assert_type(") > 25
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        text.replace("assert_type(pb.cumsum(x), Floats)", "assert_type(pb.cumsum(x), Tensor)")
    )
    status, said = check(wrong)
    assert status == 1
    assert said.count("error:") == 1, said
    assert "assert-type" in said
