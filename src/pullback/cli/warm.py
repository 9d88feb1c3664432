"""`warm`: compile every kernel ahead."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from pullback.cli import complete


def warm(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Families or functions; all of them.", autocompletion=complete.laws),
    ] = None,
    dtypes: Annotated[
        list[str] | None, typer.Option("--dtype", help="f16, bf16, f32 or f64; all of them.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; as many as cores.")] = None,
) -> None:
    """Compile kernels into the disk cache, so that no first call has to.

    [dim]pullback warm
    pullback warm softmax segment --dtype f32
    PULLBACK_CACHE_DIR=/opt/cache pullback warm scan --jobs 4[/dim]
    """
    from pullback.bench import ahead, inventory
    from pullback.cli import screen
    from pullback.contract.element import FLOATS
    from pullback.verify.subject import subjects

    families = dict.fromkeys(family for family, _ in inventory.plans())
    known = [*families, *(name for name in subjects() if name not in families)]
    wanted = [screen.one_of("family or function", name, known) for name in names or ()]
    by_value = {element.value: element for element in FLOATS}
    elements = [by_value[screen.one_of("dtype", name, by_value)] for name in dtypes or by_value]
    todo = ahead.steps(wanted, elements)
    failed, whole = [], False
    with screen.progress() as bar:
        task = bar.add_task("compile", total=len(todo))
        try:
            for step, error in ahead.compiled(todo, jobs or os.cpu_count() or 1):
                bar.update(task, description=str(step), advance=1)
                failed += [error] if error else []
            whole = True
        except KeyboardInterrupt:
            screen.tell("interrupted: what is compiled is kept")
    screen.tell(_where())
    for line in failed:
        screen.tell(screen.plain(line))
    if failed or not whole:
        raise typer.Exit(1 if failed else screen.INTERRUPTED)


def _where() -> str:
    from pullback.cpu import library

    path = library.path()
    if path is not None:
        return f"{len(library.entries())} kernels were compiled ahead, in {path}"
    from pullback.cpu.cache import cache_folder
    from pullback.cpu.store import summary

    kernels, size = summary(cache_folder())
    return f"{kernels} compiled kernels, {size / 1e6:.1f} MB, in {cache_folder()}"
