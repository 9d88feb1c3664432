"""`fuzz`: random calls of every function, compared with the definition and with themselves."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pullback.cli import complete

if TYPE_CHECKING:
    from pullback.fuzz.coverage import Covered
    from pullback.fuzz.process import Child
    from pullback.fuzz.run import Report

DEFAULT_SEED = 20


def fuzz(
    minutes: Annotated[float, typer.Option(min=0.0, help="How long.")] = 2.0,
    seed: Annotated[int, typer.Option(help="Which sequence of cases.")] = DEFAULT_SEED,
    op: Annotated[
        list[str] | None,
        typer.Option(help="Only this op or family; repeatable.", autocompletion=complete.laws),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(help="Not this op; repeatable.", autocompletion=complete.laws),
    ] = None,
    cases: Annotated[
        int | None, typer.Option(min=1, help="So many cases, however long it takes.")
    ] = None,
    first: Annotated[int, typer.Option(min=0, help="The number of the first case.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Show which kernels and lines were reached.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Write the report to this file.")] = None,
) -> None:
    """Compare random calls with the definition, other layouts, threads, plans and front ends.

    Each case is a function of seed and number: the same options run the same cases. One that fails
    is made smaller and printed as a short script. Exit code 1 if any failed. Ctrl-C shows what was
    found so far.

    [dim]pullback fuzz --minutes 10 --seed 7
    pullback fuzz --op cumsum --first 1234 --cases 1[/dim]
    """
    import json as encoder

    from pullback.cli import screen
    from pullback.fuzz.run import Report, Settings, run, sources
    from pullback.verify.subject import subjects

    known = subjects()
    families = dict.fromkeys(subject.family for subject in known.values())
    wanted = [screen.one_of("op or family", name, (*known, *families)) for name in op or families]
    skipped = {screen.one_of("op", name, tuple(known)) for name in skip or ()}
    chosen = {s.name for s in known.values() if s.name in wanted or s.family in wanted}
    names = tuple(sorted(chosen - skipped))
    if not names:
        raise screen.Mistake("nothing is left to fuzz")
    if json is not None:
        screen.make_room(json)
    frameworks = tuple(name for name in ("torch", "jax") if find_spec(name))
    settings = Settings(minutes, cases, first, jobs, coverage)
    whole, report, interrupted = cases or max(int(60 * minutes), 1), Report(seed), False
    with screen.progress() as bar:
        task = bar.add_task("fuzz", total=whole)

        def watch(found: Report, children: list[Child]) -> None:
            nonlocal report
            report = found
            done = report.cases if cases else min(int(report.seconds), whole)
            text = f"{report.cases} cases, {report.per_second:.0f}/s, {len(report.failures)} failed"
            bar.update(task, completed=done, description=text)

        try:
            report = run(sources(seed, names, frameworks), settings, watch)
        except KeyboardInterrupt:
            interrupted = True
    if interrupted:
        screen.tell("interrupted: failures are shown as they were found")
    if json is not None:
        json.write_text(encoder.dumps(report.to_json(), indent=1) + "\n")
    _show(report)
    if coverage:
        _show_coverage(report.covered)
    if report.failures or interrupted:
        raise typer.Exit(1 if report.failures else screen.INTERRUPTED)


def _show(report: Report) -> None:
    from pullback.cli import screen

    out = screen.console()
    for failure in report.failures:
        first, *rest = failure.what.splitlines() or [""]
        out.print(
            f"[red]case {report.seed}:{failure.number}[/red] {failure.function} "
            f"[bold]{failure.check}[/bold]: {screen.plain(first)}",
            soft_wrap=True,
        )
        if failure.script:
            said = "\n".join(rest)
            alone = "" if failure.alone else "# only after the cases before it\n"
            out.print(f"{said}\n{alone}{failure.script}", markup=False, soft_wrap=True)
    compared = ", ".join(f"{name} {count}" for name, count in sorted(report.checks.items()))
    out.print(
        f"{report.cases} cases in {report.seconds:.0f} s ({report.per_second:.1f}/s), seed "
        f"{report.seed}: {len(report.failures)} failed, {report.restarts} restarts. {compared}",
        soft_wrap=True,
    )


def _show_coverage(covered: Covered) -> None:
    from pullback.cli import screen
    from pullback.contract.element import FLOATS
    from pullback.fuzz.coverage import WATCHED, all_kernels, lines_of

    kernels = screen.table(
        "Kernels by launches laid out", "kernel", *(f">{e.value}" for e in FLOATS)
    )
    for name in all_kernels():
        hits = [covered.kernels[name, element.value] for element in FLOATS]
        style = "" if any(hits) else "red"
        kernels.add_row(name, *(str(hit) if hit else "-" for hit in hits), style=style)
    lines = screen.table("Lines of functions", "file", ">lines", ">reached", "not reached")
    for path in WATCHED:
        missed, whole = covered.missed_lines(path), len(lines_of(path))
        lines.add_row(path, str(whole), str(whole - len(missed)), ", ".join(map(str, missed)))
    branches = screen.table("Conditions that came to one thing only", "file", "condition", "never")
    for path in WATCHED:
        for branch in covered.missed_branches(path):
            place = f"{path}:{branch.line}"
            branches.add_row(place, branch.condition, str(branch.came_to).lower())
    screen.show(kernels, lines, branches)
