"""Reductions over runs of equal keys in Triton, and what their gradients need.

Sorted positions are cut into blocks, one program to a block and some columns of it: how many groups
there are, and how full they are, makes no difference. A segmented scan reduces all runs of a tile
at once. A run that lies within its block is written at its last position. Of the others a block
leaves one part for the run it begins with and one for the run it ends with, and the parts, which
are sorted by key too, are reduced by the same kernel until one block is left: a fixed tree.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.exponential import power
from pullback.gpu.pairs import narrowed
from pullback.gpu.tile import cells, divide, first_of, last_of, multiple, place, shared_by
from pullback.ops.segment.gpu_sums import finish, last_row, run_sum, sum_tile


@triton.jit
def join(u1, v1, u2, v2, STATE: tl.constexpr):
    """Two states: a sum, a product, or an extremum u and the row (or how many) that hold it."""
    if STATE == "sum":
        u, v = u1 + u2, v1
    elif STATE == "prod":
        u, v = u1 * u2, v1
    elif STATE == "first":
        u, v = first_of(u1, v1, u2, v2)
    elif STATE == "last":
        u, v = last_of(u1, v1, u2, v2)
    else:
        u, v = shared_by(u1, v1, u2, v2)
    return u, v


# --- the same within runs: f2 says that a run begins somewhere in the second operand ------------


@triton.jit
def run_product(f1, u1, f2, u2):
    return f1 | f2, tl.where(f2 != 0, u2, u1 * u2)


@triton.jit
def run_first(f1, u1, v1, f2, u2, v2):
    u, v = first_of(u1, v1, u2, v2)
    return f1 | f2, tl.where(f2 != 0, u2, u), tl.where(f2 != 0, v2, v)


@triton.jit
def run_last(f1, u1, v1, f2, u2, v2):
    u, v = last_of(u1, v1, u2, v2)
    return f1 | f2, tl.where(f2 != 0, u2, u), tl.where(f2 != 0, v2, v)


@triton.jit
def run_shared(f1, u1, v1, f2, u2, v2):
    u, v = shared_by(u1, v1, u2, v2)
    return f1 | f2, tl.where(f2 != 0, u2, u), tl.where(f2 != 0, v2, v)


@triton.jit
def scan_runs(f, u, v, STATE: tl.constexpr):
    """States from the begin of each row's run, or of the tile, on."""
    if STATE == "sum":
        f, u = tl.associative_scan((f, u), 0, run_sum)
    elif STATE == "prod":
        f, u = tl.associative_scan((f, u), 0, run_product)
    elif STATE == "first":
        f, u, v = tl.associative_scan((f, u, v), 0, run_first)
    elif STATE == "last":
        f, u, v = tl.associative_scan((f, u, v), 0, run_last)
    else:
        f, u, v = tl.associative_scan((f, u, v), 0, run_shared)
    return f, u, v


@triton.jit
def unit(P: tl.constexpr, B: tl.constexpr, STATE: tl.constexpr, WIDE: tl.constexpr):
    """The state of no rows."""
    u = tl.full([P, B], 1.0 if STATE == "prod" else 0.0, WIDE)
    v = tl.full([P, B], -1 if (STATE == "first") | (STATE == "last") else 0, tl.int64)
    return u, v


@triton.jit
def write_groups(
    u, v, group, column, live, out, index, source, rows, grad,
    out_extents, out_strides, out_columns, out_steps, index_strides, index_steps,
    source_extents, source_strides, source_columns, source_steps,
    grad_extents, grad_strides, grad_columns, grad_steps,
    STATE: tl.constexpr, WINNERS: tl.constexpr,
):  # fmt: skip
    """Write the groups of a tile that `live` names. WINNERS: the state itself is the result, u in
    `out` and v in `index`. With `grad`, the row that holds an extremum receives the gradient of its
    group."""
    EXTREMUM: tl.constexpr = (STATE == "first") | (STATE == "last")
    if grad is not None:
        at = cells(group, column, grad_extents, grad_strides, grad_columns, grad_steps)
        g = tl.load(grad + at, mask=live, other=0.0)
        at = place(v, out_extents, out_strides) + place(column, out_columns, out_steps)[None, :]
        tl.store(out + at, g, mask=live)
    else:
        at = cells(group, column, out_extents, out_strides, out_columns, out_steps)
        if index is not None:
            at_index = cells(group, column, out_extents, index_strides, out_columns, index_steps)
        if WINNERS:
            tl.store(out + at, u, mask=live)
            tl.store(index + at_index, v, mask=live)
        elif EXTREMUM:
            row = v
            if rows is not None:
                row = tl.load(rows + v, mask=live, other=0)
            # The winner's own bits.
            bits = place(row, source_extents, source_strides)
            bits = bits + place(column, source_columns, source_steps)[None, :]
            tl.store(out + at, tl.load(source + bits, mask=live, other=0.0), mask=live)
            if index is not None:
                tl.store(index + at_index, row, mask=live)
        else:
            tl.store(out + at, u.to(out.dtype.element_ty), mask=live)


