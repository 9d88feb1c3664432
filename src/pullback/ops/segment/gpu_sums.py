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
from pullback.ops.segment.gpu_mapped import wide_gap


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
def _root_pair(s, r):
    """The square root of a pair that is not negative, rounded."""
    root = tl.sqrt_rn(s)
    some = (root > 0.0) & (root < float("inf"))
    off = tl.fma(-root, root, s) + r
    return tl.where(some, root + tl.div_rn(off, tl.where(some, 2.0 * root, 1.0)), root)


@triton.jit
def _counts(held, ddof):
    """How many rows there are less ddof, at least one, and whether there are as many."""
    left = held - ddof
    return tl.maximum(left, 1)[:, None], (left > 0)[:, None]


@triton.jit
def finish(u, held, old, ddof, MEAN: tl.constexpr, ROOT: tl.constexpr):
    """What is written of sums: their means, or, with `ddof`, variances or the roots of those, added
    to what is there."""
    if MEAN:
        u = divide(u, tl.maximum(held, 1).to(u.dtype)[:, None])
    elif ddof is not None:
        left, some = _counts(held, ddof)
        u = divide(u, left.to(u.dtype))
        if ROOT:
            u = tl.sqrt_rn(u) if u.dtype == tl.float32 else tl.sqrt(u)
        u = tl.where(some, u, 0.0)
    if old is not None:
        u = u + old.to(u.dtype)
    return u


@triton.jit
def _finish_pairs(s, r, held, old, ddof, MEAN: tl.constexpr, ROOT: tl.constexpr, OUT: tl.constexpr):
    """The same of pairs, rounded once."""
    if MEAN:
        s, r = divide_pairs(s, r, tl.broadcast_to(tl.maximum(held, 1)[:, None], s.shape))
    elif ddof is not None:
        left, some = _counts(held, ddof)
        s, r = divide_pairs(s, r, tl.broadcast_to(left, s.shape))
        if ROOT:
            s, r = _root_pair(s, r), tl.zeros_like(r)
        s, r = tl.where(some, s, 0.0), tl.where(some, r, 0.0)
    if old is not None:
        s, r = add_pairs(s, r, old, tl.zeros_like(old))
    return rounded(s, r).to(OUT) if r.dtype == OUT else widened(s, r, s.to(OUT))


@triton.jit
def _term(x, rest, scale, SQUARE: tl.constexpr, DIVIDE: tl.constexpr):
    """What is added up, as a pair, and where the pair may not hold it."""
    s, r, beyond = x, tl.zeros_like(x), None
    if SQUARE:
        s, r = two_product(x, x)
        r = tl.fma(2.0 * x, rest, r)
    elif scale is not None:
        if DIVIDE:
            s, r = divide_pairs(s, r, tl.broadcast_to(scale, x.shape))
        else:
            s, r = two_product(s, tl.broadcast_to(scale.to(tl.float32), x.shape))
    elif rest is not None:
        r = rest
    if (scale is not None) | (rest is not None):
        beyond = (tl.abs(s) < LEAST) & (x != 0.0)
        if (scale is not None) & (not DIVIDE):
            beyond = beyond & (scale != 0.0)
    return s, r, beyond


@triton.jit
def _wide_term(x, rest, raw, pivot, mean, scale, SQUARE: tl.constexpr, DIVIDE: tl.constexpr):
    """The same in f64, from rows as they were read."""
    if pivot is not None:
        u = wide_gap(raw, pivot, mean, tl.float64)
        if SQUARE:
            u = u * u
    else:
        u = x.to(tl.float64)
        if rest is not None:
            u = tl.where(tl.abs(x) < float("inf"), u + rest.to(tl.float64), u)
        if scale is not None:
            u = u / scale.to(tl.float64) if DIVIDE else u * scale.to(tl.float64)
    return u


@triton.jit
def sum_tile(
    x,
    rest,
    raw,
    pivot,
    mean,
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
    ddof,
    SQUARE: tl.constexpr,
    MEAN: tl.constexpr,
    ROOT: tl.constexpr,
    DIVIDE: tl.constexpr,
    OUT: tl.constexpr,
    P: tl.constexpr,
):
    """The sums of rows x, each times its `scale` or divided by it; of gaps x and their `rest`; or
    of squares of those, from the last flag or the carry on: what is written of them, and the carry
    after the tile. Those that `cut` names go to `part`. `cu` is the carry where the pair has no
    finite sum. Gaps are those of `raw` from a pivot and a mean."""
    s, r, beyond = _term(x, rest, scale, SQUARE, DIVIDE)
    begun, s, r = tl.associative_scan((flag, s, r), 0, run_pairs)
    whole_s, whole_r = add_pairs(cs, cr, s, r)
    s, r = tl.where(begun == 0, whole_s, s), tl.where(begun == 0, whole_r, r)
    if beyond is None:
        beyond = ~(tl.abs(s) < float("inf"))
    else:
        beyond = beyond | ~(tl.abs(s) < float("inf"))
    if tl.max(tl.max(beyond.to(tl.int32), 1), 0) > 0:
        u = _wide_term(x, rest, raw, pivot, mean, scale, SQUARE, DIVIDE)
        _, u = tl.associative_scan((flag, u), 0, run_sum)
        u = tl.where(begun == 0, widened(cs, cr, cu) + u, u)
        if part is not None:
            tl.store(part + at, u, mask=cut)
        y = finish(u, held, old, ddof, MEAN, ROOT).to(OUT)
        cu = last_row(u, P)
        cs, cr = narrowed(cu)
        if SQUARE:  # a root has digits where f32 has no squares
            cs = tl.where((tl.abs(cu) < LEAST) & (cu != 0.0), float("inf"), cs)
    else:
        if part is not None:
            any_cut = tl.max(tl.max(cut.to(tl.int32), 1), 0) > 0
            if any_cut:
                tl.store(part + at, s.to(tl.float64) + r.to(tl.float64), mask=cut)
        cs, cr = last_row(s, P), last_row(r, P)
        y = _finish_pairs(s, r, held, old, ddof, MEAN, ROOT, OUT)
    return y, cs, cr, cu
