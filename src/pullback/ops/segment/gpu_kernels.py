"""Reductions over groups of rows in Triton, and what their gradients need.

The sorted positions are cut into blocks of `L`, so that no program has more than a block to do: the
part of a group in one block is a piece. Group s has the pieces from number s + offsets[s] // L on,
which needs no table of them. A group of one piece is written at once; the pieces of a long one are
joined by `finish`, in their order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.tile import divide, first_of, last_of, place, shared_by


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


@triton.jit
def times(a, b):
    return a * b


@triton.jit
def fold(u, v, STATE: tl.constexpr):
    """The state of all rows of a tile, its first axis."""
    if STATE == "sum":
        u, v = tl.sum(u, 0), tl.max(v, 0)
    elif STATE == "prod":
        u, v = tl.reduce(u, 0, times), tl.max(v, 0)
    elif STATE == "first":
        u, v = tl.reduce((u, v), 0, first_of)
    elif STATE == "last":
        u, v = tl.reduce((u, v), 0, last_of)
    else:
        u, v = tl.reduce((u, v), 0, shared_by)
    return u, v


@triton.jit
def piece_of(offsets, number, groups, bits, L: tl.constexpr):
    """Group, first and last position, and number of pieces of the group, of a piece."""
    low = number * 0
    high = low + groups
    for _ in range(bits):  # the last group whose first piece is not beyond `number`
        middle = (low + high) // 2
        before = middle + tl.load(offsets + middle) // L <= number
        low = tl.where((high - low > 1) & before, middle, low)
        high = tl.where((high - low > 1) & ~before, middle, high)
    begin, end = tl.load(offsets + low), tl.load(offsets + low + 1)
    first = low + begin // L
    block = begin // L + number - first
    start = tl.maximum(begin, block * L)
    return low, start, tl.minimum(end, block * L + L), 1 + end // L - begin // L


@triton.jit
def conclude_group(
    u,
    v,
    held,
    group,
    column,
    live,
    out,
    index,
    source,
    rows,
    empty: tl.float64,
    out_extents,
    out_strides,
    out_columns,
    out_steps,
    index_strides,
    index_steps,
    source_extents,
    source_strides,
    source_columns,
    source_steps,
    STATE: tl.constexpr,
    MEAN: tl.constexpr,
    FILL: tl.constexpr,
    KEEP: tl.constexpr,
    WINNERS: tl.constexpr,
):
    """Write groups of a tile. FILL: what has no rows gets `empty`. KEEP: results are added to what
    is there. WINNERS: the state itself is the result, u in `out` and v in `index`."""
    at = place(group, out_extents, out_strides)[:, None]
    at = at + place(column, out_columns, out_steps)[None, :]
    if index is not None:
        at_index = place(group, out_extents, index_strides)[:, None]
        at_index = at_index + place(column, out_columns, index_steps)[None, :]
    some = (held > 0)[:, None]
    if WINNERS:
        tl.store(out + at, u, mask=live)
        tl.store(index + at_index, v, mask=live)
    elif (STATE == "first") | (STATE == "last"):
        row = v
        if rows is not None:
            row = tl.load(rows + v, mask=live & some, other=0)
        # The winner's own bits.
        bits = place(row, source_extents, source_strides)
        bits = bits + place(column, source_columns, source_steps)[None, :]
        raw = tl.load(source + bits, mask=live & some, other=0.0)
        fill = tl.full(raw.shape, empty, tl.float64).to(raw.dtype)
        tl.store(out + at, tl.where(some, raw, fill), mask=live)
        if index is not None:
            tl.store(index + at_index, tl.where(some, row, -1), mask=live)
    else:
        if MEAN:
            u = divide(u, tl.maximum(held, 1).to(u.dtype)[:, None])
        if KEEP:
            live = live & some
            u = u + tl.load(out + at, mask=live, other=0.0).to(u.dtype)
        if FILL:
            u = tl.where(some, u, tl.full(u.shape, empty, tl.float64).to(u.dtype))
        tl.store(out + at, u.to(out.dtype.element_ty), mask=live)


@triton.jit
def unit(P: tl.constexpr, B: tl.constexpr, STATE: tl.constexpr, WIDE: tl.constexpr):
    """The state of no rows."""
    u = tl.full([P, B], 1.0 if STATE == "prod" else 0.0, WIDE)
    v = tl.full([P, B], -1 if (STATE == "first") | (STATE == "last") else 0, tl.int64)
    return u, v


@triton.jit
def reduce(
    source,
    out,
    index,
    offsets,
    order,
    rows,
    factor,
    gate,
    part_u,
    part_v,
    part_held,
    groups,
    columns,
    blocks,
    bits,
    factor_extents,
    factor_strides,
    empty: tl.float64,
    out_extents,
    out_strides,
    out_columns,
    out_steps,
    index_strides,
    index_steps,
    source_extents,
    source_strides,
    source_columns,
    source_steps,
    STATE: tl.constexpr,
    SIGN: tl.constexpr,
    MEAN: tl.constexpr,
    DIVIDE: tl.constexpr,
    FILL: tl.constexpr,
    KEEP: tl.constexpr,
    WINNERS: tl.constexpr,
    WIDE: tl.constexpr,
    L: tl.constexpr,
    P: tl.constexpr,
    B: tl.constexpr,
):
    """One piece of a group, B columns of it, P rows at a time. Position p holds element order[p],
    which reads row rows[element] of the source, or none if that is negative; `factor`, one for
    each element, is what its row is multiplied with, or divided by."""
    program = tl.program_id(0).to(tl.int64)
    number, block = program // blocks, program % blocks
    total = groups + tl.load(offsets + groups) // L
    column = block * B + tl.arange(0, B)
    live = (column < columns) & (number < total)
    if gate is not None:
        live = live & (tl.load(gate) == 0)
    group, start, end, pieces = piece_of(offsets, number, groups, bits, L)
    end = tl.where(number < total, end, start)
    u, v = unit(P, B, STATE, WIDE)
    held = tl.zeros([P], tl.int64)
    for first in range(start, end, P):
        p = first + tl.arange(0, P)
        inside = p < end
        element = p
        if order is not None:
            element = tl.load(order + p, mask=inside, other=0)
        row = element
        if rows is not None:
            row = tl.load(rows + element, mask=inside, other=-1)
            inside = inside & (row >= 0)
        at = place(row, source_extents, source_strides)[:, None]
        at = at + place(column, source_columns, source_steps)[None, :]
        use = inside[:, None] & live[None, :]
        value = tl.load(source + at, mask=use, other=0.0).to(WIDE)
        if factor is not None:
            at = place(element, factor_extents, factor_strides)
            scale = tl.load(factor + at, mask=inside, other=1)
            scale = scale.to(WIDE)[:, None]
            value = divide(value, scale) if DIVIDE else value * scale
        held += inside.to(tl.int64)
        if STATE == "prod":
            value = tl.where(use, value, 1.0)
        who = tl.broadcast_to(element[:, None], [P, B])
        if STATE == "split":
            who = tl.where(use, 1, 0).to(tl.int64)
        elif (STATE == "first") | (STATE == "last"):
            who = tl.where(use, who, -1)
        u, v = join(u, v, value * SIGN, who, STATE)
    u, v = fold(u, v, STATE)
    count = tl.sum(held, 0)
    if pieces > 1:
        at = number * columns + column
        tl.store(part_u + at, u, mask=live)
        tl.store(part_v + at, v, mask=live)
        tl.store(part_held + number, count, mask=(number < total) & (block == 0))
    elif out is not None:
        conclude_group(
            u[None, :],
            v[None, :],
            tl.full([1], 0, tl.int64) + count,
            tl.full([1], 0, tl.int64) + group,
            column,
            live[None, :],
            out,
            index,
            source,
            rows,
            empty,
            out_extents,
            out_strides,
            out_columns,
            out_steps,
            index_strides,
            index_steps,
            source_extents,
            source_strides,
            source_columns,
            source_steps,
            STATE,
            MEAN,
            FILL,
            KEEP,
            WINNERS,
        )


@triton.jit
def finish(
    source,
    out,
    index,
    offsets,
    rows,
    gate,
    part_u,
    part_v,
    part_held,
    groups,
    columns,
    blocks,
    empty: tl.float64,
    out_extents,
    out_strides,
    out_columns,
    out_steps,
    index_strides,
    index_steps,
    source_extents,
    source_strides,
    source_columns,
    source_steps,
    STATE: tl.constexpr,
    MEAN: tl.constexpr,
    FILL: tl.constexpr,
    KEEP: tl.constexpr,
    WINNERS: tl.constexpr,
    WIDE: tl.constexpr,
    L: tl.constexpr,
    P: tl.constexpr,
    B: tl.constexpr,
):
    """Join the pieces of P groups, where they have several."""
    program = tl.program_id(0).to(tl.int64)
    group = program // blocks * P + tl.arange(0, P)
    column = program % blocks * B + tl.arange(0, B)
    known = group < groups
    begin = tl.load(offsets + group, mask=known, other=0)
    end = tl.load(offsets + group + 1, mask=known, other=0)
    pieces = tl.where(known, 1 + end // L - begin // L, 1)
    live = (known & (pieces > 1))[:, None] & (column < columns)[None, :]
    if gate is not None:
        live = live & (tl.load(gate) == 0)
    u, v = unit(P, B, STATE, WIDE)
    held = tl.zeros([P], tl.int64)
    most = tl.max(pieces, 0)
    for piece in range(tl.where(most > 1, most, 0)):
        number = group + begin // L + piece
        use = live & (piece < pieces)[:, None]
        at = (number * columns)[:, None] + column[None, :]
        other_u, other_v = unit(P, B, STATE, WIDE)
        other_u = tl.where(use, tl.load(part_u + at, mask=use, other=0.0), other_u)
        other_v = tl.where(use, tl.load(part_v + at, mask=use, other=0), other_v)
        u, v = join(u, v, other_u, other_v, STATE)
        some = known & (pieces > 1) & (piece < pieces)
        held += tl.load(part_held + number, mask=some, other=0)
    conclude_group(
        u,
        v,
        held,
        group,
        column,
        live,
        out,
        index,
        source,
        rows,
        empty,
        out_extents,
        out_strides,
        out_columns,
        out_steps,
        index_strides,
        index_steps,
        source_extents,
        source_strides,
        source_columns,
        source_steps,
        STATE,
        MEAN,
        FILL,
        KEEP,
        WINNERS,
    )
