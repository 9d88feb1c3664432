"""What becomes of a row before it is reduced, relative to numbers of its group, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.exponential import power
from pullback.gpu.pairs import two_sum


@triton.jit
def gap_of(x, pivot, mean):
    """x - pivot in f32, and less the mean of that if one is given, with what rounding took."""
    d, rest = two_sum(x, -pivot)
    if mean is not None:
        d, lost = two_sum(d, -mean.to(tl.float32))
        rest = rest + lost
    return d, rest


@triton.jit
def wide_gap(x, pivot, mean, WIDE: tl.constexpr):
    """The same in another type."""
    d = x.to(WIDE) - pivot.to(WIDE)
    return d if mean is None else d - mean.to(WIDE)


@triton.jit
def mapped(x, shift, mean, at, use, SHIFT: tl.constexpr, PAIRS: tl.constexpr, WIDE: tl.constexpr):
    """Rows by what `shift` has for their group: powers e^(x - shift), gaps x - shift, or gaps less
    their mean, squared but where they are added up in pairs. With what rounding took, and what was
    subtracted."""
    top, middle, rest = tl.load(shift + at, mask=use, other=0.0), None, None
    if SHIFT == "square":
        middle = tl.load(mean + at, mask=use, other=0.0)
    if SHIFT == "power":
        y, top = power(x.to(top.dtype), top, use, PAIRS), None
    elif PAIRS:
        y, rest = gap_of(x, top, middle)
    else:
        y = wide_gap(x, top, middle, WIDE)
        if SHIFT == "square":
            y = y * y
    return y, rest, top, middle
