"""The linear recurrence in Triton: maps q -> u·q + v joined along the row, tile after tile.

The states are those of `scan` called "linear". Few long rows are cut into chunks as there: states
of chunks, joined, and again from there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.pairs import widened
from pullback.gpu.tile import bounds, grid, lane_of, place, unless_failed
from pullback.ops.recurrence.gpu_pairs import carried, linear_tile
from pullback.ops.scan.gpu_kernels import shifted
from pullback.ops.scan.gpu_states import flags, resume, start_of, store_state, with_nan_of


@triton.jit(do_not_specialize=["n", "rows", "tiles", "chunks", "chunk"])
def recur(
    a, b, h, heads, gate, start_u, start_v, total_u, total_v, total_f,
    n, rows, tiles, chunks, chunk, step_a, step_b, step_h,
    extents, strides_a, strides_b, strides_h,
    REVERSE: tl.constexpr, WIDE: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """h[j] = a[j]·h[j-1] + b[j] over `chunk` tiles of R rows. Starts from `start`, the states
    before each chunk, if given; with `total` it writes no result but the state of the chunk."""
    PAIRS: tl.constexpr = b.dtype.element_ty == tl.float32
    NARROW: tl.constexpr = tl.float32 if PAIRS else WIDE
    LAST: tl.constexpr = 0 if REVERSE else B - 1
    n, rows = bounds(n, rows, step_b, extents, strides_b)
    program = tl.program_id(0).to(tl.int64)
    group, part = program // chunks, program % chunks
    row = group * R + tl.arange(0, R)
    lane = tl.arange(0, B)
    at_a, at_b = place(row, extents, strides_a), place(row, extents, strides_b)
    size = tl.full((), B, tl.int64)
    cu, cv = start_of(start_u, start_v, row, rows, part, chunks, "linear", WIDE, WIDE, R)
    if PAIRS:
        cs, cr = carried(cv)
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
        u = tl.load(a + grid(at_a, k, step_a), mask=follows, other=0.0).to(NARROW)
        u = tl.where(live, u, 1.0)
        v = tl.load(b + grid(at_b, k, step_b), mask=live, other=0.0).to(NARROW)
        if PAIRS:
            v, _, cs, cr, cv, u = linear_tile(u, v, None, begins, cs, cr, cv, lane, LAST, REVERSE)
            if total_u is not None:
                cu = cu * u
        else:
            u, v = resume(cu, cv, begins, u, with_nan_of(u, v), "linear", REVERSE)
            cu, cv = lane_of(u, lane, LAST), lane_of(v, lane, LAST)
        if total_u is None:
            tl.debug_barrier()  # h may be a or b: all of the tile is read before it is written
            at_h = grid(place(row, extents, strides_h), k, step_h)
            tl.store(h + at_h, v.to(h.dtype.element_ty), mask=live)
    if total_u is not None:
        if PAIRS:
            cv = widened(cs, cr, cv)
        at = row * chunks + part
        store_state(total_u, total_v, total_f, at, cu, cv, any_flag, row < rows)


@triton.jit(do_not_specialize=["n", "rows", "tiles", "chunks", "chunk"])
def recur_back(
    dh, a, h, da, db, heads, gate, before, after, start_u, start_v, total_u, total_v, total_f,
    n, rows, tiles, chunks, chunk, step_dh, step_a, step_h, step_da, step_db,
    extents, strides_dh, strides_a, strides_h, strides_da, strides_db,
    REVERSE: tl.constexpr, WIDE: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """g[j] = dh[j] + a[j+1]·g[j+1], da[j] = g[j]·h[j-1], db[j] = g[j], against the forward scan. By
    tiles of that scan, `before` has the h each ends with, `after` the a each starts with; `start`
    and `total` are of the backward walk, as in `recur`."""
    PAIRS: tl.constexpr = dh.dtype.element_ty == tl.float32
    NARROW: tl.constexpr = tl.float32 if PAIRS else WIDE
    NEXT: tl.constexpr = -1 if REVERSE else 1
    LAST: tl.constexpr = B - 1 if REVERSE else 0
    n, rows = bounds(n, rows, step_dh, extents, strides_dh)
    program = tl.program_id(0).to(tl.int64)
    group, part = program // chunks, program % chunks
    row = group * R + tl.arange(0, R)
    rows_live = row < rows
    lane = tl.arange(0, B)
    at_dh, at_a = place(row, extents, strides_dh), place(row, extents, strides_a)
    size = tl.full((), B, tl.int64)
    cu, cv = start_of(start_u, start_v, row, rows, part, chunks, "linear", WIDE, WIDE, R)
    if PAIRS:
        cs, cr = carried(cv)
    begin = part * chunk
    any_flag = tl.zeros([R], tl.int32)
    for t in range(begin, tl.minimum(begin + chunk, unless_failed(tiles, gate))):
        tile = t if REVERSE else tiles - 1 - t
        past = tiles - 1 - t  # this tile's number in the order of the forward scan
        k = tile * size + lane
        live = rows_live[:, None] & (k < n)[None, :]
        later, earlier = tl.zeros([R], NARROW), tl.zeros([R], NARROW)
        if before is not None:
            known = rows_live & (t > 0)
            later = tl.load(after + row * tiles + past + 1, mask=known, other=0.0).to(NARROW)
            known = rows_live & (past > 0)
            earlier = tl.load(before + row * tiles + past - 1, mask=known, other=0.0).to(NARROW)
        g = tl.load(dh + grid(at_dh, k, step_dh), mask=live, other=0.0).to(NARROW)
        u = shifted(a, at_a, k, n, rows_live, lane, step_a, later, NEXT, B, NARROW)
        ends = None
        if heads is not None:
            ends = flags(heads, k + NEXT, n, R, B)
            any_flag = tl.maximum(any_flag, tl.max(ends, 1))
            u = tl.where(ends != 0, 0.0 if PAIRS else 1.0, u)
        u = tl.where(live, u, 1.0)
        last = None
        if total_u is None:
            at_h = place(row, extents, strides_h)
            last = shifted(h, at_h, k, n, rows_live, lane, step_h, earlier, -NEXT, B, NARROW)
        if PAIRS:
            g, to_a, cs, cr, cv, u = linear_tile(
                u, g, last, ends, cs, cr, cv, lane, LAST, not REVERSE
            )
            if total_u is not None:
                cu = cu * u
        else:
            u, g = resume(cu, cv, ends, u, with_nan_of(u, g), "linear", not REVERSE)
            cu, cv = lane_of(u, lane, LAST), lane_of(g, lane, LAST)
            if total_u is None:
                to_a = g * last
        if total_u is None:
            first = tl.broadcast_to(((k == n - 1) if REVERSE else (k == 0))[None, :], [R, B])
            if heads is not None:
                first = first | (flags(heads, k, n, R, B) != 0)
            to_a = tl.where(first, 0.0, to_a)
            tl.debug_barrier()  # da or db may be any input
            at_da = grid(place(row, extents, strides_da), k, step_da)
            at_db = grid(place(row, extents, strides_db), k, step_db)
            tl.store(da + at_da, to_a.to(da.dtype.element_ty), mask=live)
            tl.store(db + at_db, g.to(db.dtype.element_ty), mask=live)
    if total_u is not None:
        if PAIRS:
            cv = widened(cs, cr, cv)
        at = row * chunks + part
        store_state(total_u, total_v, total_f, at, cu, cv, any_flag, rows_live)
