"""The benchmark as a list of tasks, so that it can be chosen from, watched and interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial

from pullback.bench import accuracy, compete, growth, memory, overhead, peers
from pullback.bench.figures import read_all
from pullback.bench.race import FULL, RATIO, Effort
from pullback.bench.results import Entry, Results
from pullback.bench.workload import BOTH, Family, Row, families, rows_of
from pullback.contract.element import ElementKind
from pullback.verify.subject import subjects

SECTIONS = ("rows", "ratios", "growth", "scaling", "memory", "accuracy", "overhead")


@dataclass(frozen=True)
class Task:
    """One step; `run` gives what it found."""

    section: str
    title: str
    run: Callable[[], Iterable[Entry]]


@dataclass(frozen=True)
class Selection:
    """What to run: families (or "overhead"), sections, rows by pattern, columns. Columns that were
    `named` stand in every row, also those that are slow to begin."""

    families: tuple[str, ...]
    libraries: tuple[str, ...]
    threads: int
    sections: tuple[str, ...] = SECTIONS
    pattern: str = "*"
    effort: Effort = FULL
    quick: bool = False
    named: bool = False

    def columns(self, main: bool = False) -> tuple[str, ...]:
        """Who competes in a row."""
        return self.libraries if main or self.named else peers.quick(self.libraries)

    def wants(self, section: str, title: str) -> bool:
        return section in self.sections and fnmatchcase(title, self.pattern)


def _one(job: Callable[[], Entry]) -> Callable[[], list[Entry]]:
    return lambda: [job()]


def _directions(op: str) -> tuple[str, ...]:
    return tuple(way for way in BOTH if way == "forward" or f"{op}_backward" in subjects())


def _rows(family: Family, chosen: Selection) -> Iterator[Task]:
    for row in rows_of(family):
        if chosen.quick and row.element is not ElementKind.F32:
            continue
        columns = chosen.columns(row.main and not chosen.quick)
        job = partial(compete.measure, row, columns, chosen.effort, chosen.threads)
        yield Task("rows", row.title, _one(job))


def _ratios(family: Family, chosen: Selection) -> Iterator[Task]:
    for figure in family.figures:
        if figure.pair is None or (chosen.quick and any(at.dtype != "f32" for at in figure.pair)):
            continue
        over, under = figure.pair
        effort = chosen.effort if chosen.quick else RATIO
        job = partial(compete.in_turns, family.name, figure.text, over, under, effort)
        yield Task("ratios", f"{over.title} beside {under.title}", _one(job))


def _growth(family: Family, chosen: Selection) -> Iterator[Task]:
    base = growth.BASE // (8 if chosen.quick else 1)
    for op in family.ops:
        for way in _directions(op) if op in subjects() else ():
            job = partial(growth.growth, family, op, way, base)
            yield Task("growth", f"{op} {way} growth", job)


def _scaling(family: Family, chosen: Selection) -> Iterator[Task]:
    for row in rows_of(family):
        main = row.workload is family.workloads[0] or "scaling" in row.workload.tags
        if main and row.element is ElementKind.F32:
            job = partial(growth.scaling, row, chosen.threads)
            yield Task("scaling", f"{row.title} threads", _one(job))


def _memory(family: Family, chosen: Selection) -> Iterator[Task]:
    for op in family.ops:
        if f"{op}_backward" in subjects():
            job = partial(memory.peaks, family, op, chosen.libraries)
            yield Task("memory", f"{op} memory", _one(job))


def _accuracy(family: Family, chosen: Selection) -> Iterator[Task]:
    for workload in family.natures:
        for op in (op for op in workload.ops if op in subjects()):
            for way in _directions(op):
                for element in workload.elements:
                    row = Row(family.name, workload, op, way, element)
                    job = partial(accuracy.measure, row, chosen.columns(), chosen.threads)
                    title = f"{row.title} accuracy"
                    yield Task("accuracy", title, _one(job))


def _overhead(chosen: Selection) -> Iterator[Task]:
    yield Task("overhead", "calls on 4x8", overhead.calls)
    yield Task("overhead", "import and first call", overhead.starts)
    for framework in ("torch", "jax"):
        if framework in chosen.libraries:
            yield Task("overhead", f"{framework} calls on 4x8", overhead.CALLS[framework])
    if "torch" in chosen.libraries:
        yield Task(
            "overhead", "cumsum on a tensor", lambda: [overhead.through_torch(chosen.effort)]
        )
    for framework, rival, op, _ in overhead.steps():
        if op in subjects() and {framework, rival} <= set(chosen.libraries):
            job = partial(overhead.step, framework, rival, op, chosen.effort, chosen.threads)
            title = f"{op} {framework} step"
            yield Task("overhead", title, _one(job))


_MAKERS = (_rows, _ratios, _scaling, _growth, _accuracy, _memory)


def tasks(chosen: Selection) -> list[Task]:
    found: list[Task] = []
    for name in chosen.families:
        if name in families():
            found += [task for make in _MAKERS for task in make(families()[name], chosen)]
    if overhead.NAME in chosen.families:
        found += _overhead(chosen)
    return [task for task in found if chosen.wants(task.section, task.title)]


def conclude(results: Results, chosen: Selection) -> None:
    """Read the figures off what was measured; of a part of the rows, those that can be read."""
    results.figures.clear()
    for name in chosen.families:
        if name in families():
            results.figures += read_all(name, families()[name].figures, results)
    if overhead.NAME in chosen.families:
        figures = (*overhead.FIGURES, *overhead.step_figures())
        results.figures += read_all(overhead.NAME, figures, results)
    if chosen.pattern != "*" or set(chosen.sections) < set(SECTIONS):
        results.figures = [figure for figure in results.figures if figure.met is not None]
