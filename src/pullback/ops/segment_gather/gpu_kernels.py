"""What means of gathered rows are divided by, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def divisors(segments, begin, end, divisor, count, B: tl.constexpr):
    """For each position how many its segment has, at least 1; 1 where it is in none."""
    n = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = n < count
    segment = tl.load(segments + n, mask=live, other=-1)
    kept = live & (segment >= 0)
    first = tl.load(begin + segment, mask=kept, other=0)
    last = tl.load(end + segment, mask=kept, other=1)
    tl.store(divisor + n, tl.maximum(last - first, 1), mask=live)
