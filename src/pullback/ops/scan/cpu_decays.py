"""The backward of the running log-sum-exp, tile by tile.

    T[j] = dy[j]·e^-y[j] + T[j+1],  dx[j] = e^x[j]·T[j], walked from the far end

As in the forward, T is kept relative to a power of two.
"""

import math

from numba import types

from pullback.cpu.elementary import _per_type as per_type
from pullback.cpu.emit import inlined
from pullback.cpu.tile_blocks import block_by_block, shortened
from pullback.cpu.tiles import (
    by_type,
    last,
    lines_across,
    load,
    load_wide,
    moved,
    spread,
    store,
)
from pullback.cpu.vector import (
    absolute,
    any_lane,
    half,
    is_nan,
    join,
    like,
    maximum,
    minimum,
    not_le,
    select,
    to_f64,
)
from pullback.ops.scan.cpu_columns import (
    READ,
    ask_for,
    ask_to_write,
    cell_of,
    columns_rows,
    group_at,
    load_columns,
    ordered,
    paired,
    running,
    store_columns,
)
from pullback.ops.scan.cpu_exponents import (
    INFINITE_F32,
    REACH,
    TOP,
    added,
    added_up,
    exp_near,
    exp_pair,
    exponential_of,
    infinite,
    limit,
    limit_exponent,
    ln2,
    narrow_exp_near,
    narrow_exp_pair,
    power,
    scaled,
    smallest,
)
from pullback.ops.scan.cpu_logsumexp import as_compute, as_wide
from pullback.ops.scan.cpu_sum import BLOCK, one_nan

INFINITY, NAN = math.inf, math.nan

# How far from the reference exponents of a usual tile of the backward may be, in powers of two.
around = per_type(20.0, 60.0)
AROUND = 60.0  # the same where y is read

# A state is (t, k, center): T = t·2^k, and k again where tiles near it are usual, else NaN.


@inlined
def first_state(zero):
    return to_f64(zero), -infinite(zero), like(zero, NAN)


@inlined
def moving(k):
    """2^k, as far as f64 has it: what moves the reference of a sum."""
    return power(maximum(smallest(k), minimum(-smallest(k), k)))


@inlined
def started(p, y):
    """The state before a line whose walk begins with this y: its reference lies ahead."""
    zero = like(y, 0.0)
    _, j = exponential_of(p, -y)
    center = j + 0.5 * around(j)
    usual = absolute(center) <= farthest_center(p, center)
    return zero, select(usual, center, -infinite(center)), select(usual, center, NAN)


@by_type
def farthest_center(p, k):
    """References up to here can be those of usual tiles."""
    if p.dtype == types.float32:
        return lambda p, k: REACH
    return lambda p, k: limit_exponent(k)


@inlined
def off_center(y, center):
    """Whether e^-y is too far from the reference."""
    return not_le(absolute(y + center * ln2(y)), (AROUND - 1) * ln2(y))


@by_type
def decay_pair(p, y, inverse, reference, size, L):
    """The same for a block as pairs."""
    if isinstance(y, types.NoneType):

        def recomputed(p, y, inverse, reference, size, L):
            # A chunk's last block may be short: what it lacks is too small to be anything.
            m = load(inverse, size, 0.0, BLOCK, L)
            return m, -load(reference, size, INFINITE_F32, BLOCK, L)

        return recomputed

    def saved(p, y, inverse, reference, size, L):
        return exponential_of(p, -load_wide(y, size, 0.0, BLOCK, L))

    return saved


@by_type
def reaches_infinity(p, y, reference, size, L):
    """Whether y is +inf one step on in this walk: before this one in the scan."""
    if isinstance(y, types.NoneType):

        def recomputed(p, y, reference, size, L):
            j = load(moved((reference,), 1, 0)[0], size, 0.0, BLOCK, L)
            return j == infinite(j)

        return recomputed

    def saved(p, y, reference, size, L):
        v = load_wide(moved((y,), 1, 0)[0], shortened(size, 1), 0.0, BLOCK, L)
        return v == INFINITY

    return saved


