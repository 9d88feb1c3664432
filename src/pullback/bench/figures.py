"""The figures to reach: one line each, with the way it is read off the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import isnan
from typing import NamedTuple

from pullback.bench.results import INTO, OURS, FigureResult, Results, RowResult


class Reading(NamedTuple):
    """A value, and for the worst of many the row it was found in."""

    value: float
    where: str = ""


Measure = Callable[[Results], Reading | None]


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


@dataclass(frozen=True)
class Figure:
    """`measure` gives None where the rows it needs were not run. A `pair` of rows is timed in turns
    for the figure alone: minutes apart, the machine would show in their ratio."""

    text: str
    measure: Measure
    sense: str
    bound: float
    unit: str = "x"
    pair: tuple[At, At] | None = None

    def read(self, family: str, results: Results) -> FigureResult:
        found = self.measure(results)
        value, where = found if found is not None and not isnan(found.value) else (None, "")
        return FigureResult(family, self.text, self.sense, self.bound, value, self.unit, where)


def read_all(family: str, figures: Iterable[Figure], results: Results) -> list[FigureResult]:
    return [figure.read(family, results) for figure in figures]


# --- ways to read ---------------------------------------------------------------------------------


def of_copy(at_least: float, at: At) -> Figure:
    """Into given outputs, as a fraction of a copy."""

    def measure(results: Results) -> Reading | None:
        row = at.row(results)
        return Reading(row.of_copy) if row else None

    return Figure(f"{at.title}, into given outputs", measure, ">=", at_least, "of copy")


def ahead(at_least: float, at: At, *peers: str) -> Figure:
    """Against the best of some peers, each under its own rule of allocation."""

    def measure(results: Results) -> Reading | None:
        row = at.row(results)
        found = [row.speedup(peer) for peer in peers if peer in row.timings] if row else []
        return Reading(min(found)) if found else None

    return Figure(f"{at.title} against {' and '.join(peers)}", measure, ">=", at_least)


def faster(at_least: float, text: str, slow: At, fast: At) -> Figure:
    """One time over another."""
    return _compared(text, ">=", at_least, slow, fast)


def no_slower(at_most: float, text: str, this: At, than: At) -> Figure:
    return _compared(text, "<=", at_most, this, than)


def _compared(text: str, sense: str, bound: float, over: At, under: At) -> Figure:
    if {over.who, under.who} <= {OURS, INTO}:
        return Figure(text, _in_turns(text), sense, bound, pair=(over, under))
    return Figure(text, lambda results: _across_rows(over, under, results), sense, bound)


def _in_turns(text: str) -> Measure:
    def measure(results: Results) -> Reading | None:
        found = (Reading(e.over / e.under) for e in results.ratios if e.text == text)
        return next(found, None)

    return measure


def _across_rows(a: At, b: At, results: Results) -> Reading | None:
    over, under = a.time(results), b.time(results)
    return None if over is None or under is None else Reading(over / under)


def halves(at_most: float, op: str, way: str, kind: str, size: str = At.workload) -> Figure:
    """Half the bytes, into given outputs: time over f32."""
    at = At(op, way, size)
    text = f"{op} {way} {kind}: time over f32"
    return no_slower(at_most, text, into(replace(at, dtype=kind)), into(at))


def owed(family: str) -> tuple[Figure, ...]:
    """What is asked of every family that has peers."""
    return never_behind(family, "small"), never_behind(family), as_exact(family)


def into(at: At) -> At:
    return replace(at, who=INTO)


def never_behind(family: str, tag: str = "") -> Figure:
    """The worst speed-up over any peer in any row of a family (with a tag, if one is given)."""

    def measure(results: Results) -> Reading | None:
        peers = set(results.peers())
        return min(
            (
                Reading(row.speedup(peer), f"{row.title}, {peer}")
                for row in results.rows
                if row.family == family and (not tag or tag in row.tags)
                for peer in row.timings
                if peer in peers and not isnan(row.speedup(peer))
            ),
            default=None,
        )

    where = f"{tag} sizes" if tag else "all rows"
    return Figure(f"slowest against any peer, {where}", measure, ">=", 1.0)


_RIVALS = ("torch", "jax", "entmax")


def as_exact(family: str) -> Figure:
    """Worst error in ulp over a framework's on the same inputs: the worst op, dtype and input.

    Half an ulp is correct rounding, and there is nothing below it to compare."""

    def measure(results: Results) -> Reading | None:
        return max(
            (
                Reading(
                    _ulps(entry.errors[OURS]) / _ulps(entry.errors[peer]), f"{entry.title}, {peer}"
                )
                for entry in results.accuracy
                if entry.family == family and OURS in entry.errors
                for peer in _RIVALS
                if peer in entry.errors
            ),
            default=None,
        )

    return Figure("worst error over a framework's, any op, dtype and input", measure, "<=", 1.0)


def _ulps(error: tuple[float, float]) -> float:
    return max(round(error[0], 3), 0.5)


def on_two_threads(at_least: float, op: str, direction: str, workload: str) -> Figure:
    def measure(results: Results) -> Reading | None:
        for entry in results.scaling:
            if (entry.op, entry.direction, entry.workload) == (op, direction, workload):
                return Reading(entry.one / entry.all)
        return None

    return Figure(f"{op} {direction} {workload}: all threads against one", measure, ">=", at_least)


def peak(at_most: float, op: str, peer: str) -> Figure:
    def measure(results: Results) -> Reading | None:
        for entry in results.memory:
            if entry.op == op and {OURS, peer} <= entry.peaks.keys():
                return Reading(entry.peaks[OURS] / max(entry.peaks[peer], 1))
        return None

    return Figure(f"{op}: peak memory of a step over {peer}'s", measure, "<=", at_most)


def bounded(what: str, at_most: float) -> Figure:
    """A small cost, in microseconds."""

    def measure(results: Results) -> Reading | None:
        found = (entry.seconds * 1e6 for entry in results.overhead if entry.what == what)
        return next((Reading(value) for value in found), None)

    return Figure(what, measure, "<=", at_most * 1e6, "µs")
