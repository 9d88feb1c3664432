"""A race of two versions of pullback on rows of the benchmark.

Each version is held by a process of its own (`version_worker`), pinned to the same cores. The
driver sends both the same arrays and asks them for samples in turns, so that only one of them works
at a time. Where arrays happen to lie can change the time of a kernel by a tenth, so both build the
row anew several times. A row's ratio is the median over all rounds of base seconds over new
seconds: above 1 the new version is faster. Its spread are the quartiles of the same ratios.
"""

from __future__ import annotations

import math
import os
import pickle
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, fields
from enum import Enum
from io import BytesIO
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import pullback
from pullback.bench import machine, version_worker
from pullback.bench.problem import Problem
from pullback.bench.race import Effort, calls_per_sample, summary, take_turns
from pullback.bench.workload import Draw, Row, families, rows_of
from pullback.ops.segment.index import SegmentIndex
from pullback.tensor.view import TensorRef

EFFORT = Effort(rounds=13, seconds=0.12, least=3, sample=1e-3)
# How often the arrays of a row are laid elsewhere; EFFORT is for each of them.
PLACES = 4
# A row under its floor is raced again in new processes; the middle one of this many races counts.
RACES = 3
BASE, NEW = "base", "new"


@dataclass(frozen=True)
class Version:
    """`src` is the folder to import pullback from."""

    name: str
    src: Path


def this_version() -> Version:
    return Version("this tree", Path(pullback.__file__).parents[1])


def checkout(commit: str, build: Path, repository: Path | None = None) -> Version:
    """The sources of a commit, unpacked in `build`, or those of a folder that has them."""
    folder = Path(commit)
    if (folder / "src" / "pullback").is_dir():
        return Version(commit, (folder / "src").resolve())
    git = ["git", "-C", str(repository or Path(pullback.__file__).parent)]
    try:
        root = _output([*git, "rev-parse", "--show-toplevel"]).decode().strip()
        name = _output([*git, "rev-parse", "--verify", f"{commit}^{{commit}}"]).decode().strip()
    except (OSError, subprocess.CalledProcessError):
        expected = "neither a commit here nor a folder with src/pullback"
        raise LookupError(f"{commit!r} is {expected}") from None
    target = build / name[:12]
    if not target.exists():
        archive = _output(["git", "-C", root, "archive", name, "src"])
        build.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=build) as part:
            with tarfile.open(fileobj=BytesIO(archive)) as packed:
                packed.extractall(part, filter="data")
            os.rename(Path(part) / "src", Path(part) / "whole")
            target.mkdir(exist_ok=True)
            os.rename(Path(part) / "whole", target / "src")
    return Version(name[:12], target / "src")


def _output(command: list[str]) -> bytes:
    return subprocess.run(command, capture_output=True, check=True).stdout


# --- rows as plain data ---------------------------------------------------------------------------


def rows(pattern: str) -> list[Row]:
    """The rows of the benchmark whose title has this regular expression in it."""
    wanted = re.compile(pattern, re.IGNORECASE)
    every = (row for family in families().values() for row in rows_of(family))
    return [row for row in every if wanted.search(row.title)]


def encoded(value: Any) -> Any:
    """A value as plain data that either version can build anew."""
    if isinstance(value, SegmentIndex):
        return {"public": "prepare_segments", "given": (np.array(value.ids), value.num_segments)}
    if isinstance(value, Enum):
        return {"public": f"{type(value).__name__}.{value.name}"}
    if isinstance(value, TensorRef):
        return value.array.reshape(value.shape)
    return value


def described(problem: Problem, way: str) -> dict[str, Any] | None:
    """What a worker needs to run a problem this way; None if the problem has no public plan. What
    has no size before it is known (a sparse gradient) takes no `out`."""
    name = problem.subject.name
    if way != "plan":
        way = "call" if way == "out" and not problem.planned else way
        arguments = {key: encoded(value) for key, value in problem.given.items()}
        return {"way": way, "function": {"public": name}, "arguments": arguments}
    if not problem.planned or not hasattr(pullback, f"{problem.call.plan.record.name}Plan"):
        return None
    descriptor = problem.call.descriptor
    tensors, outs = problem.plan_tensors()
    return {
        "way": way,
        "plan": problem.call.plan.record.name,
        "descriptor": {f.name: encoded(getattr(descriptor, f.name)) for f in fields(descriptor)},
        "arguments": {key: encoded(value) for key, value in tensors.items()},
        "outs": {key: (array.shape, array.dtype) for key, array in outs.items()},
    }


# --- processes ------------------------------------------------------------------------------------


class WorkerFailed(Exception):
    """A version could not do what it was asked."""


