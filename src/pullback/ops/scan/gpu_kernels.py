"""Scans in Triton: rows in tiles, a state (`gpu_states`) carried from tile to tile.

Backwards walk the other way:

    T[j] = dy[j] + a[j]·T[j+1],  dx[j] = weight[j]·T[j]

                  a[j]                               weight[j]
    cumprod       x[j+1]                             y[j-1]
    logcumsumexp  e^(y[j]-y[j+1])                    e^(x[j]-y[j])
    cummax        1, or 0 if j+1 is a new extremum   1 if j is a new extremum, or 0

Few long rows are cut into chunks: each reduces to a state, the states are joined along the row, and
every chunk starts again from the state before it. What a tile needs of its neighbours is read first
and kept in scratch, one entry per tile, because `dx` may overwrite any input. `heads` flags where
pieces begin, if there are pieces; what is before a flag never passes it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.pairs import narrowed, widened
from pullback.gpu.tile import along, bounds, grid, lane_of, place, start_of_loop, unless_failed
from pullback.ops.scan.gpu_states import (
    flags,
    join,
    lift,
    load_state,
    log_add,
    log_rest,
    ratio,
    resume,
    unit,
    with_nan_of,
)
from pullback.ops.scan.gpu_sums import sum_tile
from pullback.ops.segment.gpu_sums import run_sum


@triton.jit(do_not_specialize=["n", "rows", "tiles", "chunks", "chunk"])
def sweep(
    x,
    y,
    indices,
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
    step_x,
    step_y,
    step_i,
    extents,
    strides_x,
    strides_y,
    strides_i,
    STATE: tl.constexpr,
    SIGN: tl.constexpr,
    REVERSE: tl.constexpr,
    WIDE: tl.constexpr,
    OTHER: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """Scan `chunk` tiles of R rows. Starts from `start`, the states before each chunk, if given;
    with `total` it writes no result but the state of the chunk. Sums of f32 are in pairs."""
    PAIRS: tl.constexpr = (STATE == "sum") & (x.dtype.element_ty == tl.float32)
    LAST: tl.constexpr = 0 if REVERSE else B - 1
    n, rows = bounds(n, rows, step_x, extents, strides_x)
    program = tl.program_id(0).to(tl.int64)
    group, part = program // chunks, program % chunks
    row = group * R + tl.arange(0, R)
    lane = tl.arange(0, B)
    at_x = place(row, extents, strides_x)
    size = tl.full((), B, tl.int64)
    cu, cv = unit(R, STATE, WIDE, OTHER)
    if start_u is not None:
        known = (row < rows) & (part > 0)
        cu, cv = load_state(start_u, start_v, row * chunks + part - 1, known, cu, cv)
    if PAIRS:
        cs, cr = narrowed(cu)
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
        if PAIRS:
            u, cs, cr, cu = sum_tile(value, live, begins, cs, cr, cu, lane, LAST, REVERSE)
        else:
            position = (n - 1 - k if REVERSE else k).to(OTHER)
            u, v = lift(value.to(WIDE), live, position[None, :], STATE, SIGN)
            u, v = resume(cu, cv, begins, u, v, STATE, REVERSE)
            cu, cv = lane_of(u, lane, LAST), lane_of(v, lane, LAST)
        if total_u is None:
            tl.debug_barrier()  # y may be x: all of the tile is read before any of it is written
            at_y = place(row, extents, strides_y)
            if (STATE == "first") | (STATE == "last"):
                # The winner's own bits; in place they still stand where it was met.
                met = (n - 1 - v if REVERSE else v).to(tl.int64)
                raw = tl.load(x + at_x[:, None] + along(met, step_x), mask=live, other=0.0)
                tl.store(y + grid(at_y, k, step_y), raw, mask=live)
                if indices is not None:
                    at_i = place(row, extents, strides_i)
                    tl.store(indices + grid(at_i, k, step_i), met, mask=live)
            else:
                result = u + tl.log(v) if STATE == "logsum" else u
                tl.store(y + grid(at_y, k, step_y), result.to(y.dtype.element_ty), mask=live)
    if total_u is not None:
        if PAIRS:
            cu = widened(cs, cr, cu)
        tl.store(total_u + row * chunks + part, cu, mask=row < rows)
        tl.store(total_v + row * chunks + part, cv, mask=row < rows)
        if total_f is not None:
            tl.store(total_f + row * chunks + part, any_head, mask=row < rows)


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


@triton.jit(do_not_specialize=["n", "rows", "tiles", "chunks", "chunk"])
def sweep_back(
    dy,
    x,
    y,
    dx,
    heads,
    gate,
    before_u,
    before_v,
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
    step_dy,
    step_x,
    step_y,
    step_dx,
    extents,
    strides_dy,
    strides_x,
    strides_y,
    strides_dx,
    KIND: tl.constexpr,
    SIGN: tl.constexpr,
    REVERSE: tl.constexpr,
    WIDE: tl.constexpr,
    OTHER: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """Walk `chunk` tiles of R rows against the forward scan of `KIND`. By tiles of that scan,
    `before` has its state (or saved y) at the end of each, `after` the x (or y) each starts with;
    `start` and `total` are of the backward walk, as in `sweep`."""
    STATE: tl.constexpr = "linear" if (KIND == "product") | (KIND == "logsum") else "keep"
    NEXT: tl.constexpr = -1 if REVERSE else 1
    n, rows = bounds(n, rows, step_dy, extents, strides_dy)
    program = tl.program_id(0).to(tl.int64)
    group, part = program // chunks, program % chunks
    row = group * R + tl.arange(0, R)
    rows_live = row < rows
    lane = tl.arange(0, B)
    at_dy, at_x = place(row, extents, strides_dy), place(row, extents, strides_x)
    at_y = place(row, extents, strides_y)
    size = tl.full((), B, tl.int64)
    unit_u, unit_v = unit(R, KIND, WIDE, OTHER)
    cu, cv = unit(R, STATE, WIDE, WIDE)
    if start_u is not None:
        known = rows_live & (part > 0)
        cu, cv = load_state(start_u, start_v, row * chunks + part - 1, known, cu, cv)
    begin = part * chunk
    any_end = tl.zeros([R], tl.int32)
    for t in range(begin, tl.minimum(begin + chunk, unless_failed(tiles, gate))):
        tile = t if REVERSE else tiles - 1 - t
        past = tiles - 1 - t  # this tile's number in the order of the forward scan
        k = tile * size + lane
        live = rows_live[:, None] & (k < n)[None, :]
        position = (n - 1 - k if REVERSE else k).to(OTHER)[None, :]
        g = tl.load(dy + grid(at_dy, k, step_dy), mask=live, other=0.0).to(WIDE)
        bu, bv = unit_u, unit_v
        edge = tl.zeros([R], WIDE)
        if before_u is not None:
            known = rows_live & (past > 0)
            bu, bv = load_state(before_u, before_v, row * tiles + past - 1, known, bu, bv)
            known = rows_live & (t > 0)
            edge = tl.load(after + row * tiles + past + 1, mask=known, other=0.0).to(WIDE)
        # Where pieces begin, and where they end: where the next one begins.
        begins, ends = None, None
        if heads is not None:
            begins, ends = flags(heads, k, n, R, B), flags(heads, k + NEXT, n, R, B)
            any_end = tl.maximum(any_end, tl.max(ends, 1))

        # What is handed on, and what stays: a and weight.
        if KIND == "product":
            a = shifted(x, at_x, k, n, rows_live, lane, step_x, edge, NEXT, B, WIDE)
            if ends is not None:
                a = tl.where(ends != 0, 1.0, a)
            g = with_nan_of(a, g)
            if y is None:
                one = tl.full([R], 1.0, WIDE)
                x_before = shifted(x, at_x, k, n, rows_live, lane, step_x, one, -NEXT, B, WIDE)
                if begins is not None:
                    x_before = tl.where(begins != 0, 1.0, x_before)
                weight, _ = lift(x_before, live, position, KIND, SIGN)
                weight, _ = resume(bu, bv, begins, weight, weight, KIND, REVERSE)
            else:
                weight = shifted(y, at_y, k, n, rows_live, lane, step_y, bu, -NEXT, B, WIDE)
                if begins is not None:
                    weight = tl.where(begins != 0, 1.0, weight)
        elif KIND == "logsum":
            value = tl.load(x + grid(at_x, k, step_x), mask=live, other=0.0).to(WIDE)
            if y is None:
                x_after = shifted(x, at_x, k, n, rows_live, lane, step_x, edge, NEXT, B, WIDE)
                u, v = lift(value, live, position, KIND, SIGN)
                result, v = resume(bu, bv, begins, u, v, KIND, REVERSE)
                rest = log_rest(result, v)
                u2, v2 = lift(x_after, live, position, KIND, SIGN)
                result_after, v = log_add(result, v, u2, v2)
                rest_after = log_rest(result_after, v)
            else:
                result = tl.load(y + grid(at_y, k, step_y), mask=live, other=0.0).to(WIDE)
                result_after = shifted(y, at_y, k, n, rows_live, lane, step_y, edge, NEXT, B, WIDE)
                rest = tl.zeros([R, B], WIDE)
                rest_after = rest
            a = ratio(result, rest, result_after, rest_after)
            weight = ratio(value, 0.0, result, rest)
            # The first +inf outweighs all, later ones included.
            top = (result == float("inf")) & (rest == rest) & live
            if begins is None:
                met = tl.min(tl.where(top, position, n), 1)[:, None]
                leads = (met == position) & (bu < float("inf"))[:, None]
            else:
                infinite = ((value == float("inf")) & live).to(tl.int32)
                begun, seen = tl.associative_scan((begins, infinite), 1, run_sum, reverse=REVERSE)
                leads = (infinite * seen == 1) & ((begun != 0) | (bu < float("inf"))[:, None])
            weight = tl.where(top, tl.where(leads, 1.0, 0.0).to(WIDE), weight)
        else:
            value = tl.load(x + grid(at_x, k, step_x), mask=live, other=0.0).to(WIDE)
            x_after = shifted(x, at_x, k, n, rows_live, lane, step_x, edge, NEXT, B, WIDE)
            u, v = lift(value, live, position, KIND, SIGN)
            u, v = resume(bu, bv, begins, u, v, KIND, REVERSE)
            weight = tl.where(v == position, 1.0, 0.0).to(WIDE)
            u, v = join(u, v, x_after * SIGN, position + 1, KIND)
            a = tl.where(v == position + 1, 0.0, 1.0).to(WIDE)

        u, v = resume(cu, cv, ends, tl.where(live, a, 1.0), g, STATE, not REVERSE)
        if total_u is None:
            if KIND == "product":
                grad = weight * v
            elif KIND == "logsum":
                grad = tl.where((result == float("-inf")) & (rest == rest), 0.0, weight * v)
            else:
                grad = tl.where(weight == 0.0, 0.0, v)
            tl.debug_barrier()  # dx may be any input: all of the tile is read before it is written
            at_dx = place(row, extents, strides_dx)
            tl.store(dx + grid(at_dx, k, step_dx), grad.to(dx.dtype.element_ty), mask=live)
        cu = lane_of(u, lane, B - 1 if REVERSE else 0)
        cv = lane_of(v, lane, B - 1 if REVERSE else 0)
    if total_u is not None:
        tl.store(total_u + row * chunks + part, cu, mask=rows_live)
        tl.store(total_v + row * chunks + part, cv, mask=rows_live)
        if total_f is not None:
            tl.store(total_f + row * chunks + part, any_end, mask=rows_live)
