"""Embeddings and bags on the GPU: which steps they take.

A gradient of the table is a sum over groups of positions, sorted by index, as `segment` has it: no
atomics, the same bits in every run. Maxima are grouped by the cell of the table they came from.
"""

from __future__ import annotations

from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import IndexPolicy, Reproducibility
from pullback.gpu.program import (
    ALIGNMENT,
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
    count_kept,
    divisors,
    dots,
    find_bags,
    lookup,
    make_cells,
)
from pullback.ops.embedding.gpu_table import check, grouped, reduction_of, rows_of, table_of_runs
from pullback.ops.segment.gpu_groups import (
    FLAT,
    Groups,
    check_bytes,
    flat_keys,
    run_bytes,
    sort_bytes,
    walk,
)
from pullback.ops.segment.gpu_reduce import ROWS

BAGS = Tile(16, 64, 4)  # bags at a time and their positions, where they are counted
BAD_OFFSETS, BAD_WINNER = 3, 4
_I64 = ElementKind.I64
_PLAIN = {"index": None, "rows": None, "factor": None}


def _lookup(desc: Any, weight: Any, indices: Any, out: Any, *_: Any) -> GpuProgram:
    groups = grouped(desc)
    ids = check(groups, desc, indices)
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
        **rows_of("weight", weight),
        **rows_of("out", out),
        "P": tile.rows,
        "B": tile.block,
    }
    size = desc.element.itemsize * desc.embedding_dim
    traffic = desc.num_indices * (2 * size + indices.element.itemsize)
    grid = ceil_div(desc.num_indices, tile.rows) * blocks
    groups.steps.append(Step(lookup, grid, arguments, tile.warps, traffic))
    return GpuProgram(tuple(groups.steps), groups.status)


def _backward(
    desc: Any,
    dout: Any,
    indices: Any,
    dweight: Any,
    order: Any,
    offsets: Any,
    received: Any,
    *_: Any,
) -> GpuProgram:
    groups = grouped(desc)
    ids = Operand(1, indices.element)
    padding = None
    if offsets is None:
        groups.sort(check(groups, desc, indices), indices, desc.padding_idx)
    else:  # a prepared index, which was checked: its keys are the ids as they are
        padding = desc.padding_idx
        if order is None:
            groups.take_sorted(ids, indices)
        else:
            groups.take_order(ids, indices, Operand(3, order.element))
    source = {**_PLAIN, "source": Operand(0, dout.element), **rows_of("source", dout)}
    table_of_runs(groups, desc, source, dweight, (received, 5), padding)
    return GpuProgram(tuple(groups.steps), groups.status)


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
    groups = grouped(desc)
    borders = _find_bags(groups, desc, offsets)
    ids = check(groups, desc, indices)
    rows = groups.keys(ids, indices, desc.padding_idx, None, -1)
    bag = _bag_of(groups, desc, borders)
    state = "first" if desc.mode == "max" else "sum"
    reduction = reduction_of(desc, state, groups=desc.num_bags, mean=desc.mode == "mean")
    result = Operand(2, out.element)
    groups.fill({"out": result, **walk("out", out)}, 0.0)
    if winners is not None:
        groups.fill({"out": Operand(7, _I64), **walk("out", winners)}, -1.0)
    tensors = {
        **flat_keys(bag, desc.num_indices),
        "source": Operand(0, weight.element),
        "out": result,
        "index": None if winners is None else Operand(7, _I64),
        "order": None,
        "rows": rows,
        **_shares(shares),
        "gate": groups.status,
        **rows_of("source", weight),
        **rows_of("out", out),
        **_index(winners),
    }
    return GpuProgram((*groups.steps, *reduction.steps(groups.arena, tensors)), groups.status)


def _bag_of(groups: Groups, desc: Any, borders: Scratch) -> Scratch:
    """The bag of every position."""
    bag = groups.arena.take(_I64, desc.num_indices)
    if desc.num_indices:
        bits = (desc.num_bags + 1).bit_length()
        where = {"borders": borders, "bag": bag, "bags": desc.num_bags, "bits": bits}
        count = desc.num_indices
        groups.flat(bag_of, count, 16 * count, **where, count=count)
    return bag


def _shares(shares: Any) -> dict[str, Any]:
    if shares is None:
        return {"factor": None}
    return {"factor": Operand(6, shares.element), **walk("factor", shares)}


