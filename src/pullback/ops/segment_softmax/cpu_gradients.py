"""Gradients of segment_softmax and segment_log_softmax in Numba.

    softmax        dx = y·(dy - Σ y·dy)
    log_softmax    dx = dy - e^y·Σ dy

A segment without mass (y all 0, or all -inf) has no gradient, whatever dy; NaN in y makes it NaN.
Beside the sum goes a flag: 0 without mass, 1 with, 2 where NaN has been met.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

import math
from collections.abc import Callable

from pullback.cpu.elementary import exp
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer
from pullback.cpu.memory import as_i64_pointer, filled_wide, on_stack
from pullback.cpu.vector import is_nan, like, maximum, select, splat
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_extremum import get_part, put_part
from pullback.ops.segment.cpu_list import list_rows
from pullback.ops.segment.cpu_panel import over_saved_panels, write_row
from pullback.ops.segment.cpu_strip import (
    as_wide,
    fetch_strip,
    lanes,
    load,
    load_wide,
    tile_elements,
)
from pullback.ops.segment.cpu_sum import finite_rest, nothing, plus, summed
from pullback.ops.segment.cpu_walk import over_long_blocks, over_long_segments, over_segments
from pullback.ops.segment.cpu_words import BLOCK, LISTED

INFINITY, NAN = math.inf, math.nan
PARTS = 3  # of a block: the sum, its correction and the flag


@inlined
def _ask(state, j, base, n):
    """Ask for the rows that are soon needed."""
    _, _, _, listed, source, saved, rows = state
    fetch_strip(source, rows[j + at.FAR] + base[0], n)
    fetch_strip(saved, listed[j + at.FAR] + base[2], n)


@inlined
def _pair(state, j, base, along, count, n):
    """dy and y of a row."""
    _, _, _, listed, source, saved, rows = state
    dy = load_wide(source, rows[j] + base[0], along[0], count, n)
    return dy, load(saved, listed[j] + base[2], along[2], count, n)


@inlined
def _product(p, dy, y):
    """The term of a row, and what it says of the mass."""
    wide = as_wide(p, y)
    return wide * dy, select(wide == 0, like(dy, 0.0), like(dy, 1.0))


@inlined
def _plain(p, dy, y):
    wide = as_wide(p, y)
    flag = select(wide == -INFINITY, like(dy, 0.0), like(dy, 1.0))
    return dy, select(is_nan(wide), like(dy, 2.0), flag)


@inlined
def _by_share(p, dy, y, sum, flag):
    return select(flag > 0, as_wide(p, y) * (dy - sum), 0.0)


@inlined
def _by_log(p, dy, y, sum, flag):
    dx = select(flag > 0, dy - as_wide(p, exp(y)) * sum, 0.0)
    return select(flag > 1, NAN, dx)


def _write(gradient: Callable) -> Callable:
    @inlined
    def write(state, rows, sum, flag, base, along, count, n):
        sheet, saved = state[2], state[5]
        for j in range(rows):
            dy, y = _pair(state, j, base, along, count, n)
            write_row(sheet, j, base, count, n, gradient(saved, dy, y, sum, flag))

    return write


def _short(term: Callable, write: Callable) -> Callable:
    @inlined
    def strip(task, state, block, base, along, column, count, n):
        rows, size, slot, saved = block[3] - block[2], block[4], block[5], state[5]
        if size == 0:
            return False
        total, rest = nothing(saved, n)
        flag = filled_wide(saved, 0.0, n)
        for j in range(rows):
            _ask(state, j, base, n)
            dy, y = _pair(state, j, base, along, count, n)
            v, mark = term(saved, dy, y)
            total, rest = plus(saved, total, rest, v)
            flag = maximum(mark, flag)
        if slot < 0:
            sum = summed(saved, total, rest)
            write(state, rows, sum, flag, base, along, count, n)
        else:
            put_part(task, PARTS * slot, column, count, total)
            put_part(task, PARTS * slot + 1, column, count, finite_rest(rest))
            put_part(task, PARTS * slot + 2, column, count, flag)
        return slot < 0

    return strip


def _long(write: Callable) -> Callable:
    @inlined
    def strip(task, state, block, base, along, column, count, n):
        slot, saved = block[5] - (block[2] - block[1]) // BLOCK, state[5]
        sum = as_wide(saved, get_part(task, PARTS * slot, column, count, n))
        flag = as_wide(saved, get_part(task, PARTS * slot + 2, column, count, n))
        write(state, block[3] - block[2], sum, flag, base, along, count, n)
        return True

    return strip


_write_shares, _write_logs = _write(_by_share), _write(_by_log)
_short_shares, _long_shares = _short(_product, _write_shares), _long(_write_shares)
_short_logs, _long_logs = _short(_plain, _write_logs), _long(_write_logs)


@inlined
def _over_both(task, columns, wide, strip, state, block):
    """All strips of a block, with the rows of dy listed too."""
    if block[2] < block[3]:
        list_rows(task, at.SEGMENT_ROW, block, state[6])
    over_saved_panels(task, columns, wide, strip, state, block)


@inlined
def _walk(task, lo, hi, strip, over):
    source, target = pointer(task, at.SOURCE), pointer(task, at.TARGET)
    saved = pointer(task, at.SAVED)
    places = on_stack(as_i64_pointer(0), LISTED)
    tile, listed = on_stack(target, tile_elements(target)), on_stack(places, LISTED)
    state = (places, target, tile, listed, source, saved, on_stack(places, LISTED))
    over(task, lo, hi, lanes(target), strip, state, _over_both)


@kernel
def softmax_gradients(task, lo, hi):
    """Items are places of the walk over segments and their rows."""
    _walk(task, lo, hi, _short_shares, over_segments)


@kernel
def log_softmax_gradients(task, lo, hi):
    _walk(task, lo, hi, _short_logs, over_segments)


@inlined
def _combine_strip(task, target, block, base, along, column, count, n):
    _, slot, blocks, _ = block
    total, rest, flag = splat(-0.0, n), splat(-0.0, n), splat(0.0, n)
    for k in range(slot, slot + blocks):
        v = get_part(task, PARTS * k, column, count, n)
        total, rest = plus(target, total, rest, v)
        v = get_part(task, PARTS * k + 1, column, count, n)
        total, rest = plus(target, total, rest, v)
        flag = maximum(get_part(task, PARTS * k + 2, column, count, n), flag)
    put_part(task, PARTS * slot, column, count, summed(target, total, rest))
    put_part(task, PARTS * slot + 2, column, count, flag)


@kernel
def combine_gradients(task, lo, hi):
    """Long segments: the sums of their blocks."""
    over_long_segments(task, lo, hi, _combine_strip, pointer(task, at.TARGET))


@kernel
def softmax_gradients_long(task, lo, hi):
    """Items are blocks of long segments."""
    _walk(task, lo, hi, _long_shares, over_long_blocks)


@kernel
def log_softmax_gradients_long(task, lo, hi):
    _walk(task, lo, hi, _long_logs, over_long_blocks)
