"""segment_logsumexp and its gradient in Numba.

The gradient is dy·e^x / Σ e^x: the sum is made again from x, since the rounded y has lost digits
that its exponential needs.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from pullback.cpu.elementary import log
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, real, word
from pullback.cpu.memory import as_i64_pointer, filled_wide, on_stack
from pullback.cpu.vector import select
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_list import over_positions
from pullback.ops.segment.cpu_panel import over_saved_panels, write_row
from pullback.ops.segment.cpu_strip import as_wide, lanes, load_wide, store, tile_elements
from pullback.ops.segment.cpu_sum import summed
from pullback.ops.segment.cpu_walk import over_long_blocks, over_long_segments, over_segments
from pullback.ops.segment.cpu_words import LISTED
from pullback.ops.segment_softmax.cpu_powers import (
    KEPT,
    combined,
    get_whole,
    inverse,
    keep_powers,
    kept_pointer,
    kept_power,
    largest,
    put_sum,
    put_whole,
)

# --- forward ------------------------------------------------------------------------------------


@inlined
def _forward_strip(task, state, block, base, along, column, count, n):
    places, source, target, kept = state
    s, _, start, end, size, slot, _ = block
    where = s * word(task, at.SEGMENT_ROW) + base[1]
    if size == 0:
        empty = filled_wide(target, real(task, at.EMPTY), n)
        store(task, target, where, along[1], count, n, empty)
        return
    m = largest(source, places, end - start, base[0], along[0], count, n)
    total, rest = keep_powers(source, places, end - start, kept, m, base[0], along[0], count, n)
    if slot < 0:
        y = as_wide(source, m) + log(summed(source, total, rest))
        store(task, target, where, along[1], count, n, y)
    else:
        put_sum(task, slot, column, count, m, total, rest)


@kernel
def logsumexp_segments(task, lo, hi):
    """Items are places of the walk over segments and their rows."""
    source, target = pointer(task, at.SOURCE), pointer(task, at.TARGET)
    places, kept = on_stack(as_i64_pointer(0), LISTED), on_stack(kept_pointer(source), KEPT)
    state = (places, source, target, kept)
    over_segments(task, lo, hi, lanes(source), _forward_strip, state, over_positions)


@inlined
def _combine_strip(task, target, block, base, along, column, count, n):
    s, slot, blocks, _ = block
    m, sum = combined(task, target, slot, blocks, column, count, n)
    where = s * word(task, at.SEGMENT_ROW) + base[1]
    store(task, target, where, along[1], count, n, as_wide(target, m + log(sum)))


@kernel
def combine_logsumexp(task, lo, hi):
    """Long segments: the sums of their blocks."""
    over_long_segments(task, lo, hi, _combine_strip, pointer(task, at.TARGET))


# --- backward -----------------------------------------------------------------------------------


@inlined
def _write(task, state, block, m, sum, base, along, count, n):
    """dy·e^(x - m) / sum of each row; a segment without mass has no gradient."""
    _, _, sheet, _, saved, kept, source = state
    share = inverse(m, sum)
    g = load_wide(source, block[0] * word(task, at.SEGMENT_ROW) + base[0], along[0], count, n)
    for j in range(block[3] - block[2]):
        v = as_wide(saved, kept_power(kept, j, n)) * share * g
        write_row(sheet, j, base, count, n, select(share == 0, 0.0, v))


@inlined
def _short_strip(task, state, block, base, along, column, count, n):
    _, _, _, places, saved, kept, _ = state
    rows, size, slot = block[3] - block[2], block[4], block[5]
    if size == 0:
        return False
    m = largest(saved, places, rows, base[2], along[2], count, n)
    total, rest = keep_powers(saved, places, rows, kept, m, base[2], along[2], count, n)
    if slot < 0:
        sum = summed(saved, total, rest)
        _write(task, state, block, m, sum, base, along, count, n)
    else:
        put_sum(task, slot, column, count, m, total, rest)
    return slot < 0


@inlined
def _long_strip(task, state, block, base, along, column, count, n):
    _, _, _, places, saved, kept, _ = state
    m, sum = get_whole(task, saved, block, column, count, n)
    keep_powers(saved, places, block[3] - block[2], kept, m, base[2], along[2], count, n)
    _write(task, state, block, m, sum, base, along, count, n)
    return True


@inlined
def _walk(task, lo, hi, strip, over):
    source, target = pointer(task, at.SOURCE), pointer(task, at.TARGET)
    saved = pointer(task, at.SAVED)
    places = on_stack(as_i64_pointer(0), LISTED)
    tile, listed = on_stack(target, tile_elements(target)), on_stack(places, LISTED)
    kept = on_stack(kept_pointer(source), KEPT)
    state = (places, target, tile, listed, saved, kept, source)
    over(task, lo, hi, lanes(target), strip, state, over_saved_panels)


@kernel
def logsumexp_gradients(task, lo, hi):
    """Items are places of the walk over segments and their rows."""
    _walk(task, lo, hi, _short_strip, over_segments)


@inlined
def _combine_shares_strip(task, target, block, base, along, column, count, n):
    _, slot, blocks, _ = block
    m, sum = combined(task, target, slot, blocks, column, count, n)
    put_whole(task, slot, column, count, m, sum)


@kernel
def combine_shares(task, lo, hi):
    """Long segments: the sums of their blocks, for the gradients of these."""
    over_long_segments(task, lo, hi, _combine_shares_strip, pointer(task, at.TARGET))


@kernel
def logsumexp_gradients_long(task, lo, hi):
    """Items are blocks of long segments."""
    _walk(task, lo, hi, _long_strip, over_long_blocks)
