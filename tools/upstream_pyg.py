"""Run tests of PyTorch Geometric alone, with `pullback.compat.torch_scatter` installed, and with
`pullback.compat.torch_geometric`.

    python tools/upstream_pyg.py <clone of pyg-team/pytorch_geometric> [options of pytest]

Nothing of the clone is copied: its package and its tests are run where they lie, with the
packages that it needs (`pip install torch_geometric` brings them). Prints the counts and every
test that fails with one of them and not without; the exit code says whether there is one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

FOLDERS = ("utils", "nn/aggr", "nn/pool", "nn/norm", "nn/conv")
MODULES = ("torch_scatter", "torch_geometric")
NOTE, INSTALL = "UPSTREAM_PYG_NOTE", "UPSTREAM_PYG_INSTALL"  # read where this is a pytest plugin

_outcomes: dict[str, str] = {}


if os.environ.get(INSTALL):  # in every process that runs tests, before any of them imports PyG
    import_module(f"pullback.compat.{os.environ[INSTALL]}").install()


def pytest_collection_finish() -> None:
    """That the run is of what it says: PyG has found the package, or has not."""
    from torch_geometric import typing

    assert bool(os.environ.get(INSTALL)) == typing.WITH_TORCH_SCATTER


def pytest_runtest_logreport(report: Any) -> None:
    """A test is its worst phase: it may pass and fail to clean up."""
    if report.when == "call" or report.outcome != "passed":
        _outcomes[report.nodeid] = report.outcome


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        _outcomes[report.nodeid] = "failed"


def pytest_sessionfinish(session: Any) -> None:
    if not hasattr(session.config, "workerinput"):  # xdist's workers report to their controller
        Path(os.environ[NOTE]).write_text(json.dumps(_outcomes))


def outcomes(root: Path, installed: str, options: list[str]) -> dict[str, str]:
    """What became of every test, by its name."""
    with TemporaryDirectory() as folder:
        note = Path(folder) / "outcomes.json"
        paths = [str(root), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ, NOTE: str(note), INSTALL: installed,
            "PYTHONHASHSEED": "0",  # some tests are named after members of a set
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        }  # fmt: skip
        command = [
            sys.executable, "-m", "pytest", "-q", "-p", Path(__file__).stem,
            "-p", "no:cacheprovider", "-o", "addopts=", "-m", "not rag and not dataset",
            *options, *(f"test/{name}" for name in FOLDERS),
        ]  # fmt: skip
        subprocess.run(command, cwd=root, env=environment, check=False)
        found: dict[str, str] = json.loads(note.read_text())
        return found


def counts(found: dict[str, str]) -> str:
    held = Counter(found.values())
    return ", ".join(f"{held[word]} {word}" for word in ("passed", "failed", "skipped"))


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    root, options = Path(sys.argv[1]).resolve(), sys.argv[2:]
    plain, worse = outcomes(root, "", options), False
    lines = [f"PyG alone: {counts(plain)}"]
    for name in MODULES:
        ours = outcomes(root, name, options)
        new = sorted(test for test, end in ours.items() if end == "failed" != plain.get(test))
        lines += [f"with pullback.compat.{name}: {counts(ours)}, {len(new)} fail that pass without"]
        lines += new
        worse = worse or bool(new) or "passed" not in ours.values()
    print("\n".join(lines))
    return int(worse)


if __name__ == "__main__":
    sys.exit(main())
