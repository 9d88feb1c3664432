"""All of a run: children at work, crashes and hangs, failures made smaller, the report."""

from __future__ import annotations

import queue
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pullback.fuzz.coverage import Covered
from pullback.fuzz.generate import CHECKS, Source
from pullback.fuzz.process import Child
from pullback.fuzz.shrink import CRASH, HANG, Server, shrink
from pullback.fuzz.trial import Trial

TIMEOUT = 300.0  # seconds at one case: on an empty cache its kernels have to be compiled
MOST_FAILURES = 40  # of one run: more tell nothing new
SHRUNK = 8  # different failures that are made smaller,
SHRINKING = 40.0  # for so many seconds each
_FOREVER = 1 << 62

Watch = Callable[["Report", list[Child]], None]


@dataclass(slots=True)
class Failure:
    """A case that failed: of what, and what it was made into."""

    number: int
    check: str
    what: str
    function: str = ""
    script: str = ""
    trial: dict[str, Any] = field(default_factory=dict)
    alone: bool = True


@dataclass(slots=True)
class Report:
    """What a run came to."""

    seed: int
    cases: int = 0
    seconds: float = 0.0
    checks: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    restarts: int = 0
    covered: Covered = field(default_factory=Covered)

    @property
    def per_second(self) -> float:
        return self.cases / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "cases": self.cases,
            "seconds": round(self.seconds, 3),
            "cases per second": round(self.per_second, 2),
            "comparisons": dict(self.checks),
            "restarts": self.restarts,
            "failures": [
                {
                    "number": f.number,
                    "function": f.function,
                    "check": f.check,
                    "what": f.what,
                    "fails by itself": f.alone,
                    "script": f.script,
                    "trial": f.trial,
                }
                for f in self.failures
            ],
            "coverage": self.covered.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is run. `cases` None: as many as fit into the minutes."""

    minutes: float = 2.0
    cases: int | None = None
    first: int = 0
    jobs: int = 1
    coverage: bool = False
    timeout: float = TIMEOUT


def run(source: Source, settings: Settings, watch: Watch) -> Report:
    """Run cases; `watch` is shown the report now and then."""
    report = Report(source.seed)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pullback-fuzz-") as name:
        folder = Path(name)
        deadline = time.time() + 60 * settings.minutes
        tasks = [_task(source, settings, job, deadline) for job in range(settings.jobs)]
        children = [Child(task, folder) for task in tasks]
        try:
            while children and len(report.failures) < MOST_FAILURES:
                time.sleep(0.05)
                after = [_look_after(child, settings, report, folder) for child in children]
                children = [child for child in after if child is not None]
                report.seconds = time.monotonic() - begin
                watch(report, children)
        finally:
            for child in children:
                child.end()
        _explain(source, report, settings, folder)
    return report


def _task(source: Source, settings: Settings, job: int, deadline: float) -> dict[str, Any]:
    until = _FOREVER if settings.cases is None else settings.first + settings.cases
    return {
        "do": "run",
        **source.task(),
        "first": settings.first + job,
        "step": settings.jobs,
        "until": until,
        "deadline": deadline if settings.cases is None else float(_FOREVER),
        "coverage": settings.coverage,
    }


def _look_after(child: Child, settings: Settings, report: Report, folder: Path) -> Child | None:
    """Take what the child has to say; the one that goes on, a new one after a crash or a hang."""
    while True:
        try:
            line = child.lines.get_nowait()
        except queue.Empty:
            break
        if line is None:
            if child.process.wait() == 0:
                child.end()
                return None
            return _again(child, CRASH, child.died_of(), report, folder)
        if "number" in line:
            report.failures.append(Failure(line["number"], line["check"], line["what"]))
        else:
            report.cases += line["cases"]
            report.checks.update(line["checks"])
            report.covered.add(line["covered"])
    if child.silent > settings.timeout:
        return _again(child, HANG, f"no end after {settings.timeout:.0f} s", report, folder)
    return child


def _again(child: Child, check: str, what: str, report: Report, folder: Path) -> Child | None:
    number = child.number
    child.end()
    report.failures.append(Failure(number, check, what))
    report.restarts += 1
    task = {**child.task, "first": number + child.task["step"]}
    if task["first"] >= task["until"] or time.time() > task["deadline"]:
        return None
    return Child(task, folder)


def _explain(source: Source, report: Report, settings: Settings, folder: Path) -> None:
    """Make one failure of each kind smaller, and write it down. Cases are made in children only: to
    complete one takes a call."""
    seen: set[tuple[str, str]] = set()
    server = Server(folder, settings.timeout)
    task = source.task()
    report.failures.sort(key=lambda failure: failure.number)
    try:
        for failure in report.failures:
            told = server.failure({**task, "number": failure.number, "tell": failure.check}) or {}
            failure.function = told.get("function", "")
            kind = failure.function, failure.check
            if kind in seen or len(seen) >= SHRUNK or not failure.function:
                continue
            seen.add(kind)
            made: Any = told["choices"]
            best, failure.alone = shrink(task, made, failure.check, server, SHRINKING)
            told = server.failure({**task, "choices": best, "tell": failure.check}) or {}
            failure.trial, failure.script = told["trial"], told["script"]
            found = server.failure({"trial": failure.trial})
            failure.what = found["what"] if found else failure.what
    finally:
        server.close()


def replay(trial: Trial, timeout: float = TIMEOUT) -> dict[str, str] | None:
    """What a stored trial fails of, in a process of its own; None if it passes."""
    with tempfile.TemporaryDirectory(prefix="pullback-fuzz-") as name:
        server = Server(Path(name), timeout)
        try:
            return server.failure({"trial": trial.to_json()})
        finally:
            server.close()


def sources(seed: int, names: tuple[str, ...], frameworks: tuple[str, ...]) -> Source:
    """All comparisons but those with libraries that are not there."""
    absent = {"torch", "jax"} - set(frameworks)
    return Source(seed, names, tuple(name for name in CHECKS if name not in absent))
