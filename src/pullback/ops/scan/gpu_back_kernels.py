"""Gradients of scans in Triton, which walk the other way:

    T[j] = dy[j] + a[j]·T[j+1],  dx[j] = weight[j]·T[j]

                  a[j]                               weight[j]
    cumprod       x[j+1]                             y[j-1]
    logcumsumexp  e^(y[j]-y[j+1])                    e^(x[j]-y[j])
    cummax        1, or 0 if j+1 is a new extremum   1 if j is a new extremum, or 0

Rows are cut as in `gpu_kernels`. What a tile needs of its neighbours is read first and kept in
scratch, one entry per tile, because `dx` may overwrite any input.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.pairs import narrowed, widened
from pullback.gpu.tile import bounds, grid, lane_of, place, unless_failed
from pullback.ops.scan.gpu_kernels import shifted
from pullback.ops.scan.gpu_states import (
    flags,
    join,
    lift,
    load_state,
    log_add,
    log_rest,
    ratio,
    resume,
    start_of,
    store_state,
    unit,
    with_nan_of,
)
from pullback.ops.scan.gpu_sums import sum_tile
from pullback.ops.segment.gpu_sums import run_sum


@triton.jit
def _of_product(
    x, y, at_x, at_y, step_x, step_y, k, n, rows, lane, live, position, begins, ends, bu, bv, edge,
    NEXT: tl.constexpr, SIGN: tl.constexpr, REVERSE: tl.constexpr, WIDE: tl.constexpr,
    R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """What cumprod hands on, and its weights: from the saved y, or from x again."""
    a = shifted(x, at_x, k, n, rows, lane, step_x, edge, NEXT, B, WIDE)
    if ends is not None:
        a = tl.where(ends != 0, 1.0, a)
    if y is None:
        one = tl.full([R], 1.0, WIDE)
        before = shifted(x, at_x, k, n, rows, lane, step_x, one, -NEXT, B, WIDE)
        if begins is not None:
            before = tl.where(begins != 0, 1.0, before)
        weight, _ = lift(before, live, position, "product", SIGN)
        weight, _ = resume(bu, bv, begins, weight, weight, "product", REVERSE)
    else:
        weight = shifted(y, at_y, k, n, rows, lane, step_y, bu, -NEXT, B, WIDE)
        if begins is not None:
            weight = tl.where(begins != 0, 1.0, weight)
    return a, weight


@triton.jit
def _of_logsum(
    x, y, at_x, at_y, step_x, step_y, k, n, rows, lane, live, position, begins, bu, bv, edge,
    NEXT: tl.constexpr, SIGN: tl.constexpr, REVERSE: tl.constexpr, WIDE: tl.constexpr,
    R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """What logcumsumexp hands on, its weights, and where there is no mass yet."""
    value = tl.load(x + grid(at_x, k, step_x), mask=live, other=0.0).to(WIDE)
    if y is None:
        x_after = shifted(x, at_x, k, n, rows, lane, step_x, edge, NEXT, B, WIDE)
        u, v = lift(value, live, position, "logsum", SIGN)
        result, v = resume(bu, bv, begins, u, v, "logsum", REVERSE)
        rest = log_rest(result, v)
        u2, v2 = lift(x_after, live, position, "logsum", SIGN)
        result_after, v = log_add(result, v, u2, v2)
        rest_after = log_rest(result_after, v)
    else:
        result = tl.load(y + grid(at_y, k, step_y), mask=live, other=0.0).to(WIDE)
        result_after = shifted(y, at_y, k, n, rows, lane, step_y, edge, NEXT, B, WIDE)
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
    return a, weight, (result == float("-inf")) & (rest == rest)


@triton.jit
def _of_extremum(
    x, at_x, step_x, k, n, rows, lane, live, position, begins, bu, bv, edge,
    KIND: tl.constexpr, NEXT: tl.constexpr, SIGN: tl.constexpr, REVERSE: tl.constexpr,
    HELD: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Where the next element is a new extremum, and where each is one itself."""
    value = tl.load(x + grid(at_x, k, step_x), mask=live, other=0.0).to(HELD)
    x_after = shifted(x, at_x, k, n, rows, lane, step_x, edge, NEXT, B, HELD)
    u, v = lift(value, live, position, KIND, SIGN)
    u, v = resume(bu, bv, begins, u, v, KIND, REVERSE)
    own = v == position
    u, v = join(u, v, x_after * SIGN, position + 1, KIND)
    return v == position + 1, own


