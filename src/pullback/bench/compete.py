"""One row of the benchmark: enter the contestants, check their results, time the right ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from pullback.bench import peers
from pullback.bench.figures import At
from pullback.bench.machine import Bystanders
from pullback.bench.peers import Contest, Contestant
from pullback.bench.problem import Array, Problem, Take, is_float
from pullback.bench.race import Effort, copy_of, race
from pullback.bench.results import COPY, INTO, OURS, Ratio, RowResult
from pullback.bench.workload import Draw, Row, families, rows_of
from pullback.contract.element import ElementKind
from pullback.contract.errors import PullbackError
from pullback.verify.laws import same_bits as same

# A contestant may lose half its digits and still be called right.
_SHARE_OFF = 1e-5
_SHORT = 4  # elements of a row that may all be sums that cancel
# Seconds of a first call from which on every further one counts.
_SLOW = 2.0


def verdict(got: tuple[Any, ...], want: tuple[Any, ...], element: ElementKind) -> str:
    """Empty if the results agree, else one phrase on how they do not."""
    tolerance = element.row.epsilon**0.5
    for mine, true in zip(got, want, strict=False):
        if not is_float(mine) and not np.issubdtype(np.asarray(true).dtype, np.floating):
            continue  # indices: other tie rules are checked by the gradients that follow from them
        if mine.shape != true.shape or mine.dtype != element.dtype:
            return f"wrong: gives {mine.dtype}{list(mine.shape)}"
        value, goal = (np.asarray(a).astype(np.longdouble) for a in (mine, true))
        wrong = np.isnan(value) & ~np.isnan(goal)
        if wrong.any():
            return f"wrong: NaN{_where(goal, wrong)}"
        if (np.isnan(goal) & ~np.isnan(value)).any():
            return "wrong: misses a NaN"
        with np.errstate(all="ignore"):
            size = np.maximum(np.abs(goal), _size(goal))
            off = (value != goal) & ~(np.abs(value - goal) <= tolerance * size)
        off &= ~np.isnan(goal)
        share = float(off.mean()) if off.size else 0.0
        if share > _SHARE_OFF:
            return (
                f"wrong: {share:.0%} of the elements" if share >= 0.01 else "wrong: some elements"
            )
    return ""


def _size(goal: Array) -> Any:
    """The largest finite value of each row, or of all where rows are short: cancellation loses
    digits of the terms, not of it."""
    finite = np.where(np.isfinite(goal), np.abs(goal), 0)
    if finite.ndim and finite.shape[-1] < _SHORT:
        return finite.max(initial=0)
    return finite.max(axis=-1, keepdims=True, initial=0) if finite.ndim else finite


def _where(goal: Array, wrong: Array) -> str:
    share = float(wrong.mean())
    at_zero = bool((goal[wrong] == 0).all())
    return " at zeros" if at_zero and share < 1 else f" in {share:.1%}" if share < 1 else ""


class Judge:
    """Checks results of a row: against the oracle on a part, or against ours where no part stands
    alone (ours is held to the oracle by the accuracy table and the laws)."""

    def __init__(self, problem: Problem, take: Take | None) -> None:
        self._take: Callable[[Any], Any] = take or (lambda array: array)
        if take is None:
            self.part, self.truth = problem, problem.answer()
        else:
            self.part = problem.part(take)
            self.truth = self.part.subject.truth(self.part.arguments)
        self.exact = take is not None

    def cut(self, results: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(self._take(r) if is_float(r) else r for r in results)

    def verdict(self, results: tuple[Any, ...]) -> str:
        return verdict(self.cut(results), self.truth, self.part.element)

    def ulp(self, results: tuple[Any, ...]) -> float | None:
        if not self.exact:
            return None
        errors = self.part.errors(self.cut(results))
        return max((float(np.max(error, initial=0.0)) for error in errors), default=0.0)


def own_contestants(problem: Problem) -> list[Contestant]:
    """pullback twice: the function that allocates, and its plan into given outputs."""

    def fetch(value: Any) -> tuple[Array, ...]:
        return value if isinstance(value, tuple) else (value,)

    allocating = Contestant(OURS, problem.allocating, fetch)
    if not problem.planned:
        return [allocating]
    into, outs = problem.into_outputs()
    return [allocating, Contestant(INTO, into, lambda _: tuple(outs))]


def keeps_bits(problem: Problem, threads: int) -> bool:
    """Whether one thread and all of them give the same bits."""
    (one, ones), (every, all_) = problem.into_outputs(1), problem.into_outputs(threads)
    one()
    every()
    return all(same(a, b) for a, b in zip(ones, all_, strict=True))


def measure(row: Row, libraries: tuple[str, ...], effort: Effort, threads: int) -> RowResult:
    """Run one row. A contestant that fails or is wrong is named with its reason and not timed."""
    draw = Draw(row.element)
    problem, forward = row.problems(draw)
    judge = Judge(problem, row.workload.take)
    contest = Contest(problem, forward, row.workload.wrt if row.direction == "backward" else ())
    runs: dict[str, Callable[[], Any]] = {}
    verdicts: dict[str, str] = {}
    slow: list[str] = []
    ulp: float | None = None
    for name, make in _entries(row, contest, libraries, threads).items():
        try:
            contestant = make()
            if contestant is None:
                continue
            began = time.perf_counter()
            results = contestant.fetch(contestant.run())
            if time.perf_counter() - began > _SLOW:
                slow.append(name)
            said = judge.verdict(results)
            if name == OURS:
                ulp = judge.ulp(results)
        except Exception as error:  # a peer may fail in any way it likes: it just does not compete
            said = f"failed: {_brief(error)}"
        if said:
            verdicts[name] = said
        else:
            runs[name] = contestant.run  # type: ignore[union-attr]
    same_bits = INTO not in runs or keeps_bits(problem, threads)
    runs[COPY] = copy_of(problem.nbytes, threads)
    bystanders = Bystanders()
    timings = race(runs, effort, slow)
    return RowResult(
        row.family, row.op, row.direction, row.workload.name, row.element.value,
        problem.nbytes, problem.elements, ulp, same_bits, bystanders.share(), timings, verdicts,
        tuple(sorted(row.workload.tags)),
    )  # fmt: skip


def in_turns(family: str, text: str, over: At, under: At, effort: Effort) -> Ratio:
    """Two rows of ours, each alone with its problem, in one race."""
    runs = {at.title: _own_run(family, at) for at in (over, under)}
    took = race(runs, effort)
    return Ratio(family, text, took[over.title].median, took[under.title].median)


def _own_run(family: str, at: At) -> Callable[[], Any]:
    key = (at.op, at.direction, at.workload, at.dtype)
    row = next(row for row in rows_of(families()[family]) if row.key == key)
    problem, _ = row.problems(Draw(row.element))
    run = next(own.run for own in own_contestants(problem) if own.name == at.who)
    run()
    return run


def _itself(contestant: Contestant) -> Contestant:
    return contestant


def _entries(
    row: Row, contest: Contest, libraries: tuple[str, ...], threads: int
) -> dict[str, Callable[[], Contestant | None]]:
    entries: dict[str, Callable[[], Contestant | None]] = {
        own.name: partial(_itself, own) for own in own_contestants(contest.problem)
    }
    tables = families()[row.family].peers

    def entry(name: str) -> Callable[[], Contestant | None]:
        library = peers.LIBRARIES[name]
        return lambda: peers.enter(name, tables.table(library.table), row.op, contest, threads)

    invited = row.workload.peers
    entries.update({n: entry(n) for n in libraries if invited is None or n in invited})
    return entries


def _brief(error: Exception) -> str:
    text = str(error).strip().splitlines()
    first = text[0] if text else type(error).__name__
    return first if isinstance(error, PullbackError) else f"{type(error).__name__}: {first[:80]}"
