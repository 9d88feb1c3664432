"""Programs without memory: what plans would launch for typical tensors, for target checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from math import prod
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.kinds import BackendKind
from pullback.contract.record import PlanRecord, resolve
from pullback.gpu.program import GpuProgram, Layout
from pullback.tensor.layout import contiguous_strides


@dataclass(frozen=True, slots=True)
class Sketch:
    """What a layout looks at in a view."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element: ElementKind

    @property
    def extents(self) -> tuple[int, ...]:
        return self.shape


@dataclass(frozen=True, slots=True)
class Sample:
    """A typical problem: options of the descriptor and the optional tensors that are given."""

    title: str
    options: dict[str, Any]
    given: tuple[str, ...] = ()


def sketched(
    record: PlanRecord, sample: Sample, element: ElementKind
) -> tuple[GpuProgram, tuple[Sketch | None, ...]]:
    """The program of a sample, on contiguous tensors, and those tensors."""
    layout: Layout = resolve(record.backends[BackendKind.TRITON])
    desc = record.descriptor(element=element, **sample.options)
    record.validate(desc)
    views: list[Sketch | None] = []
    for slot in record.slots:
        used = slot.used(desc) and not slot.part_of
        if not used or not (slot.needed(desc) or slot.name in sample.given):
            views.append(None)
            continue
        shape = slot.shape(desc)
        views.append(Sketch(shape, contiguous_strides(shape), slot.elements(element)[-1]))
    return layout(desc, *views), tuple(views)


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A sample laid out: `elements` and `nbytes` are those of its largest tensor, and of all."""

    title: str
    program: GpuProgram
    elements: int
    nbytes: int


def programs(records: Sequence[PlanRecord], element: ElementKind) -> Iterator[Exhibit]:
    """Every sample of every plan that has a GPU backend."""
    for record in records:
        path = record.backends.get(BackendKind.TRITON)
        for sample in resolve(path).samples if path else ():
            if _fits(record, sample):
                program, views = sketched(record, sample, element)
                sizes = [(prod(v.shape), v.element.itemsize) for v in views if v is not None]
                elements = max(size for size, _ in sizes)
                nbytes = sum(size * width for size, width in sizes)
                yield Exhibit(f"{record.name} {sample.title}", program, elements, nbytes)


def _fits(record: PlanRecord, sample: Sample) -> bool:
    """Plans may share a layout, and with it the samples, but not all fields."""
    given = {*sample.options, "element"}
    known = fields(record.descriptor)
    return given <= {f.name for f in known} and given >= {
        f.name for f in known if f.default is MISSING
    }
