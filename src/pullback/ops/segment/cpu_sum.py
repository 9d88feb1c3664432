"""Sums and means over sorted rows: segments forward, embeddings backward, bags both ways.

A block of rows is added in order, in the wide type; f64 has none, so it carries the rounding error
beside the sum. Blocks of long segments leave partial sums that a second phase adds in order.

The wide type of bf16, f32, has no wider range, and f64 has no wide type. Columns whose sum is not
finite there are added again in f64, those of f64 times SMALL: later terms, or what the sum is
divided by, may bring it back, and an infinity may be of the other sign. A partial sum of f64 times
SMALL has NaN in place of its correction.
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
from pullback.cpu.tiles import by_type
from pullback.cpu.vector import absolute, any_lane, is_nan, like, select, splat, to_f64
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_list import fetch_listed, over_listed
from pullback.ops.segment.cpu_strip import as_wide, load_wide, store, sum_lanes
from pullback.ops.segment.cpu_walk import over_long_segments, over_segments
from pullback.ops.segment.cpu_words import BLOCK, LISTED, floats, ints

INFINITY, NAN = math.inf, math.nan
PARTS = 2  # a partial sum and its correction
SMALL = 2.0**-64


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


@by_type
def like_sum(v, total):
    """v in the type of a sum."""
    return (lambda v, total: v) if v.dtype == total.dtype else (lambda v, total: to_f64(v))


@inlined
def finished(task, target, base, along, count, n, total, size, unit):
    """The sum of a strip: divided, added to what is there times `unit`, as the plan says."""
    if word(task, at.DIVIDE):
        total = total / like(total, size)
    if word(task, at.ACCUMULATE):
        total = like_sum(load_wide(target, base, along, count, n), total) * unit + total
    return total


@by_type
def finish(task, target, base, along, count, n, total, wider, size):
    """Write the sum of a strip; `wider` is the same where `total` is not finite, or None."""

    def plainly(task, target, base, along, count, n, total, wider, size):
        v = finished(task, target, base, along, count, n, total, size, 1.0)
        store(task, target, base, along, count, n, v)

    def as_wider_has_it(task, target, base, along, count, n, total, wider, size):
        v = finished(task, target, base, along, count, n, total, size, 1.0)
        if any_lane(is_endless(total)):
            w = finished(task, target, base, along, count, n, wider, size, unit_of(target))
            w = as_wide(target, w * (1.0 / unit_of(target)))
            v = select(is_endless(total), w, v)
        store(task, target, base, along, count, n, v)

    return plainly if isinstance(wider, types.NoneType) else as_wider_has_it


@by_type
def unit_of(p):
    """What wider sums are multiplied by."""
    return (lambda p: SMALL) if p.dtype == types.float64 else (lambda p: 1.0)


@inlined
def is_endless(total):
    return ~(absolute(total) < INFINITY)


@inlined
def finish_empty(task, target, base, along, count, n):
    """A segment without rows leaves what it is added to alone."""
    if word(task, at.ACCUMULATE) == 0:
        store(task, target, base, along, count, n, filled_wide(target, real(task, at.EMPTY), n))


@inlined
def write_sum(task, target, s, base, along, count, n, total, wider, kept):
    """A finished strip; a segment that kept nothing is empty."""
    where = s * word(task, at.SEGMENT_ROW) + base[1]
    if kept > 0:
        finish(task, target, where, along[1], count, n, total, wider, kept)
    else:
        finish_empty(task, target, where, along[1], count, n)


@inlined
def scaled(v, scale, scaling):
    return v * scale if scaling == at.BY_WEIGHT else v / scale


@by_type
def summed_again(source, lists, scaling, base, along, count, n, kept, total):
    """The wider sum where `total` is not finite; None for elements whose sums have a wide range."""
    if source.dtype not in (types.uint16, types.float64):
        return lambda source, lists, scaling, base, along, count, n, kept, total: None

    def in_f64(source, lists, scaling, base, along, count, n, kept, total):
        again = to_f64(total)
        if any_lane(is_endless(total)):
            places, scales = lists
            again = splat(-0.0, n)
            for j in range(kept):
                v = to_f64(load_wide(source, places[j] + base, along, count, n))
                if scaling != at.UNSCALED:
                    u, v = v * unit_of(source), scaled(v, like(v, scales[j]), scaling)
                    u = scaled(u, like(v, scales[j]), scaling)
                    again += select(is_endless(v) & ~is_endless(u), u, v * unit_of(source))
                else:
                    again += v * unit_of(source)
        return again

    return in_f64


@by_type
def in_part(p, total, rest, wider):
    """What is kept of a block's sum and its correction."""
    if isinstance(wider, types.NoneType):
        return lambda p, total, rest, wider: (to_f64(total), to_f64(finite_rest(rest)))
    if p.dtype != types.float64:
        return lambda p, total, rest, wider: (
            select(is_endless(total), wider, to_f64(total)),
            to_f64(finite_rest(rest)),
        )
    return lambda p, total, rest, wider: (
        select(is_endless(total), wider, total),
        select(is_endless(total), NAN, finite_rest(rest)),
    )


