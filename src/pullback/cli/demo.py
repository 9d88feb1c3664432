"""`demo`: the main job, in one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pullback.cli import complete

if TYPE_CHECKING:
    from pullback.bench.results import RowResult
    from pullback.bench.workload import Row


def demo(
    dtypes: Annotated[
        list[str] | None,
        typer.Option(
            "--dtype",
            help="f16, bf16, f32 or f64; repeat for more.",
            autocompletion=complete.dtypes,
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Cores to use; all of them.")] = None,
    within: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seconds of processor time after which no further row begins: where kernels are "
            "compiled at their first call, all of them take minutes.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Run every op at a training size on this machine: exact? same bits? how fast?

    [dim]pullback demo
    pullback demo --dtype bf16 --dtype f16[/dim]
    """
    from pullback.bench import machine
    from pullback.bench.demo import in_turns, rows
    from pullback.cli import screen
    from pullback.contract.element import FLOATS

    kinds = {kind.value: kind for kind in FLOATS}
    elements = tuple(kinds[screen.one_of("dtype", name, kinds)] for name in dtypes or ["f32"])
    count = machine.settle(threads)
    todo = rows(elements)
    done = _run(todo if within is None else in_turns(todo), count, within)
    if json:
        from pullback.bench.results import Results

        typer.echo(Results(machine.describe(count).as_dict(), rows=done).as_json())
    else:
        _print(done, count)
    if any(row.verdicts.get("pullback") or not row.same_bits for row in done):
        raise typer.Exit(1)
    if len(done) < len(todo) and within is not None:
        screen.tell(f"{len(done)} of {len(todo)} rows in {within:g} s: `pullback demo` runs all.")
    elif len(done) < len(todo):
        raise typer.Exit(screen.INTERRUPTED)


def _run(todo: list[Row], threads: int, within: float | None) -> list[RowResult]:
    """Every row, or those that begin within some time; Ctrl-C keeps those that are done."""
    from time import process_time

    from pullback.bench import peers
    from pullback.bench.compete import measure
    from pullback.bench.demo import EFFORT
    from pullback.cli import screen

    done: list[RowResult] = []
    with screen.progress() as bar:
        task = bar.add_task("demo", total=len(todo))
        try:
            for row in todo:
                if within is not None and process_time() > within:
                    break
                bar.update(task, description=row.title)
                done.append(measure(row, peers.available(("torch",)), EFFORT, threads))
                bar.advance(task)
        except KeyboardInterrupt:
            screen.tell("interrupted: these rows are done")
    return done


def _beside_torch(row: RowResult) -> str:
    from pullback.cli import screen
    from pullback.cli.tables import factor

    return screen.plain(row.verdicts.get("torch") or "") or factor(row.speedup("torch"))


def _print(done: list[RowResult], threads: int) -> None:
    from pullback.cli import screen
    from pullback.cli.tables import percent

    # Without PyTorch there is nothing to compare with, and no column.
    compared = any("torch" in (row.timings | row.verdicts) for row in done)
    table = screen.table(
        f"Every op, forward and backward, {threads} threads",
        "op", "size", "dtype", ">error", f">bits 1 = {threads}",
        ">GB/s", ">of a copy", *([">vs PyTorch"] if compared else []),
        caption=(
            "error: worst, in ulp, against the high-precision oracle on a part of the result · "
            "GB/s and copy: into given outputs · "
            + ("PyTorch: eager, both allocating" if compared else "PyTorch is not installed")
        ),
    )  # fmt: skip
    for row in done:
        name = row.op if row.direction == "forward" else f"{row.op}_backward"
        wrong = row.verdicts.get("pullback")
        if wrong:
            table.add_row(name, row.workload, row.dtype, f"[red]{screen.plain(wrong)}[/red]")
            continue
        table.add_row(
            name,
            row.workload,
            row.dtype,
            "-" if row.ulp is None else f"{row.ulp:.2f} ulp",
            "yes" if row.same_bits else "[red]no[/red]",
            f"{row.gbps:.1f}",
            percent(row.of_copy),
            *([_beside_torch(row)] if compared else []),
        )
    screen.show(table)
    busy = max((row.others for row in done), default=0.0)
    if busy > 0.1:
        screen.tell(f"Other processes used up to {busy:.0%} of the cores meanwhile.")
