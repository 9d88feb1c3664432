"""What kernels do with a tile of `R` rows by `B` lanes: find it in memory, read one lane of it.

Tensors are walked as `tensor.layout.AxisLoops` says: an axis with its step, and rows, numbered over
the other loops. Row numbers and offsets are 64 bits wide. How extents, strides and steps are told,
and why, is in `gpu.arguments`.
"""

from __future__ import annotations

import triton
import triton.language as tl


def wide(element):
    """The Triton type that an element's arithmetic is done in."""
    return getattr(tl, element.row.long_name)


@triton.jit
def multiple(number, extents):
    """A number that lanes run along; where a launch is aligned (`gpu.arguments`), the compiler is
    told so."""
    ALIGNED: tl.constexpr = extents[0]
    if ALIGNED > 1:
        number = number // ALIGNED * ALIGNED
    return number


@triton.jit
def lanes(count, extents, strides):
    """The number of elements of loops, along which lanes run if the innermost are neighbours."""
    if len(strides) == 0:
        known = count
    elif strides[len(strides) - 1] is None:
        known = multiple(count, extents)
    else:
        known = count
    return known


@triton.jit
def bounds(n, rows, step, extents, strides):
    """The elements of a row and the rows, of which lanes run along one or the other."""
    if len(step) == 0:
        n = multiple(n, extents)
    else:
        rows = lanes(rows, extents, strides)
    return n, rows


@triton.jit
def scaled(index, stride, ALIGNED: tl.constexpr):
    """An index times a stride as launches tell them: None is 1."""
    if stride is not None:
        index = index * (stride // 16 * ALIGNED)
    return index


@triton.jit
def place(index, extents, strides):
    """Offset of a flat index over loops, the last of which runs fastest. Extents and strides are as
    launches tell them (`gpu.arguments`): ALIGNED, and then each times 16."""
    ALIGNED: tl.constexpr = extents[0]
    total = tl.zeros_like(index)
    for axis in tl.static_range(len(strides) - 1, -1, -1):
        if axis > 0:
            extent = extents[axis + 1] // 16
            if strides[axis] is None:
                extent = multiple(extent, extents)
            outer = index // extent
            total += scaled(index - outer * extent, strides[axis], ALIGNED)
            index = outer
        else:
            total += scaled(index, strides[0], ALIGNED)
    return total


@triton.jit
def cells(row, column, extents, strides, columns, steps):
    """Offsets of rows by columns, which have loops of their own."""
    return place(row, extents, strides)[:, None] + place(column, columns, steps)[None, :]


@triton.jit
def along(position, step):
    """Offsets of positions along an axis: a step of 1 is told as nothing."""
    if len(step) > 0:
        position = scaled(position, step[1], step[0])
    return position


@triton.jit
def grid(row_offset, position, step):
    """Offsets of a tile: one row offset per row, one position along the axis per lane."""
    return row_offset[:, None] + along(position, step)[None, :]


@triton.jit
def start_of_loop():
    """0 in 64 bits. `range(0, n, B)` counts in 32 bits wherever n fits, and the step past an extent
    close to 2^31 would wrap to a negative position."""
    return tl.full((), 0, tl.int64)


@triton.jit
def divide(a, b):
    """a / b, correctly rounded: `/` on f32 may be 2 ulp off, on f64 it is exact already."""
    if a.dtype.scalar == tl.float32:
        quotient = tl.div_rn(a, b)
    else:
        quotient = a / b
    return quotient


@triton.jit
def lane_of(value, lane, at):
    """One lane of every row, bit for bit: a float sum would lose the sign of zero."""
    BITS: tl.constexpr = tl.int64 if value.dtype.primitive_bitwidth == 64 else tl.int32
    bits = tl.where((lane == at)[None, :], value.to(BITS, bitcast=True), 0)
    return tl.sum(bits, 1).to(value.dtype, bitcast=True)


# --- extrema: u is the value, v who holds it; v < 0, or no holders, where there is nothing yet ---


@triton.jit
def first_of(u1, v1, u2, v2):
    """The greater, NaN above all; among equals the one with the smaller v."""
    nan1, nan2 = u1 != u1, u2 != u2
    tie = (u1 == u2) | (nan1 & nan2)
    better = (u2 > u1) | (nan2 & ~nan1) | (tie & (v2 < v1))
    second = (v1 < 0) | ((v2 >= 0) & better)
    return tl.where(second, u2, u1), tl.where(second, v2, v1)


@triton.jit
def last_of(u1, v1, u2, v2):
    """The greater, NaN above all; among equals the one with the larger v."""
    nan1, nan2 = u1 != u1, u2 != u2
    tie = (u1 == u2) | (nan1 & nan2)
    better = (u2 > u1) | (nan2 & ~nan1) | (tie & (v2 > v1))
    second = (v1 < 0) | ((v2 >= 0) & better)
    return tl.where(second, u2, u1), tl.where(second, v2, v1)


@triton.jit
def shared_by(u1, v1, u2, v2):
    """The greater, NaN above all; v counts the equals, 0 where there is nothing yet."""
    nan1, nan2 = u1 != u1, u2 != u2
    tie = (u1 == u2) | (nan1 & nan2)
    better = (u2 > u1) | (nan2 & ~nan1)
    second = (v1 == 0) | ((v2 > 0) & better)
    both = tie & (v1 > 0) & (v2 > 0)
    return tl.where(second, u2, u1), tl.where(both, v1 + v2, tl.where(second, v2, v1))


# --- checks -------------------------------------------------------------------------------------


@triton.jit
def unless_failed(count, gate):
    """A count, or none if a check has failed."""
    if gate is not None:
        count = tl.where(tl.load(gate) == 0, count, 0)
    return count
