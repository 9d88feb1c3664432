"""Running sums of f32 in pairs of f32, a tile at a time: of elements, or of their exponentials.

The carry is a pair too. Sums that leave the range of f32 on their way, or are not finite, are added
up in f64: then the tile is scanned again, and the carry is a number of f64 beside the pair.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.exponential import exp_pair, log_of_pair
from pullback.gpu.pairs import (
    LEAST,
    add_pairs,
    any_beyond,
    multiply_pairs,
    narrowed,
    rounded,
    run_pairs,
    widened,
)
from pullback.gpu.tile import lane_of
from pullback.ops.scan.gpu_states import lift, resume


@triton.jit
def _resume_pairs(cs, cr, begins, s, r, REVERSE: tl.constexpr):
    """Pairs added up along the lanes after a carry, or from the last flag on."""
    if begins is None:
        s, r = tl.associative_scan((s, r), 1, add_pairs, reverse=REVERSE)
        s, r = add_pairs(cs[:, None], cr[:, None], s, r)
    else:
        begun, s, r = tl.associative_scan((begins, s, r), 1, run_pairs, reverse=REVERSE)
        whole_s, whole_r = add_pairs(cs[:, None], cr[:, None], s, r)
        s, r = tl.where(begun != 0, s, whole_s), tl.where(begun != 0, r, whole_r)
    return s, r


@triton.jit
def sum_tile(x, live, begins, cs, cr, cu, lane, LAST: tl.constexpr, REVERSE: tl.constexpr):
    """The sums along the lanes after a carry, from the last of the lanes on that `begins` flags if
    it is given; and the carry after lane LAST. `cu` is the carry where the pair has no finite
    sum."""
    term = tl.where(live, x, 0.0)
    s, r = _resume_pairs(cs, cr, begins, term, tl.zeros_like(term), REVERSE)
    y = rounded(s, r)
    last_s, last_r = lane_of(s, lane, LAST), lane_of(r, lane, LAST)
    if any_beyond(s) > 0:
        start, wide = widened(cs, cr, cu), term.to(tl.float64)
        u, _ = resume(start, start, begins, wide, wide, "sum", REVERSE)
        y = u.to(tl.float32)
        cu = lane_of(u, lane, LAST)
        last_s, last_r = narrowed(cu)
    return y, last_s, last_r, cu


@triton.jit
def logsum_tile(x, live, begins, top, cs, cr, cv, lane, LAST: tl.constexpr, REVERSE: tl.constexpr):
    """The same for logarithms of sums of exponentials. The carry is relative to `top`, and what the
    tile adds up is relative to its maximum, or to the carry's: one exponential for each element. A
    tile whose first sums are lost beside its maximum, or that is not finite, is done in f64."""
    peak = tl.maximum(top, tl.max(tl.where(live & (x == x), x, float("-inf")), 1))
    s, r = exp_pair(x, peak[:, None])
    s = tl.where(live, tl.where(x == x, s, x), 0.0)
    fade_s, fade_r = exp_pair(top, peak)
    begin_s, begin_r = multiply_pairs(cs, cr, fade_s, fade_r)
    s, r = _resume_pairs(begin_s, begin_r, begins, s, tl.where(live, r, 0.0), REVERSE)
    y = log_of_pair(s, r, peak[:, None])
    held = (s >= LEAST) & (s < float("inf")) & (tl.abs(peak) < float("inf"))[:, None]
    beyond = tl.max(tl.max((live & ~held).to(tl.int32), 1), 0)
    last_s, last_r = lane_of(s, lane, LAST), lane_of(r, lane, LAST)
    if beyond > 0:
        u, v = lift(x.to(tl.float64), live, lane[None, :], "logsum", 1)
        u, v = resume(top.to(tl.float64), widened(cs, cr, cv), begins, u, v, "logsum", REVERSE)
        y = (u + tl.log(v)).to(tl.float32)
        peak, cv = lane_of(u, lane, LAST).to(tl.float32), lane_of(v, lane, LAST)
        last_s, last_r = narrowed(cv)
    return y, peak, last_s, last_r, cv
