"""Embeddings and bags on the GPU: which steps they take.

A gradient of the table is a sum over groups of positions, sorted by index, as `segment` has it: no
atomics, the same bits in every run. Maxima are grouped by the cell of the table they came from.
"""

from __future__ import annotations

from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.errors import Unsupported
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import IndexPolicy, Reproducibility
from pullback.gpu.program import (
    ALIGNMENT,
    Arena,
    GpuProgram,
    Layout,
    Operand,
    Scratch,
    Step,
    Tile,
    ceil_div,
)
from pullback.gpu.sketch import Sample, Sketch
from pullback.gpu.tile import wide
from pullback.ops.embedding.contract import bag_length, check_bags
from pullback.ops.embedding.gpu_kernels import (
    bag_of,
    clear,
    count_kept,
    divisors,
    dots,
    find_bags,
    lookup,
    make_cells,
    sum_runs,
)
from pullback.ops.segment.gpu_groups import FLAT, STATUS_WORDS, Groups, group_bytes, walk
from pullback.ops.segment.gpu_reduce import ROWS, Reduction, table

BAGS = Tile(16, 64, 4)  # bags at a time and their positions, where they are counted
RUNS = Tile(1, 256, 4)  # keys at a time, where their runs are walked along
BAD_OFFSETS, BAD_WINNER = 3, 4
_I64 = ElementKind.I64
_PLAIN = {"index": None, "rows": None, "factor": None}


def _grouped(desc: Any) -> Groups:
    return Groups(desc.num_indices, desc.num_embeddings, Arena(), [])


def _check(groups: Groups, desc: Any, indices: Any) -> Operand:
    ids = Operand(1, indices.element)
    groups.check(ids, indices, desc.policy is IndexPolicy.ERROR, ascending=False)
    return ids


def _rows(name: str, view: Any) -> dict[str, Any]:
    """A table whose last true axis is its columns."""
    return table(name, view, len(view.extents) - 1)


def _lookup(desc: Any, weight: Any, indices: Any, out: Any, *_: Any) -> GpuProgram:
    groups = _grouped(desc)
    ids = _check(groups, desc, indices)
    if not desc.num_indices * desc.embedding_dim:
        return GpuProgram(tuple(groups.steps), groups.status)
    tile = ROWS[desc.embedding_dim]
    blocks = ceil_div(desc.embedding_dim, tile.block)
    arguments = {
        "weight": Operand(0, weight.element),
        "indices": ids,
        "out": Operand(2, out.element),
        "gate": groups.status,
        "count": desc.num_indices,
        "vocabulary": desc.num_embeddings,
        "columns": desc.embedding_dim,
        "blocks": blocks,
        "padding": desc.padding_idx,
        **walk("ids", indices),
        **_rows("weight", weight),
        **_rows("out", out),
        "P": tile.rows,
        "B": tile.block,
    }
    size = desc.element.itemsize * desc.embedding_dim
    traffic = desc.num_indices * (2 * size + indices.element.itemsize)
    grid = ceil_div(desc.num_indices, tile.rows) * blocks
    groups.steps.append(Step(lookup, grid, arguments, tile.warps, traffic))
    return GpuProgram(tuple(groups.steps), groups.status)


def _refuse_sparse(op: str, desc: Any) -> None:
    if desc.sparse:
        raise Unsupported(op, "sparse", "False on a GPU", "True")


def _reduction(desc: Any, state: str, **options: Any) -> Reduction:
    fields = {
        "groups": desc.num_embeddings,
        "columns": desc.embedding_dim,
        "positions": desc.num_indices,
        "element": desc.element,
        "carried": desc.element.accumulator,
        "state": state,
    }
    return Reduction(**{**fields, **options})


def _backward(desc: Any, dout: Any, indices: Any, dweight: Any, *_: Any) -> GpuProgram:
    _refuse_sparse("embedding_backward", desc)
    groups = _grouped(desc)
    groups.sort(_check(groups, desc, indices), indices, desc.padding_idx)
    reduction = _reduction(desc, "sum", mean=desc.scale_grad_by_freq, keep=desc.accumulate)
    tensors = {
        **_PLAIN,
        "source": Operand(0, dout.element),
        "out": Operand(2, dweight.element),
        "offsets": groups.offsets,
        "order": groups.order,
        "gate": groups.status,
        **_rows("source", dout),
        **_rows("out", dweight),
    }
    return GpuProgram((*groups.steps, *reduction.steps(groups.arena, tensors)), groups.status)


