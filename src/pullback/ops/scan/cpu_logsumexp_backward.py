"""The backward of the running log-sum-exp.

    T[j] = dy[j]·e^-y[j] + T[j+1],  dx[j] = e^x[j]·T[j], walked from the far end

As in the forward, T is kept relative to a power of two. Halves have no y worth reading: there the
sums of the forward are taken again, chunk by chunk from the far end.
"""

import math

import numpy as np
from numba import types

from pullback.cpu.elementary import _per_type as per_type
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, word
from pullback.cpu.memory import STORAGE, as_f32_pointer, fence, filled_wide
from pullback.cpu.program import TENSORS, WORKSPACE
from pullback.cpu.sweep import cursor, length, strip_of, sweep
from pullback.cpu.tile_blocks import block_by_block, in_blocks, shortened
from pullback.cpu.tiles import (
    by_type,
    expect,
    first,
    last,
    lines_across,
    load,
    load_wide,
    long_rows,
    moved,
    spread,
    stack,
    store,
    turned_round,
)
from pullback.cpu.vector import absolute, any_lane, is_nan, like, maximum, minimum, not_le, select
from pullback.ops.scan.cpu_exponents import (
    INFINITE_F32,
    NEAR,
    added,
    added_up,
    exp_near,
    exp_near_series,
    exp_pair,
    exponential,
    infinite,
    limit,
    limit_exponent,
    ln2,
    power,
    scaled,
    smallest,
)
from pullback.ops.scan.cpu_logsumexp import CELLS, GROUP, below, log_sum_tile, start_of, state_of
from pullback.ops.scan.cpu_sum import BLOCK, one_nan, sums

# Where y is recomputed: steps whose sums wait on the stack, along and across, and how many lines
# lie side by side there.
ALONG, ACROSS, SIDE = 2048, 256, 64
SCRATCH, SIDE_CELLS = (ACROSS + 1) * SIDE, SIDE // 8
INFINITY, NAN = math.inf, math.nan

# How far from the reference exponents of a usual tile of the backward may be, in powers of two.
around = per_type(20.0, 60.0)

# A state is (t, k, center, anchor, level, step): T = t·2^k; k again where tiles near it are usual,
# else NaN; the y that this group of steps began with, its e^-y·2^-center, and how far into the
# group we are.


@inlined
def first_state(zero):
    return zero, -infinite(zero), like(zero, NAN), zero, zero, 0


@by_type
def saved_or_summed(y, inverse, size, rows, L):
    """The saved y of a tile, or the inverses of the recomputed sums."""
    if isinstance(y, types.NoneType):
        return lambda y, inverse, size, rows, L: load(inverse, size, 0.0, rows, L)

    def saved(y, inverse, size, rows, L):
        expect(y, rows, L)
        return load_wide(y, size, 0.0, rows, L)

    return saved


@inlined
def off_center(y, center, margin):
    """Whether e^-y is too far from the reference."""
    return not_le(absolute(y + center * ln2(y)), (around(y) - margin) * ln2(y))


@by_type
def decay(p, y, reference, v, size, center, anchor, level, rows, L):
    """e^-y·2^-center of a tile, and whether any of its exponents is too far from the center."""
    if isinstance(y, types.NoneType):

        def recomputed(p, y, reference, v, size, center, anchor, level, rows, L):
            j = -load(reference, size, 0.0, rows, L) - spread(center, v)
            return v * power(j), any_lane(not_le(absolute(j), around(j)))

        return recomputed
    if STORAGE[p.dtype].compute == types.float64:

        def saved(p, y, reference, v, size, center, anchor, level, rows, L):
            middle = spread(center, v)
            return exp_near(p, -v, middle), any_lane(off_center(v, middle, 1))

        return saved

    def near_or_far(p, y, reference, v, size, center, anchor, level, rows, L):
        """From the first e^-y of the group where y is near its first one."""
        d = spread(anchor, v) - v
        e = spread(level, v) * exp_near_series(p, d)
        far = not_le(absolute(d), NEAR)
        if not any_lane(far):
            return e, any_lane(off_center(anchor, center, 2))
        middle = spread(center, v)
        return select(far, exp_near(p, -v, middle), e), any_lane(off_center(v, middle, 1))

    return near_or_far


@by_type
def decay_pair(p, y, inverse, reference, anchor, step, size, L):
    """The same for a block as pairs, with the anchor of its group."""
    if isinstance(y, types.NoneType):

        def recomputed(p, y, inverse, reference, anchor, step, size, L):
            # A chunk's last block may be short: what it lacks is too small to be anything.
            m = load(inverse, size, 0.0, BLOCK, L)
            return m, -load(reference, size, INFINITE_F32, BLOCK, L), anchor

        return recomputed

    def saved(p, y, inverse, reference, anchor, step, size, L):
        v = load_wide(y, size, 0.0, BLOCK, L)
        if step == 0:
            anchor = first(v, L)
        m, j = near_pair(p, v, spread(anchor, v))
        return m, j, anchor

    return saved


