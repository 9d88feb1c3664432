"""What a run of the benchmark leaves behind: typed entries, and their file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, field, fields
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any

from pullback.bench.race import Timing

FORMAT = 2
READABLE = (1, 2)
OURS, INTO, COPY = "pullback", "pullback out", "copy"


@dataclass(frozen=True)
class RowResult:
    """A line of the benchmark: who took how long, and who was not timed because of what."""

    family: str
    op: str
    direction: str
    workload: str
    dtype: str
    nbytes: int
    elements: int
    ulp: float | None
    same_bits: bool
    others: float
    timings: dict[str, Timing]
    verdicts: dict[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.op, self.direction, self.workload, self.dtype

    @property
    def title(self) -> str:
        return " ".join(self.key)

    def time(self, name: str) -> float:
        timing = self.timings.get(name)
        return timing.median if timing else nan

    @property
    def of_copy(self) -> float:
        """Speed into given outputs as a fraction of a copy of as many bytes."""
        return self.time(COPY) / self.time(INTO)

    @property
    def gbps(self) -> float:
        return self.nbytes / self.time(INTO) / 1e9

    def speedup(self, peer: str) -> float:
        """How many times faster than a peer, under that peer's own rule of allocation."""
        return self.time(peer) / self.time(INTO if peer.endswith(" out") else OURS)


@dataclass(frozen=True)
class Growth:
    """Nanoseconds per element while one extent grows."""

    family: str
    op: str
    direction: str
    along: str
    extents: tuple[int, ...]
    costs: tuple[float, ...]


@dataclass(frozen=True)
class Scaling:
    """Seconds on one thread and on all of them, and whether the bits were the same."""

    family: str
    op: str
    direction: str
    workload: str
    one: float
    all: float
    threads: int
    same_bits: bool


@dataclass(frozen=True)
class Ratio:
    """Two rows of ours, timed in turns: seconds of one call each. The text is that of a figure."""

    family: str
    text: str
    over: float
    under: float


@dataclass(frozen=True)
class Memory:
    """Peak bytes of a forward and a backward beyond the inputs, or why there are none."""

    family: str
    op: str
    workload: str
    peaks: dict[str, int]
    verdicts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Accuracy:
    """Worst and mean error in ulp on the same inputs; a sentence instead where it is wrong."""

    family: str
    op: str
    direction: str
    nature: str
    dtype: str
    errors: dict[str, tuple[float, float]]
    verdicts: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.op} {self.direction} {self.nature} {self.dtype}"


@dataclass(frozen=True)
class Overhead:
    """A small cost that every user pays, and what it may be."""

    what: str
    seconds: float
    at_most: float | None = None


@dataclass(frozen=True)
class FigureResult:
    """A target and what was measured; of the worst of many, where."""

    family: str
    text: str
    sense: str
    bound: float
    measured: float | None
    unit: str = "x"
    where: str = ""

    @property
    def met(self) -> bool | None:
        if self.measured is None or not isfinite(self.measured):
            return None
        above = self.measured >= self.bound
        return above if self.sense == ">=" else self.measured <= self.bound


Entry = RowResult | Growth | Scaling | Ratio | Memory | Accuracy | Overhead | FigureResult

SECTIONS: dict[str, type[Any]] = {
    "rows": RowResult,
    "growth": Growth,
    "scaling": Scaling,
    "ratios": Ratio,
    "memory": Memory,
    "accuracy": Accuracy,
    "overhead": Overhead,
    "figures": FigureResult,
}


@dataclass
class Results:
    """All entries of a run, by section."""

    machine: dict[str, Any]
    rows: list[RowResult] = field(default_factory=list)
    growth: list[Growth] = field(default_factory=list)
    scaling: list[Scaling] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    accuracy: list[Accuracy] = field(default_factory=list)
    overhead: list[Overhead] = field(default_factory=list)
    figures: list[FigureResult] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        section = next(name for name, kind in SECTIONS.items() if type(entry) is kind)
        getattr(self, section).append(entry)

    def row(self, op: str, direction: str, workload: str, dtype: str = "f32") -> RowResult | None:
        key = (op, direction, workload, dtype)
        return next((row for row in self.rows if row.key == key), None)

    def peers(self) -> list[str]:
        """Every contestant but ourselves, in the order they first appear."""
        seen = dict.fromkeys(name for row in self.rows for name in (*row.timings, *row.verdicts))
        return [name for name in seen if name not in (OURS, INTO, COPY)]

    # --- to and from files ------------------------------------------------------------------------

    def as_json(self) -> str:
        """Numbers of four digits, an entry to a line: small, and differences can be read."""
        parts = [f'"format": {FORMAT}', f'"machine": {_line(self.machine)}']
        for name in SECTIONS:
            entries = ",\n".join(_line(_brief(e)) for e in getattr(self, name))
            parts.append(f'"{name}": [\n{entries}\n]' if entries else f'"{name}": []')
        return "{\n" + ",\n".join(parts) + "\n}\n"

    @staticmethod
    def from_json(text: str) -> Results:
        body = json.loads(text)
        if not isinstance(body, dict) or body.get("format") not in READABLE:
            raise ValueError(f"not a result file of format {FORMAT}")
        results = Results(body["machine"])
        for name, kind in SECTIONS.items():
            getattr(results, name).extend(_decoded(kind, entry) for entry in body.get(name, ()))
        return results

    @staticmethod
    def load(path: Path) -> Results:
        return Results.from_json(path.read_text())


DIGITS = 4  # more than any two runs agree in


def _line(value: Any) -> str:
    return json.dumps(_encoded(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _brief(entry: Entry) -> dict[str, Any]:
    """Its fields, but for empty ones that may be left out."""
    needed = {f.name for f in fields(entry) if f.default is f.default_factory is MISSING}
    known = asdict(entry).items()
    return {name: value for name, value in known if name in needed or value not in ({}, (), "")}


def _encoded(value: Any) -> Any:
    """JSON has no infinity and no NaN: they are written as strings. A timing is a list."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if isfinite(value) else str(value)
    if isinstance(value, dict):
        if value.keys() == _TIMING:
            return _encoded(list(value.values()))
        return {key: _encoded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(item) for item in value]
    return value


_TIMING = {f.name for f in fields(Timing)}


def _timing(value: Any) -> Timing:
    return Timing(**value) if isinstance(value, dict) else Timing(*map(_number, value))


_SPECIAL = {"inf": inf, "-inf": -inf, "nan": nan}


def _number(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_number(item) for item in value)
    return _SPECIAL.get(value, value) if isinstance(value, str) else value


def _decoded(kind: type[Any], entry: dict[str, Any]) -> Any:
    known = {f.name: f.type for f in fields(kind)}
    values = {name: _number(value) for name, value in entry.items() if name in known}
    if kind is RowResult:
        values["timings"] = {name: _timing(t) for name, t in values["timings"].items()}
    for name in ("errors",):
        if name in values:
            values[name] = {key: _number(pair) for key, pair in values[name].items()}
    return kind(**values)


def compare(old: Results, new: Results) -> Iterator[tuple[RowResult, str, float]]:
    """For rows in both: new time over old, each relative to the copy of its own run.

    Two runs rarely find the machine in the same state; the copy takes that out."""
    before = {row.key: row for row in old.rows}
    for row in new.rows:
        past = before.get(row.key)
        if past is None:
            continue
        for name in (OURS, INTO):
            ratio = (row.time(name) / row.time(COPY)) / (past.time(name) / past.time(COPY))
            if isfinite(ratio):
                yield row, name, ratio
