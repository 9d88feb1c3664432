"""Sums and means over sorted rows: segments forward, embeddings backward, bags both ways.

A block of rows is added in order, in the wide type; f64 has none, so it carries the rounding error
beside the sum. Blocks of long segments leave partial sums that a second phase adds in order.
"""

from __future__ import annotations

import math

from numba import types
from numba.extending import overload

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, real, word
from pullback.cpu.memory import (
    as_f64_pointer,
    as_i64_pointer,
    filled_wide,
    get_first,
    on_stack,
    put_first,
)
from pullback.cpu.vector import absolute, like, select, splat, to_f64
from pullback.ops.segment.cpu_list import fetch_listed, over_listed
from pullback.ops.segment.cpu_strip import as_wide, load_wide, store, sum_lanes
from pullback.ops.segment.cpu_walk import over_long_segments, over_segments
from pullback.ops.segment.cpu_words import (
    ACCUMULATE,
    BLOCK,
    BY_WEIGHT,
    COLUMNS,
    DIVIDE,
    EMPTY,
    KEPT_AT,
    LISTED,
    PARTIALS_AT,
    SCALING,
    SEGMENT_ROW,
    SOURCE,
    TARGET,
    UNSCALED,
    scratch,
)

INFINITY = math.inf
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


@inlined
def finite_rest(rest):
    """The correction of a finite sum, -0 if there is none: added, it keeps the sign of a zero. That
    of an infinite sum is NaN, and means nothing."""
    size = absolute(rest)
    return select((size > 0) & (size < INFINITY), rest, -0.0)


def _rounded_sum(p, total, rest):
    return total


def _exact_sum(p, total, rest):
    # No correction keeps the sign of a zero; an infinite sum has made it NaN.
    return select(absolute(rest) > 0, total + finite_rest(rest), total)


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
def write_sum(task, target, s, at, along, count, n, total, kept):
    """A finished strip; a segment that kept nothing is empty."""
    where = s * word(task, SEGMENT_ROW) + at[1]
    if kept > 0:
        finish(task, target, where, along[1], count, n, total, kept)
    else:
        finish_empty(task, target, where, along[1], count, n)


@inlined
def scaled(v, scale, scaling):
    return v * scale if scaling == BY_WEIGHT else v / scale


@inlined
def sum_strip(task, state, block, at, along, column, count, n):
    """One strip of one block: to its place in the target, or to the partial sums."""
    source, (places, scales), target, scaling = state
    s, _, _, _, _, slot, _, kept = block
    total, rest = nothing(source, n)
    # Two loops: a choice within would push the sums out of registers, row by row.
    if scaling == UNSCALED:
        for j in range(kept):
            fetch_listed(source, places, j, at[0], n)
            v = load_wide(source, places[j] + at[0], along[0], count, n)
            total, rest = plus(source, total, rest, v)
    else:
        for j in range(kept):
            fetch_listed(source, places, j, at[0], n)
            v = load_wide(source, places[j] + at[0], along[0], count, n)
            v = scaled(v, like(v, scales[j]), scaling)
            total, rest = plus(source, total, rest, v)
    if slot < 0:
        write_sum(task, target, s, at, along, count, n, summed(source, total, rest), kept)
    else:
        keep_partial(task, PARTS * slot, column, count, total, rest)


@inlined
def keep_partial(task, part, column, count, total, rest):
    partials, columns = as_f64_pointer(scratch(task, PARTIALS_AT)), word(task, COLUMNS)
    put_first(partials, part * columns + column, 1, count, to_f64(total))
    put_first(partials, (part + 1) * columns + column, 1, count, to_f64(finite_rest(rest)))


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
    source = pointer(task, SOURCE)
    lists = (on_stack(as_i64_pointer(0), LISTED), on_stack(as_f64_pointer(0), BLOCK))
    state = (source, lists, pointer(task, TARGET), word(task, SCALING))
    over_segments(task, lo, hi, sum_lanes(source), sum_strip, state, over_listed)


@inlined
def combine_strip(task, target, block, at, along, column, count, n):
    s, slot, blocks, _ = block
    total, rest, kept = splat(-0.0, n), splat(-0.0, n), 0
    kept_of = as_i64_pointer(scratch(task, KEPT_AT))
    for k in range(slot, slot + blocks):
        total, rest = add_partial(task, target, PARTS * k, column, count, n, total, rest)
        kept += kept_of[k]
    whole = as_wide(target, summed(target, total, rest))
    write_sum(task, target, s, at, along, count, n, whole, kept)


@kernel
def combine_sums(task, lo, hi):
    """Long segments: the partial sums of their blocks, in order."""
    over_long_segments(task, lo, hi, combine_strip, pointer(task, TARGET))
