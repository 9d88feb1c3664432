"""`warm`: compile every kernel ahead."""

from __future__ import annotations

from typing import Annotated

import typer


def warm(
    families: Annotated[list[str] | None, typer.Argument(help="Families; all of them.")] = None,
) -> None:
    """Compile every kernel into the disk cache, so that no first call has to.

    [dim]pullback warm
    PULLBACK_CACHE_DIR=/opt/cache pullback warm scan[/dim]
    """
    from pullback.bench.inventory import launches, plans
    from pullback.cli import screen
    from pullback.cpu.cache import cache_folder
    from pullback.cpu.pool import execute_address

    found = list(plans())
    wanted = families or list(dict.fromkeys(family for family, _ in found))
    for family in wanted:
        screen.one_of("family", family, dict.fromkeys(name for name, _ in found))
    chosen = [(family, plan) for family, plan in found if family in wanted]
    execute_address()
    failed = []
    with screen.progress() as bar:
        task = bar.add_task("compile", total=len(chosen))
        for family, plan in chosen:
            try:
                for step in launches(family, plan):
                    bar.update(task, description=step)
            except Exception as error:  # a kernel that does not compile must not keep the others
                failed.append(f"{plan.__name__}: {type(error).__name__}: {error}")
            bar.advance(task)
    kept = list(cache_folder().glob("*.nbc"))
    size = sum(file.stat().st_size for file in kept) / 1e6
    screen.tell(f"{len(kept)} compiled kernels, {size:.1f} MB, in {cache_folder()}")
    for line in failed:
        screen.tell(screen.plain(line))
    if failed:
        raise typer.Exit(1)
