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
from pullback.cpu.memory import as_f32_pointer, fence, filled_wide
from pullback.cpu.program import TENSORS, WORKSPACE
from pullback.cpu.sweep import cursor, length, strip_of, sweep
from pullback.cpu.tile_blocks import block_by_block, in_blocks, shortened
from pullback.cpu.tiles import (
    by_type,
    expect,
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
from pullback.cpu.vector import (
    absolute,
    any_lane,
    is_nan,
    like,
    maximum,
    minimum,
    not_le,
    select,
    to_f32,
    to_f64,
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
    narrow_weight,
    power,
    scaled,
    smallest,
)
from pullback.ops.scan.cpu_logsumexp import CELLS, log_sum_tile, start_of, state_of
from pullback.ops.scan.cpu_sum import BLOCK, one_nan, sums

# Where y is recomputed: steps whose sums wait on the stack, along and across, and how many lines
# lie side by side there.
ALONG, ACROSS, SIDE = 2048, 256, 64
SCRATCH, SIDE_CELLS = (ACROSS + 1) * SIDE, SIDE // 8
INFINITY, NAN = math.inf, math.nan

# How far from the reference exponents of a usual tile of the backward may be, in powers of two.
around = per_type(20.0, 60.0)
AROUND = 60.0  # the same for tiles of f32

# A state is (t, k, center): T = t·2^k, and k again where tiles near it are usual, else NaN.


@inlined
def first_state(zero):
    return zero, -infinite(zero), like(zero, NAN)


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
def decay(p, y, reference, v, size, center, rows, L):
    """e^-y·2^-center of a tile, and whether any of its exponents is too far from the center."""
    if isinstance(y, types.NoneType):

        def recomputed(p, y, reference, v, size, center, rows, L):
            j = -load(reference, size, 0.0, rows, L) - spread(center, v)
            return v * power(j), any_lane(not_le(absolute(j), around(j)))

        return recomputed

    def saved(p, y, reference, v, size, center, rows, L):
        middle = spread(center, v)
        return exp_near(p, -v, middle), any_lane(off_center(v, middle, 1))

    return saved


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


# A usual tile of f32: eight exponentials at a time, and the products with them in f64, which holds
# them exactly.


@inlined
def too_far(x, y, center):
    """Whether exponents of a tile are too far from the reference. Any x may be too small."""
    far = not_le(absolute(y + center * ln2(y)), (AROUND - 1) * ln2(y))
    return any_lane(far) or any_lane(not_le(x, (TOP - center) * ln2(x)))


@inlined
def running_decay(tiles, t, L):
    b = sums(tiles[0], L)
    return spread(t, b) + b, t + last(b, L)


@by_type
def decay_tile(at, size, state, L):
    if not isinstance(size, types.NoneType):
        return _decays_by_blocks
    return _narrow_decays if at[2][0].dtype == types.float32 else _decays


@inlined
def _decays_by_blocks(at, size, state, L):
    return block_by_block(unusual_decay_tile, at, size, state, long_rows(at[2][0], L), BLOCK, L)


def _decays(at, size, state, L):
    dy, dx, x, y, inverse, reference = at
    t, k, center = state
    p, rows = x[0], long_rows(x[0], L)
    expect(dy, rows, L)
    expect(x, rows, L)
    u = saved_or_summed(y, inverse, size, rows, L)
    e, unusual = decay(p, y, reference, u, size, center, rows, L)
    if unusual:
        return _decays_by_blocks(at, size, state, L)
    b, t = in_blocks(running_decay, (load_wide(dy, size, 0.0, rows, L) * e,), t, BLOCK, L)
    r = weighted(p, b, spread(center, b), load_wide(x, size, -INFINITY, rows, L))
    store_weighted(dx, size, r, t, L)
    return t, k, center


def _narrow_decays(at, size, state, L):
    dy, dx, x, y, _, _ = at
    t, k, center = state
    rows = long_rows(x[0], L)
    expect(dy, rows, L)
    expect(x, rows, L)
    expect(y, rows, L)
    u, v = load(y, size, 0.0, rows, L), load(x, size, -INFINITY, rows, L)
    middle = spread(to_f32(center), u)
    if too_far(v, u, middle):
        return _decays_by_blocks(at, size, state, L)
    e = to_f64(narrow_exp_near(-u, middle))
    b, t = in_blocks(running_decay, (load_wide(dy, size, 0.0, rows, L) * e,), t, BLOCK, L)
    store_weighted(dx, size, b * narrow_weight(v, middle), t, L)
    return t, k, center


@inlined
def store_weighted(dx, size, r, t, L):
    if any_lane(is_nan(t)):
        r = one_nan(r)
    store(dx, size, r, L)


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
    b, i = added(spread(t, b), spread(k, b), b, i)
    b = one_nan(b)
    w, e = exponential_of(p, v)
    # The first +inf takes the weight of all that follow it.
    later = reaches_infinity(p, y, reference, size, L)
    w = select(plus, select(later, like(w, 0.0), 1.0), w)
    e = select(plus, infinite(e), e)
    w = select(v == -INFINITY, 0.0, w)
    store(dx, size, select(minus, 0.0, one_nan(scaled(w * b, e + i))), L)
    # The exponents only grow along this walk: the new reference lies ahead.
    t, k, center = last(b, L), last(i, L), last(j, L) + 0.5 * around(k)
    usual = absolute(center) <= farthest_center(p, k)
    f = power(maximum(smallest(k), minimum(-smallest(k), k - center)))
    return select(usual, t * f, t), select(usual, center, k), select(usual, center, NAN)


@inlined
def _logcumsumexp_backward(task, lo, hi, cells, L):
    dy, dx = pointer(task, TENSORS), pointer(task, TENSORS + 1)
    x, y = pointer(task, TENSORS + 2), pointer(task, TENSORS + 3)
    states = stack(first_state(filled_wide(x, 0.0, L)), cells)
    for item in range(lo, hi):
        line, lines = strip_of(task, item)
        at = (
            cursor(task, dy, 0, line, L),
            cursor(task, dx, 1, line, L),
            cursor(task, x, 2, line, L),
            cursor(task, y, 3, line, L),
            None,
            None,
        )
        for c in range(0, lines, L):
            size = (1, min(lines - c, L))
            states[c // L] = started(x, load_wide(moved(at, 0, c)[3], size, 0.0, 1, L))
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
