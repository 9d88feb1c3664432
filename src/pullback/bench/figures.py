"""The figures to reach: one line each, with the way it is read off the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isnan

from pullback.bench.results import INTO, OURS, FigureResult, Results, RowResult

Measure = Callable[[Results], float | None]


@dataclass(frozen=True)
class Figure:
    """`measure` gives None where the rows it needs were not run."""

    text: str
    measure: Measure
    sense: str
    bound: float
    unit: str = "x"

    def read(self, family: str, results: Results) -> FigureResult:
        value = self.measure(results)
        missing = value is None or isnan(value)
        measured = None if missing else value
        return FigureResult(family, self.text, self.sense, self.bound, measured, self.unit)


def read_all(family: str, figures: Iterable[Figure], results: Results) -> list[FigureResult]:
    return [figure.read(family, results) for figure in figures]


# --- ways to read ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class At:
    """Where in the table: a row, and one of its contestants."""

    op: str
    direction: str = "forward"
    workload: str = "4096x4096"
    dtype: str = "f32"
    who: str = OURS

    def row(self, results: Results) -> RowResult | None:
        return results.row(self.op, self.direction, self.workload, self.dtype)

    def time(self, results: Results) -> float | None:
        row = self.row(results)
        return row.time(self.who) if row else None

    @property
    def title(self) -> str:
        kind = "" if self.dtype == "f32" else f" {self.dtype}"
        return f"{self.op} {self.direction} {self.workload}{kind}"


def of_copy(at_least: float, at: At) -> Figure:
    """Into given outputs, as a fraction of a copy."""

    def measure(results: Results) -> float | None:
        row = at.row(results)
        return row.of_copy if row else None

    return Figure(f"{at.title}, into given outputs", measure, ">=", at_least, "of copy")


def ahead(at_least: float, at: At, *peers: str) -> Figure:
    """Against the best of some peers, each under its own rule of allocation."""

    def measure(results: Results) -> float | None:
        row = at.row(results)
        found = [row.speedup(peer) for peer in peers if peer in row.timings] if row else []
        return min(found, default=None)

    return Figure(f"{at.title} against {' and '.join(peers)}", measure, ">=", at_least)


def faster(at_least: float, text: str, slow: At, fast: At) -> Figure:
    """One time over another."""
    return Figure(
        text, lambda results: _ratio(slow.time(results), fast.time(results)), ">=", at_least
    )


def no_slower(at_most: float, text: str, this: At, than: At) -> Figure:
    return Figure(
        text, lambda results: _ratio(this.time(results), than.time(results)), "<=", at_most
    )


def into(at: At) -> At:
    return At(at.op, at.direction, at.workload, at.dtype, INTO)


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a / b


def never_behind(family: str, tag: str = "") -> Figure:
    """The worst speed-up over any peer in any row of a family (with a tag, if one is given)."""

    def measure(results: Results) -> float | None:
        return min(
            (
                row.speedup(peer)
                for row in results.rows
                if row.family == family and (not tag or tag in row.tags)
                for peer in row.timings
                if peer in results.peers()
            ),
            default=None,
        )

    where = f"{tag} sizes" if tag else "all rows"
    return Figure(f"slowest against any peer, {where}", measure, ">=", 1.0)


def as_exact(family: str) -> Figure:
    """Worst error in ulp over the best peer's, on the same inputs: the worst op and dtype.

    Below one ulp there is nothing left to compare: every result is one of two neighbours."""

    def measure(results: Results) -> float | None:
        ratios = [
            max(entry.errors[OURS][0], 1.0) / max(rival, 1.0)
            for entry in results.accuracy
            if entry.family == family and OURS in entry.errors
            for peer, (rival, _) in entry.errors.items()
            if peer != OURS
        ]
        return max(ratios, default=None)

    return Figure("worst error over the best peer's, any op, dtype and input", measure, "<=", 1.0)


def on_two_threads(at_least: float, op: str, direction: str, workload: str) -> Figure:
    def measure(results: Results) -> float | None:
        for entry in results.scaling:
            if (entry.op, entry.direction, entry.workload) == (op, direction, workload):
                return entry.one / entry.all
        return None

    return Figure(f"{op} {direction} {workload}: all threads against one", measure, ">=", at_least)


def peak(at_most: float, op: str, peer: str) -> Figure:
    def measure(results: Results) -> float | None:
        for entry in results.memory:
            if entry.op == op and {OURS, peer} <= entry.peaks.keys():
                return entry.peaks[OURS] / max(entry.peaks[peer], 1)
        return None

    return Figure(f"{op}: peak memory of a step over {peer}'s", measure, "<=", at_most)


def bounded(what: str, at_most: float) -> Figure:
    """A small cost, in microseconds."""

    def measure(results: Results) -> float | None:
        return next((e.seconds * 1e6 for e in results.overhead if e.what == what), None)

    return Figure(what, measure, "<=", at_most * 1e6, "µs")
