"""Softmax within segments in Triton: what each row has of what its segment adds up to.

The maximum of every segment and how many rows hold it, and the sum of the powers relative to it,
are reductions of `segment`. FINE is f32 in f32, by the polynomials of `gpu.exponential`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.exponential import exp_f32, log_f32, power
from pullback.gpu.pairs import two_sum
from pullback.gpu.tile import divide, multiple, place


@triton.jit
def _rows(ids, count, groups, columns, blocks, gate, ids_extents, ids_strides, P, B):
    """Of a block of rows by columns: rows, columns, the group of each row, which elements there
    are, and which of them belong to a group."""
    program = tl.program_id(0).to(tl.int64)
    row = program // blocks * P + tl.arange(0, P)
    column = program % blocks * B + tl.arange(0, B)
    known = row < count
    live = known[:, None] & (column < columns)[None, :]
    if gate is not None:
        live = live & (tl.load(gate) == 0)
    group = tl.load(ids + place(row, ids_extents, ids_strides), mask=known, other=-1).to(tl.int64)
    kept = known & (group >= 0) & (group < groups)
    return row, column, tl.where(kept, group, 0), live, live & kept[:, None]


@triton.jit
def _value(x, peak, holders, total, take, KIND: tl.constexpr, FINE: tl.constexpr):
    """The map itself, and the rules for segments with NaN, +inf, or nothing but -inf."""
    whole = tl.where(total > 0.0, total, 1.0)
    shared = tl.maximum(holders, 1).to(x.dtype)
    top = x == float("inf")
    if KIND == "segment_log_softmax":
        z = x - peak
        logarithm = log_f32(whole) if FINE else tl.log(whole)
        if FINE:
            _, low = two_sum(x, -peak)
            y = tl.where(z > float("-inf"), z + (low - logarithm), z)
            share = log_f32(shared)
        else:
            y = z - logarithm
            share = tl.log(shared)
        infinite = tl.where(top, -share, float("-inf"))
    else:
        y = divide(power(x, peak, take, FINE), whole)
        infinite = tl.where(top, divide(tl.full(x.shape, 1.0, x.dtype), shared), 0.0)
    y = tl.where(tl.abs(peak) < float("inf"), y, infinite)
    return tl.where(peak == peak, y, float("nan"))


@triton.jit(do_not_specialize=["count", "groups", "columns", "blocks"])
def share(
    x,
    ids,
    peak,
    holder,
    total,
    grad,
    out,
    gate,
    count,
    groups,
    columns,
    blocks,
    ids_extents,
    ids_strides,
    x_extents,
    x_strides,
    x_columns,
    x_steps,
    grad_extents,
    grad_strides,
    grad_columns,
    grad_steps,
    out_extents,
    out_strides,
    out_columns,
    out_steps,
    KIND: tl.constexpr,
    FINE: tl.constexpr,
    P: tl.constexpr,
    B: tl.constexpr,
):
    """Each row's share of its segment, or the logarithm of it; with `grad`, times the gradient of
    the segment. Segments of only -inf have no gradient, rows of no segment no share."""
    columns = multiple(columns, out_columns)
    row, column, group, live, take = _rows(
        ids, count, groups, columns, blocks, gate, ids_extents, ids_strides, P, B
    )
    at = place(row, x_extents, x_strides)[:, None]
    at = at + place(column, x_columns, x_steps)[None, :]
    table = (group * columns)[:, None] + column[None, :]
    best = tl.load(peak + table, mask=take, other=0.0)
    value = tl.load(x + at, mask=take, other=0.0).to(best.dtype)
    holders = tl.load(holder + table, mask=take, other=1)
    sums = tl.load(total + table, mask=take, other=1.0)
    y = _value(value, best, holders, sums, take, KIND, FINE)
    if grad is not None:
        at = place(group, grad_extents, grad_strides)[:, None]
        at = at + place(column, grad_columns, grad_steps)[None, :]
        g = tl.load(grad + at, mask=take, other=0.0).to(y.dtype)
        y = tl.where(best == float("-inf"), 0.0, g * y)
    y = tl.where(take, y, float("-inf") if KIND == "segment_log_softmax" else 0.0)
    at = place(row, out_extents, out_strides)[:, None]
    at = at + place(column, out_columns, out_steps)[None, :]
    tl.store(out + at, y.to(out.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["count", "groups", "columns", "blocks"])
def share_back(
    dy,
    y,
    ids,
    peak,
    total,
    out,
    gate,
    count,
    groups,
    columns,
    blocks,
    ids_extents,
    ids_strides,
    dy_extents,
    dy_strides,
    dy_columns,
    dy_steps,
    y_extents,
    y_strides,
    y_columns,
    y_steps,
    out_extents,
    out_strides,
    out_columns,
    out_steps,
    KIND: tl.constexpr,
    FINE: tl.constexpr,
    P: tl.constexpr,
    B: tl.constexpr,
):
    """The gradient of each row: `peak` is the largest y of its segment, which says whether there is
    any mass, `total` the sum of dy, or of y·dy."""
    columns = multiple(columns, out_columns)
    row, column, group, live, take = _rows(
        ids, count, groups, columns, blocks, gate, ids_extents, ids_strides, P, B
    )
    table = (group * columns)[:, None] + column[None, :]
    best = tl.load(peak + table, mask=take, other=0.0)
    sums = tl.load(total + table, mask=take, other=0.0)
    at = place(row, dy_extents, dy_strides)[:, None]
    at = at + place(column, dy_columns, dy_steps)[None, :]
    g = tl.load(dy + at, mask=take, other=0.0).to(best.dtype)
    at = place(row, y_extents, y_strides)[:, None]
    at = at + place(column, y_columns, y_steps)[None, :]
    p = tl.load(y + at, mask=take, other=0.0).to(best.dtype)
    if KIND == "segment_log_softmax":
        if FINE:
            e = tl.where(p > float("-inf"), exp_f32(tl.where(p == p, p, 0.0)), 0.0)
            e = tl.where(p == p, e, p)
        else:
            e = tl.exp(p)
        dx = tl.where(best == float("-inf"), 0.0, g - e * sums)
    else:
        dx = tl.where(best == 0.0, 0.0, p * (g - sums))
    at = place(row, out_extents, out_strides)[:, None]
    at = at + place(column, out_columns, out_steps)[None, :]
    tl.store(out + at, tl.where(take, dx, 0.0).to(out.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["count", "columns"])
def log_sums(
    peak,
    holder,
    total,
    out,
    gate,
    count,
    columns,
    out_extents,
    out_strides,
    out_columns,
    out_steps,
    WIDE: tl.constexpr,
    B: tl.constexpr,
):
    """The maximum of each segment that has rows, and the logarithm of its sum."""
    count = multiple(count, out_extents)
    k = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = k < count
    if gate is not None:
        live = live & (tl.load(gate) == 0)
    live = live & (tl.load(holder + k, mask=live, other=0) > 0)
    best = tl.load(peak + k, mask=live, other=0.0).to(WIDE)
    whole = tl.load(total + k, mask=live, other=1.0).to(WIDE)
    finite = tl.abs(best) < float("inf")
    y = tl.where(finite, best + tl.log(tl.where(finite, whole, 1.0)), best)
    at = place(k // columns, out_extents, out_strides)
    at = at + place(k % columns, out_columns, out_steps)
    tl.store(out + at, y.to(out.dtype.element_ty), mask=live)
