"""`race`: this version against an earlier one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from pullback.bench.versions import Outcome, RowRace, Track


def race(
    base: Annotated[str, typer.Argument(help="A commit, or a folder that has src/pullback.")],
    rows: Annotated[
        str, typer.Option(help="Only rows with this regular expression in their title.")
    ] = "",
    way: Annotated[
        str, typer.Option(help="call, out, plan or torch: how every row is called.")
    ] = "out",
    floor: Annotated[
        float | None, typer.Option(help="Fail if the ratio of a row is lower than this.")
    ] = None,
    mean_floor: Annotated[
        float | None, typer.Option(help="Fail if the geometric mean is lower than this.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Cores for both; all of them.")] = None,
    clock: Annotated[
        str, typer.Option(help="wall, or cpu: the time of all threads, for a busy machine.")
    ] = "wall",
    build: Annotated[Path, typer.Option(help="Where the sources of commits are unpacked.")] = Path(
        "build/race"
    ),
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Race this version against an earlier one on the rows of the benchmark.

    Each version is in a process of its own, pinned to the same cores, on the same arrays; they take
    turns. A ratio is base time over new time, the median of all rounds: above 1 this version is
    faster. A row below --floor is raced again in new processes, and the middle result counts.

    [dim]pullback race 08008a8 --rows 'cumsum|lerp' --floor 0.95
    pullback race HEAD~1 --way plan --threads 1 --json[/dim]
    """
    from pullback.bench.versions import Outcome
    from pullback.cli import screen

    track, chosen = _prepared(base, rows, way, floor, threads, clock, build)
    done, whole = _run(track, chosen)
    outcome = Outcome(tuple(done))
    broken = outcome.broken(floor, mean_floor)
    if json:
        screen.as_json(_facts(track, outcome, broken))
    else:
        screen.show(*_tables(track, outcome))
        for sentence in broken:
            screen.tell(f"[red]{screen.plain(sentence)}[/red]")
    if not whole:
        raise typer.Exit(screen.INTERRUPTED)
    if broken:
        raise typer.Exit(1)


def _prepared(
    base: str,
    pattern: str,
    way: str,
    floor: float | None,
    threads: int | None,
    clock: str,
    build: Path,
) -> tuple[Track, list[Any]]:
    import re

    from pullback.bench import machine, version_worker, versions
    from pullback.cli.screen import Mistake, one_of

    one_of("way", way, version_worker.WAYS)
    one_of("clock", clock, version_worker.CLOCKS)
    try:
        chosen = versions.rows(pattern)
    except re.error as error:
        raise Mistake(f"{pattern!r} is not a regular expression: {error}") from None
    if not chosen:
        raise Mistake(f"no row has {pattern!r} in its title; `pullback race {base}` runs all")
    try:
        version = versions.checkout(base, build)
    except LookupError as error:
        raise Mistake(str(error)) from None
    count = min(threads or len(machine.cores()), len(machine.cores()))
    track = versions.Track(
        version, versions.this_version(), count, way, clock, versions.EFFORT, floor
    )
    return track, chosen


def _run(track: Track, chosen: list[Any]) -> tuple[list[RowRace], bool]:
    """All rows with a progress bar, and whether they were all: Ctrl-C keeps what is done."""
    from pullback.cli import screen

    done: list[RowRace] = []
    with screen.progress() as bar:
        task = bar.add_task("race", total=len(chosen))
        try:
            for found in track.run(chosen):
                done.append(found)
                bar.update(task, advance=1, description=found.row)
        except KeyboardInterrupt:
            screen.tell("interrupted: these rows were raced")
            return done, False
    return done, True


def _facts(track: Track, outcome: Outcome, broken: list[str]) -> dict[str, Any]:
    from dataclasses import asdict

    from pullback.bench import machine

    return {
        "base": track.base.name,
        "new": machine.describe(track.threads).commit,
        "way": track.way,
        "clock": track.clock,
        "machine": machine.describe(track.threads).as_dict(),
        "geometric mean": outcome.mean,
        "broken": broken,
        "rows": [asdict(row) for row in outcome.rows],
    }


def _tables(track: Track, outcome: Outcome) -> list[Table]:
    from pullback.cli import screen
    from pullback.cli.tables import seconds

    def table(title: str, rows: list[RowRace], caption: str = "") -> Table:
        columns = ("row", ">base", ">new", ">ratio", ">spread", ">rounds", "bits")
        made = screen.table(title, *columns, caption=caption)
        for row in rows:
            if row.failed:
                made.add_row(row.row, "-", "-", "-", "-", "-", screen.plain(row.failed))
                continue
            ratio = f"[red]{row.ratio:.3f}[/red]" if row.ratio < 1 else f"{row.ratio:.3f}"
            made.add_row(
                row.row, seconds(row.base), seconds(row.new), ratio,
                f"{row.low:.3f} to {row.high:.3f}", str(row.rounds * row.races),
                "same" if row.same_bits else "differ",
            )  # fmt: skip
        return made

    title = f"This version over {track.base.name}, {track.way}, {track.threads} threads"
    caption = f"{len(outcome.timed)} rows, geometric mean {outcome.mean:.3f}"
    made = [table(title, list(outcome.rows), caption)]
    if len(outcome.timed) > 10:
        made.append(table("Slowest", outcome.worst()))
    return made
