"""Scans in Triton: rows in tiles, a state (`gpu_states`) carried from tile to tile.

Few long rows are cut into chunks: each reduces to a state, the states are joined along the row, and
every chunk starts again from the state before it. `heads` flags where pieces begin, if there are
pieces; what is before a flag never passes it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.pairs import narrowed, widened
from pullback.gpu.tile import along, bounds, grid, lane_of, place, start_of_loop, unless_failed
from pullback.ops.scan.gpu_states import (
    flags,
    lift,
    load_state,
    resume,
    start_of,
    store_state,
    unit,
)
from pullback.ops.scan.gpu_sums import logsum_tile, sum_tile


@triton.jit(do_not_specialize=["n", "rows", "tiles", "chunks", "chunk"])
def sweep(
    x, y, indices, heads, gate, start_u, start_v, total_u, total_v, total_f,
    n, rows, tiles, chunks, chunk, step_x, step_y, step_i,
    extents, strides_x, strides_y, strides_i,
    STATE: tl.constexpr, SIGN: tl.constexpr, REVERSE: tl.constexpr, WIDE: tl.constexpr,
    OTHER: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Scan `chunk` tiles of R rows. Starts from `start`, the states before each chunk, if given;
    with `total` it writes no result but the state of the chunk. Sums of f32, and of exponentials of
    f32, are in pairs."""
    PAIRS: tl.constexpr = (x.dtype.element_ty == tl.float32) & (
        (STATE == "sum") | (STATE == "logsum")
    )
    LAST: tl.constexpr = 0 if REVERSE else B - 1
    n, rows = bounds(n, rows, step_x, extents, strides_x)
    program = tl.program_id(0).to(tl.int64)
    group, part = program // chunks, program % chunks
    row = group * R + tl.arange(0, R)
    lane = tl.arange(0, B)
    at_x = place(row, extents, strides_x)
    size = tl.full((), B, tl.int64)
    cu, cv = start_of(start_u, start_v, row, rows, part, chunks, STATE, WIDE, OTHER, R)
    if PAIRS:
        top = cu.to(tl.float32)
        cs, cr = narrowed(cv if STATE == "logsum" else cu)
    first = part * chunk
    any_head = tl.zeros([R], tl.int32)
    for t in range(first, tl.minimum(first + chunk, unless_failed(tiles, gate))):
        tile = tiles - 1 - t if REVERSE else t
        k = tile * size + lane
        live = (row < rows)[:, None] & (k < n)[None, :]
        value = tl.load(x + grid(at_x, k, step_x), mask=live, other=0.0)
        begins = None
        if heads is not None:
            begins = flags(heads, k, n, R, B)
            any_head = tl.maximum(any_head, tl.max(begins, 1))
        if PAIRS & (STATE == "sum"):
            u, cs, cr, cu = sum_tile(value, live, begins, cs, cr, cu, lane, LAST, REVERSE)
            v = u
        elif PAIRS:
            u, top, cs, cr, cv = logsum_tile(
                value, live, begins, top, cs, cr, cv, lane, LAST, REVERSE
            )
            v = u
        else:
            position = (n - 1 - k if REVERSE else k).to(OTHER)
            u, v = lift(value.to(WIDE), live, position[None, :], STATE, SIGN)
            u, v = resume(cu, cv, begins, u, v, STATE, REVERSE)
            cu, cv = lane_of(u, lane, LAST), lane_of(v, lane, LAST)
            if STATE == "logsum":
                u = u + tl.log(v)
        if total_u is None:
            tl.debug_barrier()  # y may be x: all of the tile is read before any of it is written
            at_y = grid(place(row, extents, strides_y), k, step_y)
            if (STATE == "first") | (STATE == "last"):
                # The winner's own bits; in place they still stand where it was met.
                met = (n - 1 - v if REVERSE else v).to(tl.int64)
                raw = tl.load(x + at_x[:, None] + along(met, step_x), mask=live, other=0.0)
                tl.store(y + at_y, raw, mask=live)
                if indices is not None:
                    at_i = grid(place(row, extents, strides_i), k, step_i)
                    tl.store(indices + at_i, met, mask=live)
            else:
                tl.store(y + at_y, u.to(y.dtype.element_ty), mask=live)
    if total_u is not None:
        if PAIRS & (STATE == "sum"):
            cu = widened(cs, cr, cu)
        elif PAIRS:
            cu, cv = top.to(WIDE), widened(cs, cr, cv)
        store_state(total_u, total_v, total_f, row * chunks + part, cu, cv, any_head, row < rows)


@triton.jit(do_not_specialize=["rows"])
def thread(us, vs, fs, rows, count, STATE: tl.constexpr, R: tl.constexpr, B: tl.constexpr):
    """Join the states along each row, in place: state c becomes that of everything up to c, from
    the last state that `fs` flags on."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    lane = tl.arange(0, B)
    size = tl.full((), B, tl.int64)
    unit_u, unit_v = unit(R, STATE, us.dtype.element_ty, vs.dtype.element_ty)
    cu, cv = unit_u, unit_v
    for t in range(start_of_loop(), tl.cdiv(count, B)):
        k = t * size + lane
        live = (row < rows)[:, None] & (k < count)[None, :]
        at = (row * count)[:, None] + k[None, :]
        u, v = load_state(us, vs, at, live, unit_u[:, None], unit_v[:, None])
        begins = None
        if fs is not None:
            begins = tl.load(fs + at, mask=live, other=0)
        u, v = resume(cu, cv, begins, u, v, STATE, False)
        tl.debug_barrier()
        tl.store(us + at, u, mask=live)
        tl.store(vs + at, v, mask=live)
        cu, cv = lane_of(u, lane, B - 1), lane_of(v, lane, B - 1)


@triton.jit(do_not_specialize=["n", "rows", "tiles", "block", "shift"])
def edges(
    source,
    edge,
    n,
    rows,
    tiles,
    block,
    shift,
    step_source,
    extents,
    strides,
    REVERSE: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """Element number `shift` of every tile of `block`, the tiles in the order of the scan."""
    groups = tl.cdiv(tiles, B)
    program = tl.program_id(0).to(tl.int64)
    row = program // groups * R + tl.arange(0, R)
    number = program % groups * B + tl.arange(0, B)
    tile = tiles - 1 - number if REVERSE else number
    k = tile * block + shift
    live = (row < rows)[:, None] & ((number < tiles) & (k < n))[None, :]
    value = tl.load(
        source + grid(place(row, extents, strides), k, step_source), mask=live, other=0.0
    )
    at = (row * tiles)[:, None] + number[None, :]
    tl.store(edge + at, value.to(edge.dtype.element_ty), mask=live)


@triton.jit
def shifted(
    source,
    offset,
    k,
    n,
    rows_live,
    lane,
    step,
    edge,
    BY: tl.constexpr,
    B: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The element `BY` places further along the axis; beyond the tile `edge`, one per row."""
    inside = (lane + BY >= 0) & (lane + BY < B) & (k + BY < n)
    live = rows_live[:, None] & inside[None, :]
    moved = tl.load(source + grid(offset, k + BY, step), mask=live, other=0.0).to(WIDE)
    return tl.where(inside[None, :], moved, edge[:, None])
