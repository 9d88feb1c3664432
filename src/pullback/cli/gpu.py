"""`gpu-report`, `gpu-counts`: what GPU kernels take on every target, and what they do."""

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


def gpu_counts(
    op: Annotated[str, typer.Option(help="Functions whose name contains this.")] = "",
    element: Annotated[str, typer.Option(help="f16, bf16, f32 or f64.")] = "f32",
    target: Annotated[str, typer.Option(help="sm_80, sm_90 or sm_100.")] = "sm_90",
) -> None:
    """Execute compiled kernels without a GPU and count what they do: launches, bytes, instructions.

    Every function runs the largest case that its tests give GPU kernels, on the PTX emulator.
    Instructions are counted per element of the largest tensor.

    [dim]pullback gpu-counts --op cumsum
    pullback gpu-counts --element bf16 --target sm_100[/dim]
    """
    from pullback.cli import screen
    from pullback.contract.element import FLOATS
    from pullback.verify.subject import subjects

    try:
        from pullback.verify import emulated
    except ModuleNotFoundError as error:
        raise screen.Mistake(f"this needs {error.name}: pip install 'pullback[gpu]'") from None
    elements = {kind.value: kind for kind in FLOATS}
    chosen = elements[screen.one_of("element", element, elements)]
    screen.one_of("target", target, ("sm_80", "sm_90", "sm_100"))
    found = [s for s in subjects().values() if op in s.name and emulated.on_gpu(s)]
    if not found:
        raise screen.Mistake(f"no function with GPU kernels is named like {op!r}")
    columns = (">launches", ">asked", ">sectors", ">DRAM", ">/ minimum")
    kinds = ("f64", "load_global", "store_global", "barrier")
    heads = ("function", "case", *columns, *(f">{kind.partition('_')[0]}" for kind in kinds))
    table = screen.table(f"{element} on {target}", *heads)
    for subject in found:
        done = emulated.counted(subject, chosen, target)
        if done is None:
            continue
        counts = done.emulation.counts
        bytes_ = (counts.read_bytes + counts.written_bytes, counts.sector_bytes, counts.dram_bytes)
        table.add_row(
            done.name,
            screen.plain(done.case),
            str(counts.launches),
            *map(str, bytes_),
            f"{done.excess:.2f}",
            *(f"{done.instructions(kind):.2f}" for kind in kinds),
        )
    screen.show(table)
