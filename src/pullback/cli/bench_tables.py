"""Results as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table

from pullback.bench.results import COPY, INTO, OURS, Results, compare
from pullback.cli.screen import plain, table
from pullback.cli.tables import factor, percent, seconds, size

if TYPE_CHECKING:
    from pullback.bench.results import Accuracy, Memory, RowResult


def everything(results: Results, before: Results | None = None) -> Iterator[Table]:
    """All sections that have something to say."""
    families = dict.fromkeys(row.family for row in results.rows)
    for family in families:
        yield _rows(results, family)
    makers = (_scaling, _growth, _memory, _accuracy, _overhead, _figures)
    yield from (made for make in makers if (made := make(results)).row_count)
    if before is not None:
        yield _changes(before, results)


def _wrong(entry: RowResult | Accuracy | Memory, name: str) -> str:
    """What is wrong with a contestant; nothing if it did not compete."""
    return f"[yellow]{plain(entry.verdicts[name])}[/yellow]" if name in entry.verdicts else ""


def _peer_cell(row: RowResult, peer: str) -> str:
    return factor(row.speedup(peer)) if peer in row.timings else _wrong(row, peer)


def _rows(results: Results, family: str) -> Table:
    rows = [row for row in results.rows if row.family == family]
    seen = {name for row in rows for name in (*row.timings, *row.verdicts)}
    peers = [peer for peer in results.peers() if peer in seen]
    made = table(
        f"{family}: speed-up over each peer, {results.machine['threads']} threads",
        "op", "", "size", "dtype", ">pullback", ">± quartiles", ">into out", ">GB/s", ">of copy",
        *(f">{peer}" for peer in peers),
        caption="Peers ending in 'out' write into given outputs and are held against 'into out'.",
    )  # fmt: skip
    for row in rows:
        wrong = row.verdicts.get(OURS) or row.verdicts.get(INTO)
        ours = row.timings.get(OURS)
        spread = (ours.high - ours.low) / 2 / ours.median if ours else 0.0
        made.add_row(
            row.op,
            row.direction,
            row.workload,
            row.dtype,
            f"[red]{plain(wrong)}[/red]" if wrong else seconds(row.time(OURS)),
            percent(spread),
            seconds(row.time(INTO)),
            f"{row.gbps:.1f}" if INTO in row.timings else "-",
            percent(row.of_copy) if COPY in row.timings else "-",
            *(_peer_cell(row, peer) for peer in peers),
        )
    busy = max((row.others for row in rows), default=0.0)
    if busy > 0.1:
        made.caption = f"{made.caption} Others used up to {busy:.0%} of the machine."
    return made


def _scaling(results: Results) -> Table:
    made = table("Threads", "op", "", "size", ">one", ">all", ">speed-up", "same bits")
    for entry in results.scaling:
        made.add_row(
            entry.op, entry.direction, entry.workload, seconds(entry.one), seconds(entry.all),
            factor(entry.one / entry.all), "yes" if entry.same_bits else "[red]no[/red]",
        )  # fmt: skip
    return made


def _growth(results: Results) -> Table:
    made = table(
        "Growth: nanoseconds per element", "op", "", "along", ">n", ">4n", ">16n", ">16n / n"
    )
    for entry in results.growth:
        costs = [f"{cost:.3f}" for cost in entry.costs]
        made.add_row(
            entry.op, entry.direction, f"{entry.along} from {entry.extents[0]}", *costs,
            f"{entry.costs[-1] / entry.costs[0]:.2f}",
        )  # fmt: skip
    return made


def _memory(results: Results) -> Table:
    names = dict.fromkeys(n for e in results.memory for n in (*e.peaks, *e.verdicts))
    made = table("Peak memory of forward + backward", "op", "size", *(f">{n}" for n in names))
    for entry in results.memory:
        cells = (size(entry.peaks[n]) if n in entry.peaks else _wrong(entry, n) for n in names)
        made.add_row(entry.op, entry.workload, *cells)
    return made


def _accuracy(results: Results) -> Table:
    names = dict.fromkeys(n for e in results.accuracy for n in (*e.errors, *e.verdicts))
    made = table(
        "Error in ulp: worst (mean)", "op", "", "input", "dtype", *(f">{name}" for name in names)
    )
    for entry in results.accuracy:
        cells = []
        for name in names:
            if name in entry.errors:
                worst, mean = entry.errors[name]
                cells.append(f"{worst:.3g} ({mean:.2g})")
            else:
                cells.append(_wrong(entry, name))
        made.add_row(entry.op, entry.direction, entry.nature, entry.dtype, *cells)
    return made


def _overhead(results: Results) -> Table:
    made = table("Overhead", "what", ">measured", ">at most")
    for entry in results.overhead:
        bound = seconds(entry.at_most) if entry.at_most else ""
        made.add_row(entry.what, seconds(entry.seconds), bound)
    return made


_MARKS = {True: "[green]ok[/green]", False: "[red]miss[/red]", None: "[dim]not run[/dim]"}


def _figures(results: Results) -> Table:
    met = [figure.met for figure in results.figures]
    missed, unknown = met.count(False), met.count(None)
    made = table(
        f"Figures: {met.count(True)} reached, {missed} missed, {unknown} not run",
        "family", "figure", ">wanted", ">measured", "", "where",
    )  # fmt: skip
    for figure in results.figures:
        measured = "-" if figure.measured is None else f"{figure.measured:.3g}"
        made.add_row(
            figure.family, figure.text, f"{figure.sense} {figure.bound:.3g} {figure.unit}",
            measured, _MARKS[figure.met], figure.where,
        )  # fmt: skip
    return made


def _changes(before: Results, after: Results) -> Table:
    made = table("New over old", "row", "contestant", ">change")
    made.caption = f"Times relative to the copy of each run; old is {before.machine['commit']}."
    for row, name, ratio in sorted(compare(before, after), key=lambda c: -c[2]):
        mark = "red" if ratio > 1.15 else "green" if ratio < 0.87 else "dim"
        made.add_row(row.title, name, f"[{mark}]{ratio - 1:+.0%}[/{mark}]")
    return made
