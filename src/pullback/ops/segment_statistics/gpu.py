"""log Σ e^x of segments on the GPU: the maxima and sums of `segment_softmax`, and what is made of
them. Variances have no kernels here."""

from __future__ import annotations

from typing import Any

from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import Reproducibility
from pullback.gpu.program import GpuProgram, Layout, Operand
from pullback.gpu.sketch import Sample
from pullback.gpu.tile import wide
from pullback.ops.segment.gpu_grouping import grouped, grouped_bytes
from pullback.ops.segment.gpu_groups import walk
from pullback.ops.segment.gpu_reduce import table
from pullback.ops.segment_softmax.gpu import OTHER, Cells, cell_bytes, source_of
from pullback.ops.segment_softmax.gpu_kernels import log_sums, share


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


def _guarantee(desc: Any) -> PrecisionGuarantee:
    return guarantee(desc.element.accumulator, Reproducibility.RUN_TO_RUN)


def _bytes(desc: Any) -> int:
    return grouped_bytes(desc) + cell_bytes(desc)


_SAMPLES = (Sample("rows", {"num_inputs": 1 << 20, "embedding_dim": 8, "num_segments": 1 << 14}),)

logsumexp = Layout(_forward, _guarantee, _bytes, _SAMPLES)
logsumexp_backward = Layout(_backward, _guarantee, _bytes, _SAMPLES)
