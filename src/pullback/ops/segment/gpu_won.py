"""What positions receive of the gradients of groups whose extrema they hold, in Triton: rows of
gradients with zeros where another position holds the extremum, or shares of them."""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.tile import cells, divide
from pullback.ops.segment.gpu_sums import divide_pairs


@triton.jit
def won(
    g,
    holder,
    best,
    own,
    element,
    key,
    column,
    at,
    use,
    own_extents,
    own_strides,
    own_columns,
    own_steps,
    SHIFT: tl.constexpr,
    PAIRS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """ "held": g where `holder` names the element. "shared", and "shared low" of minima, which are
    kept negated: g over the number of equals that `holder` has, where the row of the key in `own`
    is one of them. With what rounding took."""
    many, rest = tl.load(holder + at, mask=use, other=1), None
    if SHIFT == "held":
        y = tl.where(use & (many == element[:, None]), g, 0.0)
    else:
        top = tl.load(best + at, mask=use, other=0.0)
        at = cells(key, column, own_extents, own_strides, own_columns, own_steps)
        mine = tl.load(own + at, mask=use, other=0.0).to(top.dtype)
        if SHIFT == "shared low":
            mine = -mine
        tie = use & ((mine == top) | ((mine != mine) & (top != top)))
        if PAIRS:
            y, rest = divide_pairs(g, tl.zeros_like(g), many)
            rest = tl.where(tie, rest, 0.0)
        else:
            y = divide(g.to(WIDE), many.to(WIDE))
        y = tl.where(tie, y, 0.0)
    return y, rest
