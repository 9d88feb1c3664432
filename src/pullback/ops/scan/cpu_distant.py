"""Running log-sum-exp and its backward where numbers are so large that f64 has no exponent for e^x
that tells neighbours apart: one step after the other, from differences.

    forward   y[j] = p[j] + log s[j],  p the largest x so far
              s[j] = s[j-1]·e^(p[j-1] - p[j]) + e^(x[j] - p[j])
    backward  S[j] = dy[j] + e^(y[j] - y[j+1])·S[j+1],  walked from the far end
              dx[j] = e^(x[j] - y[j])·S[j]

f32 and halves have no numbers that far out whose difference matters (see cpu_exponents). Lines come
and go: a block with a distant number, and the one after it, is walked this way.
"""

import math

from numba import types

from pullback.cpu.emit import inlined
from pullback.cpu.numerics import one_nan, two_sum
from pullback.cpu.tile_blocks import halved
from pullback.cpu.tiles import by_type, first, last, load_wide, spread
from pullback.cpu.vector import absolute, any_lane, fma, is_nan, join, like, maximum, select
from pullback.ops.scan.cpu_columns import STEPS as BLOCK
from pullback.ops.scan.cpu_columns import over
from pullback.ops.scan.cpu_exponents import (
    added_exactly,
    exp_pair,
    infinite,
    limit,
    limit_exponent,
    log_of,
    scaled_far,
)

INFINITY, NAN = math.inf, math.nan

# Gradients so large that sums of them might not fit are made smaller.
LARGEST, SMALLER = 2.0**900, 100.0
# Beyond NEAR y is distant; up to BORDER, past which nothing is left of a sum up to NEAR, and for x,
# exponents are still exact.
NEAR, BORDER = 2.0**49, 2.0**49.5
FAR_APART = 4096.0  # e^x of this is nothing


@inlined
def is_distant(y):
    return (absolute(y) > NEAR) & (absolute(y) < INFINITY)


@inlined
def some_distant(y, L):
    """Lines with a distant y in this block."""
    found = select(is_distant(y), 1.0, like(y, 0.0))
    found = maximum(found, over(found, 0.0, 1, L))
    found = maximum(found, over(found, 0.0, 2, L))
    found = maximum(found, over(found, 0.0, 4, L))
    return last(found, L) > 0


@inlined
def decay_between(p, y, before):
    """e^(y - before) as a pair. Where both are small, their difference may have to be rounded."""
    difference, lost = two_sum(y, -before)
    d = select(y == before, 0.0, difference)
    m, k = exp_pair(p, maximum(-limit(d), d))
    return fma(m, select(absolute(difference) < FAR_APART, lost, 0.0), m), k


@inlined
def exp_up_to_border(p, y):
    """e^y as a pair; of what is beyond, nothing."""
    inside = absolute(y) <= BORDER
    m, k = exp_pair(p, select(inside, y, 0.0))
    return select(inside | is_nan(y), select(is_nan(y), y, m), 0.0), k


# --- forward --------------------------------------------------------------------------------------

# The state after such a block is that of other blocks with k infinite: s is relative to the peak.


@by_type
def with_distant_sums(p, y, left, state, x, tops, L):
    """Results and state of a block: as they are, or from differences if a peak is distant or
    was. `tops` are the largest x so far of the block alone."""
    if p.dtype != types.float64:
        return lambda p, y, left, state, x, tops, L: (y, left)

    def chosen(p, y, left, state, x, tops, L):
        reference = known_peak(p, state)
        peaks = maximum(tops, spread(reference, tops))
        lines = some_distant(peaks, L) | (state[2] == INFINITY)
        if any_lane(lines):
            s = sums_entered(p, state, reference, first(peaks, L))
            z, s, peak = sum_by_sum(p, (x, peaks), s, first(peaks, L), L)
            y = select(spread(lines, z), z, y)
            m, k = exp_up_to_border(p, peak)
            m, k = (
                select(absolute(peak) == INFINITY, 1.0, m),
                select(peak == INFINITY, infinite(k), k),
            )
            near = ~is_distant(peak)
            left = (
                select(lines, select(near, s * m, s), left[0]),
                select(lines, 0.0, left[1]),
                select(lines, select(near, k, INFINITY), left[2]),
                left[3],
            )
        return y, left

    return chosen


@inlined
def known_peak(p, state):
    """The peak before a block, which usual tiles do not keep: of their sum, the logarithm."""
    s, _, k, peak = state
    usual = (s > 0) & (absolute(k) <= limit_exponent(k))
    return select(usual, log_of(p, select(usual, s, 1.0), k), peak)


