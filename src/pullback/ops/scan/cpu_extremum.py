"""Records of running extrema, for their gradient: an element is a record if it takes over.

A minimum is the maximum of the negated elements: a flip of the sign bit.
"""

import math

from pullback.cpu.emit import inlined
from pullback.cpu.tile_blocks import in_blocks
from pullback.cpu.tiles import (
    earlier,
    last,
    spread,
)
from pullback.cpu.vector import (
    all_lanes,
    any_lane,
    as_float,
    as_int,
    is_nan,
    like,
    not_le,
    select,
)

BLOCK = 8
LINES = 8  # side by side in a tile across
INFINITY = math.inf


@inlined
def flipped(v, sign):
    return as_float(as_int(v) ^ like(as_int(v), sign))


# Whether b takes over from a, met earlier. NaN beats all but NaN; the simple forms are for b that
# is no NaN: an a that is NaN stays.


@inlined
def first_simple(b, a):
    return b > a


@inlined
def first_wins(b, a):
    return (b > a) | (is_nan(b) & ~is_nan(a))


@inlined
def last_simple(b, a):
    return b >= a


@inlined
def last_wins(b, a):
    return (b >= a) | is_nan(b)


@inlined
def first_maybe(b, a):
    return not_le(b, a)


@inlined
def last_maybe(b, a):
    return ~(b < a)


@inlined
def _doubling(v, wins, L):
    e = earlier(v, -INFINITY, 1, L)
    v = select(wins(v, e), v, e)
    e = earlier(v, -INFINITY, 2, L)
    v = select(wins(v, e), v, e)
    e = earlier(v, -INFINITY, 4, L)
    return select(wins(v, e), v, e)


@inlined
def running(v, best, simple, wins, L):
    """The extremum after each step, given the one before the tile."""
    before = spread(best, v)
    if any_lane(is_nan(v)):
        v = _doubling(v, wins, L)
        return select(wins(v, before), v, before)
    v = _doubling(v, simple, L)
    return select(simple(v, before), v, before)


def running_blocks(maybe, simple, wins):
    """(tile, best) -> the extremum after each step, whether any is a record, whether all are."""

    @inlined
    def block(tiles, best, L):
        y = running(tiles[0], best, simple, wins, L)
        return y, last(y, L)

    @inlined
    def extrema(v, best, L):
        before = spread(best, v)
        if not any_lane(maybe(v, before)):
            return before, False, False
        if all_lanes(simple(v, earlier(v, before, 1, L))):
            return v, True, True
        return in_blocks(block, (v,), best, BLOCK, L)[0], True, False

    return extrema


first_extrema = running_blocks(first_maybe, first_simple, first_wins)
last_extrema = running_blocks(last_maybe, last_simple, last_wins)
