"""Programs without memory: what plans would launch for typical tensors, for target checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
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


def sketched(record: PlanRecord, sample: Sample, element: ElementKind) -> GpuProgram:
    """The program of a sample, on contiguous tensors."""
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
    return layout(desc, *views)


def programs(
    records: Sequence[PlanRecord], element: ElementKind
) -> Iterator[tuple[str, GpuProgram]]:
    """Every sample of every plan that has a GPU backend."""
    for record in records:
        path = record.backends.get(BackendKind.TRITON)
        for sample in resolve(path).samples if path else ():
            if _fits(record, sample):
                yield f"{record.name} {sample.title}", sketched(record, sample, element)


def _fits(record: PlanRecord, sample: Sample) -> bool:
    """Plans may share a layout, and with it the samples, but not all fields."""
    given = {*sample.options, "element"}
    known = fields(record.descriptor)
    return given <= {f.name for f in known} and given >= {
        f.name for f in known if f.default is MISSING
    }
