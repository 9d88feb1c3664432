"""`list` and `catalog`: what there is, read off the records."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pullback.cli import complete

if TYPE_CHECKING:
    from pullback.bench.inventory import Entry

JSON = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def facts(entry: Entry) -> dict[str, Any]:
    return {
        "op": entry.op,
        "family": entry.family,
        "direction": entry.record.direction,
        "plan": f"{entry.record.name}Plan",
        "dtypes": list(entry.dtypes),
        "indices": list(entry.indices),
        "backends": list(entry.backends),
        "accumulators": entry.accumulators,
        "bits survive": entry.reproducibility,
        "skus": [str(sku) for sku in entry.skus],
    }


def list_(
    family: Annotated[
        str | None, typer.Argument(help="Only this family.", autocompletion=complete.families)
    ] = None,
    json: JSON = False,
) -> None:
    """The catalog of kernels: op, dtypes, backends, guarantee.

    [dim]pullback list
    pullback list scan --json[/dim]
    """
    from pullback.bench.inventory import entries
    from pullback.cli import screen

    found = entries()
    if family is not None:
        screen.one_of("family", family, dict.fromkeys(e.family for e in found))
        found = tuple(e for e in found if e.family == family)
    if json:
        screen.as_json([facts(entry) for entry in found])
        return
    table = screen.table(
        f"{len(found)} ops", "op", "plan", "dtypes", "ids", "backends", "summed in", "bits survive"
    )
    for last, entry in zip((None, *found), found, strict=False):
        if last is not None and last.family != entry.family:
            table.add_section()
        table.add_row(
            entry.op,
            entry.record.name,
            " ".join(entry.dtypes),
            " ".join(entry.indices),
            " ".join(entry.backends),
            entry.accumulators,
            entry.reproducibility,
        )
    screen.show(table)


def formula(family: str) -> str:
    """The mathematics, where it stands once: the docstring of the family's contract."""
    return inspect.getdoc(import_module(f"pullback.ops.{family}.contract")) or ""


def catalog(
    write: Annotated[
        Path | None, typer.Option(help="Write the page here instead of printing it.")
    ] = None,
) -> None:
    """The page docs/catalog.md, from the records.

    [dim]pullback catalog --write docs/catalog.md[/dim]
    """
    page = catalog_page()
    if write is None:
        typer.echo(page, nl=False)
    else:
        write.write_text(page)


def catalog_page() -> str:
    from pullback.bench.inventory import entries

    lines = [
        "# Catalog",
        "",
        "Every op, its kernels and what they promise. Made from the records by",
        "`pullback catalog --write docs/catalog.md`; a test holds it fresh.",
        "",
        "*summed in*: the precision of sums before the one rounding at the end. *bits survive*:",
        "what a result's bits do not depend on, beyond run and layout.",
    ]
    for family in dict.fromkeys(entry.family for entry in entries()):
        lines += ["", f"## {family}", "", "```text", formula(family), "```", ""]
        lines += ["| op | plan | dtypes | ids | backends | summed in | bits survive |"]
        lines += ["|---|---|---|---|---|---|---|"]
        for entry in entries():
            if entry.family == family:
                cells = (
                    f"`{entry.op}`", f"`{entry.record.name}Plan`", " ".join(entry.dtypes),
                    " ".join(entry.indices) or "-", " ".join(entry.backends), entry.accumulators,
                    entry.reproducibility,
                )  # fmt: skip
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
