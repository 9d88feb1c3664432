"""Running log-sum-exp.

    y[j] = log(e^x[0] + … + e^x[j])

Sums are kept relative to a power of two, the *reference*. Moving it multiplies by powers of two and
rounds nothing, so no bit depends on when it moves. The usual tile has all its exponents near the
reference and sums plain numbers; any other goes through pairs of numbers and exponents, in the same
tree, and moves the reference.
"""

import math

from numba import types

from pullback.cpu.elementary import _per_type as per_type
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer
from pullback.cpu.memory import STORAGE, fence, filled_wide
from pullback.cpu.program import TENSORS
from pullback.cpu.sweep import cursor, length, strip_of, sweep
from pullback.cpu.tile_blocks import block_by_block, in_blocks
from pullback.cpu.tiles import (
    by_type,
    earlier,
    expect,
    last,
    lines_across,
    load_wide,
    long_rows,
    moved,
    spread,
    stack,
    store,
)
from pullback.cpu.vector import absolute, any_lane, fma, like, maximum, not_le, select
from pullback.ops.scan.cpu_exponents import (
    NEAR,
    added_up,
    exp_near,
    exponential,
    grown,
    infinite,
    limit,
    limit_exponent,
    ln2,
    log_near_series,
    log_of,
    parts,
    power,
    shrunk,
)
from pullback.ops.scan.cpu_sum import BLOCK, sums

CELLS = 128
GROUP = 32  # steps whose logarithms are taken from the one before them
INFINITY, NAN = math.inf, math.nan

# How far above the reference a usual tile of the forward may reach, and what counts as nothing.
above = per_type(50.0, 600.0)
below = per_type(-80.0, -700.0)


@by_type
def summed(p, s, low, b):
    """s + b, with what its rounding lost added to `low`. f64 holds sums of f32 well enough."""
    if STORAGE[p.dtype].compute != STORAGE[p.dtype].wide:
        return lambda p, s, low, b: (s + b, low)

    def with_losses(p, s, low, b):
        total = s + b
        part = total - s
        return total, low + ((s - (total - part)) + (b - part))

    return with_losses


# A state is (s, low, k, top, peak, base, inverse, step): the sum (s + low)·2^k so far; up to where
# x is usual, NaN if nothing is; the largest x, for sums whose exponent is beyond the limit; of the
# sum before this group of steps the logarithm, and the inverse relative to 2^-k; and how far into
# the group we are.


@inlined
def state_of(s, low, k, peak):
    usual = (absolute(k) <= limit_exponent(k)) & (s == s)
    top = select(usual, k * ln2(k) + above(k), NAN)
    return s, low, k, top, peak, like(s, 0.0), like(s, 0.0), 0


@inlined
def start_of(p, x):
    """The state before a line that begins with x: its reference is that of x."""
    _, k = exponential(p, x)
    zero = like(x, 0.0)
    k = select(absolute(x) <= limit(x), k, -infinite(k))
    return state_of(zero, zero, k, like(x, -INFINITY))


@by_type
def running_sums(p, e, s, low, L):
    """The sums after each step of a tile, and the state after the last."""
    if STORAGE[p.dtype].compute != STORAGE[p.dtype].wide:

        def plain(p, e, s, low, L):
            t, s = in_blocks(_plain_sums, (e,), s, BLOCK, L)
            return t, s, low

        return plain

    def with_losses(p, e, s, low, L):
        t, (s, low, _) = in_blocks(_sums_with_losses, (e,), (s, low, p), BLOCK, L)
        return t, s, low

    return with_losses


@inlined
def _plain_sums(tiles, s, L):
    e = sums(tiles[0], L)
    return spread(s, e) + e, s + last(e, L)


@inlined
def _sums_with_losses(tiles, state, L):
    s, low, p = state
    e = sums(tiles[0], L)
    after, lost = summed(p, s, low, last(e, L))
    return spread(s, e) + (e + spread(low, e)), (after, lost, p)


@inlined
def based(p, state):
    """The state at the start of a group: its sums are measured by the one before it."""
    s, low, k, top, peak, base, inverse, step = state
    if step == 0:
        base, inverse = log_of(p, s + low, k), 1.0 / (s + low)
    return s, low, k, top, peak, base, inverse, step


@by_type
def log_from(p, t, k, base, inverse, L):
    """log(t·2^k): from the logarithm of the sum before this group where that is near."""
    if STORAGE[p.dtype].compute == types.float64:
        return lambda p, t, k, base, inverse, L: log_of(p, t, k)

    def near_or_far(p, t, k, base, inverse, L):
        d = fma(t, inverse, -1.0)
        y = fma(d, log_near_series(p, d), base)
        if any_lane(not_le(last(d, L), NEAR)):  # sums only grow
            y = select(not_le(d, NEAR), log_of(p, t, k), y)
        return y

    return near_or_far


