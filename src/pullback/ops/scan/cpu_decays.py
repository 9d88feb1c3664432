"""The backward of the running log-sum-exp over usual tiles, a group at a time, given y.

Inside a block all is computed in the element's own precision; from block to block sums are f64.
What is not usual goes as pairs (cpu_decay_pairs), which give the same bits.
"""

import numpy as np
from llvmlite import ir
from numba import types

from pullback.cpu.emit import Vec, constant, inlined, op, shuffle
from pullback.cpu.tile_blocks import block_by_block
from pullback.cpu.tiles import by_type, first, last, spread
from pullback.cpu.vector import (
    absolute,
    all_lanes,
    any_lane,
    half,
    join,
    maximum,
    not_le,
    to_f32,
    to_f64,
)
from pullback.ops.scan.cpu_columns import (
    READ,
    ask_for,
    cell_of,
    columns_rows,
    compute_lanes,
    group_at,
    load_columns,
    running,
    store_columns,
)
from pullback.ops.scan.cpu_columns import STEPS as BLOCK
from pullback.ops.scan.cpu_decay_pairs import around, unusual_decay_tile, weighted
from pullback.ops.scan.cpu_exponents import (
    REACH,
    TOP,
    exp_near,
    ln2,
    narrow_exp_near,
    narrow_exp_pair,
    power,
)
from pullback.ops.scan.cpu_logsumexp import as_compute

# What is carried from block to block of a usual tile is between tiny and huge, or zero, and dy is
# not faint. Then all products and sums in the element's own precision are normal numbers.


@by_type
def huge(p):
    most = 2.0**900 if p.dtype == types.float64 else 2.0**100
    return lambda p: most


FAINT = {types.float64: 2.0**-900, types.float32: 2.0**-80}


@op
def faint(v: Vec):
    """Lanes, of as many as fill a register, where some number other than zero is faint. Zero, one
    less, is the largest of all without a sign."""
    number = ir.IntType(v.dtype.bitwidth)
    lanes, kind = 256 // number.width, ir.VectorType(number, v.n)
    least = int(np.array(FAINT[v.dtype], str(v.dtype)).view(f"i{number.width // 8}"))

    def emit(b, v_):
        size = b.and_(b.bitcast(v_, kind), constant(kind, (1 << (number.width - 1)) - 1))
        size = b.add(size, constant(kind, -1))
        while size.type.count > lanes:
            n = size.type.count // 2
            low, high = (shuffle(b, size, size, range(i, i + n)) for i in (0, n))
            size = b.select(b.icmp_unsigned("<", low, high), low, high)
        return b.icmp_unsigned("<", size, constant(size.type, least - 1))

    return Vec(types.boolean, lanes)(v), emit


@by_type
def any_faint(p, v):
    """Whether products of these gradients may be subnormal. Those of f16 are not."""
    if p.dtype == types.int16:
        return lambda p, v: False
    return lambda p, v: any_lane(faint(v))


@inlined
def fits(p, t):
    size = absolute(t)
    return (size <= huge(p)) & ((size >= 1.0 / huge(p)) | (size == 0.0))


@inlined
def off_center(p, y, center):
    """Whether e^-y is too far from the reference."""
    return not_le(absolute(y + center * ln2(y)), (around(p) - 1) * ln2(y))


@inlined
def decay_tile(at, size, state, L):
    rows = columns_rows(compute_lanes(at[2][0]), L)
    return block_by_block(unusual_decay_tile, at, size, state, rows, BLOCK, L)


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
def applied(p, t, center, w):
    """t·2^center·e^x"""
    if p.dtype == types.float64:
        return lambda p, t, center, w: weighted(p, t, spread(center, t), w)
    return lambda p, t, center, w: t * w


@by_type
def applied_to_small(p, t, center, x):
    """The same, however small e^x is."""
    if p.dtype == types.float64:
        return lambda p, t, center, x: weighted(p, t, spread(center, t), x)

    def in_f64(p, t, center, x):
        m, k = narrow_exp_pair(maximum(x, -REACH))
        w = to_f64(m) * power(maximum(-1000.0, to_f64(k) + spread(center, t)))
        return to_f32(to_f64(t) * w)

    return in_f64


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
def usual_decays(at, groups, states, first_cell, rooms, L):
    """A few whole tiles that are all usual, or nothing."""
    tiles = 0, groups
    if not summed_decays(at, tiles, states, first_cell, rooms, L):
        return False
    if not decays_before(at[2][0], tiles, states, first_cell, rooms, L):
        return False
    weighted_blocks(at, tiles, states, first_cell, rooms, L)
    return True


