"""`list`, `show` and `catalog`: what there is, read off the records."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pullback.bench.inventory import Entry

JSON = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def _ops(incomplete: str) -> list[str]:
    """Shell completion of op names."""
    from pullback.bench.inventory import entries

    return sorted({e.op for e in entries() if e.op.startswith(incomplete)})


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
    family: Annotated[str | None, typer.Argument(help="Only this family.")] = None,
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


def show(
    op: Annotated[str, typer.Argument(help="An op, as `list` names it.", autocompletion=_ops)],
    json: JSON = False,
) -> None:
    """One op: formula, contract, kernels, costs.

    [dim]pullback show cumprod_backward
    pullback show segment_max --json[/dim]
    """
    from pullback.bench.inventory import entries
    from pullback.cli import screen

    screen.one_of("op", op, dict.fromkeys(e.op for e in entries()))
    found = [entry for entry in entries() if entry.op == op]
    if json:
        screen.as_json([{**facts(e), "tensors": _tensors(e), "costs": _costs(e)} for e in found])
        return
    out = screen.console()
    out.print(f"[bold]{op}[/bold]  {screen.plain(_signature(op))}")
    out.print(f"{_summary(op)}\n", markup=False)
    out.print(formula(found[0].family), markup=False, soft_wrap=True)
    for entry in found:
        table = screen.table(
            f"{entry.record.name}Plan: {inspect.getdoc(entry.plan)}",
            "tensor", "role", "holds", "needed", "may be the buffer of",
        )  # fmt: skip
        for row in _tensors(entry):
            table.add_row(*(str(value) for value in row.values()))
        screen.show(table)
        for sku in entry.skus:
            out.print(f"  {sku}", markup=False)
        costs = ", ".join(f"{key} {value}" for key, value in _costs(entry).items())
        out.print(f"  at a training size: {costs}\n")


def _function(op: str) -> Any:
    import pullback

    return getattr(pullback, op, None)


def _signature(op: str) -> str:
    function = _function(op)
    if function is None:
        return "(a plan without a function of its own)"
    parameters = inspect.signature(function).parameters.values()
    return "(" + ", ".join(str(p.replace(annotation=p.empty)) for p in parameters) + ")"


def _summary(op: str) -> str:
    function = _function(op)
    return inspect.getdoc(function) or "" if function is not None else ""


def formula(family: str) -> str:
    """The mathematics, where it stands once: the docstring of the family's contract."""
    return inspect.getdoc(import_module(f"pullback.ops.{family}.contract")) or ""


def _tensors(entry: Entry) -> list[dict[str, str]]:
    descriptor = entry.descriptor
    return [
        {
            "name": slot.name,
            "role": slot.role.value,
            "holds": " ".join(kind.value for kind in slot.holds or ()) or "the plan's dtype",
            "needed": "yes" if slot.used(descriptor) and slot.needed(descriptor) else "no",
            "in place of": " ".join(slot.in_place_of),
        }
        for slot in entry.record.slots
        if not slot.part_of
    ]


def _costs(entry: Entry) -> dict[str, str]:
    """What a call moves and borrows, at the size of the benchmark's first row."""
    from math import prod

    from pullback.bench.inventory import TRAINING, descriptors
    from pullback.contract.element import ElementKind

    found = [
        d
        for d in descriptors(entry.plan, TRAINING)
        if d.element is ElementKind.F32 and entry.record.op(d) == entry.op
    ]
    if not found:
        return {}
    desc = found[-1]
    moved = sum(
        prod(slot.shape(desc)) * slot.elements(desc.element)[-1].itemsize
        for slot in entry.record.slots
        if slot.used(desc) and slot.needed(desc) and not slot.part_of
    )
    return {
        "moves": f"{moved / 1e6:.1f} MB",
        "workspace": f"{entry.record.workspace(desc) / 1e6:.3g} MB",
        "time": "linear in its input",
    }


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