class Process:
    """One version, ready to be asked."""

    def __init__(self, version: Version, cores: Sequence[int]) -> None:
        self.version = version
        environment = {
            **os.environ,
            "PYTHONPATH": str(version.src),
            "PULLBACK_NUM_THREADS": str(len(cores)),
            "OMP_WAIT_POLICY": "PASSIVE",
        }
        pinned = ",".join(map(str, cores))
        self._child = subprocess.Popen(
            [sys.executable, "-P", version_worker.__file__, pinned],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def __enter__(self) -> Process:
        file = Path(self.ask(do="about")["file"])
        if self.version.src.resolve() not in file.resolve().parents:
            raise WorkerFailed(f"imported {file} instead of {self.version.src}")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with suppress(BrokenPipeError):  # if it died, that has been reported
            self._child.stdin.close()
        self._child.stdout.close()
        self._child.wait()

    def ask(self, **message: Any) -> dict[str, Any]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            pickle.dump(message, self._child.stdin, protocol=5)
            self._child.stdin.flush()
            answer: dict[str, Any] = pickle.load(self._child.stdout)
        except (EOFError, BrokenPipeError):
            code = self._child.wait()
            raise WorkerFailed(f"the process ended with {code}") from None
        if "error" in answer:
            raise WorkerFailed(answer["error"])
        return answer

    def sampler(self, clock: str) -> Callable[[int], float]:
        def sample(repeats: int) -> float:
            return float(self.ask(do="sample", repeats=repeats, clock=clock)["seconds"])

        return sample


# --- the race -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowRace:
    """Two versions on one row. `failed` says who could not run it and why; it has no times."""

    row: str
    ratio: float
    low: float
    high: float
    base: float
    new: float
    rounds: int
    same_bits: bool
    races: int = 1
    failed: str = ""
    new_failed: bool = False


def _no_race(row: str, who: str, error: WorkerFailed) -> RowRace:
    nan = math.nan
    failed = f"{who}: {error}"
    return RowRace(row, nan, nan, nan, nan, nan, 0, False, 0, failed, who == NEW)


def summarised(row: str, base: list[float], new: list[float], same_bits: bool) -> RowRace:
    """Ratios are of one round each, so that a load that comes and goes strikes both."""
    ratios = summary([b / n for b, n in zip(base, new, strict=True)])
    return RowRace(
        row, ratios.median, ratios.low, ratios.high, median(base), median(new),
        ratios.samples, same_bits,
    )  # fmt: skip


@dataclass(frozen=True)
class Track:
    """How rows are raced."""

    base: Version
    new: Version
    threads: int
    way: str = "out"
    clock: str = "wall"
    effort: Effort = EFFORT
    floor: float | None = None

    def run(self, chosen: Iterable[Row]) -> Iterator[RowRace]:
        """Race every row; rows that cannot be run this way are left out."""
        with ExitStack() as stack:
            pair = self._start(stack, swapped=False)
            for row in chosen:
                problem, _ = row.problems(Draw(row.element))
                description = described(problem, self.way)
                if description is None:
                    continue
                found = self._race(pair, row.title, description)
                if found.failed:  # perhaps a process died
                    stack.close()
                    pair = self._start(stack, swapped=False)
                elif self.floor is not None and found.ratio < self.floor:
                    found = self._again(found, description)
                yield found

    def _again(self, first: RowRace, description: dict[str, Any]) -> RowRace:
        found = [first]
        for count in range(1, RACES):
            with ExitStack() as stack:
                pair = self._start(stack, swapped=bool(count % 2))
                found.append(self._race(pair, first.row, description))
        if any(one.failed for one in found):
            return next(one for one in found if one.failed)
        middle = sorted(found, key=lambda one: one.ratio)[len(found) // 2]
        return RowRace(**{**asdict(middle), "races": len(found)})

    def _start(self, stack: ExitStack, swapped: bool) -> dict[str, Process]:
        cores = machine.cores()[: self.threads]
        versions = [(BASE, self.base), (NEW, self.new)]
        if swapped:
            versions.reverse()
        return {name: stack.enter_context(Process(version, cores)) for name, version in versions}

    def _race(self, pair: dict[str, Process], title: str, row: dict[str, Any]) -> RowRace:
        digests = {}
        for name, process in pair.items():
            try:
                answer = process.ask(do="row", row=row)
            except WorkerFailed as error:
                return _no_race(title, name, error)
            digests[name] = answer["digest"]
        samplers = {name: process.sampler(self.clock) for name, process in pair.items()}
        # One count for both, as they are timed against each other.
        count = calls_per_sample(samplers[NEW], self.effort.sample)
        times: dict[str, list[float]] = {BASE: [], NEW: []}
        for place in range(PLACES):
            for process in pair.values() if place else ():
                process.ask(do="renew")
            found = take_turns(samplers, dict.fromkeys(samplers, count), self.effort)
            rounds = min(map(len, found.values()))
            for name in times:
                times[name] += found[name][:rounds]
        for process in pair.values():
            process.ask(do="drop")
        return summarised(title, times[BASE], times[NEW], len({*digests.values()}) == 1)


@dataclass(frozen=True)
class Outcome:
    """What the rows say together."""

    rows: tuple[RowRace, ...]

    @property
    def timed(self) -> tuple[RowRace, ...]:
        return tuple(row for row in self.rows if not row.failed)

    @property
    def mean(self) -> float:
        """The geometric mean of the ratios."""
        logs = [math.log(row.ratio) for row in self.timed]
        return math.exp(sum(logs) / len(logs)) if logs else math.nan

    def worst(self, count: int = 10) -> list[RowRace]:
        return sorted(self.timed, key=lambda row: row.ratio)[:count]

    def broken(self, floor: float | None, mean_floor: float | None) -> list[str]:
        """Sentences on what fell below a floor, or could not be run by the new version."""
        found = [f"{row.row}: {row.failed}" for row in self.rows if row.new_failed]
        if floor is not None:
            found += [
                f"{row.row}: ratio {row.ratio:.3f} is below the floor {floor:g}"
                for row in self.worst(len(self.rows))
                if row.ratio < floor
            ]
        if mean_floor is not None and not self.mean >= mean_floor:
            found.append(f"geometric mean {self.mean:.3f} is below the floor {mean_floor:g}")
        return found
