"""Sums of f32 over runs in pairs of f32, a tile of rows at a time.

The carry is a pair too. Sums that leave the range of f32 on their way, products that leave too
little below it, and what is not finite are added up in f64: then the tile is reduced again, and the
carry is a number of f64 beside the pair.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.pairs import LEAST, add_pairs, narrowed, rounded, run_pairs, two_product, widened
from pullback.gpu.tile import divide


@triton.jit
def last_row(value, P: tl.constexpr):
    """The last row of a tile, bit for bit, as a tile of one row."""
    BITS: tl.constexpr = tl.int64 if value.dtype.primitive_bitwidth == 64 else tl.int32
    last = (tl.arange(0, P) == P - 1)[:, None]
    bits = tl.sum(tl.where(last, value.to(BITS, bitcast=True), 0), 0)
    return bits.to(value.dtype, bitcast=True)[None, :]


@triton.jit
def run_sum(f1, u1, f2, u2):
    return f1 | f2, tl.where(f2 != 0, u2, u1 + u2)


@triton.jit
def divide_pairs(s, r, count):
    """A pair divided by a number of 64 bits, at least one."""
    high = count.to(tl.float32)
    low = (count - high.to(tl.int64)).to(tl.float32)
    quotient = tl.div_rn(s, high)
    rest = tl.fma(-quotient, low, tl.fma(-quotient, high, s) + r)
    return quotient, tl.div_rn(rest, high)


@triton.jit
def finish(u, held, old, MEAN: tl.constexpr):
    """What is written of sums: their means, added to what is there."""
    if MEAN:
        u = divide(u, tl.maximum(held, 1).to(u.dtype)[:, None])
    if old is not None:
        u = u + old.to(u.dtype)
    return u


@triton.jit
def sum_tile(
    x,
    scale,
    flag,
    held,
    old,
    part,
    at,
    cut,
    cs,
    cr,
    cu,
    MEAN: tl.constexpr,
    DIVIDE: tl.constexpr,
    P: tl.constexpr,
):
    """The sums of rows x, each times its `scale` or divided by it, from the last flag or the carry
    on: what is written of them, and the carry after the tile. Those that `cut` names go to `part`.
    `cu` is the carry where the pair has no finite sum."""
    s, r = x, tl.zeros_like(x)
    if scale is not None:
        if DIVIDE:
            s, r = divide_pairs(s, r, tl.broadcast_to(scale, x.shape))
        else:
            s, r = two_product(s, tl.broadcast_to(scale.to(tl.float32), x.shape))
        beyond = (tl.abs(s) < LEAST) & (x != 0.0)
        if not DIVIDE:
            beyond = beyond & (scale != 0.0)
    begun, s, r = tl.associative_scan((flag, s, r), 0, run_pairs)
    whole_s, whole_r = add_pairs(cs, cr, s, r)
    s, r = tl.where(begun == 0, whole_s, s), tl.where(begun == 0, whole_r, r)
    if scale is None:
        beyond = ~(tl.abs(s) < float("inf"))
    else:
        beyond = beyond | ~(tl.abs(s) < float("inf"))
    if tl.max(tl.max(beyond.to(tl.int32), 1), 0) > 0:
        u = x.to(tl.float64)
        if scale is not None:
            u = u / scale.to(tl.float64) if DIVIDE else u * scale.to(tl.float64)
        _, u = tl.associative_scan((flag, u), 0, run_sum)
        u = tl.where(begun == 0, widened(cs, cr, cu) + u, u)
        if part is not None:
            tl.store(part + at, u, mask=cut)
        y = finish(u, held, old, MEAN).to(tl.float32)
        cu = last_row(u, P)
        cs, cr = narrowed(cu)
    else:
        if part is not None:
            any_cut = tl.max(tl.max(cut.to(tl.int32), 1), 0) > 0
            if any_cut:
                tl.store(part + at, s.to(tl.float64) + r.to(tl.float64), mask=cut)
        cs, cr = last_row(s, P), last_row(r, P)
        if MEAN:
            s, r = divide_pairs(s, r, tl.broadcast_to(tl.maximum(held, 1)[:, None], x.shape))
        if old is not None:
            s, r = add_pairs(s, r, old, tl.zeros_like(old))
        y = rounded(s, r)
    return y, cs, cr, cu
