"""`bench`: every op beside its peers and beside a plain copy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pullback.cli import complete

if TYPE_CHECKING:
    from pullback.bench.results import Results
    from pullback.bench.run import Selection


def bench(
    families: Annotated[
        list[str] | None,
        typer.Argument(
            help="Families, or `overhead`; all of them.", autocompletion=complete.contests
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="f32 only, fewer samples, no torch.compile.")
    ] = False,
    rows: Annotated[
        str, typer.Option(help="Only what matches this pattern, as in '*backward 4096*'.")
    ] = "*",
    sections: Annotated[
        list[str] | None,
        typer.Option(
            "--section",
            help="rows, ratios, growth, scaling, memory, accuracy or overhead.",
            autocompletion=complete.sections,
        ),
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(help="Columns, comma-separated, in every row; or 'none'."),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Cores for everybody; all.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write JSON, and CSV beside it.")] = None,
    compare: Annotated[Path | None, typer.Option(help="Results of an earlier run.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Time pullback beside every installed peer and beside a plain copy of the same bytes.

    Contestants take turns in one process, in a new order each round, with equal threads. A result
    is checked against the oracle first; a wrong one is named and not timed. torch.compile, which
    takes seconds to begin, enters the training size of each op in f32, or all rows if it is named.

    [dim]pullback bench scan lerp
    pullback bench segment --rows '*max backward*' --peers torch,jax
    pullback bench --quick --save now.json --compare benchmarks/results.json
    pullback bench overhead[/dim]
    """
    from pullback.bench import machine
    from pullback.bench.peers import left_out
    from pullback.cli import screen
    from pullback.cli.bench_tables import everything

    count = machine.settle(threads)
    named = None if peers is None else tuple(p.strip() for p in peers.split(",") if p.strip())
    chosen = _selection(families, quick, rows, sections, named, count)
    for sentence in left_out(named):
        screen.tell(screen.plain(sentence))
    before = load(compare) if compare else None
    if save is not None:
        screen.make_room(save)  # before the run, which may take an hour
    results, whole = run(chosen)
    if save is not None:
        store(results, save)
    if json:
        typer.echo(results.as_json())
    else:
        screen.show(*everything(results, before))
    if not whole:
        raise typer.Exit(screen.INTERRUPTED)


def load(path: Path) -> Results:
    from pullback.bench.results import Results
    from pullback.cli.screen import Mistake

    if not path.exists():
        raise Mistake(f"there is no {path}; `pullback bench --save {path}` makes it")
    try:
        return Results.load(path)
    except (ValueError, KeyError, TypeError) as error:
        raise Mistake(f"{path} is not a result of `pullback bench --save`: {error}") from None


def _selection(
    names: list[str] | None,
    quick: bool,
    rows: str,
    sections: list[str] | None,
    named: tuple[str, ...] | None,
    threads: int,
) -> Selection:
    from pullback.bench import overhead
    from pullback.bench import peers as columns
    from pullback.bench.race import FULL, QUICK
    from pullback.bench.run import SECTIONS, Selection
    from pullback.bench.workload import families
    from pullback.cli.screen import one_of

    known = (*families(), overhead.NAME)
    wanted = [one_of("family", name, known) for name in names or known]
    for library in named or ():
        one_of("peer", library, (*columns.LIBRARIES, "none"))
    parts = [one_of("section", section, SECTIONS) for section in sections or SECTIONS]
    if rows != "*" and sections is None:
        parts = ["rows"]
    return Selection(
        families=tuple(wanted),
        libraries=columns.available(named),
        threads=threads,
        sections=tuple(parts),
        pattern=rows if "*" in rows else f"*{rows}*",
        effort=QUICK if quick else FULL,
        quick=quick,
        named=named is not None,
    )


def run(chosen: Selection) -> tuple[Results, bool]:
    """All tasks with a progress bar, and whether they were: Ctrl-C keeps what is done."""
    from pullback.bench import machine
    from pullback.bench.results import Results
    from pullback.bench.run import conclude, tasks
    from pullback.cli import screen

    whole = True
    results = Results(machine.describe(chosen.threads).as_dict())
    todo = tasks(chosen)
    if not todo:
        raise screen.Mistake(f"nothing matches {chosen.pattern!r}; `--rows '*'` runs all")
    with screen.progress() as bar:
        task = bar.add_task("bench", total=len(todo))
        for step in todo:
            bar.update(task, description=step.title)
            try:
                for entry in step.run():
                    results.add(entry)
            except KeyboardInterrupt:
                screen.tell("interrupted: this is what was done")
                whole = False
                break
            except Exception as error:  # one broken row must not lose the others
                said = screen.plain(f"{type(error).__name__}: {error}")
                screen.tell(f"[red]{step.title}:[/red] {said}")
            bar.advance(task)
    conclude(results, chosen)
    return results, whole


def store(results: Results, path: Path) -> None:
    path.write_text(results.as_json())
