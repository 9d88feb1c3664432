"""The linear recurrence in Triton: maps q -> u·q + v joined along the row, tile after tile.

The states are those of `scan` called "linear". Few long rows are cut into chunks as there: states
of chunks, joined, and again from there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.tile import bounds, grid, lane_of, place, unless_failed
from pullback.ops.scan.gpu_kernels import shifted
from pullback.ops.scan.gpu_states import (
    flags,
    load_state,
    resume,
    unit,
    with_nan_of,
)


@triton.jit(do_not_specialize=["n", "rows", "tiles", "chunks", "chunk"])
def recur(
    a,
    b,
    h,
    heads,
    gate,
    start_u,
    start_v,
    total_u,
    total_v,
    total_f,
    n,
    rows,
    tiles,
    chunks,
    chunk,
    step_a,
    step_b,
    step_h,
    extents,
    strides_a,
    strides_b,
    strides_h,
    REVERSE: tl.constexpr,
    WIDE: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """h[j] = a[j]·h[j-1] + b[j] over `chunk` tiles of R rows. Starts from `start`, the states
    before each chunk, if given; with `total` it writes no result but the state of the chunk."""
    n, rows = bounds(n, rows, step_b, extents, strides_b)
    program = tl.program_id(0).to(tl.int64)
    group, part = program // chunks, program % chunks
    row = group * R + tl.arange(0, R)
    lane = tl.arange(0, B)
    at_a, at_b = place(row, extents, strides_a), place(row, extents, strides_b)
    size = tl.full((), B, tl.int64)
    cu, cv = unit(R, "linear", WIDE, WIDE)
    if start_u is not None:
        known = (row < rows) & (part > 0)
        cu, cv = load_state(start_u, start_v, row * chunks + part - 1, known, cu, cv)
    begin = part * chunk
    any_flag = tl.zeros([R], tl.int32)
    for t in range(begin, tl.minimum(begin + chunk, unless_failed(tiles, gate))):
        tile = tiles - 1 - t if REVERSE else t
        k = tile * size + lane
        live = (row < rows)[:, None] & (k < n)[None, :]
        # The first factor has nothing to multiply.
        follows = live & ((k < n - 1) if REVERSE else (k > 0))[None, :]
        begins = None
        if heads is not None:
            begins = flags(heads, k, n, R, B)
            any_flag = tl.maximum(any_flag, tl.max(begins, 1))
            follows = follows & (begins == 0)
        u = tl.load(a + grid(at_a, k, step_a), mask=follows, other=0.0).to(WIDE)
        v = tl.load(b + grid(at_b, k, step_b), mask=live, other=0.0).to(WIDE)
        v = with_nan_of(u, v)
        u, v = resume(cu, cv, begins, tl.where(live, u, 1.0), v, "linear", REVERSE)
        if total_u is None:
            tl.debug_barrier()  # h may be a or b: all of the tile is read before it is written
            at_h = place(row, extents, strides_h)
            tl.store(h + grid(at_h, k, step_h), v.to(h.dtype.element_ty), mask=live)
        cu = lane_of(u, lane, 0 if REVERSE else B - 1)
        cv = lane_of(v, lane, 0 if REVERSE else B - 1)
    if total_u is not None:
        tl.store(total_u + row * chunks + part, cu, mask=row < rows)
        tl.store(total_v + row * chunks + part, cv, mask=row < rows)
        if total_f is not None:
            tl.store(total_f + row * chunks + part, any_flag, mask=row < rows)


@triton.jit(do_not_specialize=["n", "rows", "tiles", "chunks", "chunk"])
def recur_back(
    dh,
    a,
    h,
    da,
    db,
    heads,
    gate,
    before,
    after,
    start_u,
    start_v,
    total_u,
    total_v,
    total_f,
    n,
    rows,
    tiles,
    chunks,
    chunk,
    step_dh,
    step_a,
    step_h,
    step_da,
    step_db,
    extents,
    strides_dh,
    strides_a,
    strides_h,
    strides_da,
    strides_db,
    REVERSE: tl.constexpr,
    WIDE: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """g[j] = dh[j] + a[j+1]·g[j+1], da[j] = g[j]·h[j-1], db[j] = g[j], against the forward scan. By
    tiles of that scan, `before` has the h each ends with, `after` the a each starts with; `start`
    and `total` are of the backward walk, as in `recur`."""
    NEXT: tl.constexpr = -1 if REVERSE else 1
    n, rows = bounds(n, rows, step_dh, extents, strides_dh)
    program = tl.program_id(0).to(tl.int64)
    group, part = program // chunks, program % chunks
    row = group * R + tl.arange(0, R)
    rows_live = row < rows
    lane = tl.arange(0, B)
    at_dh, at_a = place(row, extents, strides_dh), place(row, extents, strides_a)
    at_h = place(row, extents, strides_h)
    size = tl.full((), B, tl.int64)
    cu, cv = unit(R, "linear", WIDE, WIDE)
    if start_u is not None:
        known = rows_live & (part > 0)
        cu, cv = load_state(start_u, start_v, row * chunks + part - 1, known, cu, cv)
    begin = part * chunk
    any_flag = tl.zeros([R], tl.int32)
    for t in range(begin, tl.minimum(begin + chunk, unless_failed(tiles, gate))):
        tile = t if REVERSE else tiles - 1 - t
        past = tiles - 1 - t  # this tile's number in the order of the forward scan
        k = tile * size + lane
        live = rows_live[:, None] & (k < n)[None, :]
        later, earlier = tl.zeros([R], WIDE), tl.zeros([R], WIDE)
        if before is not None:
            known = rows_live & (t > 0)
            later = tl.load(after + row * tiles + past + 1, mask=known, other=0.0).to(WIDE)
            known = rows_live & (past > 0)
            earlier = tl.load(before + row * tiles + past - 1, mask=known, other=0.0).to(WIDE)
        g = tl.load(dh + grid(at_dh, k, step_dh), mask=live, other=0.0).to(WIDE)
        u = shifted(a, at_a, k, n, rows_live, lane, step_a, later, NEXT, B, WIDE)
        ends = None
        if heads is not None:
            ends = flags(heads, k + NEXT, n, R, B)
            any_flag = tl.maximum(any_flag, tl.max(ends, 1))
            u = tl.where(ends != 0, 1.0, u)
        g = with_nan_of(u, g)
        u, g = resume(cu, cv, ends, tl.where(live, u, 1.0), g, "linear", not REVERSE)
        if total_u is None:
            last = shifted(h, at_h, k, n, rows_live, lane, step_h, earlier, -NEXT, B, WIDE)
            first = tl.broadcast_to(((k == n - 1) if REVERSE else (k == 0))[None, :], [R, B])
            if heads is not None:
                first = first | (flags(heads, k, n, R, B) != 0)
            to_a = tl.where(first, 0.0, g * last)
            tl.debug_barrier()  # da or db may be any input
            at_da, at_db = place(row, extents, strides_da), place(row, extents, strides_db)
            tl.store(da + grid(at_da, k, step_da), to_a.to(da.dtype.element_ty), mask=live)
            tl.store(db + grid(at_db, k, step_db), g.to(db.dtype.element_ty), mask=live)
        cu = lane_of(u, lane, B - 1 if REVERSE else 0)
        cv = lane_of(g, lane, B - 1 if REVERSE else 0)
    if total_u is not None:
        tl.store(total_u + row * chunks + part, cu, mask=rows_live)
        tl.store(total_v + row * chunks + part, cv, mask=rows_live)
        if total_f is not None:
            tl.store(total_f + row * chunks + part, any_flag, mask=rows_live)
