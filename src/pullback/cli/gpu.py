"""`gpu-report`: what every GPU kernel takes on every target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def gpu_report(
    write: Annotated[Path, typer.Option(help="The page whose table is renewed.")] = Path(
        "docs/gpu.md"
    ),
    workers: Annotated[int, typer.Option(help="Processes that compile.", min=1)] = 2,
) -> None:
    """Compile every Triton kernel for every target, no GPU needed, and renew the table.

    What Triton's cache folder knows already is not compiled again. Fails where registers spill.

    [dim]pullback gpu-report
    pullback gpu-report --write docs/gpu.md --workers 8[/dim]
    """
    from pullback.cli import screen

    try:
        from pullback.gpu import report
    except ModuleNotFoundError as error:
        raise screen.Mistake(f"this needs {error.name}: pip install 'pullback[gpu]'") from None
    if not write.exists():
        raise screen.Mistake(f"there is no {write} to renew")
    with screen.progress() as bar:
        task = bar.add_task("compile", total=len(report.jobs()))
        report.write(write, workers, lambda row: bar.update(task, advance=1, description=row[:60]))
    spilling = [row for row in report.rows_of(write) if report.spills(row)]
    screen.tell(f"{write}: {len(report.rows_of(write))} kernels, {len(spilling)} of them spill")
    for row in spilling:
        screen.tell(screen.plain(row))
    if spilling:
        raise typer.Exit(1)
