"""segment_logsumexp and its gradient in Numba.

The gradient is dy·e^x / Σ e^x: the sum is made again from x, since the rounded y has lost digits
that its exponential needs.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from pullback.cpu.elementary import log
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import word
from pullback.cpu.vector import select
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_engine import reduction, write_segment
from pullback.ops.segment.cpu_panel import write_row
from pullback.ops.segment.cpu_strip import as_wide, in_source, load_wide
from pullback.ops.segment_softmax.cpu_maps import (
    PARTS,
    inverse,
    joined,
    kept_again,
    kept_power,
    over_powers,
    power_parts,
    powers,
    whole_powers,
)


@inlined
def _total(task, state, block, cols):
    source, (places, _), _, kept = state
    return powers(source, places, block[7], kept, in_source(cols))


@inlined
def _write(task, state, block, cols, found):
    m, sum = whole_powers(state[0], found)
    write_segment(task, state[2], block[0], cols, as_wide(state[0], m) + log(sum))


@inlined
def _join(task, target, block, cols):
    m, sum = joined(task, target, block, cols)
    write_segment(task, target, block[0], cols, as_wide(target, m + log(sum)))


@inlined
def _write_gradient(task, state, block, cols, whole):
    """dy·e^(x - m) / sum of each row; a segment without mass has no gradient."""
    sheet, source, saved, kept = state[2], state[4], state[5], state[6]
    share = inverse(*whole)
    g = load_wide(source, block[0] * word(task, at.SEGMENT_ROW), in_source(cols))
    for j in range(block[3] - block[2]):
        v = as_wide(saved, kept_power(kept, j, cols[4])) * share * g
        write_row(sheet, j, cols, select(share == 0, 0.0, v))


LOGSUMEXP = reduction(
    __name__,
    ("logsumexp_segments", "combine_logsumexp"),
    total=_total,
    write=_write,
    parts=power_parts,
    join=_join,
    many=PARTS,
)
GRADIENTS = over_powers(
    __name__,
    ("logsumexp_gradients", "combine_shares", "logsumexp_gradients_long"),
    write=_write_gradient,
    again=kept_again,
)