@triton.jit
def _block_of(gate, count, columns, blocks, length, B: tl.constexpr):
    """The numbers of a program's block of positions and of columns; the columns, and which of them
    there are, if no check has failed; where the positions begin and end."""
    program = tl.program_id(0).to(tl.int64)
    number, block = program // blocks, program % blocks
    column = block * B + tl.arange(0, B)
    live = column < columns
    if gate is not None:
        live = live & (tl.load(gate) == 0)
    start = number * length
    return number, block, column, live, start, tl.minimum(start + length, count)


# --- what a tile of positions holds -------------------------------------------------------------


@triton.jit
def _keys_at(keys, p, start, end, groups, padding, extents, strides):
    """Keys of the positions of a block from `start` to `end`; whether a run of the block begins or
    ends at each, and which are kept."""
    inside = p < end
    key = tl.load(keys + place(p, extents, strides), mask=inside, other=-1).to(tl.int64)
    at = place(p - 1, extents, strides)
    previous = tl.load(keys + at, mask=inside & (p > start), other=-1).to(tl.int64)
    at = place(p + 1, extents, strides)
    following = tl.load(keys + at, mask=p + 1 < end, other=-1).to(tl.int64)
    begins = (p == start) | (key != previous)
    ends = inside & ((p + 1 == end) | (key != following))
    kept = inside & (key >= 0) & (key < groups)
    if padding is not None:
        kept = kept & (key != padding)
    return key, begins, ends, kept


@triton.jit
def _borders_of(keys, start, end, count, extents, strides):
    """The first and the last key of a block, and whether their runs go on before and after it."""
    first_key = tl.load(keys + place(start, extents, strides)).to(tl.int64)
    last_key = tl.load(keys + place(end - 1, extents, strides)).to(tl.int64)
    # -1 is a key too, but one that is left out.
    at = place(tl.maximum(start - 1, 0), extents, strides)
    before = tl.load(keys + at).to(tl.int64)
    at = place(tl.minimum(end, count - 1), extents, strides)
    after = tl.load(keys + at).to(tl.int64)
    head_open = (start > 0) & (before == first_key)
    return first_key, last_key, head_open, (end < count) & (after == last_key)