@inlined
def weighted(p, t, k, x):
    """t·2^k·e^x for a usual tile."""
    m, j = exp_pair(p, maximum(x, -limit(x)))
    return scaled(m * t, j + k)


@inlined
def decay_tile(at, size, state, L):
    rows = columns_rows(at[2][0], L)
    return block_by_block(unusual_decay_tile, at, size, state, rows, BLOCK, L)


# Usual tiles with y, a group at a time. For f32: eight exponentials at a time, and the products
# with them in f64, which holds them exactly.


@by_type
def too_large(p, x, center):
    """Whether an x is too far from the reference. Any may be too small."""
    if p.dtype == types.float64:
        return lambda p, x, center: False
    return lambda p, x, center: any_lane(not_le(x, (TOP - center) * ln2(x)))


@by_type
def decay(p, y, center):
    """e^-y·2^-center"""
    if p.dtype == types.float64:
        return lambda p, y, center: exp_near(p, -y, center)
    return lambda p, y, center: narrow_exp_near(-y, center)


# The weight of a tile is e^x·2^center in f32, unless an x is too small for that; in f64, x itself.


@inlined
def floor_of(x, center):
    return (-TOP - center) * ln2(x)


@by_type
def weight(p, x, center):
    if p.dtype == types.float64:
        return lambda p, x, center: x
    return lambda p, x, center: narrow_exp_near(maximum(x, floor_of(x, center)), -center)


@by_type
def too_small(p, x, center):
    if p.dtype == types.float64:
        return lambda p, x, center: False
    return lambda p, x, center: any_lane(x < floor_of(x, center))


@by_type
def wide_weight(p, x, center):
    """The same, however small."""
    if p.dtype == types.float64:
        return lambda p, x, center: x

    def any_weight(p, x, center):
        m, k = narrow_exp_pair(maximum(x, -REACH))
        return to_f64(m) * power(maximum(-1000.0, to_f64(k + center)))

    return any_weight


@by_type
def applied(p, t, center, w):
    """t·2^center·e^x"""
    if p.dtype == types.float64:
        return lambda p, t, center, w: weighted(p, t, center, w)
    return lambda p, t, center, w: t * to_f64(w)


@by_type
def entering(t, totals, L):
    """What is carried into each block, and what is carried on."""
    if totals.n == L.literal_value:
        return lambda t, totals, L: (t, t + totals)

    def block_after_block(t, totals, L):
        u, t = entering(t, half(totals, 0), L)
        v, t = entering(t, half(totals, 1), L)
        return join(u, v), t

    return block_after_block


@inlined
def usual_decays(at, groups, states, first, rooms, L):
    """A few whole tiles that are all usual, or nothing."""
    tiles = 0, groups
    if not summed_decays(at, tiles, states, first, rooms, L):
        return False
    decays_before(tiles, states, first, rooms, L)
    weighted_blocks(at, tiles, states, first, rooms, L)
    return True


@inlined
def center_of(p, states, first, g, v, L):
    return spread(as_compute(p, states[first + cell_of(g, L)][2]), v)