# --- bags ---------------------------------------------------------------------------------------


def _find_bags(groups: Groups, desc: Any, offsets: Any) -> Scratch:
    """The borders of the bags, checked."""
    given = desc.num_bags + desc.include_last_offset
    borders = groups.arena.take(_I64, desc.num_bags + 1)
    blocks = ceil_div(desc.num_bags + 1, FLAT.block)
    wrong = groups.arena.take(_I64, blocks)
    where = {"borders": borders, "wrong": wrong, "bags": desc.num_bags, "given": given}
    where |= {"offsets": None, "count": desc.num_indices, "step": bag_length(desc)}
    if offsets is not None:
        operand = Operand(5, offsets.element)
        where |= {"offsets": operand, "step": offsets.strides[0]}
    groups.flat(find_bags, desc.num_bags + 1, 16 * (desc.num_bags + 1), **where)
    if offsets is None:
        return borders
    findings = {"ids": operand, "outside": wrong, "descent": wrong, "count": given}
    groups.conclude(blocks, offsets, **findings, OUTSIDE=BAD_OFFSETS, DESCENT=0)
    return borders


def _bag(
    desc: Any,
    weight: Any,
    indices: Any,
    out: Any,
    _order: Any,
    _parts: Any,
    offsets: Any,
    shares: Any,
    winners: Any,
) -> GpuProgram:
    check_bags("embedding_bag", desc, offsets, shares)
    groups = _grouped(desc)
    borders = _find_bags(groups, desc, offsets)
    ids = _check(groups, desc, indices)
    rows = groups.keys(ids, indices, desc.padding_idx, None, -1)
    largest = desc.mode == "max"
    reduction = _reduction(
        desc,
        "first" if largest else "sum",
        groups=desc.num_bags,
        mean=desc.mode == "mean",
        fill=0.0,
    )
    tensors = {
        "source": Operand(0, weight.element),
        "out": Operand(2, out.element),
        "index": None if winners is None else Operand(7, _I64),
        "offsets": borders,
        "order": None,
        "rows": rows,
        **_shares(shares),
        "gate": groups.status,
        **_rows("source", weight),
        **_rows("out", out),
        **_index(winners),
    }
    return GpuProgram((*groups.steps, *reduction.steps(groups.arena, tensors)), groups.status)


def _shares(shares: Any) -> dict[str, Any]:
    if shares is None:
        return {"factor": None}
    return {"factor": Operand(6, shares.element), **walk("factor", shares)}


def _index(winners: Any) -> dict[str, Any]:
    """Where output_index goes: the same loops as those of the result, other strides."""
    loops = {} if winners is None else _rows("index", winners)
    return {name: loops[name] for name in loops if name in ("index_strides", "index_steps")}


def _bag_backward(
    desc: Any,
    dout: Any,
    indices: Any,
    dweight: Any,
    _order: Any,
    _parts: Any,
    offsets: Any,
    shares: Any,
    winners: Any,
    weight: Any,
    d_shares: Any,
    _received: Any,
) -> GpuProgram:
    _refuse_sparse("embedding_bag_backward", desc)
    check_bags("embedding_bag_backward", desc, offsets, shares, weight, d_shares)
    groups = _grouped(desc)
    borders = _find_bags(groups, desc, offsets)
    ids = _check(groups, desc, indices)
    bag = groups.arena.take(_I64, desc.num_indices)
    if desc.num_indices:
        bits = (desc.num_bags + 1).bit_length()
        traffic = 16 * desc.num_indices
        where = {"borders": borders, "bag": bag, "bags": desc.num_bags, "bits": bits}
        groups.flat(bag_of, desc.num_indices, traffic, **where, count=desc.num_indices)
    views = {"dout": dout, "indices": indices, "dweight": dweight, "weight": weight}
    views |= {"shares": shares, "winners": winners, "d_shares": d_shares}
    if dweight is not None and desc.mode == "max":
        _table_of_maxima(groups, desc, ids, bag, views)
    elif dweight is not None:
        _table_of_sums(groups, desc, ids, bag, borders, views)
    if d_shares is not None and desc.num_indices:
        _dots(groups, desc, ids, bag, views)
    return GpuProgram(tuple(groups.steps), groups.status)


