"""Gradients of groups handed back to their rows, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.tile import cells, divide, multiple, place, start_of_loop
from pullback.ops.segment.gpu_kernels import run_product
from pullback.ops.segment.gpu_sums import last_row


@triton.jit(do_not_specialize=["count", "groups", "columns", "blocks"])
def spread(
    ids,
    begin,
    end,
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
    """Each row receives the gradient of its group: whole ("sum"), its share ("mean"), or its share
    if it is among the equals ("split"). With "skipped", only rows without a group are written."""
    columns = multiple(columns, out_columns)
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
        at = cells(group, column, grad_extents, grad_strides, grad_columns, grad_steps)
        g = tl.load(grad + at, mask=take, other=0.0).to(WIDE)
    if RULE == "mean":
        first = tl.load(begin + group, mask=kept, other=0)
        last = tl.load(end + group, mask=kept, other=1)
        g = divide(g, (last - first).to(WIDE)[:, None])
    elif RULE == "split":
        best = tl.load(value + table, mask=take, other=0.0)
        equals = tl.load(holder + table, mask=take, other=1)
        at = cells(row, column, x_extents, x_strides, x_columns, x_steps)
        own = tl.load(x + at, mask=take, other=0.0).to(WIDE) * SIGN
        tie = (own == best) | ((own != own) & (best != best))
        g = tl.where(tie, divide(g, equals.to(WIDE)), 0.0)
    at = cells(row, column, out_extents, out_strides, out_columns, out_steps)
    tl.store(out + at, tl.where(take, g, 0.0).to(out.dtype.element_ty), mask=live)


# --- products: each row receives the gradient times the product of the others -------------------


@triton.jit(do_not_specialize=["count"])
def surround(
    keys,
    held,
    part,
    before,
    after,
    count,
    columns,
    P: tl.constexpr,
    B: tl.constexpr,
):
    """For each part of a run that several blocks share, the products of its parts before and after
    it: all parts, P of them at a time, from either end."""
    column = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = column < columns
    carry = tl.full([1, B], 1.0, tl.float64)
    for first in range(start_of_loop(), count, P):
        e = first + tl.arange(0, P)
        left = _neighbour(keys, held, part, e, e - 1, count, columns, column, live)
        begins = _is_other(keys, e, e - 1, count).to(tl.int32)
        flag, product = tl.associative_scan(
            (tl.broadcast_to(begins[:, None], [P, B]), left), 0, run_product
        )
        product = tl.where(flag == 0, carry * product, product)
        at = (e * columns)[:, None] + column[None, :]
        tl.store(before + at, product, mask=(e < count)[:, None] & live[None, :])
        carry = last_row(product, P)
    carry = tl.full([1, B], 1.0, tl.float64)
    for first in range(start_of_loop(), count, P):
        e = count - 1 - first - tl.arange(0, P)
        right = _neighbour(keys, held, part, e, e + 1, count, columns, column, live)
        begins = _is_other(keys, e, e + 1, count).to(tl.int32)
        flag, product = tl.associative_scan(
            (tl.broadcast_to(begins[:, None], [P, B]), right), 0, run_product
        )
        product = tl.where(flag == 0, carry * product, product)
        at = (e * columns)[:, None] + column[None, :]
        tl.store(after + at, product, mask=(e >= 0)[:, None] & live[None, :])
        carry = last_row(product, P)


@triton.jit
def _is_other(keys, e, neighbour, count):
    """Whether a part belongs to another run than its neighbour, or has none."""
    both = (e >= 0) & (e < count) & (neighbour >= 0) & (neighbour < count)
    mine = tl.load(keys + e, mask=both, other=0)
    return ~both | (mine != tl.load(keys + neighbour, mask=both, other=1))


@triton.jit
def _neighbour(keys, held, part, e, neighbour, count, columns, column, live):
    """The neighbours of parts, 1 where they belong to another run or hold nothing."""
    same = ~_is_other(keys, e, neighbour, count)
    same = same & (tl.load(held + neighbour, mask=same, other=0) > 0)
    use = same[:, None] & live[None, :]
    at = (neighbour * columns)[:, None] + column[None, :]
    return tl.load(part + at, mask=use, other=1.0)


@triton.jit
def _element(x, order, p, same, column, wanted, extents, strides, columns, steps):
    """The rows at sorted positions p, in f64; 1 where they are not of the `same` run."""
    row = p
    if order is not None:
        row = tl.load(order + p, mask=same, other=0)
    use = same[:, None] & wanted[None, :]
    at = cells(row, column, extents, strides, columns, steps)
    return tl.where(use, tl.load(x + at, mask=use, other=1.0).to(tl.float64), 1.0)


@triton.jit(do_not_specialize=["count", "groups", "columns", "blocks"])
def spread_product(
    keys, order, grad, x, before, after, out, gate, count, groups, columns, blocks,
    keys_extents, keys_strides, grad_extents, grad_strides, grad_columns, grad_steps,
    x_extents, x_strides, x_columns, x_steps, out_extents, out_strides, out_columns, out_steps,
    L: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """A block of positions: products of the rows before and after each row, no division. `before`
    and `after` have what other blocks hold of the runs that this one begins and ends with."""
    columns = multiple(columns, out_columns)
    program = tl.program_id(0).to(tl.int64)
    number, block = program // blocks, program % blocks
    column = block * B + tl.arange(0, B)
    wanted = column < columns
    if gate is not None:
        wanted = wanted & (tl.load(gate) == 0)
    start = number * L
    end = tl.minimum(start + L, count)
    p = start + tl.arange(0, L)
    key = tl.load(keys + place(p, keys_extents, keys_strides), mask=p < end, other=-1)
    key = key.to(tl.int64)
    at = place(p - 1, keys_extents, keys_strides)
    previous = tl.load(keys + at, mask=(p > start) & (p < end), other=-1).to(tl.int64)
    at = place(p + 1, keys_extents, keys_strides)
    following = tl.load(keys + at, mask=p + 1 < end, other=-1).to(tl.int64)
    kept = (p < end) & (key >= 0) & (key < groups)
    continues = kept & (previous == key)
    goes_on = kept & (following == key)
    left = _element(
        x, order, p - 1, continues, column, wanted, x_extents, x_strides, x_columns, x_steps
    )
    right = _element(
        x, order, p + 1, goes_on, column, wanted, x_extents, x_strides, x_columns, x_steps
    )
    flag = tl.broadcast_to((~continues).to(tl.int32)[:, None], [L, B])
    _, product = tl.associative_scan((flag, left), 0, run_product)
    flag = tl.broadcast_to((~goes_on).to(tl.int32)[:, None], [L, B])
    _, others = tl.associative_scan((flag, right), 0, run_product, reverse=True)
    product *= others
    if before is not None:
        first_key = tl.load(keys + place(start, keys_extents, keys_strides)).to(tl.int64)
        last_key = tl.load(keys + place(end - 1, keys_extents, keys_strides)).to(tl.int64)
        # A part that holds nothing is the run's own neighbour, so its surroundings are right too.
        tail = key == last_key
        open = kept & (tail | (key == first_key))
        at = ((2 * number + tail.to(tl.int64)) * columns)[:, None] + column[None, :]
        use = open[:, None] & wanted[None, :]
        product *= tl.load(before + at, mask=use, other=1.0)
        product *= tl.load(after + at, mask=use, other=1.0)
    at = cells(key, column, grad_extents, grad_strides, grad_columns, grad_steps)
    use = kept[:, None] & wanted[None, :]
    g = tl.load(grad + at, mask=use, other=0.0).to(tl.float64)
    row = p
    if order is not None:
        row = tl.load(order + p, mask=kept, other=0)
    at = cells(row, column, out_extents, out_strides, out_columns, out_steps)
    tl.store(out + at, (g * product).to(out.dtype.element_ty), mask=use)
