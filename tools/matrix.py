"""Run core tests under several Pythons with the oldest and the newest versions that pyproject.toml
admits, each in an environment of its own, and print a line for each.

    python tools/matrix.py                                  this Python (make test-matrix)
    python tools/matrix.py --python python3.12 --python /opt/python3.14
    python tools/matrix.py --versions oldest --extra jax    one extra alone
    python tools/matrix.py -- tests/test_cli.py -x          other tests

A lower bound in pyproject.toml is the oldest version that passed here. Kernels come from the folder
that PULLBACK_LIBRARY names, if it is set; then Numba is not installed. Of torch one version is
tried: only that comes without gigabytes of GPU libraries.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = [
    *("tests/test_call_cache.py", "tests/test_buffer_pool.py", "tests/test_elementary.py"),
    *("tests/test_plan_run.py", "tests/test_laws.py"),
]
TESTS = {
    "cli": ["tests/test_cli.py", "tests/test_kernel_cache.py", *CORE],
    "jax": ["tests/test_jax.py", "tests/test_jax_derivatives.py"],
    "torch": ["tests/test_torch.py", "tests/test_call_cache_torch.py"],
    "gpu": ["tests/test_gpu_compile.py"],
}
# With kernels that were compiled ahead: tests that compile none of their own.
AHEAD = ["tests/test_views.py", "tests/test_plans.py", "tests/test_mixed_layouts.py"]
# What is compiled stays in memory: with all kernels of the laws, one process took 12 GB. So there
# is one for each of these, in one of which each test is.
PARTS = ("bf16", "f16 and not bf16", "f32 and not f16", "not f16 and not f32")
TOOLS = ["pytest", "pytest-xdist", "mpmath"]
SHOWN = ("numpy", "numba", "ml_dtypes", "torch", "jax", "triton", "typer", "rich")


def oldest(requirements: list[str]) -> list[str]:
    """The lower bounds as versions to install: "numpy>=2.0" is numpy==2.0."""
    found = []
    for requirement in requirements:
        if not re.fullmatch(r"[\w-]+>=[\d.]+", requirement):
            raise SystemExit(f"matrix: `{requirement}` must be a name and a lower bound")
        found.append(requirement.replace(">=", "=="))
    return found


def pins(extra: str, versions: str, ahead: bool) -> list[str]:
    """What is installed to try an extra. Only with the command line is the core pinned too: another
    extra may need newer versions of it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted: list[str] = project["optional-dependencies"][extra]
    core: list[str] = [name for name in project["dependencies"] if not ahead or "numba" not in name]
    if versions == "newest":
        return [*wanted, *core]
    return [*oldest(wanted), *(oldest(core) if extra == "cli" else core)]


def parts(tests: list[str]) -> list[list[str]]:
    """What pytest is given by one process after another: each file, and the laws by dtype."""
    found: list[list[str]] = []
    for test in tests:
        found += [[test, "-k", part] for part in PARTS] if "laws" in test else [[test]]
    return found


def summed(said: list[str]) -> str:
    """The last lines of pytest as one: "3 passed, 1 skipped"."""
    counts: Counter[str] = Counter()
    for line in said:
        counts.update(
            {what: int(n) for n, what in re.findall(r"(\d+) (passed|failed|skipped|error)", line)}
        )
    return ", ".join(f"{n} {what}" for what, n in counts.items()) or "no tests"


def run(command: list[str], environment: dict[str, str]) -> tuple[str, bool]:
    """The last line of a run of pytest, and whether all passed; all it said, if not."""
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print(done.stdout)
    return (done.stdout.strip().splitlines() or [""])[-1], not done.returncode


def tried(python: str, extra: str, versions: str, tests: list[str]) -> tuple[str, bool]:
    """A line about one environment, and whether its tests passed."""
    ahead = os.environ.get("PULLBACK_LIBRARY", "0") != "0"
    usual = [
        [*part, "-m", "not slow and not gpu"] for part in parts(AHEAD if ahead else TESTS[extra])
    ]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        inside = [str(Path(folder, "bin", "python")), "-m"]
        wanted = [*pins(extra, versions, ahead), *TOOLS]
        if subprocess.run([*inside, "pip", "install", "-q", *wanted], check=False).returncode:
            return f"{python} {versions} {extra}: cannot be installed", False
        listed = [*inside, "pip", "list", "--format=freeze"]
        names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
        known = [line for line in names.split() if line.partition("==")[0] in SHOWN]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        command = [*inside, "pytest", "-q", "-p", "no:cacheprovider"]
        found = [run([*command, *part], environment) for part in ([tests] if tests else usual)]
    said, good = [line for line, _ in found], [passed for _, passed in found]
    told = subprocess.run([python, "-V"], check=True, capture_output=True, text=True).stdout.strip()
    return f"{told} {versions} {extra} ({', '.join(known)}): {summed(said)}", all(good)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--python", action="append", help="an interpreter; this one")
    parser.add_argument("--versions", action="append", choices=("oldest", "newest"))
    parser.add_argument("--extra", action="append", choices=TESTS, help="cli")
    parser.add_argument("tests", nargs="*", help="what pytest is given in place of the usual")
    asked = parser.parse_args()
    lines = []
    for python in asked.python or [sys.executable]:
        for extra in asked.extra or ["cli"]:
            for versions in asked.versions or ("oldest", "newest"):
                lines.append(tried(python, extra, versions, asked.tests))
                print(lines[-1][0], flush=True)
    print(*("passed: " * good + "failed: " * (not good) + line for line, good in lines), sep="\n")
    return int(not all(good for _, good in lines))


if __name__ == "__main__":
    sys.exit(main())
