"""Gradients of groups handed back to their rows, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.tile import divide, place
from pullback.ops.segment.gpu_kernels import piece_of, times


@triton.jit
def spread(
    ids,
    offsets,
    grad,
    x,
    value,
    holder,
    out,
    gate,
    count,
    groups,
    columns,
    blocks,
    ids_extents,
    ids_strides,
    grad_extents,
    grad_strides,
    grad_columns,
    grad_steps,
    x_extents,
    x_strides,
    x_columns,
    x_steps,
    out_extents,
    out_strides,
    out_columns,
    out_steps,
    RULE: tl.constexpr,
    SIGN: tl.constexpr,
    WIDE: tl.constexpr,
    P: tl.constexpr,
    B: tl.constexpr,
):
    """Each row receives the gradient of its group: whole ("sum"), its share ("mean"), if it is the
    one that holds the extremum ("holder"), or its share if it is among the equals ("split"). With
    "skipped", only rows without a group are written."""
    program = tl.program_id(0).to(tl.int64)
    row = program // blocks * P + tl.arange(0, P)
    column = program % blocks * B + tl.arange(0, B)
    known = row < count
    live = known[:, None] & (column < columns)[None, :]
    if gate is not None:
        live = live & (tl.load(gate) == 0)
    group = tl.load(ids + place(row, ids_extents, ids_strides), mask=known, other=-1).to(tl.int64)
    kept = known & (group >= 0) & (group < groups)
    group = tl.where(kept, group, 0)
    take = live & kept[:, None]
    table = (group * columns)[:, None] + column[None, :]
    g = tl.zeros([P, B], WIDE)
    if RULE == "skipped":
        live = live & ~kept[:, None]
    else:
        at = place(group, grad_extents, grad_strides)[:, None]
        at = at + place(column, grad_columns, grad_steps)[None, :]
        g = tl.load(grad + at, mask=take, other=0.0).to(WIDE)
    if RULE == "mean":
        begin = tl.load(offsets + group, mask=kept, other=0)
        end = tl.load(offsets + group + 1, mask=kept, other=1)
        g = divide(g, (end - begin).to(WIDE)[:, None])
    elif RULE == "holder":
        held = tl.load(holder + table, mask=take, other=-1)
        g = tl.where(held == row[:, None], g, 0.0)
    elif RULE == "split":
        best = tl.load(value + table, mask=take, other=0.0)
        equals = tl.load(holder + table, mask=take, other=1)
        at = place(row, x_extents, x_strides)[:, None]
        at = at + place(column, x_columns, x_steps)[None, :]
        own = tl.load(x + at, mask=take, other=0.0).to(WIDE) * SIGN
        tie = (own == best) | ((own != own) & (best != best))
        g = tl.where(tie, divide(g, equals.to(WIDE)), 0.0)
    at = place(row, out_extents, out_strides)[:, None]
    at = at + place(column, out_columns, out_steps)[None, :]
    tl.store(out + at, tl.where(take, g, 0.0).to(out.dtype.element_ty), mask=live)


# --- products: each row receives the gradient times the product of the others -------------------


@triton.jit
def surround(
    part_u,
    before,
    after,
    offsets,
    groups,
    columns,
    blocks,
    L: tl.constexpr,
    P: tl.constexpr,
    B: tl.constexpr,
):
    """For each piece of a group of several, the products of the pieces before and after it."""
    program = tl.program_id(0).to(tl.int64)
    group = program // blocks * P + tl.arange(0, P)
    column = program % blocks * B + tl.arange(0, B)
    known = group < groups
    begin = tl.load(offsets + group, mask=known, other=0)
    end = tl.load(offsets + group + 1, mask=known, other=0)
    pieces = tl.where(known, 1 + end // L - begin // L, 1)
    live = (known & (pieces > 1))[:, None] & (column < columns)[None, :]
    most = tl.max(pieces, 0)
    rounds = tl.where(most > 1, most, 0)
    left = tl.full([P, B], 1.0, tl.float64)
    right = left
    for step in range(rounds):
        use = live & (step < pieces)[:, None]
        first = group + begin // L
        at = ((first + step) * columns)[:, None] + column[None, :]
        tl.store(before + at, left, mask=use)
        left *= tl.load(part_u + at, mask=use, other=1.0)
        at = ((first + pieces - 1 - step) * columns)[:, None] + column[None, :]
        tl.store(after + at, right, mask=use)
        right *= tl.load(part_u + at, mask=use, other=1.0)


@triton.jit
def _element(x, order, p, start, end, column, wanted, extents, strides, columns, steps):
    """The rows at sorted positions p of a piece, in f64, and their numbers; 1 beyond the piece."""
    inside = (p >= start) & (p < end)
    row = p
    if order is not None:
        row = tl.load(order + p, mask=inside, other=0)
    use = inside[:, None] & wanted[None, :]
    at = place(row, extents, strides)[:, None] + place(column, columns, steps)[None, :]
    return tl.where(use, tl.load(x + at, mask=use, other=1.0).to(tl.float64), 1.0)


@triton.jit
def spread_product(
    order,
    offsets,
    grad,
    x,
    before,
    after,
    out,
    gate,
    groups,
    columns,
    blocks,
    bits,
    grad_extents,
    grad_strides,
    grad_columns,
    grad_steps,
    x_extents,
    x_strides,
    x_columns,
    x_steps,
    out_extents,
    out_strides,
    out_columns,
    out_steps,
    L: tl.constexpr,
    B: tl.constexpr,
):
    """One piece of a group: products of the rows before and after each row, no division."""
    program = tl.program_id(0).to(tl.int64)
    number, block = program // blocks, program % blocks
    total = groups + tl.load(offsets + groups) // L
    column = block * B + tl.arange(0, B)
    wanted = (column < columns) & (number < total)
    if gate is not None:
        wanted = wanted & (tl.load(gate) == 0)
    group, start, end, pieces = piece_of(offsets, number, groups, bits, L)
    end = tl.where(number < total, end, start)
    p = start + tl.arange(0, L)
    left = _element(
        x, order, p - 1, start, end, column, wanted, x_extents, x_strides, x_columns, x_steps
    )
    right = _element(
        x, order, p + 1, start, end, column, wanted, x_extents, x_strides, x_columns, x_steps
    )
    product = tl.associative_scan(left, 0, times)
    product *= tl.associative_scan(right, 0, times, reverse=True)
    if before is not None:
        several = wanted & (pieces > 1)
        at = number * columns + column
        product *= tl.load(before + at, mask=several, other=1.0)[None, :]
        product *= tl.load(after + at, mask=several, other=1.0)[None, :]
    here = tl.full([1], 0, tl.int64) + group
    at = place(here, grad_extents, grad_strides) + place(column, grad_columns, grad_steps)
    g = tl.load(grad + at, mask=wanted, other=0.0).to(tl.float64)
    inside = p < end
    row = p
    if order is not None:
        row = tl.load(order + p, mask=inside, other=0)
    at = place(row, out_extents, out_strides)[:, None]
    at = at + place(column, out_columns, out_steps)[None, :]
    use = inside[:, None] & wanted[None, :]
    tl.store(out + at, (g[None, :] * product).to(out.dtype.element_ty), mask=use)