@inlined
def center_of(p, states, cell, v):
    return spread(as_compute(p, states[cell][2]), v)


@inlined
def summed_decays(at, tiles, states, first_cell, rooms, L):
    """The sums inside the blocks and the weights, if all is usual. Where some x is too small for a
    weight, x itself stays there. One tensor at a time: lines whose addresses are a power of two
    apart would drive each other out of the cache. `decays` are for the group alone."""
    p, W = at[2][0], compute_lanes(at[2][0])
    weights, sums, totals, _, small, decays = rooms
    begin, end = tiles
    for g in range(begin, end):
        y = group_at(at, g, W, L)[3]
        ask_for(y, g, READ, W, L)
        v, h = load_columns(y, W, L), 2 * (g - begin)
        if any_lane(off_center(p, v, center_of(p, states, first_cell + cell_of(g, L), v))):
            return False
        decays[h], decays[h + 1] = half(v, 0), half(v, 1)
    for g in range(begin, end):
        u = load_columns(group_at(at, g, W, L)[2], W, L)
        center = center_of(p, states, first_cell + cell_of(g, L), u)
        if too_large(p, u, center):
            return False
        weights[2 * g], weights[2 * g + 1] = half(u, 0), half(u, 1)
        small[g] = 1 if too_small(p, u, center) else 0
    # Requests for memory are spread: more at once than the core keeps track of would be waited for.
    for h in range(2 * (end - begin)):
        g = begin + h // 2
        if h % 2 == 0:
            ask_for(group_at(at, g, W, L)[2], g, READ, W, L)
        v = decays[h]
        decays[h] = decay(p, v, center_of(p, states, first_cell + cell_of(g, L), v))
    for h in range(2 * begin, 2 * end):
        g = h // 2
        if h % 2 == 0:
            ask_for(group_at(at, g, W, L)[0], g, READ, W, L)
        if small[g] == 0:
            v = weights[h]
            weights[h] = weight(p, v, center_of(p, states, first_cell + cell_of(g, L), v))
    for g in range(begin, end):
        v, h = load_columns(group_at(at, g, W, L)[0], W, L), 2 * (g - begin)
        b = running(v * join(decays[h], decays[h + 1]), W)
        totals[g], sums[g] = last(b, W), b
        if any_faint(p, v) or any_lane(not_le(absolute(last(b, W)), huge(p))):
            return False
    return True


@inlined
def decays_before(p, tiles, states, first_cell, rooms, L):
    """What enters each block: all that one tile waits for another for. If it does not fit, nothing
    has happened."""
    _, _, totals, carried, _, _ = rooms
    well = True
    for g in range(tiles[0], tiles[1]):
        cell = first_cell + cell_of(g, L)
        t, k, center = states[cell]
        carried[g], t = entering(t, to_f64(totals[g]), L)
        states[cell] = t, k, center
    for g in range(tiles[0], tiles[1]):
        well = well and all_lanes(fits(p, carried[g]))
    for g in range(tiles[1] - 1, tiles[0] - 1 if not well else tiles[1] - 1, -1):
        cell = first_cell + cell_of(g, L)
        _, k, center = states[cell]
        states[cell] = first(carried[g], L), k, center
    return well


@inlined
def weighted_blocks(at, tiles, states, first_cell, rooms, L):
    p, W = at[2][0], compute_lanes(at[2][0])
    weights, sums, _, carried, small, _ = rooms
    for g in range(tiles[0], tiles[1]):
        center, b = states[first_cell + cell_of(g, L)][2], sums[g]
        t, w = spread(as_compute(p, carried[g]), b) + b, join(weights[2 * g], weights[2 * g + 1])
        if small[g] != 0:
            r = applied_to_small(p, t, center, w)
        else:
            r = applied(p, t, center, w)
        store_columns(group_at(at, g, W, L)[1], r, L)
