"""segment_softmax and segment_log_softmax in Numba: every row divided by the sum of its segment."""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer
from pullback.cpu.memory import as_i64_pointer, on_stack
from pullback.cpu.vector import like, select
from pullback.ops.segment.cpu_panel import over_saved_panels, write_row
from pullback.ops.segment.cpu_strip import as_wide, lanes, load, tile_elements
from pullback.ops.segment.cpu_sum import summed
from pullback.ops.segment.cpu_walk import over_long_blocks, over_long_segments, over_segments
from pullback.ops.segment.cpu_words import LISTED, SOURCE, TARGET
from pullback.ops.segment_softmax.cpu_powers import (
    KEPT,
    combined,
    get_whole,
    inverse,
    keep_powers,
    kept_pointer,
    kept_power,
    largest,
    log_sum,
    put_sum,
    put_whole,
)


@inlined
def write_shares(state, rows, m, sum, at, along, count, n):
    """e^(x - m) / sum of each row; the powers are kept."""
    _, _, sheet, _, source, kept = state
    share = inverse(m, sum)
    for j in range(rows):
        write_row(sheet, j, at, count, n, as_wide(source, kept_power(kept, j, n)) * share)


@inlined
def write_logs(state, rows, m, sum, at, along, count, n):
    """x - m - log sum of each row."""
    _, _, sheet, places, source, _ = state
    top, off = as_wide(source, m), log_sum(m, sum)
    for j in range(rows):
        x = load(source, places[j] + at[0], along[0], count, n)
        wide = as_wide(source, x)
        wide = select(x == m, like(wide, 0.0), wide - top)
        write_row(sheet, j, at, count, n, wide - off)


def _short(write: Callable) -> Callable:
    """A strip of a block: short segments whole, of long ones the sum."""

    @inlined
    def strip(task, state, block, at, along, column, count, n):
        _, _, _, places, source, kept = state
        rows, size, slot = block[3] - block[2], block[4], block[5]
        if size == 0:
            return False
        m = largest(source, places, rows, at[0], along[0], count, n)
        total, rest = keep_powers(source, places, rows, kept, m, at[0], along[0], count, n)
        if slot < 0:
            sum = summed(source, total, rest)
            write(state, rows, m, sum, at, along, count, n)
        else:
            put_sum(task, slot, column, count, m, total, rest)
        return slot < 0

    return strip


def _long(write: Callable, again: bool) -> Callable:
    """A strip of a block of a long segment; `again` where its powers are needed."""

    @inlined
    def strip(task, state, block, at, along, column, count, n):
        _, _, _, places, source, kept = state
        rows = block[3] - block[2]
        m, sum = get_whole(task, source, block, column, count, n)
        if again:
            keep_powers(source, places, rows, kept, m, at[0], along[0], count, n)
        write(state, rows, m, sum, at, along, count, n)
        return True

    return strip


_short_shares, _long_shares = _short(write_shares), _long(write_shares, True)
_short_logs, _long_logs = _short(write_logs), _long(write_logs, False)


@inlined
def _walk(task, lo, hi, strip, over):
    source, target = pointer(task, SOURCE), pointer(task, TARGET)
    places = on_stack(as_i64_pointer(0), LISTED)
    tile, listed = on_stack(target, tile_elements(target)), on_stack(places, LISTED)
    state = (places, target, tile, listed, source, on_stack(kept_pointer(source), KEPT))
    over(task, lo, hi, lanes(target), strip, state, over_saved_panels)


@kernel
def softmax_segments(task, lo, hi):
    """Items are places of the walk over segments and their rows."""
    _walk(task, lo, hi, _short_shares, over_segments)


@kernel
def log_softmax_segments(task, lo, hi):
    _walk(task, lo, hi, _short_logs, over_segments)


@inlined
def _combine_strip(task, target, block, at, along, column, count, n):
    _, slot, blocks, _ = block
    m, sum = combined(task, target, slot, blocks, column, count, n)
    put_whole(task, slot, column, count, m, sum)


@kernel
def combine_powers(task, lo, hi):
    """Long segments: the sums of their blocks."""
    over_long_segments(task, lo, hi, _combine_strip, pointer(task, TARGET))


@kernel
def softmax_long(task, lo, hi):
    """Items are blocks of long segments."""
    _walk(task, lo, hi, _long_shares, over_long_blocks)


@kernel
def log_softmax_long(task, lo, hi):
    _walk(task, lo, hi, _long_logs, over_long_blocks)