def _table_of_sums(
    groups: Groups, desc: Any, ids: Operand, bag: Scratch, borders: Scratch, views: dict[str, Any]
) -> None:
    factor = _shares(views["shares"])
    if desc.mode == "mean" and desc.num_indices:
        rows = groups.keys(ids, views["indices"], desc.padding_idx, None, -1)
        held = groups.arena.take(_I64, desc.num_bags)
        divisor = groups.arena.take(_I64, desc.num_indices)
        counted = {"borders": borders, "rows": rows, "held": held, "bags": desc.num_bags}
        tile = {"P": BAGS.rows, "B": BAGS.block}
        grid = ceil_div(desc.num_bags, BAGS.rows)
        traffic = 8 * desc.num_indices
        if grid:
            groups.steps.append(Step(count_kept, grid, {**counted, **tile}, BAGS.warps, traffic))
        where = {"bag": bag, "held": held, "divisor": divisor, "count": desc.num_indices}
        groups.flat(divisors, desc.num_indices, 3 * traffic, **where)
        factor = {"factor": divisor, "factor_extents": (desc.num_indices,), "factor_strides": (1,)}
    groups.sort(ids, views["indices"], desc.padding_idx, bag)
    reduction = _reduction(
        desc,
        "sum",
        mean=desc.scale_grad_by_freq,
        keep=desc.accumulate,
        divide=desc.mode == "mean",
    )
    tensors = {
        "source": Operand(0, desc.element),
        "out": Operand(2, desc.element),
        "index": None,
        "offsets": groups.offsets,
        "order": groups.order,
        "rows": bag,
        **factor,
        "gate": groups.status,
        **_rows("source", views["dout"]),
        **_rows("out", views["dweight"]),
    }
    groups.steps += reduction.steps(groups.arena, tensors)


def _table_of_maxima(
    groups: Groups, desc: Any, ids: Operand, bag: Scratch, views: dict[str, Any]
) -> None:
    count, extent = desc.num_bags * desc.embedding_dim, desc.num_embeddings * desc.embedding_dim
    frequency = divisor = None
    cells = groups.arena.take(_I64, count)
    _check_winners(groups, desc, count, views["winners"])
    if desc.scale_grad_by_freq:
        groups.sort(ids, views["indices"], desc.padding_idx, bag)
        frequency, divisor = groups.offsets, groups.arena.take(_I64, count)
    winners = views["winners"]
    where = {"winners": Operand(7, _I64), "frequency": frequency, "cells": cells}
    where |= {"divisor": divisor, "count": count, "vocabulary": desc.num_embeddings}
    where |= {"columns": desc.embedding_dim, "padding": desc.padding_idx}
    if count:
        groups.flat(make_cells, count, 16 * count, **where, **walk("winners", winners))
    own = Groups(count, extent, groups.arena, groups.steps)
    keys = own.arrange(cells, Sketch((count,), (1,), _I64))
    out = {"out": Operand(2, desc.element), "gate": groups.status, **walk("out", views["dweight"])}
    size = desc.element.itemsize
    if not desc.accumulate and extent:
        groups.flat(clear, extent, extent * size, **out, count=extent)
    where = {"keys": keys, "order": own.order, "source": Operand(0, desc.element), **out}
    where |= {"divisor": divisor, "count": count, "extent": extent}
    where |= {"WIDE": wide(desc.element.accumulator), **walk("source", views["dout"])}
    if count:
        groups.flat(sum_runs, count, count * (16 + 3 * size), RUNS, **where)


def _check_winners(groups: Groups, desc: Any, count: int, winners: Any) -> None:
    """-1 stands for an empty bag."""
    strict = desc.policy is IndexPolicy.ERROR
    own = Groups(count, desc.num_embeddings, groups.arena, groups.steps, groups.status)
    own.check(Operand(7, _I64), winners, strict, False, least=-1, code=BAD_WINNER)
    groups.status = own.status


