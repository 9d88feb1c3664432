"""Gradients of a table on the GPU: sums over runs of sorted indices."""

from __future__ import annotations

from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.kinds import IndexPolicy
from pullback.gpu.program import Arena, Operand, ceil_div
from pullback.ops.embedding.contract import row_capacity
from pullback.ops.embedding.gpu_kernels import count_rows, rank_rows
from pullback.ops.segment.gpu_groups import FLAT, Groups, flat_keys, walk
from pullback.ops.segment.gpu_reduce import Reduction, table

_I64 = ElementKind.I64


def grouped(desc: Any) -> Groups:
    return Groups(desc.num_indices, desc.num_embeddings, Arena(), [])


def check(groups: Groups, desc: Any, indices: Any) -> Operand:
    ids = Operand(1, indices.element)
    groups.check(ids, indices, desc.policy is IndexPolicy.ERROR, ascending=False)
    return ids


def rows_of(name: str, view: Any) -> dict[str, Any]:
    """A table whose last true axis is its columns."""
    return table(name, view, len(view.extents) - 1)


def reduction_of(desc: Any, state: str, **options: Any) -> Reduction:
    fields = {
        "groups": desc.num_embeddings,
        "columns": desc.embedding_dim,
        "positions": desc.num_indices,
        "element": desc.element,
        "carried": desc.element.accumulator,
        "state": state,
    }
    return Reduction(**{**fields, **options})


def table_of_runs(
    groups: Groups,
    desc: Any,
    source: dict[str, Any],
    dweight: Any,
    received: tuple[Any, int],
    padding: int | None = None,
    **options: Any,
) -> None:
    """Sums over the sorted positions, into the rows of a table, or, with `sparse`, of those that
    are met, whose numbers go to `received`: a tensor and its slot."""
    rows, out = desc.num_embeddings, Operand(2, dweight.element)
    if desc.sparse:
        rows = row_capacity(desc)
        _rank(groups, desc, *received, padding)
        padding = None
    elif not desc.accumulate:
        groups.fill({"out": out, **walk("out", dweight)}, 0.0)
    mean, keep = desc.scale_grad_by_freq, desc.accumulate
    reduction = reduction_of(desc, "sum", groups=rows, mean=mean, keep=keep, **options)
    tensors = {
        **source,
        **groups.sorted,
        "out": out,
        "order": groups.order,
        "padding": padding,
        "gate": groups.status,
        **rows_of("out", dweight),
    }
    groups.steps += reduction.steps(groups.arena, tensors)


def _rank(groups: Groups, desc: Any, received: Any, slot: int, padding: int | None) -> None:
    """Number the keys that occur, and have these numbers for keys instead."""
    capacity, count, rows = row_capacity(desc), desc.num_indices, Operand(slot, _I64)
    if not count:
        groups.fill({"out": rows, **walk("out", received)}, 0.0)
        return
    found = groups.arena.take(_I64, ceil_div(count, FLAT.block))
    ranks = groups.arena.take(_I64, count)
    where = {**groups.sorted, "found": found, "count": count, "padding": padding}
    where["extent"] = desc.num_embeddings
    groups.flat(count_rows, count, 8 * count, **where)
    step = received.strides[0]
    where |= {"ranks": ranks, "rows": rows, "gate": groups.status}
    groups.flat(rank_rows, count, 24 * count, **where, capacity=capacity, step=step)
    groups.sorted = flat_keys(ranks, count)
