"""Running sums of f32 in pairs of f32, a tile at a time.

The carry is a pair too. Sums that leave the range of f32 on their way, or are not finite, are added
up in f64: then the tile is scanned again, and the carry is a number of f64 beside the pair.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.pairs import add_pairs, any_beyond, narrowed, rounded, run_pairs, widened
from pullback.gpu.tile import lane_of
from pullback.ops.scan.gpu_states import resume


@triton.jit
def sum_tile(x, live, begins, cs, cr, cu, lane, LAST: tl.constexpr, REVERSE: tl.constexpr):
    """The sums along the lanes after a carry, from the last of the lanes on that `begins` flags if
    it is given; and the carry after lane LAST. `cu` is the carry where the pair has no finite
    sum."""
    term = tl.where(live, x, 0.0)
    rest = tl.zeros_like(term)
    if begins is None:
        s, r = tl.associative_scan((term, rest), 1, add_pairs, reverse=REVERSE)
        s, r = add_pairs(cs[:, None], cr[:, None], s, r)
    else:
        begun, s, r = tl.associative_scan((begins, term, rest), 1, run_pairs, reverse=REVERSE)
        whole_s, whole_r = add_pairs(cs[:, None], cr[:, None], s, r)
        s, r = tl.where(begun != 0, s, whole_s), tl.where(begun != 0, r, whole_r)
    y = rounded(s, r)
    last_s, last_r = lane_of(s, lane, LAST), lane_of(r, lane, LAST)
    if any_beyond(s) > 0:
        start, wide = widened(cs, cr, cu), term.to(tl.float64)
        u, _ = resume(start, start, begins, wide, wide, "sum", REVERSE)
        y = u.to(tl.float32)
        cu = lane_of(u, lane, LAST)
        last_s, last_r = narrowed(cu)
    return y, last_s, last_r, cu
