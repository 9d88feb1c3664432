"""What every kernel takes on every target: the table of docs/gpu.md.

pullback gpu-report            compiles everything, which takes its time, and writes the file
"""

from __future__ import annotations

import hashlib
import re
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import triton

from pullback.contract.element import FLOATS, ElementKind
from pullback.gpu.program import Step
from pullback.gpu.sketch import programs
from pullback.gpu.targets import TARGETS, Resources, build, fingerprint

_PACKAGE = Path(__file__).resolve().parent.parent
_STAMP = "<!-- kernels {} -->"
_TABLE = "<!-- table -->"


def stamp() -> str:
    """A hash of everything the table follows from."""
    sources = [*_PACKAGE.glob("gpu/*.py"), *_PACKAGE.glob("ops/*/gpu*.py")]
    digest = hashlib.sha256(triton.__version__.encode())
    for source in sorted(sources):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def is_fresh(path: Path) -> bool:
    """Whether the table was made from the kernels as they are now."""
    return _STAMP.format(stamp()) in path.read_text()


def records() -> list[Any]:
    """Every plan of the library."""
    import pullback

    plans = (getattr(pullback, name) for name in pullback.__all__ if name.endswith("Plan"))
    return [plan.record for plan in plans]


@cache
def steps(element: ElementKind) -> tuple[tuple[str, Step], ...]:
    """Every kernel in every specialisation that the samples launch, once."""
    found: dict[str, tuple[str, Step]] = {}
    for title, program in programs(records(), element):
        for step in program.steps:
            if isinstance(step, Step):
                found.setdefault(fingerprint(step), (title, step))
    return tuple(found.values())


def _row(job: tuple[ElementKind, int]) -> str:
    element, number = job
    title, step = steps(element)[number]
    found = [build(step, target) for target in TARGETS]
    kernel = f"{step.kernel.__module__.split('.')[2]}.{step.kernel.__name__}"
    cells = " | ".join(_cell(resources) for resources in found)
    return f"| {title} | `{kernel}` | {element.value} | {step.warps} | {cells} |"


def _cell(found: Resources) -> str:
    return f"{found.registers} / {found.shared} / {found.spills} / {found.vector}"


def lines(workers: int = 2) -> list[str]:
    """The table, a row for each kernel and element."""
    heads = ["first launched by", "kernel", "element", "warps", *TARGETS]
    jobs = [(element, number) for element in FLOATS for number in range(len(steps(element)))]
    with ProcessPoolExecutor(workers) as pool:
        rows = list(pool.map(_row, jobs, chunksize=8))
    rule = "|" + "---|" * len(heads)
    return ["| " + " | ".join(heads) + " |", rule, *rows]


def write(path: str | Path, workers: int = 2) -> None:
    """Compile everything for every target and put the table into the document."""
    document = Path(path)
    head = document.read_text().split(_TABLE)[0]
    head = re.sub(r"<!-- kernels \w* -->", _STAMP.format(stamp()), head)
    document.write_text(head + "\n".join([_TABLE, "", *lines(workers), ""]))
