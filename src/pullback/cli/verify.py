"""`verify`: the laws, on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pullback.cli import complete

if TYPE_CHECKING:
    from rich.table import Table

    from pullback.verify import Verdict


def verify(
    ops: Annotated[
        list[str] | None,
        typer.Argument(help="Ops or families; all of them.", autocompletion=complete.laws),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One case in thirty instead of four.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Run the laws on this machine: oracle, bits, layouts, threads, memory.

    [dim]pullback verify cumprod
    pullback verify scan lerp --quick[/dim]
    """
    from pullback.cli import screen
    from pullback.contract.element import FLOATS
    from pullback.verify import verify as verdicts
    from pullback.verify.laws import LAWS
    from pullback.verify.subject import subjects

    known = subjects()
    families = dict.fromkeys(subject.family for subject in known.values())
    wanted = [screen.one_of("op or family", op, (*known, *families)) for op in ops or families]
    names = [s.name for s in known.values() if s.name in wanted or s.family in wanted]
    done: list[Verdict] = []
    whole = False
    with screen.progress() as bar:
        task = bar.add_task("verify", total=len(names) * len(FLOATS) * len(LAWS))
        try:
            for verdict in verdicts(names, every=30 if quick else 4):
                done.append(verdict)
                said = f"{verdict.function} {verdict.element.value}"
                bar.update(task, advance=1, description=said)
            whole = True
        except KeyboardInterrupt:
            screen.tell("interrupted: these laws were tried")
    if json:
        screen.as_json([_facts(verdict) for verdict in done])
    else:
        screen.show(_table(done))
    if any(verdict.broken for verdict in done):
        raise typer.Exit(1)
    if not whole:
        raise typer.Exit(screen.INTERRUPTED)


def _facts(verdict: Verdict) -> dict[str, object]:
    return {
        "op": verdict.function,
        "dtype": verdict.element.value,
        "law": verdict.law,
        "trials": verdict.trials,
        "broken": verdict.broken,
        "worst ulp": verdict.worst_ulp,
    }


def _table(done: list[Verdict]) -> Table:
    """One line per op: which laws it kept, in how many trials, its worst error."""
    from pullback.cli import screen

    laws = list(dict.fromkeys(verdict.law for verdict in done))
    table = screen.table("Laws", "op", ">trials", ">worst ulp", *laws)
    for name in dict.fromkeys(verdict.function for verdict in done):
        mine = [verdict for verdict in done if verdict.function == name]
        said = dict.fromkeys(laws, "kept")
        for verdict in mine:
            if verdict.broken:
                said[verdict.law] = (
                    f"[red]{verdict.element.value}: {screen.plain(verdict.broken)}[/red]"
                )
        worst = max(verdict.worst_ulp for verdict in mine)
        table.add_row(name, str(sum(v.trials for v in mine)), f"{worst:.2f}", *said.values())
    return table
