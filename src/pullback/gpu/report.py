"""What every kernel takes on every target: the table of docs/gpu.md, by `pullback gpu-report`.

What was compiled once is remembered in Triton's cache folder, so that only changes take time.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import triton

from pullback.contract.element import FLOATS, ElementKind
from pullback.gpu.program import Step
from pullback.gpu.sketch import programs
from pullback.gpu.targets import TARGETS, Resources, fingerprint, remembered

_PACKAGE = Path(__file__).resolve().parent.parent
_SHARED = ("arguments", "tile", "pairs", "exponential", "targets")
_KERNELS = (*(f"gpu/{name}.py" for name in _SHARED), "ops/*/gpu*.py")
_STAMP = "<!-- kernels {} -->"
_TABLE = "<!-- table -->"
_HEADS = ("first launched by", "kernel", "element", "warps", "bytes", *TARGETS)


def stamp() -> str:
    """A hash of everything the table follows from, but for comments and line breaks."""
    digest = hashlib.sha256(triton.__version__.encode())
    for source in sorted(path for pattern in _KERNELS for path in _PACKAGE.glob(pattern)):
        digest.update(ast.dump(ast.parse(source.read_text())).encode())
    return digest.hexdigest()[:16]


def is_fresh(path: Path) -> bool:
    """Whether the table was made from the kernels as they are now."""
    return _STAMP.format(stamp()) in path.read_text()


def rows_of(path: Path) -> list[str]:
    """The table's rows as they stand in the document."""
    table = path.read_text().split(_TABLE)[1].splitlines()
    return [line for line in table if line.startswith("| ")][1:]


def records() -> list[Any]:
    """Every plan of the library."""
    import pullback

    plans = (getattr(pullback, name) for name in pullback.__all__ if name.endswith("Plan"))
    return [plan.record for plan in plans]


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel in one specialisation, who launches it first, and the bytes it moves for each
    element of that plan's largest tensor."""

    title: str
    step: Step
    moved: float


@cache
def entries(element: ElementKind) -> tuple[Entry, ...]:
    """Every kernel in every specialisation that the samples launch, once."""
    found: dict[str, Entry] = {}
    for shown in programs(records(), element):
        for step in shown.program.steps:
            if isinstance(step, Step):
                entry = Entry(shown.title, step, step.traffic / shown.elements)
                found.setdefault(fingerprint(step), entry)
    return tuple(found.values())


Kind = tuple[str, ...]


def kind_of(step: Step) -> Kind:
    """A kernel and the kind of its work, which is what its constants name."""
    constants = (value for value in step.arguments.values() if isinstance(value, str))
    return (step.kernel.__name__, *constants)


@cache
def kernels(element: ElementKind) -> dict[Kind, Entry]:
    """What the table shows: every kernel once for each kind of work. All that they are specialised
    for besides is compiled by `make test-slow`."""
    found: dict[Kind, Entry] = {}
    for entry in entries(element):
        found.setdefault(kind_of(entry.step), entry)
    return found


Job = tuple[ElementKind, Kind]


def jobs() -> list[Job]:
    return [(element, kind) for element in FLOATS for kind in kernels(element)]


def head_of(job: Job) -> str:
    """What is known of a row before anything is compiled."""
    element, kind = job
    entry = kernels(element)[kind]
    family = entry.step.kernel.__module__.split(".")[2]
    name = " ".join((f"`{family}.{kind[0]}`", *kind[1:]))
    known = (entry.title, name, element.value, str(entry.step.warps), f"{entry.moved:.3g}")
    return f"| {' | '.join(known)} |"


def row_of(job: Job) -> str:
    step = kernels(job[0])[job[1]].step
    return f"{head_of(job)} {' | '.join(cell_of(remembered(step, target)) for target in TARGETS)} |"


def cell_of(found: Resources) -> str:
    return f"{found.registers} / {found.shared} / {found.spills} / {found.vector}"


def cells_of(row: str) -> dict[str, str]:
    """The cells of a row of the table, by target."""
    cells = row.strip("| ").split(" | ")[-len(TARGETS) :]
    return dict(zip(TARGETS, cells, strict=True))


def spills(row: str) -> bool:
    """Whether any target spills in a row of the table."""
    return any(cell.split(" / ")[2] != "0" for cell in cells_of(row).values())


def _ignore(_: str) -> None:
    return


def write(path: str | Path, workers: int = 2, announce: Callable[[str], None] = _ignore) -> None:
    """Compile for every target what is not known yet, and put the table into the document."""
    document, rows, todo = Path(path), [], jobs()
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for row in pool.map(row_of, todo):
            rows.append(row)
            announce(row)
    head = document.read_text().split(_TABLE)[0]
    head = re.sub(r"<!-- kernels \w* -->", _STAMP.format(stamp()), head)
    titles = ["| " + " | ".join(_HEADS) + " |", "|" + "---|" * len(_HEADS)]
    document.write_text(head + "\n".join([_TABLE, "", *titles, *rows, ""]))
