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

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import word
from pullback.cpu.memory import filled_wide
from pullback.cpu.numerics import two_sum
from pullback.cpu.tiles import by_type
from pullback.cpu.vector import absolute, any_lane, is_nan, like, select, splat, to_f64
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_engine import get_part, reduction, write_empty
from pullback.ops.segment.cpu_list import fetch_listed, over_listed
from pullback.ops.segment.cpu_strip import (
    as_wide,
    in_source,
    in_target,
    load_wide,
    store,
    sum_lanes,
)
from pullback.ops.segment.cpu_words import ints

INFINITY, NAN = math.inf, math.nan
PARTS = 2  # a partial sum and its correction
SMALL = 2.0**-64

# --- sums of rows ---------------------------------------------------------------------------------


@by_type
def plus(p, total, rest, v):
    """total + v, and what rounding has taken from all the sums so far."""

    def exact(p, total, rest, v):
        s, lost = two_sum(total, v)
        return s, rest + lost

    if p.dtype == types.float64:
        return exact
    return lambda p, total, rest, v: (total + v, rest)


@inlined
def finite_rest(rest):
    """The correction of a finite sum, -0 if there is none: added, it keeps the sign of a zero. That
    of an infinite sum is NaN, and means nothing."""
    size = absolute(rest)
    return select((size > 0) & (size < INFINITY), rest, -0.0)


@by_type
def summed(p, total, rest):
    """The sum itself."""
    if p.dtype == types.float64:
        # No correction keeps the sign of a zero; an infinite sum has made it NaN.
        return lambda p, total, rest: select(absolute(rest) > 0, total + finite_rest(rest), total)
    return lambda p, total, rest: total


@inlined
def nothing(p, n):
    """The sum of no rows: -0 is the one number that changes nothing when added."""
    return filled_wide(p, -0.0, n), filled_wide(p, -0.0, n)


@inlined
def none_of_blocks(n):
    return splat(-0.0, n), splat(-0.0, n)


@inlined
def plus_block(task, p, part, cols, total, rest):
    """The partial sum of a block, number `part`, and its correction, added."""
    total, rest = plus(p, total, rest, get_part(task, part, cols))
    return plus(p, total, rest, get_part(task, part + 1, cols))


# --- what is written ------------------------------------------------------------------------------


@inlined
def is_endless(total):
    return ~(absolute(total) < INFINITY)


@by_type
def unit_of(p):
    """What wider sums are multiplied by."""
    return (lambda p: SMALL) if p.dtype == types.float64 else (lambda p: 1.0)


@by_type
def like_sum(v, total):
    """v in the type of a sum."""
    return (lambda v, total: v) if v.dtype == total.dtype else (lambda v, total: to_f64(v))


@inlined
def finished(task, target, where, view, total, size, unit):
    """The sum of a strip: divided, added to what is there times `unit`, as the plan says."""
    if word(task, at.DIVIDE):
        total = total / like(total, size)
    if word(task, at.ACCUMULATE):
        total = like_sum(load_wide(target, where, view), total) * unit + total
    return total


@by_type
def finish(task, target, where, view, total, wider, size):
    """Write the sum of a strip; `wider` is the same where `total` is not finite, or None."""

    def plainly(task, target, where, view, total, wider, size):
        store(task, target, where, view, finished(task, target, where, view, total, size, 1.0))

    def as_wider_has_it(task, target, where, view, total, wider, size):
        v = finished(task, target, where, view, total, size, 1.0)
        if any_lane(is_endless(total)):
            w = finished(task, target, where, view, wider, size, unit_of(target))
            w = as_wide(target, w * (1.0 / unit_of(target)))
            v = select(is_endless(total), w, v)
        store(task, target, where, view, v)

    return plainly if isinstance(wider, types.NoneType) else as_wider_has_it


# --- kernels --------------------------------------------------------------------------------------


@inlined
def scaled(v, scale, scaling):
    return v * scale if scaling == at.BY_WEIGHT else v / scale