@inlined
def sums_entered(p, state, before, peak):
    """The sum before a block relative to the peak of its first step."""
    s, low, k, _ = state
    m, j = exp_up_to_border(p, -peak)
    n, i = decay_between(p, before, peak)
    ours = k == INFINITY
    return scaled_far((s + low) * select(ours, n, m), select(ours, i, k + j))


@by_type
def sum_by_sum(p, tiles, s, before, L):
    if tiles[0].n > L.literal_value:

        def halves(p, tiles, s, before, L):
            u, s, before = sum_by_sum(p, halved(tiles, 0), s, before, L)
            v, s, before = sum_by_sum(p, halved(tiles, 1), s, before, L)
            return join(u, v), s, before

        return halves

    def one(p, tiles, s, before, L):
        x, peak = tiles
        m, k = decay_between(p, before, peak)
        n, j = decay_between(p, x, peak)
        s = scaled_far(s * m, k) + scaled_far(n, j)
        y = select(s == s, peak + log_of(p, s, like(s, 0.0)), NAN)
        return y, s, peak

    return one


# --- backward -------------------------------------------------------------------------------------

# The state after such a block is (t, y, center), center infinite: S is t, or if center is negative
# t·2^SMALLER.


@inlined
def entered(p, state, y):
    """S at a block's first step without its own dy, as a pair. Other states are sums times e^-y: of
    those beyond the border nothing is left here, unless both are +inf."""
    t, k, center = state
    ours = absolute(center) == INFINITY
    m, j = exp_up_to_border(p, y)
    endless = (y == INFINITY) & (k <= SMALLER - infinite(k))
    m, j = select(endless, 1.0, m), select(endless, infinite(k), j)
    n, i = decay_between(p, y, k)
    return t * select(ours, n, m), select(
        ours, i + select(center < 0, SMALLER, like(k, 0.0)), k + j
    )


@inlined
def with_own(p, tiles, s, e):
    """One step: its result, S with its own dy, and y."""
    y, x, g, w = tiles
    large = absolute(g) > LARGEST
    g, j = select(large, g * 2.0**-SMALLER, g), select(large, SMALLER, like(g, 0.0))
    s, e = added_exactly(s, e, g, j)
    m, k = decay_between(p, x, y)
    m, k = select(is_nan(w), m, w), select(is_nan(w), k, 0.0)
    m = select(x == -INFINITY, 0.0, m)
    return one_nan(scaled_far(m * one_nan(s), k + e)), s, e, y


@by_type
def step_by_step(p, tiles, s, e, before, L):
    """S·e^(x - y) of each step, and S and y of the last; `before` is None for the first, whose S is
    all but its own dy already."""
    if tiles[0].n > L.literal_value:

        def halves(p, tiles, s, e, before, L):
            u, s, e, y = step_by_step(p, halved(tiles, 0), s, e, before, L)
            v, s, e, y = step_by_step(p, halved(tiles, 1), s, e, y, L)
            return join(u, v), s, e, y

        return halves

    if isinstance(before, types.NoneType):
        return lambda p, tiles, s, e, before, L: with_own(p, tiles, s, e)

    def later(p, tiles, s, e, before, L):
        m, k = decay_between(p, tiles[0], before)
        return with_own(p, tiles, s * m, e + k)

    return later


@inlined
def left_by(p, s, e, y):
    """The state after a block whose last y this is."""
    large = absolute(scaled_far(s, e - SMALLER)) > LARGEST * 2.0**-SMALLER
    t = scaled_far(s, select(large, e - SMALLER, e))
    m, j = exp_pair(p, select(absolute(y) <= NEAR, -y, 0.0))
    near = ~is_distant(y)
    j = select(absolute(y) == INFINITY, -infinite(j) * select(y > 0, 1.0, like(y, -1.0)), j)
    return (
        select(near, s * m, t),
        select(near, e + j, y),
        select(near, NAN, select(large, -INFINITY, like(y, INFINITY))),
    )


@by_type
def with_distant(p, result, left, state, g, x, w, y, size, L):
    """Results and state of a block: as they are, or if a y is distant or was, from differences. w
    is the weight where y is +inf, elsewhere NaN."""
    if p.dtype != types.float64:
        return lambda p, result, left, state, g, x, w, y, size, L: (result, left)

    def chosen(p, result, left, state, g, x, w, y, size, L):
        v = load_wide(y, size, INFINITY, BLOCK, L)
        lines = some_distant(v, L) | (absolute(state[2]) == INFINITY)
        if any_lane(lines):
            s, e = entered(p, state, first(v, L))
            r, s, e, at = step_by_step(p, (v, x, g, w), s, e, None, L)
            t, k, center = left_by(p, s, e, at)
            result = select(spread(lines, r), r, result)
            left = (
                select(lines, t, left[0]),
                select(lines, k, left[1]),
                select(lines, center, left[2]),
            )
        return result, left

    return chosen