@triton.jit
def _parts_at(
    old_u, old_v, old_held, p, kept, live, columns, column,
    STATE: tl.constexpr, WIDE: tl.constexpr, P: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Parts of the level before as states, and how many rows each holds."""
    counted = tl.load(old_held + p, mask=kept, other=0)
    use = (kept & (counted > 0))[:, None] & live[None, :]
    at = (p * columns)[:, None] + column[None, :]
    u, v = unit(P, B, STATE, WIDE)
    u = tl.where(use, tl.load(old_u + at, mask=use, other=0.0), u)
    if old_v is not None:
        v = tl.where(use, tl.load(old_v + at, mask=use, other=0), v)
    return u, v, counted


@triton.jit
def _elements_at(p, order, rows, kept):
    """The elements at positions, the rows they read, and which are kept."""
    element = p
    if order is not None:
        element = tl.load(order + p, mask=kept, other=0)
    row = element
    if rows is not None:
        row = tl.load(rows + element, mask=kept, other=-1)
        kept = kept & (row >= 0)
    return element, row, kept


@triton.jit
def _factor_at(factor, element, column, kept, use, extents, strides, columns, steps):
    """What elements are multiplied with: a number of each, or a row."""
    at = place(element, extents, strides)
    if len(columns) > 1:
        at = at[:, None] + place(column, columns, steps)[None, :]
        scale = tl.load(factor + at, mask=use, other=1)
    else:
        scale = tl.load(factor + at, mask=kept, other=1)[:, None]
    return scale


@triton.jit
def _rows_at(
    source, factor, shift, order, rows, p, key, kept, live, columns, column,
    source_extents, source_strides, source_columns, source_steps,
    factor_extents, factor_strides, factor_columns, factor_steps, PAIRS: tl.constexpr,
):  # fmt: skip
    """What positions read, or powers of it; what it is multiplied with, if there is a factor; the
    elements, how many rows each position holds, and which are used."""
    element, row, kept = _elements_at(p, order, rows, kept)
    use = kept[:, None] & live[None, :]
    at = cells(row, column, source_extents, source_strides, source_columns, source_steps)
    x, scale = tl.load(source + at, mask=use, other=0.0), None
    if factor is not None:
        scale = _factor_at(
            factor, element, column, kept, use,
            factor_extents, factor_strides, factor_columns, factor_steps,
        )  # fmt: skip
    if shift is not None:
        at = (key * columns)[:, None] + column[None, :]
        top = tl.load(shift + at, mask=use, other=0.0)
        x = power(x.to(top.dtype), top, use, PAIRS)
    return x, scale, element, kept.to(tl.int64), use


@triton.jit
def _lifted(
    x, scale, element, use, STATE: tl.constexpr, SIGN: tl.constexpr, DIVIDE: tl.constexpr,
    WIDE: tl.constexpr, P: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Rows as states."""
    u = x.to(WIDE)
    if scale is not None:
        u = divide(u, scale.to(WIDE)) if DIVIDE else u * scale.to(WIDE)
    u = u * SIGN
    v = tl.zeros([P, B], tl.int64)
    if STATE == "prod":
        u = tl.where(use, u, 1.0)
    elif STATE == "split":
        v = tl.where(use, 1, v)
    elif (STATE == "first") | (STATE == "last"):
        v = tl.where(use, tl.broadcast_to(element[:, None], [P, B]), -1)
    return u, v


@triton.jit
def _held_of(flag, counted, carry, last):
    """How many rows a run holds up to each position, and up to the last one."""
    begun, held = tl.associative_scan((flag, counted), 0, run_sum)
    held = tl.where(begun == 0, carry + held, held)
    return begun, held, tl.sum(tl.where(last, held, 0), 0)


@triton.jit
def _resume(
    u, v, flag, begun, carry_u, carry_v, part_u, part_v, at, cut,
    STATE: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """States from the begin of each row's run, or the carry, on, of which those that `cut` names go
    to the parts; and the carry after the tile."""
    _, u, v = scan_runs(flag, u, v, STATE)
    whole_u, whole_v = join(carry_u, carry_v, u, v, STATE)
    u = tl.where((begun == 0)[:, None], whole_u, u)
    if (STATE != "sum") & (STATE != "prod"):
        v = tl.where((begun == 0)[:, None], whole_v, v)
        carry_v = last_row(v, P)
    if part_u is not None:
        tl.store(part_u + at, u, mask=cut)
        if part_v is not None:
            tl.store(part_v + at, v, mask=cut)
    return u, v, last_row(u, P), carry_v


@triton.jit(do_not_specialize=["count", "groups", "padding", "columns", "blocks", "length"])
def reduce(
    source, out, index, grad, keys, order, rows, factor, shift, gate, old_u, old_v, old_held,
    part_key, part_u, part_v, part_held, count, groups, padding, columns, blocks, length,
    factor_extents, factor_strides, factor_columns, factor_steps, keys_extents, keys_strides,
    out_extents, out_strides, out_columns, out_steps, index_strides, index_steps,
    source_extents, source_strides, source_columns, source_steps,
    grad_extents, grad_strides, grad_columns, grad_steps,
    STATE: tl.constexpr, SIGN: tl.constexpr, MEAN: tl.constexpr, DIVIDE: tl.constexpr,
    KEEP: tl.constexpr, WINNERS: tl.constexpr, WIDE: tl.constexpr, P: tl.constexpr,
    B: tl.constexpr,
):  # fmt: skip
    """The runs of a block of `length` positions, B columns of them, P rows at a time. Position p
    has a key and holds element order[p], which reads row rows[element] of the source, or none if
    that is negative; `factor`, one for each element, or a row if it has columns, is what its row is
    multiplied with, or divided by; with `shift`, one row for each group, powers e^(x - shift) are
    reduced. Where there are `old` parts, positions are those instead. Keys outside of the groups,
    and `padding`, are left out. KEEP: results are added to what is there. Without `out`, parts are
    all that is wanted. Sums of f32 are in pairs."""
    OF_F32: tl.constexpr = (old_held is None) & (source.dtype.element_ty == tl.float32)
    PAIRS: tl.constexpr = OF_F32 & (STATE == "sum")
    columns = multiple(columns, source_columns)
    number, block, column, live, start, end = _block_of(gate, count, columns, blocks, length, B)
    walk = keys_extents, keys_strides
    out_loops = out_extents, out_strides, out_columns, out_steps
    source_loops = source_extents, source_strides, source_columns, source_steps
    if part_key is not None:
        first_key, last_key, head_open, tail_open = _borders_of(keys, start, end, count, *walk)
        head_held, tail_held = tl.zeros([P], tl.int64), tl.zeros([P], tl.int64)
    carry_u, carry_v = unit(1, B, STATE, WIDE)
    if PAIRS:
        carry_s, carry_r = narrowed(carry_u)
    carry_held = tl.full((), 0, tl.int64)
    for first in range(start, end, P):
        p = first + tl.arange(0, P)
        key, begins, ends, kept = _keys_at(keys, p, start, end, groups, padding, *walk)
        if old_held is not None:
            u, v, counted = _parts_at(
                old_u, old_v, old_held, p, kept, live, columns, column, STATE, WIDE, P, B
            )
        else:
            x, scale, element, counted, use = _rows_at(
                source, factor, shift, order, rows, p, key, kept, live, columns, column,
                *source_loops, factor_extents, factor_strides, factor_columns, factor_steps, PAIRS,
            )  # fmt: skip
            if not PAIRS:
                u, v = _lifted(x, scale, element, use, STATE, SIGN, DIVIDE, WIDE, P, B)
        flag = begins.to(tl.int32)
        begun, held, carry_held = _held_of(flag, counted, carry_held, p == first + P - 1)
        left, at_part, cut = tl.zeros([P], tl.int1), None, None
        if part_key is not None:
            tail = (key == last_key).to(tl.int64)
            left = ends & (((key == first_key) & head_open) | ((tail != 0) & tail_open))
            head_held += tl.where(left & (tail == 0), held, 0)
            tail_held += tl.where(left & (tail != 0), held, 0)
            at_part = ((2 * number + tail) * columns)[:, None] + column[None, :]
            cut = (left & (held > 0))[:, None] & live[None, :]
        done = (ends & (held > 0) & ~left)[:, None] & live[None, :]
        old = tl.load(out + cells(key, column, *out_loops), mask=done, other=0.0) if KEEP else None
        flag = tl.broadcast_to(flag[:, None], [P, B])
        if PAIRS:
            u, carry_s, carry_r, carry_u = sum_tile(
                x, scale, flag, held, old, part_u, at_part, cut, carry_s, carry_r, carry_u,
                MEAN, DIVIDE, P,
            )  # fmt: skip
            v = tl.zeros([P, B], tl.int64)
        else:
            u, v, carry_u, carry_v = _resume(
                u, v, flag, begun, carry_u, carry_v, part_u, part_v, at_part, cut, STATE, P
            )
            u = finish(u, held, old, MEAN)
        if out is not None:
            write_groups(
                u, v, key, column, done, out, index, source, rows, grad, *out_loops, index_strides,
                index_steps, *source_loops, grad_extents, grad_strides, grad_columns, grad_steps,
                STATE, WINNERS,
            )  # fmt: skip
    if part_key is not None:
        _store_borders(
            part_key, part_held, number, first_key, last_key, head_held, tail_held, block == 0
        )


@triton.jit
def _store_borders(keys, held, number, first_key, last_key, head_held, tail_held, mask):
    """The keys of a block's two parts, and how many rows each holds."""
    tl.store(keys + 2 * number, first_key, mask=mask)
    tl.store(keys + 2 * number + 1, last_key, mask=mask)
    tl.store(held + 2 * number, tl.sum(head_held, 0), mask=mask)
    tl.store(held + 2 * number + 1, tl.sum(tail_held, 0), mask=mask)


@triton.jit(do_not_specialize=["count"])
def fill(out, gate, value: tl.float64, count, out_extents, out_strides, B: tl.constexpr):
    """One value everywhere: what groups without rows have."""
    count = multiple(count, out_extents)
    k = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = k < count
    if gate is not None:
        live = live & (tl.load(gate) == 0)
    block = tl.full([B], value, tl.float64).to(out.dtype.element_ty)
    tl.store(out + place(k, out_extents, out_strides), block, mask=live)