@by_type
def log_sum_tile(at, size, state, L):
    return _log_sums if isinstance(size, types.NoneType) else _log_sums_by_blocks


@inlined
def _log_sums_by_blocks(at, size, state, L):
    return block_by_block(unusual_log_sum_tile, at, size, state, long_rows(at[0][0], L), BLOCK, L)


def _log_sums(at, size, state, L):
    x, y, inverses, references = at
    p, rows = x[0], long_rows(x[0], L)
    expect(x, rows, L)
    v = load_wide(x, size, -INFINITY, rows, L)
    highest = spread(state[3], v)
    if any_lane(not_le(v, highest)):
        return _log_sums_by_blocks(at, size, state, L)
    s, low, k, top, peak, base, inverse, step = based(p, state)
    reference = spread(k, v)
    e = exp_near(p, maximum(v, highest + (below(v) - above(v))), reference)
    t, s, low = running_sums(p, e, s, low, L)
    store_log(y, size, p, t, reference, spread(base, t), spread(inverse, t), L)
    store_inverse(inverses, references, size, t, reference, L)
    return s, low, k, top, peak, base, inverse, (step + rows) % GROUP


@by_type
def store_log(y, size, p, t, k, base, inverse, L):
    if isinstance(y, types.NoneType):
        return lambda y, size, p, t, k, base, inverse, L: None

    def store_it(y, size, p, t, k, base, inverse, L):
        store(y, size, log_from(p, t, k, base, inverse, L), L)

    return store_it


@by_type
def store_inverse(inverses, references, size, t, k, L):
    """1/sum, for a backward that has no y."""
    if isinstance(inverses, types.NoneType):
        return lambda inverses, references, size, t, k, L: None

    def both(inverses, references, size, t, k, L):
        store(inverses, size, 1.0 / t, L)
        store(references, size, k, L)

    return both


@inlined
def unusual_log_sum_tile(at, size, state, L):
    x, y, inverses, references = at
    p = x[0]
    s, low, k, _, peak, base, inverse, step = based(p, state)
    v = load_wide(x, size, -INFINITY, BLOCK, L)
    m, j = exponential(p, v)
    m, j = added_up(m, j, L)
    i = maximum(spread(k, j), j)
    before, m = shrunk(spread(k, j) - i), m * shrunk(j - i)
    t = spread(s, m) * before + (m + spread(low, m) * before)
    peaks = maximum(v, earlier(v, -INFINITY, 1, L))
    peaks = maximum(peaks, earlier(peaks, -INFINITY, 2, L))
    peaks = maximum(peaks, earlier(peaks, -INFINITY, 4, L))
    peaks = maximum(peaks, spread(peak, v))
    moved_on = spread(inverse, t) * grown(i - spread(k, i))
    logarithm = select(t == t, log_from(p, t, i, spread(base, t), moved_on, L), NAN)
    beyond = (absolute(i) > limit_exponent(i)) & (t == t)
    store(y, size, select(beyond, peaks, logarithm), L)
    store_inverse(inverses, references, size, t, i, L)
    f = last(before, L)
    s, low = summed(p, s * f, low * f, last(m, L))
    # The new reference makes s about 1, unless the exponent is there to tell infinities apart.
    j = last(i, L)
    _, e = parts(s, like(j, 0.0))
    e = select((absolute(j) <= limit_exponent(j)) & (s == s), e, 0.0)
    inverse *= grown(j + e - k)
    f = power(-e)
    s, low, k, top, peak, _, _, _ = state_of(s * f, low * f, j + e, last(peaks, L))
    return s, low, k, top, peak, base, inverse, (step + BLOCK) % GROUP


@inlined
def _logcumsumexp(task, lo, hi, cells, L):
    p, q = pointer(task, TENSORS), pointer(task, TENSORS + 1)
    states = stack(start_of(p, filled_wide(p, 0.0, L)), cells)
    for item in range(lo, hi):
        line, lines = strip_of(task, item)
        at = cursor(task, p, 0, line, L), cursor(task, q, 1, line, L), None, None
        for c in range(0, lines, L):
            begin = load_wide(moved(at, 0, c)[0], (1, min(lines - c, L)), 0.0, 1, L)
            states[c // L] = start_of(p, begin)
        sweep(log_sum_tile, at, length(task), lines, states, long_rows(p, L), 0, 0, L)
    fence()


@kernel
def logcumsumexp_along(task, lo, hi):
    _logcumsumexp(task, lo, hi, 1, 1)


@kernel
def logcumsumexp_across(task, lo, hi):
    _logcumsumexp(task, lo, hi, CELLS, lines_across(pointer(task, TENSORS)))
