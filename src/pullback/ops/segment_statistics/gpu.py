"""Statistics of segments on the GPU: which steps they take.

log Σ e^x takes the maxima and sums of `segment_softmax`. A variance takes the first row of each
segment, the mean of the gaps between it and the others, and the squares of what is left of them;
its gradient the same, and a slope for each segment and column.
"""

from __future__ import annotations

from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import Reproducibility
from pullback.gpu.program import ALIGNMENT, GpuProgram, Layout, Operand
from pullback.gpu.sketch import Sample
from pullback.gpu.tile import wide
from pullback.ops.segment.gpu_grouping import grouped, grouped_bytes
from pullback.ops.segment.gpu_groups import Groups, run_bytes, walk
from pullback.ops.segment.gpu_reduce import table
from pullback.ops.segment_softmax.gpu import OTHER, Cells, cell_bytes, computed, source_of
from pullback.ops.segment_softmax.gpu_kernels import log_sums, share
from pullback.ops.segment_statistics.contract import VARIANCES, SegmentStatisticKind
from pullback.ops.segment_statistics.gpu_kernels import pivots, slopes, variance_back


def _forward(desc: Any, x: Any, ids: Any, y: Any, order: Any, offsets: Any) -> GpuProgram:
    groups, _ = grouped(desc, ids, order, offsets, desc.ascending)
    cells, out = Cells(desc, groups), Operand(2, y.element)
    empty = float("-inf") if desc.empty is None else float(desc.empty)
    groups.fill({"out": out, **walk("out", y)}, empty)
    count = desc.num_segments * desc.embedding_dim
    if desc.num_inputs * count:
        known = cells.of_powers(source_of("source", 0, x), cleared=True)
        where = {**known, "gate": groups.status, "count": count, "columns": desc.embedding_dim}
        where |= {"out": out, **table("out", y), "WIDE": wide(desc.element.accumulator)}
        size = sum(each.element.itemsize for each in known.values()) + desc.element.itemsize
        groups.flat(log_sums, count, size * count, **where)
    return cells.program


def _backward(
    desc: Any, dy: Any, ids: Any, dx: Any, order: Any, offsets: Any, x: Any, _: Any
) -> GpuProgram:
    groups, own = grouped(desc, ids, order, offsets, desc.ascending)
    cells = Cells(desc, groups)
    if desc.num_inputs * desc.embedding_dim:
        known = cells.of_powers(source_of("source", OTHER, x))
        tensors = {**source_of("x", OTHER, x), **source_of("out", 2, dx)}
        tensors |= source_of("grad", 0, dy)
        cells.spread(share, own, 2, **known, **tensors, KIND="segment_logsumexp")
    return cells.program


# --- variances ----------------------------------------------------------------------------------


def _carried(desc: Any) -> ElementKind:
    """What sums are kept in: squares of bf16 leave the range of f32."""
    return ElementKind.F32 if desc.element is ElementKind.F16 else ElementKind.F64


def _gaps(desc: Any, groups: Groups, source: dict[str, Any]) -> tuple[Cells, dict[str, Any]]:
    """The borders of segments, and by cells their first row and the mean gap to it."""
    cells, found = Cells(desc, groups), groups.runs(cleared=True)
    kept, count = computed(desc.element), desc.num_segments * desc.embedding_dim
    pivot, mean = cells.take(kept), cells.take(_carried(desc))
    where = {"order": groups.order, "begin": found["begin"], "out": pivot, "count": count}
    where |= {name.replace("source", "x"): value for name, value in source.items()}
    size = count * (desc.element.itemsize + kept.itemsize)
    groups.flat(pivots, count, size, **where, columns=desc.embedding_dim)
    known: dict[str, Any] = {"shift": pivot, "SHIFT": "gap", "carried": _carried(desc)}
    cells.reduce("sum", source=source, out=mean, averaged=True, **known)
    return cells, {**found, "pivot": pivot, "mean": mean}


