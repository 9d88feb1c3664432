"""Sums and means over sorted rows: segments forward, embeddings backward.

A block of rows is added in order, in the wide type; f64 has none, so it carries the rounding error
beside the sum. Blocks of long segments leave partial sums that a second phase adds in order.
"""

from __future__ import annotations

from numba import types
from numba.extending import overload

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, real, word
from pullback.cpu.memory import as_f64_pointer, filled_wide, get_first, put_first
from pullback.cpu.vector import absolute, like, select, splat, to_f64
from pullback.ops.segment.cpu_strip import (
    as_wide,
    fetch_ahead,
    load_wide,
    row_at,
    rows_of,
    store,
    sum_lanes,
)
from pullback.ops.segment.cpu_walk import over_columns, over_long_segments, over_segments
from pullback.ops.segment.cpu_words import (
    ACCUMULATE,
    COLUMNS,
    DIVIDE,
    EMPTY,
    PARTIALS_AT,
    POSITION_ROW,
    SEGMENT_ROW,
    SOURCE,
    TARGET,
    scratch,
)

PARTS = 2  # a partial sum and its correction


def plus(p, total, rest, v):
    """total + v, and what rounding has taken from all the sums so far. By p's element."""
    raise NotImplementedError


def _rounded_plus(p, total, rest, v):
    return total + v, rest


def _exact_plus(p, total, rest, v):
    s = total + v
    back = s - total
    return s, rest + ((total - (s - back)) + (v - back))


def summed(p, total, rest):
    """The sum itself. By p's element."""
    raise NotImplementedError


def _rounded_sum(p, total, rest):
    return total


def _exact_sum(p, total, rest):
    # No correction keeps the sign of a zero; an infinite sum has made it NaN.
    return select(absolute(rest) > 0, total + rest, total)


@overload(plus, jit_options={"forceinline": True}, strict=False)
def _plus(p, total, rest, v):
    return _exact_plus if p.dtype == types.float64 else _rounded_plus


@overload(summed, jit_options={"forceinline": True}, strict=False)
def _summed(p, total, rest):
    return _exact_sum if p.dtype == types.float64 else _rounded_sum


@inlined
def nothing(p, n):
    """The sum of no rows: -0 is the one number that changes nothing when added."""
    return filled_wide(p, -0.0, n), filled_wide(p, -0.0, n)


@inlined
def finish(task, target, at, along, count, n, total, size):
    """Write the sum of a strip: divided, added to what is there, as the plan says."""
    if word(task, DIVIDE):
        total = total / like(total, size)
    if word(task, ACCUMULATE):
        total = load_wide(target, at, along, count, n) + total
    store(task, target, at, along, count, n, total)


@inlined
def finish_empty(task, target, at, along, count, n):
    """A segment without rows leaves what it is added to alone."""
    if word(task, ACCUMULATE) == 0:
        store(task, target, at, along, count, n, filled_wide(target, real(task, EMPTY), n))


@inlined
def sum_strip(task, state, block, at, along, column, count, n):
    """One strip of one block: to its place in the target, or to the partial sums."""
    source, target, rows = state
    s, _, start, end, size, slot, last = block
    total, rest = nothing(source, n)
    for i in range(start, end):
        fetch_ahead(task, rows, source, i, at[0], last)
        v = load_wide(source, row_at(task, rows, i) + at[0], along[0], count, n)
        total, rest = plus(source, total, rest, v)
    where = s * word(task, SEGMENT_ROW) + at[1]
    if size == 0:
        finish_empty(task, target, where, along[1], count, n)
    elif slot < 0:
        finish(task, target, where, along[1], count, n, summed(source, total, rest), size)
    else:
        keep_partial(task, PARTS * slot, column, count, total, rest)


@inlined
def keep_partial(task, part, column, count, total, rest):
    partials, columns = as_f64_pointer(scratch(task, PARTIALS_AT)), word(task, COLUMNS)
    put_first(partials, part * columns + column, 1, count, to_f64(total))
    put_first(partials, (part + 1) * columns + column, 1, count, to_f64(rest))


@inlined
def add_partial(task, target, part, column, count, n, total, rest):
    partials, columns = as_f64_pointer(scratch(task, PARTIALS_AT)), word(task, COLUMNS)
    none = splat(-0.0, n)
    v = get_first(partials, part * columns + column, 1, count, none)
    total, rest = plus(target, total, rest, v)
    v = get_first(partials, (part + 1) * columns + column, 1, count, none)
    return plus(target, total, rest, v)


@kernel
def sum_segments(task, lo, hi):
    """Items are places of the walk over segments and their rows."""
    source, target = pointer(task, SOURCE), pointer(task, TARGET)
    state = (source, target, rows_of(task, POSITION_ROW))
    over_segments(task, lo, hi, sum_lanes(source), sum_strip, state, over_columns)


@inlined
def combine_strip(task, target, block, at, along, column, count, n):
    s, slot, blocks, size = block
    total, rest = splat(-0.0, n), splat(-0.0, n)
    for k in range(slot, slot + blocks):
        total, rest = add_partial(task, target, PARTS * k, column, count, n, total, rest)
    whole = as_wide(target, summed(target, total, rest))
    where = s * word(task, SEGMENT_ROW) + at[1]
    finish(task, target, where, along[1], count, n, whole, size)


@kernel
def combine_sums(task, lo, hi):
    """Long segments: the partial sums of their blocks, in order."""
    over_long_segments(task, lo, hi, combine_strip, pointer(task, TARGET))
