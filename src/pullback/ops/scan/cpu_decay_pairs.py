"""The backward of the running log-sum-exp as pairs of numbers and exponents, a block at a time:
what serves any tile, and has the bits of the usual ones (cpu_decays).

    T[j] = dy[j]·e^-y[j] + T[j+1],  dx[j] = e^x[j]·T[j], walked from the far end

As in the forward, T is kept relative to a power of two.
"""

import math

from numba import types

from pullback.cpu.elementary import per_type
from pullback.cpu.emit import inlined
from pullback.cpu.numerics import one_nan
from pullback.cpu.tile_blocks import shortened
from pullback.cpu.tiles import by_type, first, last, load, load_wide, moved, spread, store
from pullback.cpu.vector import (
    absolute,
    as_float,
    as_int,
    like,
    maximum,
    minimum,
    select,
    to_f32,
    to_f64,
)
from pullback.ops.scan.cpu_columns import STEPS as BLOCK
from pullback.ops.scan.cpu_columns import over
from pullback.ops.scan.cpu_distant import LARGEST, NEAR, SMALLER, with_distant
from pullback.ops.scan.cpu_exponents import (
    INFINITE_F32,
    REACH,
    added_exactly,
    exp_pair,
    exponential_of,
    infinite,
    limit,
    limit_exponent,
    power,
    scaled,
    scaled_far,
    smallest,
)
from pullback.ops.scan.cpu_logsumexp import as_wide

INFINITY, NAN = math.inf, math.nan


@by_type
def around(p):
    """How far from the reference exponents of a usual tile may be, in powers of two."""
    reach = {types.float64: 60.0, types.float32: 36.0}.get(p.dtype, 20.0)
    return lambda p: reach


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
    center = j + 0.5 * around(p)
    usual = absolute(center) <= farthest_center(p, center)
    return zero, select(usual, center, -infinite(center)), select(usual, center, NAN)


@by_type
def farthest_center(p, k):
    """References up to here can be those of usual tiles."""
    if p.dtype == types.float32:
        return lambda p, k: REACH
    if p.dtype == types.float64:
        return lambda p, k: NEAR
    return lambda p, k: limit_exponent(k)


@by_type
def decay_pair(p, y, inverse, reference, size, L):
    """e^-y of a block."""
    if isinstance(y, types.NoneType):

        def recomputed(p, y, inverse, reference, size, L):
            # A chunk's last block may be short: what it lacks is too small to be anything.
            m = load(inverse, size, 0.0, BLOCK, L)
            return m, -load(reference, size, INFINITE_F32, BLOCK, L)

        return recomputed

    def saved(p, y, inverse, reference, size, L):
        # What a short block lacks is +inf: the lowest exponent, as what is carried may not grow.
        return exponential_of(p, -load_wide(y, size, INFINITY, BLOCK, L))

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
    """t·2^k·e^x for a usual tile, in f64: in f32 a subnormal result would be rounded twice."""
    m, j = exp_pair(p, maximum(x, -limit(x)))
    return scaled(to_f64(m) * to_f64(t), to_f64(j) + to_f64(k))


# All but f64 is computed as in a f32 whose exponent has no ends: f64, rounded as f32 would. In a
# block so steep that no tile with it is usual sums need not be, and stay f64.

STEEP = 80.0
exponent_bits = per_type(0x7F800000, 0x7FF0000000000000)
reciprocal_bits = per_type(0x7F000000, 0x7FE0000000000000)


@by_type
def rounded(p, v, steep):
    """v as the precision of usual tiles has it."""
    if p.dtype == types.float64:
        return lambda p, v, steep: v

    def as_f32(p, v, steep):
        bits = as_int(v) & exponent_bits(as_int(v))
        m = to_f64(to_f32(v * as_float(reciprocal_bits(bits) - bits)))
        return select(
            (absolute(v) < INFINITY) & (spread(to_f64(steep), v) <= STEEP), m * as_float(bits), v
        )

    return as_f32


@inlined
def rounded_sum(p, m, k, n, j, steep):
    m, k = added_exactly(m, k, n, j)
    return rounded(p, m, steep), k


# f64 has no wider type to be computed in. Gradients so large that sums of them might not fit are
# made smaller; where a sum is out of range of the reference ahead, it stays with its own.


@by_type
def product(p, g, m, j, steep):
    """g·m·2^j as a number and an exponent."""
    if p.dtype != types.float64:
        return lambda p, g, m, j, steep: (rounded(p, g * m, steep), j)

    def in_range(p, g, m, j, steep):
        large = absolute(g) > LARGEST
        return g * select(large, m * 2.0**-SMALLER, m), select(large, j + SMALLER, j)

    return in_range


@by_type
def may_move(p, carried, t):
    """Whether a sum, `carried`, may be told in terms of another reference, where it is t."""
    if p.dtype != types.float64:
        return lambda p, carried, t: t == t
    return lambda p, carried, t: (
        (carried == 0) | ((absolute(t) >= 1.0 / LARGEST) & (absolute(t) <= LARGEST))
    )


@inlined
def rise(j, L):
    """From the first to the highest exponent of a block. What a short block lacks is the lowest."""
    lowest, top = -infinite(j), j
    top = maximum(top, over(top, lowest, 1, L))
    top = maximum(top, over(top, lowest, 2, L))
    top = maximum(top, over(top, lowest, 4, L))
    return last(top, L) - first(j, L)


@inlined
def summed_up(p, m, k, steep, L):
    """The sums of a block of pairs so far: the tree of `running`."""
    lowest = -infinite(k)
    m, k = rounded_sum(p, over(m, 0.0, 1, L), over(k, lowest, 1, L), m, k, steep)
    m, k = rounded_sum(p, over(m, 0.0, 2, L), over(k, lowest, 2, L), m, k, steep)
    return rounded_sum(p, over(m, 0.0, 4, L), over(k, lowest, 4, L), m, k, steep)


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
    steep = rise(j, L)
    w, e = exponential_of(p, v)
    # The first +inf takes the weight of all that follow it.
    later = reaches_infinity(p, y, reference, size, L)
    w = select(plus, select(later, like(w, 0.0), 1.0), w)
    e = select(plus, infinite(e), e)
    w = to_f64(select(v == -INFINITY, 0.0, w))
    b, i = product(p, to_f64(g), to_f64(m), to_f64(j), steep)
    b, i = summed_up(p, b, i, steep, L)
    carried, after = added_exactly(t, to_f64(k), last(b, L), last(i, L))
    t, k = rounded(p, t, steep), to_f64(k)
    b, i = rounded_sum(p, spread(t, b), spread(k, b), b, i, steep)
    result = one_nan(scaled_far(w * one_nan(b), to_f64(e) + i))
    # The exponents only grow along this walk: the new reference lies ahead.
    center = last(j, L) + 0.5 * around(p)
    t = carried * moving(after - to_f64(center))
    usual = (absolute(center) <= farthest_center(p, center)) & may_move(p, carried, t)
    k = select(usual, center, as_wide(p, after))
    near = select(usual, t, carried), k, select(usual, center, NAN)
    result, left = with_distant(p, result, near, state, g, v, select(plus, w, NAN), y, size, L)
    store(dx, size, as_wide(p, select(minus, 0.0, result)), L)
    return left