@triton.jit
def _terms(
    x, y, at_x, at_y, step_x, step_y, k, n, rows, lane, live, position, begins, ends, bu, bv, edge,
    KIND: tl.constexpr, NEXT: tl.constexpr, SIGN: tl.constexpr, REVERSE: tl.constexpr,
    HELD: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """What a tile hands on, the weights of what stays, and where nothing does."""
    if KIND == "product":
        a, weight = _of_product(
            x, y, at_x, at_y, step_x, step_y, k, n, rows, lane, live, position, begins, ends,
            bu, bv, edge, NEXT, SIGN, REVERSE, HELD, R, B,
        )  # fmt: skip
        nothing = tl.zeros([R, B], tl.int1)
    elif KIND == "logsum":
        a, weight, nothing = _of_logsum(
            x, y, at_x, at_y, step_x, step_y, k, n, rows, lane, live, position, begins,
            bu, bv, edge, NEXT, SIGN, REVERSE, HELD, R, B,
        )  # fmt: skip
    else:
        drops, own = _of_extremum(
            x, at_x, step_x, k, n, rows, lane, live, position, begins, bu, bv, edge,
            KIND, NEXT, SIGN, REVERSE, HELD, B,
        )  # fmt: skip
        a, weight = tl.where(drops, 0.0, 1.0).to(HELD), tl.full([R, B], 1.0, HELD)
        nothing = ~own
    return a, weight, nothing


@triton.jit
def _past_of(
    before_u, before_v, after, row, rows_live, tiles, t,
    KIND: tl.constexpr, HELD: tl.constexpr, OTHER: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """What the forward scan had before a tile, and the element it goes on with; the tile is number
    t of the walk back."""
    past = tiles - 1 - t
    u, v = unit(R, KIND, HELD, OTHER)
    edge = tl.zeros([R], HELD)
    if before_u is not None:
        u, v = load_state(before_u, before_v, row * tiles + past - 1, rows_live & (past > 0), u, v)
        at = after + row * tiles + past + 1
        edge = tl.load(at, mask=rows_live & (t > 0), other=0.0).to(HELD)
    return u, v, edge


@triton.jit(do_not_specialize=["n", "rows", "tiles", "chunks", "chunk"])
def sweep_back(
    dy, x, y, dx, heads, gate, before_u, before_v, after, start_u, start_v, total_u, total_v,
    total_f, n, rows, tiles, chunks, chunk, step_dy, step_x, step_y, step_dx,
    extents, strides_dy, strides_x, strides_y, strides_dx,
    KIND: tl.constexpr, SIGN: tl.constexpr, REVERSE: tl.constexpr, WIDE: tl.constexpr,
    OTHER: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Walk `chunk` tiles of R rows against the forward scan of `KIND`. By tiles of that scan,
    `before` has its state (or saved y) at the end of each, `after` the x (or y) each starts with;
    `start` and `total` are of the backward walk, as in `sweep`."""
    STATE: tl.constexpr = "linear" if (KIND == "product") | (KIND == "logsum") else "keep"
    PAIRS: tl.constexpr = (STATE == "keep") & (dy.dtype.element_ty == tl.float32)
    # Extrema are compared as they are.
    NARROW: tl.constexpr = (STATE == "keep") & (x.dtype.element_ty != tl.float64)
    HELD: tl.constexpr = tl.float32 if NARROW else WIDE
    NEXT: tl.constexpr = -1 if REVERSE else 1
    LAST: tl.constexpr = B - 1 if REVERSE else 0
    n, rows = bounds(n, rows, step_dy, extents, strides_dy)
    program = tl.program_id(0).to(tl.int64)
    group, part = program // chunks, program % chunks
    row = group * R + tl.arange(0, R)
    rows_live = row < rows
    lane = tl.arange(0, B)
    at_dy, at_x = place(row, extents, strides_dy), place(row, extents, strides_x)
    at_y = place(row, extents, strides_y)
    size = tl.full((), B, tl.int64)
    cu, cv = start_of(start_u, start_v, row, rows, part, chunks, STATE, WIDE, WIDE, R)
    if PAIRS:
        cs, cr = narrowed(cv)
    begin = part * chunk
    any_end = tl.zeros([R], tl.int32)
    for t in range(begin, tl.minimum(begin + chunk, unless_failed(tiles, gate))):
        tile = t if REVERSE else tiles - 1 - t
        k = tile * size + lane
        live = rows_live[:, None] & (k < n)[None, :]
        position = (n - 1 - k if REVERSE else k).to(OTHER)[None, :]
        g = tl.load(dy + grid(at_dy, k, step_dy), mask=live, other=0.0)
        bu, bv, edge = _past_of(
            before_u, before_v, after, row, rows_live, tiles, t, KIND, HELD, OTHER, R
        )
        # Where pieces begin, and where they end: where the next one begins.
        begins, ends = None, None
        if heads is not None:
            begins, ends = flags(heads, k, n, R, B), flags(heads, k + NEXT, n, R, B)
            any_end = tl.maximum(any_end, tl.max(ends, 1))
        a, weight, nothing = _terms(
            x, y, at_x, at_y, step_x, step_y, k, n, rows_live, lane, live, position, begins, ends,
            bu, bv, edge, KIND, NEXT, SIGN, REVERSE, HELD, R, B,
        )  # fmt: skip
        if PAIRS:
            stops = ((a == 0.0) & live).to(tl.int32)
            if total_u is not None:
                cu = tl.where(tl.max(stops, 1) > 0, 0.0, cu)
            if ends is not None:
                stops = stops | ends
            v, cs, cr, cv = sum_tile(g, live, stops, cs, cr, cv, lane, LAST, not REVERSE)
        else:
            u, v = tl.where(live, a, 1.0), g.to(WIDE)
            if KIND == "product":
                v = with_nan_of(a, v)
            u, v = resume(cu, cv, ends, u, v, STATE, not REVERSE)
            cu, cv = lane_of(u, lane, LAST), lane_of(v, lane, LAST)
        if total_u is None:
            grad = tl.where(nothing, 0.0, weight * v)
            tl.debug_barrier()  # dx may be any input: all of the tile is read before it is written
            at_dx = grid(place(row, extents, strides_dx), k, step_dx)
            tl.store(dx + at_dx, grad.to(dx.dtype.element_ty), mask=live)
    if total_u is not None:
        if PAIRS:
            cv = widened(cs, cr, cv)
        at = row * chunks + part
        store_state(total_u, total_v, total_f, at, cu, cv, any_end, rows_live)