@by_type
def near_pair(p, v, anchor):
    if STORAGE[p.dtype].compute == types.float64:
        return lambda p, v, anchor: exponential(p, -v)

    def near_or_far(p, v, anchor):
        d = anchor - v
        near = absolute(d) <= NEAR
        m, j = exponential(p, -anchor)
        n, i = exponential(p, -v)
        return select(near, m * exp_near_series(p, d), n), select(near, j, i)

    return near_or_far


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


@by_type
def anchored(p, y, v, center, anchor, level, step, L):
    """Anchor and level of the group that a tile belongs to."""
    if isinstance(y, types.NoneType) or STORAGE[p.dtype].compute == types.float64:
        return lambda p, y, v, center, anchor, level, step, L: (anchor, level)

    def at_its_start(p, y, v, center, anchor, level, step, L):
        if step == 0:
            anchor = first(v, L)
            level = exp_near(p, -anchor, center)
        return anchor, level

    return at_its_start


@by_type
def weighted(p, t, k, x):
    """t·2^k·e^x for a usual tile."""
    if STORAGE[p.dtype].compute != STORAGE[p.dtype].wide:
        # Products this small are zeros of the narrower element.
        return lambda p, t, k, x: t * exp_near(p, maximum(x, -k * ln2(k) + (below(k) + 60)), -k)

    def any_exponent(p, t, k, x):
        m, j = exp_pair(p, maximum(x, -limit(x)))
        return scaled(m * t, j + k)

    return any_exponent


@inlined
def running_decay(tiles, t, L):
    b = sums(tiles[0], L)
    return spread(t, b) + b, t + last(b, L)


@by_type
def decay_tile(at, size, state, L):
    return _decays if isinstance(size, types.NoneType) else _decays_by_blocks


@inlined
def _decays_by_blocks(at, size, state, L):
    return block_by_block(unusual_decay_tile, at, size, state, long_rows(at[2][0], L), BLOCK, L)


def _decays(at, size, state, L):
    dy, dx, x, y, inverse, reference = at
    t, k, center, anchor, level, step = state
    p, rows = x[0], long_rows(x[0], L)
    expect(dy, rows, L)
    expect(x, rows, L)
    u = saved_or_summed(y, inverse, size, rows, L)
    anchor, level = anchored(p, y, u, center, anchor, level, step, L)
    e, unusual = decay(p, y, reference, u, size, center, anchor, level, rows, L)
    if unusual:
        return _decays_by_blocks(at, size, state, L)
    g = load_wide(dy, size, 0.0, rows, L)
    b, t = in_blocks(running_decay, (g * e,), t, BLOCK, L)
    r = weighted(p, b, spread(center, b), load_wide(x, size, -INFINITY, rows, L))
    if any_lane(is_nan(t)):
        r = one_nan(r)
    store(dx, size, r, L)
    return t, k, center, anchor, level, (step + rows) % GROUP


@inlined
def unusual_decay_tile(at, size, state, L):
    dy, dx, x, y, inverse, reference = at
    t, k, _, anchor, _, step = state
    p = x[0]
    g = load_wide(dy, size, 0.0, BLOCK, L)
    v = load_wide(x, size, -INFINITY, BLOCK, L)
    m, j, anchor = decay_pair(p, y, inverse, reference, anchor, step, size, L)
    plus, minus = (j == -infinite(j)) & (m == m), (j == infinite(j)) & (m == m)
    m = select(plus, 1.0, select(minus, 0.0, m))
    b, i = added_up(g * m, j, L)
    b, i = added(spread(t, b), spread(k, b), b, i)
    b = one_nan(b)
    w, e = exponential(p, v)
    # The first +inf takes the weight of all that follow it.
    later = reaches_infinity(p, y, reference, size, L)
    w = select(plus, select(later, like(w, 0.0), 1.0), w)
    e = select(plus, infinite(e), e)
    w = select(v == -INFINITY, 0.0, w)
    store(dx, size, select(minus, 0.0, one_nan(scaled(w * b, e + i))), L)
    # The exponents only grow along this walk: the new reference lies ahead.
    t, k, center = last(b, L), last(i, L), last(j, L) + 0.5 * around(k)
    usual = absolute(center) <= limit_exponent(k)
    f = power(maximum(smallest(k), minimum(-smallest(k), k - center)))
    t, k, center = select(usual, t * f, t), select(usual, center, k), select(usual, center, NAN)
    return t, k, center, anchor, exp_near(p, -anchor, center), (step + BLOCK) % GROUP


