"""Variances of segments in Triton: the row that others are taken relative to, and what a row has of
the gradient. Sums of gaps and of their squares are reductions of `segment`."""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.pairs import LEAST
from pullback.gpu.tile import cells, multiple, place
from pullback.ops.segment.gpu_mapped import gap_of, wide_gap
from pullback.ops.segment_softmax.gpu_kernels import rows_of_block


@triton.jit(do_not_specialize=["count", "columns"])
def pivots(
    x,
    order,
    begin,
    out,
    count,
    columns,
    x_extents,
    x_strides,
    x_columns,
    x_steps,
    B: tl.constexpr,
):
    """The first row of each segment; of segments without rows any other."""
    count = multiple(count, x_extents)
    k = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = k < count
    row = tl.load(begin + k // columns, mask=live, other=0)
    if order is not None:
        row = tl.load(order + row, mask=live, other=0)
    at = place(row, x_extents, x_strides) + place(k % columns, x_columns, x_steps)
    tl.store(out + k, tl.load(x + at, mask=live, other=0.0).to(out.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["columns", "ddof"])
def slopes(root, begin, end, out, scale, count, columns, ddof, B: tl.constexpr):
    """What the gaps of a segment are multiplied by: 2 / (rows - ddof), or, with roots of variances,
    1 / ((rows - ddof)·root), and 0 where there is nothing to divide by. In two factors, of which
    `scale` is a power of two: roots may be as small as numbers are."""
    k = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = k < count
    group = k // columns
    first = tl.load(begin + group, mask=live, other=0)
    left = tl.load(end + group, mask=live, other=0) - first - ddof
    some = left > 0
    divisor = tl.where(some, left, 1).to(tl.float64)
    if root is None:
        slope = 2.0 / divisor
    else:
        whole = tl.load(root + k, mask=live, other=0.0)
        some = some & (whole != 0.0)
        slope = 1.0 / (divisor * tl.where(some, whole, 1.0))
    exponent = ((slope.to(tl.int64, bitcast=True) >> 52) & 0x7FF) - 1023
    half = exponent >> 1
    up = ((half + 1023) << 52).to(tl.float64, bitcast=True)
    down = ((1023 - half) << 52).to(tl.float64, bitcast=True)
    slope = tl.where(some, slope * down, 0.0)
    tl.store(out + k, slope.to(out.dtype.element_ty), mask=live)
    tl.store(scale + k, up.to(scale.dtype.element_ty), mask=live)


@triton.jit
def _times(d, power, slope, g):
    return d * power.to(d.dtype) * slope.to(d.dtype) * g.to(d.dtype)


@triton.jit(do_not_specialize=["count", "groups", "columns", "blocks"])
def variance_back(
    x,
    ids,
    pivot,
    mean,
    slope,
    scale,
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
    FINE: tl.constexpr,
    WIDE: tl.constexpr,
    P: tl.constexpr,
    B: tl.constexpr,
):
    """The gap of each row from the mean of its segment, times slope and gradient of that. FINE is
    f32 in pairs of f32."""
    columns = multiple(columns, out_columns)
    row, column, group, live, take = rows_of_block(
        ids, count, groups, columns, blocks, gate, ids_extents, ids_strides, P, B
    )
    table = (group * columns)[:, None] + column[None, :]
    at = cells(row, column, x_extents, x_strides, x_columns, x_steps)
    value = tl.load(x + at, mask=take, other=0.0)
    first = tl.load(pivot + table, mask=take, other=0.0)
    middle = tl.load(mean + table, mask=take, other=0.0)
    steep = tl.load(slope + table, mask=take, other=0.0)
    power = tl.load(scale + table, mask=take, other=1.0)
    at = cells(group, column, grad_extents, grad_strides, grad_columns, grad_steps)
    g = tl.load(grad + at, mask=take, other=0.0)
    if FINE:
        d, rest = gap_of(value, first, middle)
        tiny = take & (tl.abs(d) < LEAST) & (d != 0.0)
        if tl.max(tl.max(tiny.to(tl.int32), 1), 0) > 0:  # a mean of these needs the range of f64
            dx = _times(wide_gap(value, first, middle, tl.float64), power, steep, g).to(tl.float32)
        else:
            dx = _times(d + rest, power, steep, g)
    else:
        dx = _times(wide_gap(value, first, middle, WIDE), power, steep, g)
    dx = tl.where(take & (steep != 0.0), dx, 0.0)
    at = cells(row, column, out_extents, out_strides, out_columns, out_steps)
    tl.store(out + at, dx.to(out.dtype.element_ty), mask=live)
