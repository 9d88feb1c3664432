"""Run the mutants: apply one to a copy of the tree, run its checks, say whether one of them failed.

    python -m mutants [--only TEXT] [--tests-only] [--list] [--fresh] [--jobs 2] [--json FILE]

Results are kept in a file as they come, so that an interrupted run goes on where it was; a mutant
is run again if it, its module or its checks have changed, or if it survived. Checks that
caught one must pass on the tree as it is: that is tried at the end. The exit code is 1 if a mutant
survived or a check failed without one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mutants import Check, Fuzz, Mutant, Suite, mutants

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("src", "tests", "docs", "benchmarks", "pyproject.toml", "README.md", "LICENSE", "Makefile")
# A check that takes longer than this hangs; that is how a lost wake-up shows itself.
SECONDS = 900
# What pytest says of a wrong call and of a choice of no test, and pullback of a wrong call.
NOT_RUN = {Suite: (4, 5), Fuzz: (2,)}
CAUGHT, SURVIVED, EQUIVALENT, BROKEN = "caught", "survived", "equivalent", "broken check"


class NoTest(Exception):
    """A check that checks nothing."""


class Tree:
    """A copy of the repository in which checks are run, and a kernel cache of its own."""

    def __init__(self, folder: Path, kernels: Path) -> None:
        self.folder = folder
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, folder / part, ignore=ignored)
            elif source.exists():
                shutil.copy(source, folder / part)
        # Bytecode is recognised by its time stamp in whole seconds: too coarse for edits like these.
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(folder / "tests")]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PULLBACK_CACHE_DIR": str(kernels),
        }

    def run(self, check: Check, limit: float = SECONDS) -> tuple[bool, str]:
        """Whether the check failed, and the last it said."""
        command = [sys.executable, *check.command()]
        child = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            said, _ = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            return True, f"no end within {limit:g} s"
        lines = [line for line in said.splitlines() if line.strip()]
        told = next((line for line in lines if line.startswith("E  ")), lines[-1] if lines else "")
        if child.returncode < 0:
            told = f"signal {-child.returncode}"
        if child.returncode in NOT_RUN[type(check)]:
            raise NoTest(f"{check} runs no test: {told}")
        return child.returncode != 0, told.strip()[:300]

    def try_out(self, mutant: Mutant) -> dict[str, Any]:
        path = self.folder / mutant.path
        plain = path.read_text()
        began = time.monotonic()
        outcome: dict[str, Any] = {"outcome": SURVIVED}
        path.write_text(mutant.applied(plain))
        try:
            for check in mutant.checks:
                try:
                    failed, told = self.run(check)
                except NoTest as error:
                    outcome = {"outcome": BROKEN, "told": str(error)}
                    break
                if failed:
                    outcome = {"outcome": CAUGHT, "check": str(check), "told": told}
                    break
        finally:
            path.write_text(plain)
        return {**outcome, "seconds": round(time.monotonic() - began, 1)}


def _key(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def key_of(mutant: Mutant) -> str:
    return _key(mutant.old, mutant.new, (ROOT / mutant.path).read_text())


def key_of_check(check: Check) -> str:
    """A test is as good as its file; of random cases no file is the whole."""
    text = "" if isinstance(check, Fuzz) else (ROOT / "tests" / check.file).read_text()
    return _key(check, text)


class Results:
    """What is known, by name, in a file that is whole at any time."""

    def __init__(self, path: Path, fresh: bool) -> None:
        self.path = path
        self.known: dict[str, Any] = {}
        if path.exists() and not fresh:
            self.known = json.loads(path.read_text())

    def get(self, name: str, key: str) -> dict[str, Any] | None:
        found = self.known.get(name)
        return found if found and found["key"] == key else None

    def add(self, name: str, key: str, found: dict[str, Any]) -> None:
        self.known[name] = {"key": key, **found}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.known, indent=1) + "\n")
        part.replace(self.path)


def linked_kernels(folder: Path) -> Path:
    """The compiled kernels of the tree as it is, linked: only those of mutants are compiled."""
    from pullback.cpu.cache import cache_folder

    known = cache_folder()
    target = folder / "pullback" / known.name
    target.parent.mkdir(mode=0o700, parents=True)
    shutil.copytree(known, target, copy_function=_link)
    target.chmod(0o700)
    return folder


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


class Trees:
    """Copies of the tree, each for one job at a time."""

    def __init__(self, folder: Path, jobs: int) -> None:
        kernels = linked_kernels(folder / "kernels")
        self._free: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(jobs)
        for job in range(jobs):
            (folder / f"tree{job}").mkdir()
            self._free.put(Tree(folder / f"tree{job}", kernels))

    def each(self, work: Callable[[Tree, Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """Items with what came of them, as they are done."""

        def on_a_tree(item: Any) -> Any:
            tree = self._free.get()
            try:
                return work(tree, item)
            finally:
                self._free.put(tree)

        pending = {self._pool.submit(on_a_tree, item): item for item in items}
        try:
            for future in as_completed(pending):
                yield pending[future], future.result()
        finally:
            for future in pending:
                future.cancel()


def run_all(chosen: list[Mutant], results: Results, jobs: int) -> None:
    """The mutants, then their checks on the tree as it is; what is known is not run again."""
    todo = [m for m in chosen if not m.equivalent and _wanted(results, m)]
    with TemporaryDirectory(prefix="pullback-mutants-") as name:
        trees = Trees(Path(name), jobs)
        for number, (mutant, found) in enumerate(trees.each(Tree.try_out, todo), 1):
            results.add(mutant.name, key_of(mutant), {"area": mutant.area, **found})
            by = f" by {found['check']}" if "check" in found else ""
            line = f"[{number}/{len(todo)}] {mutant.name}: {found['outcome']}{by}"
            print(f"{line}, {found['seconds']:.0f} s", flush=True)
        # Only those that are said to have caught something; the suite has run the others.
        caught = {results.known.get(m.name, {}).get("check") for m in chosen}
        _try_checks(trees, results, {c for m in chosen for c in m.checks if str(c) in caught})


def _try_checks(trees: Trees, results: Results, checks: set[Check]) -> None:
    """Whether checks pass on the tree as it is: tests of a file together, and one by one only if
    they do not."""
    todo = [check for check in checks if not _passed(results, check)]
    files: dict[str, list[Check]] = {}
    for check in todo:
        name = check.file if isinstance(check, Suite) else str(check)
        files.setdefault(name, []).append(check)

    def together(tree: Tree, name: str) -> list[tuple[Check, bool, str]]:
        some = files[name]
        if len(some) > 1 and isinstance(some[0], Suite) and all(c.only for c in some):  # type: ignore[union-attr]
            whole = Suite(name, " or ".join(f"({c.only})" for c in some))  # type: ignore[union-attr]
            failed, told = tree.run(whole, SECONDS * len(some))
            if not failed:
                return [(check, False, told) for check in some]
        return [(check, *tried(tree, check)) for check in some]

    def tried(tree: Tree, check: Check) -> tuple[bool, str]:
        try:
            return tree.run(check)
        except NoTest as error:
            return True, str(error)

    for name, found in trees.each(together, files):
        for check, failed, told in found:
            outcome = BROKEN if failed else "passes"
            results.add(f"check: {check}", key_of_check(check), {"outcome": outcome, "told": told})
            if failed:
                print(f"{check}: does not pass on the tree as it is: {told}")
        print(f"{name}: {len(found)} checks tried on the tree as it is", flush=True)


def _passed(results: Results, check: Check) -> bool:
    found = results.get(f"check: {check}", key_of_check(check))
    return found is not None and found["outcome"] == "passes"


def _wanted(results: Results, mutant: Mutant) -> bool:
    """Survivors are tried again: what should see them may have changed elsewhere."""
    found = results.get(mutant.name, key_of(mutant))
    return found is None or found.get("check") not in map(str, mutant.checks)


def _tests(mutant: Mutant) -> tuple[Check, ...]:
    return tuple(check for check in mutant.checks if isinstance(check, Suite))


def summary(chosen: list[Mutant], results: Results) -> int:
    """Print a line per area, then what is wrong; the exit code."""
    counts: dict[str, Counter[str]] = {}
    wrong, used = [], set()
    for mutant in chosen:
        known = results.get(mutant.name, key_of(mutant)) or {"outcome": "not run"}
        outcome = EQUIVALENT if mutant.equivalent else known["outcome"]
        used.add(known.get("check"))
        counts.setdefault(mutant.area, Counter())[outcome] += 1
        if outcome not in (CAUGHT, EQUIVALENT):
            wrong.append(f"{outcome}: {mutant.name} ({mutant.module}): {mutant.breaks}")
    wrong += [
        f"{BROKEN}: {check} does not pass on the tree as it is"
        for check in dict.fromkeys(check for mutant in chosen for check in mutant.checks)
        if str(check) in used and not _passed(results, check)
    ]
    columns = (CAUGHT, SURVIVED, EQUIVALENT, "not run")
    print(f"\n{'':24}" + "".join(f"{column:>12}" for column in columns))
    total: Counter[str] = Counter()
    for area, found in sorted(counts.items()):
        total += found
        print(f"{area:24}" + "".join(f"{found[column]:>12}" for column in columns))
    print(f"{f'all {len(chosen)}':24}" + "".join(f"{total[column]:>12}" for column in columns))
    for sentence in wrong:
        print(sentence)
    return 1 if wrong else 0


def main() -> int:
    words = argparse.ArgumentParser(prog="mutants", description=__doc__.splitlines()[0])
    words.add_argument("--only", default="", help="names or modules with this text in them")
    words.add_argument("--list", action="store_true", help="print the table and run nothing")
    words.add_argument("--fresh", action="store_true", help="forget earlier results")
    words.add_argument("--tests-only", action="store_true", help="leave out random cases")
    words.add_argument("--jobs", type=int, default=2)
    words.add_argument("--json", type=Path, default=ROOT / "build" / "mutants.json")
    given = words.parse_args()
    chosen = [m for m in mutants() if given.only in m.name or given.only in m.module]
    if given.tests_only:
        chosen = [replace(m, checks=_tests(m)) for m in chosen]
    if given.list:
        for m in chosen:
            print(f"{m.area:16} {m.name:48} {m.breaks} [{'; '.join(map(str, m.checks))}]")
        return 0
    results = Results(given.json, given.fresh)
    try:
        run_all(chosen, results, given.jobs)
    except KeyboardInterrupt:
        print("interrupted: run it again to go on")
        return 130
    return summary(chosen, results)


if __name__ == "__main__":
    sys.exit(main())