def _index(winners: Any) -> dict[str, Any]:
    """Where output_index goes: the same loops as those of the result, other strides."""
    loops = {} if winners is None else rows_of("index", winners)
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
    received: Any,
) -> GpuProgram:
    check_bags("embedding_bag_backward", desc, offsets, shares, weight, d_shares)
    groups = grouped(desc)
    borders = _find_bags(groups, desc, offsets)
    ids = check(groups, desc, indices)
    bag = _bag_of(groups, desc, borders)
    views = {"dout": dout, "indices": indices, "dweight": dweight, "weight": weight}
    views |= {"shares": shares, "winners": winners, "d_shares": d_shares, "received": received}
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
    source = {
        "source": Operand(0, desc.element),
        "index": None,
        "rows": bag,
        **factor,
        **rows_of("source", views["dout"]),
    }
    divide, received = desc.mode == "mean", (views["received"], 10)
    table_of_runs(groups, desc, source, views["dweight"], received, divide=divide)


def _table_of_maxima(
    groups: Groups, desc: Any, ids: Operand, bag: Scratch, views: dict[str, Any]
) -> None:
    count, extent = desc.num_bags * desc.embedding_dim, desc.num_embeddings * desc.embedding_dim
    divisor: Scratch | None = None
    found: dict[str, Any] = {"begin": None, "end": None}
    cells = groups.arena.take(_I64, count)
    _check_winners(groups, desc, count, views["winners"])
    if desc.scale_grad_by_freq:
        groups.sort(ids, views["indices"], desc.padding_idx, bag)
        found, divisor = groups.runs(cleared=True), groups.arena.take(_I64, count)
    winners, table = views["winners"], views["dweight"]
    where = {"winners": Operand(7, _I64), "cells": cells, "divisor": divisor, "count": count}
    where |= {"vocabulary": desc.num_embeddings, "columns": desc.embedding_dim, **found}
    where |= {"padding": desc.padding_idx, **walk("winners", winners)}
    if count:
        groups.flat(make_cells, count, 16 * count, **where)
    own = Groups(count, extent, groups.arena, groups.steps, groups.status)
    own.sort(cells, Sketch((count,), (1,), _I64))
    out = {"out": Operand(2, desc.element), **walk("out", table)}
    if not desc.accumulate:
        groups.fill(out, 0.0)
    # Cells are rows of one column.
    one = {"columns": 1, "groups": extent, "positions": count}
    reduction = reduction_of(desc, "sum", **one, keep=desc.accumulate, divide=True)
    flat = {"factor_extents": (count,), "factor_strides": (1,)} if divisor else {}
    tensors = {
        **own.sorted,
        **out,
        **walk("source", views["dout"]),
        **flat,
        "source": Operand(0, desc.element),
        "order": own.order,
        "rows": None,
        "index": None,
        "factor": divisor,
        "gate": groups.status,
        **{f"{name}_columns": (1,) for name in ("source", "out")},
        **{f"{name}_steps": (1,) for name in ("source", "out")},
    }
    groups.steps += reduction.steps(groups.arena, tensors)


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
        **rows_of("dout", views["dout"]),
        **rows_of("weight", views["weight"]),
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
    """A check, a sort, the ranks of rows, and the parts of blocks."""
    count = desc.num_indices
    total = check_bytes(count) + sort_bytes(count, desc.num_embeddings)
    if desc.sparse:
        total += 8 * (count + ceil_div(count, FLAT.block)) + 2 * ALIGNMENT
    return total + reduction_of(desc, "sum").nbytes


def _bag_bytes(desc: Any) -> int:
    """Borders of the bags, the rows and the bags of positions, and the parts of blocks."""
    bags = desc.num_bags + 1
    words = bags + ceil_div(bags, FLAT.block) + 2 * desc.num_indices
    reduction = reduction_of(desc, "first" if desc.mode == "max" else "sum", groups=desc.num_bags)
    return 8 * words + check_bytes(desc.num_indices) + reduction.nbytes + 8 * ALIGNMENT


def _bag_backward_bytes(desc: Any) -> int:
    """The same but for the parts, counts, and a sort: by cells of the table for maxima."""
    bags, count = desc.num_bags + 1, desc.num_indices
    words = bags + ceil_div(bags, FLAT.block) + 4 * count + desc.num_bags
    total = 8 * words + 2 * check_bytes(count) + _sorted_bytes(desc) + 16 * ALIGNMENT
    if desc.mode == "max":
        cells, extent = desc.num_bags * desc.embedding_dim, desc.num_embeddings
        total += 16 * cells + check_bytes(cells) + sort_bytes(cells, extent * desc.embedding_dim)
        total += run_bytes(extent) * desc.scale_grad_by_freq
        total += reduction_of(desc, "sum", columns=1, positions=cells).nbytes
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
    _lookup, _exact, lambda desc: check_bytes(desc.num_indices), (Sample("rows", _SIZES),)
)
embedding_backward = Layout(_backward, _sums, _sorted_bytes, (Sample("rows", _SIZES),))
embedding_bag = Layout(_bag, _sums, _bag_bytes, (*_BAGS, _ROWS_OF_INDICES))
embedding_bag_backward = Layout(_bag_backward, _sums, _bag_backward_bytes, (*_BACK, _SHARES))
