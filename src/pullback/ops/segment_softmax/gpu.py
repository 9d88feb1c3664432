"""Softmax within segments on the GPU: which steps it takes.

For each segment and column the largest element and how many hold it, and the sum of the powers
relative to it, are found as `segment` finds them, and kept in scratch; then every row is written.
A gradient likewise takes the largest y and the sum of dy, or of y·dy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import Reproducibility
from pullback.gpu.program import ALIGNMENT, GpuProgram, Layout, Operand, Scratch, Step, ceil_div
from pullback.gpu.sketch import Sample
from pullback.ops.segment.gpu_grouping import grouped, grouped_bytes, lookup
from pullback.ops.segment.gpu_groups import Groups
from pullback.ops.segment.gpu_reduce import ROWS, Reduction, dense, table
from pullback.ops.segment_softmax.contract import SegmentSoftmaxKind
from pullback.ops.segment_softmax.gpu_kernels import share, share_back

_NONE: dict[str, Any] = {"index": None, "rows": None, "factor": None}
_NO_GRADIENT = {f"grad_{part}": () for part in ("extents", "strides", "columns", "steps")}
OTHER = 5  # the slot of a backward's saved tensor


def computed(element: ElementKind) -> ElementKind:
    """What maxima and sums of segments are kept in."""
    return element if element is ElementKind.F64 else ElementKind.F32


@dataclass(frozen=True, slots=True)
class Cells:
    """What is known of each cell, a segment by a column, in scratch."""

    desc: Any
    groups: Groups

    def take(self, element: ElementKind) -> Scratch:
        return self.groups.arena.take(element, self.desc.num_segments * self.desc.embedding_dim)

    @staticmethod
    def _reduction(desc: Any, state: str, carried: ElementKind, **options: Any) -> Reduction:
        sizes = {"groups": desc.num_segments, "columns": desc.embedding_dim}
        return Reduction(
            **sizes,
            positions=desc.num_inputs,
            element=desc.element,
            carried=carried,
            state=state,
            winners=state == "split",
            **options,
        )

    @staticmethod
    def parts(desc: Any, state: str, carried: ElementKind) -> int:
        """Scratch that a reduction takes beside its result."""
        return Cells._reduction(desc, state, carried).nbytes

    def reduce(
        self,
        state: str,
        carried: ElementKind,
        source: dict[str, Any],
        averaged: bool = False,
        root: bool = False,
        **found: Any,
    ) -> None:
        """Into scratch, unless the loops of a result are given."""
        desc = self.desc
        reduction = self._reduction(desc, state, carried, mean=averaged, root=root)
        cells = dense("out", desc.num_segments, desc.embedding_dim)
        tensors = {**_NONE, **lookup(self.groups), **source, **cells, **found}
        self.groups.steps += reduction.steps(self.groups.arena, tensors)

    def peaks(self, source: dict[str, Any], cleared: bool = False) -> dict[str, Scratch]:
        """The largest element and how many hold it; `cleared`: none where there are no rows."""
        kept = computed(self.desc.element)
        peak, holder = self.take(kept), self.take(ElementKind.I64)
        if cleared:
            where = {"out_extents": (holder.count,), "out_strides": (1,)}
            self.groups.fill({"out": holder, **where}, 0.0)
        self.reduce("split", kept, source, out=peak, index=holder)
        return {"peak": peak, "holder": holder}

    def sums(
        self, source: dict[str, Any], kept: ElementKind | None = None, **mapped: Any
    ) -> Scratch:
        """Sums of what the source is mapped to."""
        total = self.take(kept or computed(self.desc.element))
        self.reduce("sum", self.desc.element.accumulator, source, out=total, **mapped)
        return total

    def of_powers(
        self, source: dict[str, Any], cleared: bool = False, kept: ElementKind | None = None
    ) -> dict[str, Scratch]:
        """The same, and the sum of the powers relative to the largest."""
        found = self.peaks(source, cleared)
        return {**found, "total": self.sums(source, kept, shift=found["peak"], SHIFT="power")}

    def spread(self, kernel: Any, ids: dict[str, Any], reads: int, **arguments: Any) -> None:
        """A step over all rows that looks up their cells."""
        desc = self.desc
        tile = ROWS[desc.embedding_dim]
        blocks = ceil_div(desc.embedding_dim, tile.block)
        arguments |= {
            **ids,
            "gate": self.groups.status,
            "count": desc.num_inputs,
            "groups": desc.num_segments,
            "columns": desc.embedding_dim,
            "blocks": blocks,
            "FINE": desc.element is ElementKind.F32,
            "P": tile.rows,
            "B": tile.block,
        }
        size = desc.num_inputs * desc.embedding_dim * desc.element.itemsize
        traffic = reads * size + desc.num_inputs * ids["ids"].element.itemsize
        grid = ceil_div(desc.num_inputs, tile.rows) * blocks
        self.groups.steps.append(Step(kernel, grid, arguments, tile.warps, traffic))

    @property
    def program(self) -> GpuProgram:
        return GpuProgram(tuple(self.groups.steps), self.groups.status)


def cell_bytes(desc: Any) -> int:
    """Scratch for a maximum, a count and a sum of each cell, and for parts of two reductions."""
    cells = desc.num_segments * desc.embedding_dim
    kept = computed(desc.element)
    parts = Cells.parts(desc, "split", kept) + Cells.parts(desc, "sum", desc.element.accumulator)
    return (2 * kept.itemsize + 8) * cells + 3 * ALIGNMENT + parts


def source_of(name: str, slot: int, view: Any) -> dict[str, Any]:
    """A tensor of rows, as the kernels that reduce name it, and those that spread."""
    return {name: Operand(slot, view.element), **table(name, view)}


def _kept(desc: Any) -> ElementKind:
    """What sums of powers are kept in: next to 1, the logarithm of a sum of f32 has few digits."""
    log = desc.kind is SegmentSoftmaxKind.LOG_SOFTMAX and desc.element is ElementKind.F32
    return ElementKind.F64 if log else computed(desc.element)


def _forward(desc: Any, x: Any, ids: Any, y: Any, order: Any, offsets: Any) -> GpuProgram:
    groups, own = grouped(desc, ids, order, offsets, desc.ascending)
    cells = Cells(desc, groups)
    if desc.num_inputs * desc.embedding_dim:
        known = cells.of_powers(source_of("source", 0, x), kept=_kept(desc))
        tensors = {**source_of("x", 0, x), **source_of("out", 2, y), "grad": None, **_NO_GRADIENT}
        cells.spread(share, own, 2, **known, **tensors, KIND=desc.kind.value)
    return cells.program


def _backward(
    desc: Any, dy: Any, ids: Any, dx: Any, order: Any, offsets: Any, y: Any
) -> GpuProgram:
    groups, own = grouped(desc, ids, order, offsets, desc.ascending)
    cells = Cells(desc, groups)
    if desc.num_inputs * desc.embedding_dim:
        peak = cells.peaks(source_of("source", OTHER, y))["peak"]
        weights: dict[str, Any] = {}
        if desc.kind is SegmentSoftmaxKind.SOFTMAX:
            weights = source_of("factor", OTHER, y)
        total = cells.sums(source_of("source", 0, dy), **weights)
        tensors = {**source_of("dy", 0, dy), **source_of("y", OTHER, y), **source_of("out", 2, dx)}
        cells.spread(share_back, own, 3, peak=peak, total=total, **tensors, KIND=desc.kind.value)
    return cells.program


def _guarantee(desc: Any) -> PrecisionGuarantee:
    return guarantee(desc.element.accumulator, Reproducibility.RUN_TO_RUN)


def _bytes(desc: Any) -> int:
    return grouped_bytes(desc) + cell_bytes(desc)


def _forward_bytes(desc: Any) -> int:
    """The same, with sums that may be wider."""
    wider = _kept(desc).itemsize - computed(desc.element).itemsize
    return _bytes(desc) + wider * desc.num_segments * desc.embedding_dim


_SIZES = {"num_inputs": 1 << 20, "embedding_dim": 8, "num_segments": 1 << 14}
_SAMPLES = tuple(Sample(k.value, {**_SIZES, "kind": k}) for k in SegmentSoftmaxKind)

forward = Layout(_forward, _guarantee, _forward_bytes, _SAMPLES)
backward = Layout(_backward, _guarantee, _bytes, _SAMPLES)
