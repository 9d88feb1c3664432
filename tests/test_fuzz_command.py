"""`pullback fuzz`: what its options mean, what it prints and writes, and what it exits with."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")

from pullback.cli import app, screen
from pullback.cli.fuzz import DEFAULT_SEED
from pullback.fuzz import run as running
from pullback.fuzz.generate import Source
from pullback.fuzz.run import Failure, Report, Settings
from pullback.verify.subject import subjects

Run = Callable[..., int]


@pytest.fixture
def fuzz(monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["pullback", "fuzz", *words])
        return app.run()

    return call


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Source, Settings]]:
    """What a run was asked for; none is made."""
    found: list[tuple[Source, Settings]] = []

    def run(source: Source, settings: Settings, watch: Any) -> Report:
        found.append((source, settings))
        return Report(source.seed, cases=3, seconds=1.5)

    monkeypatch.setattr(running, "run", run)
    return found


def test_two_minutes_of_all_functions_with_one_seed(
    fuzz: Run, asked: list[tuple[Source, Settings]]
) -> None:
    assert fuzz() == 0
    ((source, settings),) = asked
    assert source.names == tuple(sorted(subjects()))
    assert (source.seed, settings) == (DEFAULT_SEED, Settings(minutes=2.0))


def test_options_are_those_of_the_run(fuzz: Run, asked: list[tuple[Source, Settings]]) -> None:
    words = "--minutes 7.5 --seed 9 --op lerp --op cumsum --skip lerp_backward --jobs 2 --first 40"
    assert fuzz(*words.split(), "--cases", "60", "--coverage") == 0
    ((source, settings),) = asked
    assert (source.seed, source.names) == (9, ("cumsum", "lerp"))
    assert settings == Settings(7.5, 60, 40, 2, True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--op nothing", "no op or family is called 'nothing'"),
        ("--skip cumsun", "did you mean cumsum"),
        ("--op lerp --skip lerp --skip lerp_backward", "nothing is left to fuzz"),
        ("--op lerp --json tests", "tests is not a file that can be written"),
        ("--cases 0", "--cases"),
        ("--minutes -1", "--minutes"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: str,
    sentence: str,
    fuzz: Run,
    asked: list[tuple[Source, Settings]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])
    assert fuzz(*words.split()) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert asked == []


def test_cases_are_run_counted_and_written(
    fuzz: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    words = "--op lerp --cases 20 --seed 3 --coverage"
    assert fuzz(*words.split(), "--json", str(path)) == 0
    said = capsys.readouterr().out
    assert re.search(
        r"20 cases in \d+ s \([\d.]+/s\), seed 3: 0 failed, 0 restarts\. .*oracle", said
    )
    found = json.loads(path.read_text())
    assert (found["seed"], found["cases"], found["failures"]) == (3, 20, [])
    assert found["cases per second"] > 0
    assert found["comparisons"]["oracle"] > 10
    kernels = {kernel for kernel, element, hits in found["coverage"]["kernels"] if hits}
    assert {kernel.partition(".cpu")[0] for kernel in kernels} == {"ops.lerp"}
    # Printed are all kernels, those without a launch too.
    rows = dict(re.findall(r"│ ((?:ops|cpu|named)\.\S+) +│(.*)│", said))
    assert {name for name, hits in rows.items() if re.search(r"\d", hits)} == kernels
    assert len(rows) > 100


def test_a_failure_is_printed_with_its_script(
    fuzz: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    failure = Failure(17, "layout", "other bits\nat 3", "cumsum", "print('again')", {"seed": 1})

    def run(source: Source, settings: Settings, watch: Any) -> Report:
        return Report(source.seed, 20, 2.0, failures=[failure])

    monkeypatch.setattr(running, "run", run)
    path = tmp_path / "report.json"
    assert fuzz("--seed", "5", "--json", str(path)) == 1
    said = capsys.readouterr().out
    assert "case 5:17 cumsum layout: other bits" in said
    assert "at 3\nprint('again')\n" in said
    assert "20 cases in 2 s (10.0/s), seed 5: 1 failed" in said
    (stored,) = json.loads(path.read_text())["failures"]
    assert (stored["number"], stored["check"], stored["trial"]) == (17, "layout", {"seed": 1})


class Bar:
    """What a progress bar is told."""

    def __init__(self) -> None:
        self.total, self.told = 0, list[tuple[int, str]]()

    def add_task(self, name: str, total: int) -> int:
        self.total = total
        return 0

    def update(self, task: int, completed: int, description: str) -> None:
        self.told.append((completed, description))


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize(
    ("words", "total", "done"), [("--cases 900", 900, 300), ("--minutes 2", 120, 60)]
)
def test_the_bar_counts_and_an_interrupt_keeps_what_was_found(
    words: str,
    total: int,
    done: int,
    failed: bool,
    fuzz: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bar, failures = Bar(), [Failure(1, "oracle", "9 ulp", "cumsum")] if failed else []

    def run(source: Source, settings: Settings, watch: Any) -> Report:
        watch(Report(source.seed, 300, 60.0, failures=failures), [])
        raise KeyboardInterrupt

    @contextmanager
    def progress() -> Iterator[Bar]:
        yield bar

    monkeypatch.setattr(running, "run", run)
    monkeypatch.setattr(screen, "progress", progress)
    assert fuzz(*words.split()) == (1 if failed else 130)
    assert (bar.total, bar.told) == (total, [(done, f"300 cases, 5/s, {int(failed)} failed")])
    said = capsys.readouterr()
    assert "interrupted" in said.err
    assert f"300 cases in 60 s (5.0/s), seed {DEFAULT_SEED}: {int(failed)} failed" in said.out
