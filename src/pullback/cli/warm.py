"""`warm`: compile every kernel ahead."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from pullback.cli import complete

if TYPE_CHECKING:
    from pullback.contract.element import ElementKind


def warm(
    families: Annotated[
        list[str] | None,
        typer.Argument(help="Families; all of them.", autocompletion=complete.families),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; as many as cores.")] = None,
) -> None:
    """Compile every kernel into the disk cache, so that no first call has to.

    [dim]pullback warm
    PULLBACK_CACHE_DIR=/opt/cache pullback warm scan --jobs 4[/dim]
    """
    from pullback.bench import inventory
    from pullback.cli import screen
    from pullback.contract.element import FLOATS
    from pullback.cpu.cache import cache_folder
    from pullback.cpu.store import summary

    found = list(inventory.plans())
    known = dict.fromkeys(family for family, _ in found)
    wanted = [screen.one_of("family", family, known) for family in families or known]
    plans = [plan.__name__ for family, plan in found if family in wanted]
    todo = [
        (inventory.CALLS, FLOATS[0]),
        *((name, element) for element in FLOATS for name in plans),
    ]
    failed, whole = [], False
    with screen.progress() as bar:
        task = bar.add_task("compile", total=len(todo))
        try:
            for name, element, error in _compiled(todo, jobs or os.cpu_count() or 1):
                bar.update(task, description=f"{name} {element.value}", advance=1)
                failed += [error] if error else []
            whole = True
        except KeyboardInterrupt:
            screen.tell("interrupted: what is compiled is kept")
    kernels, size = summary(cache_folder())
    screen.tell(f"{kernels} compiled kernels, {size / 1e6:.1f} MB, in {cache_folder()}")
    for line in failed:
        screen.tell(screen.plain(line))
    if failed or not whole:
        raise typer.Exit(1 if failed else screen.INTERRUPTED)


def _leave_quietly() -> None:
    """Ctrl-C reaches the helping processes too: they just end, without a word each."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _be_quiet()


def _be_quiet() -> None:
    """That kernels are compiled is what was asked for."""
    from pullback.cpu.notice import compiling

    compiling.told = True


def _compiled(
    todo: list[tuple[str, ElementKind]], jobs: int
) -> Iterator[tuple[str, ElementKind, str]]:
    """What is done, as it gets done, with what went wrong."""
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    from pullback.bench.inventory import compile_ahead

    if jobs == 1:
        _be_quiet()
        yield from ((*step, compile_ahead(*step)) for step in todo)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_leave_quietly) as pool:
        running = {pool.submit(compile_ahead, *step): step for step in todo}
        for done in as_completed(running):
            yield *running[done], done.result()