@inlined
def summed_decays(at, tiles, states, first, rooms, L):
    """The sums inside the blocks and the weights, if all is usual. Where some x is too small for a
    weight, x itself stays there. One tensor at a time: lines whose addresses are a power of two
    apart would drive each other out of the cache. `decays` and `slopes` are for the group alone."""
    p, W = at[2][0], lines_across(at[2][0])
    weights, sums, totals, _, small, decays, slopes = rooms
    begin, end = tiles
    for g in range(begin, end):
        y = group_at(at, g, L)[3]
        ask_for(y, g, READ, L)
        v = load_columns(y, L)
        if any_lane(off_center(v, center_of(p, states, first, g, v, L))):
            return False
        decays[g - begin] = v
    for g in range(begin, end):
        u = load_columns(group_at(at, g, L)[2], L)
        center = center_of(p, states, first, g, u, L)
        if too_large(p, u, center):
            return False
        weights[g], small[g] = u, 1 if too_small(p, u, center) else 0
    # Requests for memory are spread: more at once than the core keeps track of would be waited for.
    for g in range(begin, end):
        ask_for(group_at(at, g, L)[2], g, READ, L)
        v = decays[g - begin]
        decays[g - begin] = decay(p, v, center_of(p, states, first, g, v, L))
    for g in range(begin, end):
        ask_to_write(group_at(at, g, L)[1], g, L)
        slopes[g - begin] = load_columns(group_at(at, g, L)[0], L)
    for g in range(begin, end):
        ask_for(group_at(at, g, L)[0], g, READ, L)
        if small[g] == 0:
            v = weights[g]
            weights[g] = weight(p, v, center_of(p, states, first, g, v, L))
    for g in range(begin, end):
        b = to_f64(slopes[g - begin]) * to_f64(decays[g - begin])
        b = running(ordered(p, b, L), W)
        totals[g], sums[g] = last(b, W), paired(p, b, L)
    return True


@inlined
def decays_before(tiles, states, first, rooms, L):
    """What enters each block: all that one tile waits for another for."""
    _, _, totals, carried, _, _, _ = rooms
    for g in range(tiles[0], tiles[1]):
        t, k, center = states[first + cell_of(g, L)]
        carried[g], t = entering(t, totals[g], L)
        states[first + cell_of(g, L)] = t, k, center


@inlined
def weighted_blocks(at, tiles, states, first, rooms, L):
    p = at[2][0]
    weights, sums, _, carried, small, _, _ = rooms
    numbers = True
    for g in range(tiles[0], tiles[1]):
        numbers = numbers and not any_lane(is_nan(states[first + cell_of(g, L)][0]))
    for g in range(tiles[0], tiles[1]):
        center, w, b = states[first + cell_of(g, L)][2], weights[g], sums[g]
        t, center = spread(carried[g], b) + b, spread(center, b)
        if small[g] != 0:
            r = one_nan(applied(p, t, center, wide_weight(p, w, as_compute(p, center))))
        elif numbers:
            r = applied(p, t, center, w)
        else:
            r = one_nan(applied(p, t, center, w))
        store_columns(group_at(at, g, L)[1], as_compute(p, r), L)


@inlined
def unusual_decay_tile(at, size, state, L):
    dy, dx, x, y, inverse, reference = at
    t, k, _ = state
    p = x[0]
    g = load_wide(dy, size, 0.0, BLOCK, L)
    v = load_wide(x, size, -INFINITY, BLOCK, L)
    m, j = decay_pair(p, y, inverse, reference, size, L)
    plus, minus = (j == -infinite(j)) & (m == m), (j == infinite(j)) & (m == m)
    m = select(plus, 1.0, select(minus, 0.0, m))
    b, i = added_up(g * m, j, L)
    carried, after = added(t, to_f64(k), to_f64(last(b, L)), to_f64(last(i, L)))
    b, i = added(spread(as_wide(p, t), b), spread(k, b), b, i)
    b = one_nan(b)
    w, e = exponential_of(p, v)
    # The first +inf takes the weight of all that follow it.
    later = reaches_infinity(p, y, reference, size, L)
    w = select(plus, select(later, like(w, 0.0), 1.0), w)
    e = select(plus, infinite(e), e)
    w = select(v == -INFINITY, 0.0, w)
    store(dx, size, select(minus, 0.0, one_nan(scaled(w * b, e + i))), L)
    # The exponents only grow along this walk: the new reference lies ahead.
    center = last(j, L) + 0.5 * around(k)
    usual = absolute(center) <= farthest_center(p, k)
    t, k = carried * moving(after - to_f64(center)), as_wide(p, after)
    return select(usual, t, carried), select(usual, center, k), select(usual, center, NAN)
