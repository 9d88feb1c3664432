"""`show`: all there is to say about one name."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pullback.cli import complete
from pullback.cli.catalog import JSON, facts, formula

if TYPE_CHECKING:
    from rich.table import Table

    from pullback.bench.inventory import Entry


def show(
    name: Annotated[
        str, typer.Argument(help="An op, a function or a plan.", autocompletion=complete.names)
    ],
    json: JSON = False,
) -> None:
    """One op: formula, contract, kernels, costs.

    [dim]pullback show cumprod_backward
    pullback show UnsortedSegmentMaxPlan
    pullback show segment_max --json[/dim]
    """
    from pullback.bench.inventory import names
    from pullback.cli import screen

    known = names()
    entries = known[screen.one_of("op", name, known)]
    if json:
        screen.as_json({**_call(name), "plans": [_plan(entry) for entry in entries]})
        return
    out = screen.console()
    call = _call(name)
    out.print(f"[bold]{name}[/bold]{screen.plain(call['signature'])}", soft_wrap=True)
    screen.paragraphs(out, call["summary"])
    for family in dict.fromkeys(entry.family for entry in entries):
        out.print("\n" + formula(family), markup=False, soft_wrap=True)
    for entry in entries:
        out.print()
        screen.show(_tensor_table(entry))
        for line in (
            *_asks(entry.plan),
            *entry.skus,
            *_spread(entry),
            f"at a training size: {_said(entry)}",
        ):
            out.print(f"  {line}", markup=False, soft_wrap=True)


def _call(name: str) -> dict[str, str]:
    """How a function is called and what it says of itself; both empty for what is only a plan."""
    import pullback

    function = getattr(pullback, name, None)
    if function is None or isinstance(function, type):
        return {"name": name, "signature": "", "summary": ""}
    summary = inspect.getdoc(getattr(function, "function", function)) or ""
    return {"name": name, "signature": _signature(function), "summary": summary}


def _signature(function: Any) -> str:
    """Names and defaults, without annotations."""
    whole = inspect.signature(function)
    bare = [p.replace(annotation=p.empty) for p in whole.parameters.values()]
    written = str(whole.replace(parameters=bare, return_annotation=whole.empty))
    return re.sub(r"<([\w.]+): [^>]*>", r"\1", written)  # members of enumerations as one types them


def _spread(entry: Entry) -> list[str]:
    """What it takes over an axis that is spread over ranks."""
    found = dict.fromkeys(str(sku.collectives) for sku in entry.skus if sku.collectives)
    return [f"over ranks: {line}" for line in found]


def _plan(entry: Entry) -> dict[str, Any]:
    asks = dict(zip(("descriptor", "args"), _asks(entry.plan), strict=True))
    return {**facts(entry), **asks, "tensors": _tensors(entry), "costs": _costs(entry)}


def _asks(plan: Any) -> tuple[str, str]:
    """What a plan is selected by, and what it is run on."""
    from pullback.bench.problem import args_class

    kinds = (plan.record.descriptor, args_class(plan))
    descriptor, args = (f"{kind.__name__}{_signature(kind)}".replace("*, ", "") for kind in kinds)
    return descriptor, args


def _tensor_table(entry: Entry) -> Table:
    from pullback.cli import screen

    table = screen.table(
        f"{entry.record.name}Plan: {inspect.getdoc(entry.plan)}",
        "tensor", "role", "holds", "needed", "may be the buffer of",
    )  # fmt: skip
    for row in _tensors(entry):
        table.add_row(*row.values())
    return table


def _tensors(entry: Entry) -> list[dict[str, str]]:
    return [
        {
            "name": slot.name,
            "role": slot.role.value,
            "holds": " ".join(kind.value for kind in slot.holds or ()) or "the plan's dtype",
            "needed": _needed(slot, entry),
            "in place of": " ".join(slot.in_place_of),
        }
        for slot in entry.record.slots
        if not slot.part_of
    ]


def _needed(slot: Any, entry: Entry) -> str:
    """Yes, no, or by which kinds of the op."""
    asking = [d for d in entry.descriptors if slot.used(d) and slot.needed(d)]
    if len(asking) in (0, len(entry.descriptors)):
        return "yes" if asking else "no"
    return "by " + ", ".join(entry.record.kind(d).name.lower() for d in asking)


def _said(entry: Entry) -> str:
    return ", ".join(f"{key} {value}" for key, value in _costs(entry).items())


def _costs(entry: Entry) -> dict[str, str]:
    """What a call moves and borrows at most, at the size of the benchmark's first row."""
    from pullback.bench.inventory import TRAINING, descriptors
    from pullback.contract.element import ElementKind

    record = entry.record
    found = {
        record.kind(d): d
        for d in descriptors(entry.plan, TRAINING)
        if d.element is ElementKind.F32 and record.op(d) == entry.op
    }
    moved = max(_moved(record.slots, d) for d in found.values())
    workspace = max(record.workspace(d) for d in found.values())
    return {
        "moves": f"{moved / 1e6:.1f} MB",
        "workspace": f"{workspace / 1e6:.3g} MB",
        "time": "linear in its input",
    }


def _moved(slots: Any, descriptor: Any) -> int:
    from math import prod

    return sum(
        prod(slot.shape(descriptor)) * slot.elements(descriptor.element)[-1].itemsize
        for slot in slots
        if slot.used(descriptor) and slot.needed(descriptor) and not slot.part_of
    )