@by_type
def summed_again(source, lists, scaling, view, kept, total):
    """The wider sum where `total` is not finite; None for elements whose sums have a wide range."""
    if source.dtype not in (types.uint16, types.float64):
        return lambda source, lists, scaling, view, kept, total: None

    def in_f64(source, lists, scaling, view, kept, total):
        again = to_f64(total)
        if any_lane(is_endless(total)):
            places, scales = lists
            again, rest = none_of_blocks(view[3])
            for j in range(kept):
                v = to_f64(load_wide(source, places[j], view))
                u = v * unit_of(source)
                if scaling != at.UNSCALED:
                    share = like(v, scales[j])
                    u, v = scaled(u, share, scaling), scaled(v, share, scaling)
                    u = select(is_endless(v) & ~is_endless(u), u, v * unit_of(source))
                again, rest = plus(source, again, rest, u)
            again = summed(source, again, rest)
        return again

    return in_f64


@inlined
def sum_rows(task, state, block, cols):
    source, lists, scaling = state[0], state[1], state[4]
    (places, scales), view, kept = lists, in_source(cols), block[7]
    total, rest = nothing(source, cols[4])
    # Two loops: a choice within would push the sums out of registers, row by row.
    if scaling == at.UNSCALED:
        for j in range(kept):
            fetch_listed(source, places, j, view)
            total, rest = plus(source, total, rest, load_wide(source, places[j], view))
    else:
        for j in range(kept):
            fetch_listed(source, places, j, view)
            v = load_wide(source, places[j], view)
            total, rest = plus(source, total, rest, scaled(v, like(v, scales[j]), scaling))
    return total, rest, summed_again(source, lists, scaling, view, kept, total)


@inlined
def write_sum(task, state, block, cols, found):
    total, rest, wider = found
    where, whole = block[0] * word(task, at.SEGMENT_ROW), summed(state[0], total, rest)
    finish(task, state[2], where, in_target(cols), whole, wider, block[7])


@by_type
def sum_parts(p, found):
    """What is kept of a block's sum and its correction."""
    if isinstance(found[2], types.NoneType):
        return lambda p, found: (to_f64(found[0]), to_f64(finite_rest(found[1])))
    if p.dtype != types.float64:
        return lambda p, found: (
            select(is_endless(found[0]), found[2], to_f64(found[0])),
            to_f64(finite_rest(found[1])),
        )
    return lambda p, found: (
        select(is_endless(found[0]), found[2], found[0]),
        select(is_endless(found[0]), NAN, finite_rest(found[1])),
    )


@by_type
def joined_again(task, target, block, cols, total, rest):
    """The wider sum of partial sums where that is not finite, or not told by `total`."""
    if target.dtype not in (types.uint16, types.float64):
        return lambda task, target, block, cols, total, rest: (total, None)
    if target.dtype == types.uint16:
        return lambda task, target, block, cols, total, rest: (total, total)

    def scaled_down(task, target, block, cols, total, rest):
        lost = is_endless(total) | is_nan(rest)
        again = total
        if any_lane(lost):
            again, left = none_of_blocks(cols[4])
            for k in range(block[1], block[1] + block[2]):
                v, r = get_part(task, PARTS * k, cols), get_part(task, PARTS * k + 1, cols)
                again, left = plus(target, again, left, select(is_nan(r), v, v * SMALL + r * SMALL))
            again = summed(target, again, left)
        return select(lost, INFINITY, total), again

    return scaled_down


@inlined
def join_sums(task, target, block, cols):
    s, slot, blocks, _ = block
    (total, rest), kept, kept_of = none_of_blocks(cols[4]), 0, ints(task, at.KEPT_AT)
    for k in range(slot, slot + blocks):
        total, rest = plus_block(task, target, PARTS * k, cols, total, rest)
        kept += kept_of[k]
    found, wider = joined_again(task, target, block, cols, total, rest)
    if kept > 0:
        where, whole = s * word(task, at.SEGMENT_ROW), as_wide(target, summed(target, found, rest))
        finish(task, target, where, in_target(cols), whole, wider, kept)
    else:
        write_empty(task, (target, target, target), block, cols)


SUMS = reduction(
    __name__,
    ("sum_segments", "combine_sums"),
    total=sum_rows,
    write=write_sum,
    parts=sum_parts,
    join=join_sums,
    many=PARTS,
    own=inlined(lambda task, p, kept: (word(task, at.SCALING),)),
    wide=sum_lanes,
    over=over_listed,
)
