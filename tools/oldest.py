"""Run tests with the oldest versions that pyproject.toml admits, in an environment of their own.

python tools/oldest.py                            NumPy, Numba, ml_dtypes and the command line
python tools/oldest.py --extra jax                an extra; of the rest what it allows
python tools/oldest.py -- tests/test_cli.py -x    other tests

A lower bound in pyproject.toml is the oldest version that passed here. torch is not tried: only one
version of it comes without gigabytes of GPU libraries.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = {
    "cli": [
        *("tests/test_cli.py", "tests/test_call_cache.py", "tests/test_buffer_pool.py"),
        *("tests/test_kernel_cache.py", "tests/test_elementary.py", "tests/test_laws.py"),
    ],
    "jax": ["tests/test_jax.py", "tests/test_jax_derivatives.py"],
}


def oldest(requirements: list[str]) -> list[str]:
    """The lower bounds as versions to install: "numpy>=2.0" is numpy==2.0."""
    found = []
    for requirement in requirements:
        if not re.fullmatch(r"[\w-]+>=[\d.]+", requirement):
            raise SystemExit(f"oldest: `{requirement}` must be a name and a lower bound")
        found.append(requirement.replace(">=", "=="))
    return found


def pins(extra: str) -> list[str]:
    """What is installed to try an extra. Only with the command line is the core pinned too: another
    extra may need newer versions of it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted: list[str] = oldest(project["optional-dependencies"][extra])
    core: list[str] = project["dependencies"]
    return [*wanted, *(oldest(core) if extra == "cli" else core)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--extra", choices=TESTS, default="cli")
    parser.add_argument("tests", nargs="*", help="what pytest is given in place of the usual")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = [str(Path(folder) / "bin" / "python"), "-m"]
        tools = ["pytest", "pytest-xdist", "mpmath"]
        subprocess.run([*python, "pip", "install", "-q", *pins(asked.extra), *tools], check=True)
        subprocess.run([*python, "pip", "list"], check=True)
        tests = asked.tests or [*TESTS[asked.extra], "-m", "not slow and not gpu"]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run([*python, "pytest", "-q", *tests], cwd=ROOT, env=environment)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