def _squared(desc: Any, cells: Cells, found: dict[str, Any], **more: Any) -> None:
    """Variances, or roots of them."""
    known: dict[str, Any] = {"shift": found["pivot"], "mean": found["mean"], "SHIFT": "square"}
    root = desc.kind is SegmentStatisticKind.STD
    known |= {"ddof": desc.ddof, "carried": _carried(desc), "root": root}
    cells.reduce("sum", **known, **more)


def _variance(desc: Any, x: Any, ids: Any, y: Any, order: Any, offsets: Any) -> GpuProgram:
    groups, _ = grouped(desc, ids, order, offsets, desc.ascending)
    out = Operand(2, y.element)
    groups.fill({"out": out, **walk("out", y)}, 0.0 if desc.empty is None else float(desc.empty))
    if desc.num_inputs * desc.num_segments * desc.embedding_dim:
        source = source_of("source", 0, x)
        cells, found = _gaps(desc, groups, source)
        _squared(desc, cells, found, source=source, out=out, **table("out", y))
    return GpuProgram(tuple(groups.steps), groups.status)


def _variance_backward(
    desc: Any, dy: Any, ids: Any, dx: Any, order: Any, offsets: Any, x: Any
) -> GpuProgram:
    groups, own = grouped(desc, ids, order, offsets, desc.ascending)
    if not desc.num_inputs * desc.embedding_dim:
        return GpuProgram(tuple(groups.steps), groups.status)
    source = source_of("source", OTHER, x)
    cells, found = _gaps(desc, groups, source)
    root = None
    if desc.kind is SegmentStatisticKind.STD:
        root = cells.take(ElementKind.F64)
        _squared(desc, cells, found, source=source, out=root)
    slope, scale = (cells.take(computed(desc.element)) for _ in range(2))
    count = desc.num_segments * desc.embedding_dim
    where = {"root": root, "begin": found["begin"], "end": found["end"], "out": slope}
    where |= {"scale": scale, "columns": desc.embedding_dim, "ddof": desc.ddof}
    if count:
        groups.flat(slopes, count, count * (8 + 2 * slope.element.itemsize), **where, count=count)
    tensors = {**source_of("x", OTHER, x), **source_of("grad", 0, dy), **source_of("out", 2, dx)}
    known = {"pivot": found["pivot"], "mean": found["mean"], "slope": slope, "scale": scale}
    known["WIDE"] = wide(_carried(desc))
    cells.spread(variance_back, own, 3, **known, **tensors)
    return cells.program


# --- what plans ask -----------------------------------------------------------------------------


def _guarantee(desc: Any) -> PrecisionGuarantee:
    return guarantee(desc.element.accumulator, Reproducibility.RUN_TO_RUN)


def _bytes(desc: Any) -> int:
    return grouped_bytes(desc) + cell_bytes(desc)


def _variance_bytes(desc: Any) -> int:
    """Borders of segments; five numbers for each cell; parts of two reductions."""
    cells = desc.num_segments * desc.embedding_dim
    total = grouped_bytes(desc) + run_bytes(desc.num_segments)
    total += (3 * computed(desc.element).itemsize + 16) * cells + 5 * ALIGNMENT
    return total + 2 * Cells.parts(desc, "sum", _carried(desc))


_SIZES = {"num_inputs": 1 << 20, "embedding_dim": 8, "num_segments": 1 << 14}
_SAMPLES = (Sample("rows", _SIZES),)
_VARIANCES = tuple(Sample(kind.value, {**_SIZES, "kind": kind}) for kind in VARIANCES)

logsumexp = Layout(_forward, _guarantee, _bytes, _SAMPLES)
logsumexp_backward = Layout(_backward, _guarantee, _bytes, _SAMPLES)
variance = Layout(_variance, _guarantee, _variance_bytes, _VARIANCES)
variance_backward = Layout(_variance_backward, _guarantee, _variance_bytes, _VARIANCES)