@inlined
def _logcumsumexp_backward(task, lo, hi, cells, L):
    dy, dx = pointer(task, TENSORS), pointer(task, TENSORS + 1)
    x, y = pointer(task, TENSORS + 2), pointer(task, TENSORS + 3)
    zero = filled_wide(x, 0.0, L)
    start = first_state(zero)
    states = stack(start, cells)
    for item in range(lo, hi):
        line, lines = strip_of(task, item)
        for c in range(0, lines, L):
            states[c // L] = start
        at = (
            cursor(task, dy, 0, line, L),
            cursor(task, dx, 1, line, L),
            cursor(task, x, 2, line, L),
            cursor(task, y, 3, line, L),
            None,
            None,
        )
        sweep(decay_tile, at, length(task), lines, states, long_rows(x, L), 0, 1, L)
    fence()


@kernel
def logcumsumexp_backward_along(task, lo, hi):
    _logcumsumexp_backward(task, lo, hi, 1, 1)


@kernel
def logcumsumexp_backward_across(task, lo, hi):
    _logcumsumexp_backward(task, lo, hi, CELLS, lines_across(pointer(task, TENSORS)))


# --- backward without y: halves -----------------------------------------------------------------


@inlined
def keep_state(there, size, state, L):
    s, low, k, _, peak, _, _, _ = state
    store(there, size, s, L)
    store(moved((there,), 1, 0)[0], size, low, L)
    store(moved((there,), 2, 0)[0], size, k, L)
    store(moved((there,), 3, 0)[0], size, peak, L)


@inlined
def kept_state(there, size, L):
    s, low = load(there, size, 0.0, 1, L), load(moved((there,), 1, 0)[0], size, 0.0, 1, L)
    k = load(moved((there,), 2, 0)[0], size, 0.0, 1, L)
    return state_of(s, low, k, load(moved((there,), 3, 0)[0], size, 0.0, 1, L))


@inlined
def _logcumsumexp_recomputed(task, lo, hi, chunk, cells, L):
    dy, dx, x = pointer(task, TENSORS), pointer(task, TENSORS + 1), pointer(task, TENSORS + 2)
    saved, n = as_f32_pointer(word(task, WORKSPACE)), length(task)
    chunks = (n + chunk - 1) // chunk
    zero = filled_wide(x, 0.0, L)
    nothing = first_state(zero)
    totals, states = stack(start_of(x, zero), cells), stack(nothing, cells)
    inverses, references = stack(np.float32(0), SCRATCH), stack(np.float32(0), SCRATCH)
    rows = long_rows(x, L)
    for item in range(lo, hi):
        line, lines = strip_of(task, item)
        xs = cursor(task, x, 2, line, L)
        for c in range(0, lines, L):
            begin = load_wide(moved((xs,), 0, c)[0], (1, min(lines - c, L)), 0.0, 1, L)
            totals[c // L] = start_of(x, begin)
            states[c // L] = nothing
        # The state before each chunk but the last goes to the workspace.
        for k in range(chunks - 1):
            for c in range(0, lines, L):
                there = saved, 4 * (line * chunks + k * lines) + c, lines, False
                keep_state(there, (1, min(L, lines - c)), totals[c // L], L)
            at = moved((xs,), k * chunk, 0)[0], None, None, None
            sweep(log_sum_tile, at, chunk, lines, totals, rows, 0, 0, L)
        for k in range(chunks - 1, -1, -1):
            begin = k * chunk
            steps = min(chunk, n - begin)
            for c in range(0, lines, L):
                size = 1, min(L, lines - c)
                if k < chunks - 1:
                    there = saved, 4 * (line * chunks + k * lines) + c, lines, False
                    totals[c // L] = kept_state(there, size, L)
                # In front, for whom the first +inf is: the reference before this chunk.
                store((references, c, 0, False), size, totals[c // L][2], L)
            inverse, reference = (inverses, lines, lines, False), (references, lines, lines, False)
            at = moved((xs,), begin, 0)[0], None, inverse, reference
            sweep(log_sum_tile, at, steps, lines, totals, rows, 0, 0, L)
            ends = cursor(task, dy, 0, line, L), cursor(task, dx, 1, line, L), xs
            ends = moved(ends, begin, 0)
            ends = moved((ends[0], ends[1], ends[2], None, inverse, reference), steps - 1, 0)
            sweep(decay_tile, turned_round(ends), steps, lines, states, rows, steps % BLOCK, 0, L)
    fence()


@kernel
def logcumsumexp_recomputed_along(task, lo, hi):
    _logcumsumexp_recomputed(task, lo, hi, ALONG, 1, 1)


@kernel
def logcumsumexp_recomputed_across(task, lo, hi):
    _logcumsumexp_recomputed(task, lo, hi, ACROSS, SIDE_CELLS, lines_across(pointer(task, TENSORS)))