@inlined
def sum_strip(task, state, block, base, along, column, count, n):
    """One strip of one block: to its place in the target, or to the partial sums."""
    source, lists, target, scaling = state
    places, scales = lists
    s, _, _, _, _, slot, _, kept = block
    total, rest = nothing(source, n)
    # Two loops: a choice within would push the sums out of registers, row by row.
    if scaling == at.UNSCALED:
        for j in range(kept):
            fetch_listed(source, places, j, base[0], n)
            v = load_wide(source, places[j] + base[0], along[0], count, n)
            total, rest = plus(source, total, rest, v)
    else:
        for j in range(kept):
            fetch_listed(source, places, j, base[0], n)
            v = load_wide(source, places[j] + base[0], along[0], count, n)
            v = scaled(v, like(v, scales[j]), scaling)
            total, rest = plus(source, total, rest, v)
    wider = summed_again(source, lists, scaling, base[0], along[0], count, n, kept, total)
    if slot < 0:
        write_sum(task, target, s, base, along, count, n, summed(source, total, rest), wider, kept)
    else:
        keep_partial(task, PARTS * slot, column, count, *in_part(source, total, rest, wider))


@inlined
def keep_partial(task, part, column, count, total, rest):
    partials, columns = floats(task, at.PARTIALS_AT), word(task, at.COLUMNS)
    put_first(partials, part * columns + column, 1, count, total)
    put_first(partials, (part + 1) * columns + column, 1, count, rest)


@inlined
def partial(task, part, column, count, n):
    """A partial sum and its correction."""
    partials, columns = floats(task, at.PARTIALS_AT), word(task, at.COLUMNS)
    none = splat(-0.0, n)
    v = get_first(partials, part * columns + column, 1, count, none)
    return v, get_first(partials, (part + 1) * columns + column, 1, count, none)


@kernel
def sum_segments(task, lo, hi):
    """Items are places of the walk over segments and their rows."""
    source = pointer(task, at.SOURCE)
    lists = (on_stack(as_i64_pointer(0), LISTED), on_stack(as_f64_pointer(0), BLOCK))
    state = (source, lists, pointer(task, at.TARGET), word(task, at.SCALING))
    over_segments(task, lo, hi, sum_lanes(source), sum_strip, state, over_listed)


@by_type
def combined_again(task, target, slots, column, count, n, total, rest):
    """The wider sum of partial sums where that is not finite, or not told by `total`."""
    if target.dtype not in (types.uint16, types.float64):
        return lambda task, target, slots, column, count, n, total, rest: (total, None)
    if target.dtype == types.uint16:
        return lambda task, target, slots, column, count, n, total, rest: (total, total)

    def scaled_down(task, target, slots, column, count, n, total, rest):
        lost = is_endless(total) | is_nan(rest)
        again = total
        if any_lane(lost):
            again = splat(-0.0, n)
            for k in range(slots[0], slots[1]):
                v, r = partial(task, PARTS * k, column, count, n)
                again += select(is_nan(r), v, v * SMALL + r * SMALL)
        return select(lost, INFINITY, total), again

    return scaled_down


@inlined
def combine_strip(task, target, block, base, along, column, count, n):
    s, slot, blocks, _ = block
    total, rest, kept = splat(-0.0, n), splat(-0.0, n), 0
    kept_of = ints(task, at.KEPT_AT)
    for k in range(slot, slot + blocks):
        v, r = partial(task, PARTS * k, column, count, n)
        total, rest = plus(target, total, rest, v)
        total, rest = plus(target, total, rest, r)
        kept += kept_of[k]
    slots = slot, slot + blocks
    found, wider = combined_again(task, target, slots, column, count, n, total, rest)
    whole = as_wide(target, summed(target, found, rest))
    write_sum(task, target, s, base, along, count, n, whole, wider, kept)


@kernel
def combine_sums(task, lo, hi):
    """Long segments: the partial sums of their blocks, in order."""
    over_long_segments(task, lo, hi, combine_strip, pointer(task, at.TARGET))