def _dots(groups: Groups, desc: Any, ids: Operand, bag: Scratch, views: dict[str, Any]) -> None:
    rows = groups.keys(ids, views["indices"], desc.padding_idx, None, -1)
    tile = ROWS[desc.embedding_dim]
    arguments = {
        "dout": Operand(0, desc.element),
        "weight": Operand(8, desc.element),
        "rows": rows,
        "bag": bag,
        "out": Operand(9, desc.element),
        "gate": groups.status,
        "count": desc.num_indices,
        "columns": desc.embedding_dim,
        **walk("out", views["d_shares"]),
        **_rows("dout", views["dout"]),
        **_rows("weight", views["weight"]),
        "WIDE": wide(desc.element.accumulator),
        "P": tile.rows,
        "B": tile.block,
    }
    size = desc.element.itemsize
    traffic = desc.num_indices * (2 * desc.embedding_dim * size + size + 16)
    grid = ceil_div(desc.num_indices, tile.rows)
    groups.steps.append(Step(dots, grid, arguments, tile.warps, traffic))


# --- what plans ask -----------------------------------------------------------------------------


def _sorted_bytes(desc: Any) -> int:
    return group_bytes(desc.num_indices, desc.num_embeddings) + _reduction(desc, "sum").nbytes


def _bag_bytes(desc: Any) -> int:
    """Borders of the bags, the rows of positions, and the parts of long bags."""
    bags = desc.num_bags + 1
    words = bags + ceil_div(bags, FLAT.block) + STATUS_WORDS + desc.num_indices
    reduction = _reduction(desc, "sum", groups=desc.num_bags)
    checks = group_bytes(desc.num_indices, 0)
    return 8 * words + checks + reduction.nbytes + 8 * ALIGNMENT


def _bag_backward_bytes(desc: Any) -> int:
    """The same, bags of positions, counts, and a sort: by cells of the table for maxima."""
    words = 4 * desc.num_indices + desc.num_bags
    total = _bag_bytes(desc) + 8 * words + _sorted_bytes(desc) + 16 * ALIGNMENT
    if desc.mode == "max":
        count = desc.num_bags * desc.embedding_dim
        total += 16 * count + group_bytes(count, 0)
    return total


def _exact(desc: Any) -> PrecisionGuarantee:
    return guarantee(desc.element.accumulator, Reproducibility.ANY_MACHINE)


def _sums(desc: Any) -> PrecisionGuarantee:
    exact = getattr(desc, "mode", "") == "max" and not hasattr(desc, "accumulate")
    level = Reproducibility.ANY_MACHINE if exact else Reproducibility.RUN_TO_RUN
    return guarantee(desc.element.accumulator, level)


_SIZES = {"num_embeddings": 1 << 16, "embedding_dim": 128, "num_indices": 1 << 18}
_BAGS = tuple(
    Sample(mode, {**_SIZES, "num_bags": 1 << 14, "mode": mode}, ("offsets",))
    for mode in ("sum", "mean", "max")
)
_ROWS_OF_INDICES = Sample("sum of rows of indices", _BAGS[0].options)
_BACK = (
    *(Sample(s.title, s.options, ("dweight", "offsets")) for s in _BAGS),
    Sample("max of a new table", {**_BAGS[2].options, "accumulate": False}, ("dweight", "offsets")),
)
_SHARES = Sample("shares", _BAGS[0].options, ("weight", "d_per_sample_weights", "offsets"))

embedding = Layout(
    _lookup, _exact, lambda desc: group_bytes(desc.num_indices, 0), (Sample("rows", _SIZES),)
)
embedding_backward = Layout(_backward, _sums, _sorted_bytes, (Sample("rows", _SIZES),))
embedding_bag = Layout(_bag, _sums, _bag_bytes, (*_BAGS, _ROWS_OF_INDICES))
embedding_bag_backward = Layout(_bag_backward, _sums, _bag_backward_bytes, (*_BACK, _SHARES))
