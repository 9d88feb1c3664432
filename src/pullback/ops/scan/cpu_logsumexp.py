"""Running log-sum-exp and its backward.

    forward   y[j] = log(e^x[0] + … + e^x[j])
    backward  T[j] = dy[j]·e^-y[j] + T[j+1],  dx[j] = e^x[j]·T[j], walked from the far end

Exponentials are pairs (m, k) of value m·2^k, and sums are kept relative to a power of two, the
*reference*. Moving a reference multiplies by powers of two and rounds nothing, so the bits do not
depend on when it moves. The usual tile has all its exponents near the reference and sums plain
numbers; any other tile sums pairs, in the same tree. Values that no exponent can express, up to the
infinities, get exponents in their order, too far apart to meet in one sum.
"""

import math

import numpy as np
from numba import types

from pullback.cpu.elementary import _ln2_high as ln2
from pullback.cpu.elementary import _per_type as per_type
from pullback.cpu.elementary import _rounder as rounder
from pullback.cpu.elementary import (
    exp_parts_within,
    log_joined,
    log_parts_normal,
)
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, word
from pullback.cpu.memory import as_f32_pointer, fence, filled_wide
from pullback.cpu.program import TENSORS, WORKSPACE
from pullback.cpu.sweep import cursor, length, strip_of, sweep
from pullback.cpu.tiles import (
    by_type,
    last,
    lines_across,
    load,
    load_wide,
    moved,
    spread,
    stack,
    store,
    turned_round,
)
from pullback.cpu.vector import (
    absolute,
    any_lane,
    as_float,
    as_int,
    is_nan,
    like,
    maximum,
    minimum,
    not_le,
    select,
)
from pullback.ops.scan.cpu_exponents import (
    added,
    added_sums,
    exponential,
    infinite_exponent,
    least,
    limit,
    limit_exponent,
    one_exponent,
    power,
    running_max,
    shrunk,
    two_sum,
)
from pullback.ops.scan.cpu_sum import ROWS, sums

CELLS = 128
# Where y is recomputed: steps whose sums wait on the stack, and how many lines fit there.
CHUNK = 256
SIDE = 64
SCRATCH = (CHUNK + 1) * SIDE
SIDE_CELLS = SIDE // 8
INFINITY = math.inf
NAN = math.nan
LOG2_E = 1.4426950408889634

# How far above the reference a usual tile of the forward may reach, and what counts as nothing.
above = per_type(50.0, 600.0)
below = per_type(-80.0, -700.0)
# How far from the reference those of the backward may be, in powers of two.
around = per_type(20.0, 60.0)

# --- forward ------------------------------------------------------------------------------------
#
# A state is (s, low, k, top, peak): the sum (s + low)·2^k so far; up to where x is usual, NaN if
# nothing is; and the largest x, for sums whose exponent is beyond the limit.


@inlined
def state_of(s, low, k, peak):
    usual = (absolute(k) <= limit_exponent(k)) & (s == s)
    return s, low, k, select(usual, k * ln2(k) + above(k), NAN), peak


@inlined
def start_of(x):
    """The state before a line that begins with x: its reference is that of x."""
    _, k = exponential(x)
    usual = absolute(x) <= limit(x)
    zero = like(x, 0.0)
    return state_of(zero, zero, select(usual, k, -infinite_exponent(k)), like(x, -INFINITY))


@inlined
def near_one(s, low, k):
    """The same sum with s near 1, unless its exponent tells infinities apart."""
    _, j = log_parts_normal(s)
    j = select((absolute(k) <= limit_exponent(k)) & (s == s), j, 0.0)
    f = power(-j)
    return s * f, low * f, k + j


@inlined
def usual_exponential(x, k):
    """e^x·2^-k where that is a normal number."""
    m, j = exp_parts_within(x)
    return m * power(j - k)


@inlined
def log_sum_tile(at, size, state, L):
    x, y, inverse, reference = at
    s, low, k, top, peak = state
    v = load_wide(x, size, -INFINITY, ROWS, L)
    highest = spread(top, v)
    if any_lane(not_le(v, highest)):
        m, j = exponential(v)
        m, j = added_sums(m, j, L)
        i = maximum(spread(k, j), j)
        before, m = shrunk(spread(k, j) - i), m * shrunk(j - i)
        t = spread(s, m) * before + (m + spread(low, m) * before)
        peaks = running_max(v, spread(peak, v), L)
        beyond = (absolute(i) > limit_exponent(i)) & (t == t)
        n, e = log_parts_normal(t)
        logarithm = select(t == t, log_joined(n, e + i), NAN)
        store(y, size, select(beyond, peaks, logarithm), L)
        store(inverse, size, 1.0 / t, L)
        store(reference, size, i, L)
        f = last(before, L)
        s, low = two_sum(s * f, low * f, last(m, L))
        s, low, k = near_one(s, low, last(i, L))
        return state_of(s, low, k, last(peaks, L))
    e = sums(usual_exponential(maximum(v, highest + (below(v) - above(v))), spread(k, v)), L)
    t = spread(s, e) + (e + spread(low, e))
    n, i = log_parts_normal(t)
    store(y, size, log_joined(n, i + spread(k, t)), L)
    store(inverse, size, 1.0 / t, L)
    store(reference, size, spread(k, t), L)
    s, low = two_sum(s, low, last(e, L))
    return s, low, k, top, peak


@inlined
def _logcumsumexp(task, lo, hi, cells, L):
    p, q = pointer(task, TENSORS), pointer(task, TENSORS + 1)
    states = stack(start_of(filled_wide(p, 0.0, L)), cells)
    for item in range(lo, hi):
        line, lines = strip_of(task, item)
        at = cursor(task, p, 0, line, L), cursor(task, q, 1, line, L), None, None
        for c in range(0, lines, L):
            begin = load_wide(moved(at, 0, c)[0], (1, min(lines - c, L)), 0.0, 1, L)
            states[c // L] = start_of(begin)
        sweep(log_sum_tile, at, length(task), lines, states, ROWS, 0, L)
    fence()


@kernel
def logcumsumexp_along(task, lo, hi):
    _logcumsumexp(task, lo, hi, 1, 1)


@kernel
def logcumsumexp_across(task, lo, hi):
    _logcumsumexp(task, lo, hi, CELLS, lines_across(pointer(task, TENSORS)))


# --- backward -----------------------------------------------------------------------------------
#
# A state is (t, k, usual): T = t·2^k; and k again, or NaN if no tile is usual.


@by_type
def decays(y, inverse, reference, size, ahead, L):
    """e^-y of a tile as pairs, `ahead` steps on: from the saved y or from recomputed sums."""
    if isinstance(y, types.NoneType):

        def recomputed(y, inverse, reference, size, ahead, L):
            i, r = moved((inverse, reference), ahead, 0)
            return load(i, size, 0.0, ROWS, L), -load(r, size, 0.0, ROWS, L)

        return recomputed

    def saved(y, inverse, reference, size, ahead, L):
        v = load_wide(moved((y,), ahead, 0)[0], shortened(size, ahead), 0.0, ROWS, L)
        return exponential(-v)

    return saved


@by_type
def shortened(size, ahead):
    if isinstance(size, types.NoneType):
        return lambda size, ahead: None
    return lambda size, ahead: (size[0] - ahead, size[1])


@inlined
def scaled(v, k):
    """v·2^k, rounded once, for any integral k."""
    k = minimum(2 * one_exponent(k), maximum(-2 * one_exponent(k), k))
    half = as_float(as_int(k * 0.5 + rounder(k))) - rounder(k)
    return v * power(maximum(one_exponent(k) * -0.99, half)) * power(k - half)


@inlined
def weighted(t, k, x):
    """t·2^k·e^x"""
    m, j = exponential(x)
    return scaled(m * t, j + k)


@inlined
def decay_tile(at, size, state, L):
    dy, dx, x, y, inverse, reference = at
    t, k, usual = state
    g = load_wide(dy, size, 0.0, ROWS, L)
    v = load_wide(x, size, -INFINITY, ROWS, L)
    m, j = decays(y, inverse, reference, size, 0, L)
    center = spread(usual, j)
    if any_lane(not_le(absolute(j - center), around(j))) or any_lane(not_le(v, limit(v))):
        plus = (j == -infinite_exponent(j)) & (m == m)
        minus = (j == infinite_exponent(j)) & (m == m)
        m = select(plus, 1.0, select(minus, 0.0, m))
        b, i = added_sums(g * m, j, L)
        b, i = added(spread(t, b), spread(k, b), b, i)
        # One NaN for all: which of two a machine keeps depends on the order of operands.
        b = select(is_nan(b), NAN, b)
        # The first +inf takes the weight of all that follow it.
        _, before = decays(y, inverse, reference, size, 1, L)
        w, e = exponential(v)
        w = select(plus, select(before == -infinite_exponent(j), like(w, 0.0), 1.0), w)
        e = select(plus, infinite_exponent(e), e)
        w = select(v == -INFINITY, 0.0, w)
        r = scaled(w * b, e + i)
        store(dx, size, select(minus, 0.0, select(is_nan(r), NAN, r)), L)
        t, k = last(b, L), last(i, L)
        fresh = last(j, L) + around(k)
        regular = absolute(fresh) <= limit_exponent(k)
        moved_t = t * power(maximum(least(k), minimum(-least(k), k - fresh)))
        return select(regular, moved_t, t), select(regular, fresh, k), select(regular, fresh, NAN)
    b = sums(g * (m * power(j - center)), L) + spread(t, g)
    store(dx, size, weighted(b, center, v), L)
    return last(b, L), k, usual


@inlined
def _logcumsumexp_backward(task, lo, hi, cells, L):
    dy, dx = pointer(task, TENSORS), pointer(task, TENSORS + 1)
    x, y = pointer(task, TENSORS + 2), pointer(task, TENSORS + 3)
    zero = filled_wide(x, 0.0, L)
    start = zero, -infinite_exponent(zero), like(zero, NAN)
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
        sweep(decay_tile, at, length(task), lines, states, ROWS, 1, L)
    fence()


@kernel
def logcumsumexp_backward_along(task, lo, hi):
    _logcumsumexp_backward(task, lo, hi, 1, 1)


@kernel
def logcumsumexp_backward_across(task, lo, hi):
    _logcumsumexp_backward(task, lo, hi, CELLS, lines_across(pointer(task, TENSORS)))


# --- backward without y: halves -------------------------------------------------------------------


@inlined
def saved_cursor(saved, line, lines, chunk, chunks, c, cells):
    """Where the part of a state that a chunk begins with is kept, for the lines from c on."""
    return saved, cells * (line * chunks + chunk * lines) + c, lines, False


@inlined
def _logcumsumexp_recomputed(task, lo, hi, cells, L):
    dy, dx, x = pointer(task, TENSORS), pointer(task, TENSORS + 1), pointer(task, TENSORS + 2)
    saved = as_f32_pointer(word(task, WORKSPACE))
    n = length(task)
    chunks = (n + CHUNK - 1) // CHUNK
    zero = filled_wide(x, 0.0, L)
    nothing = zero, -infinite_exponent(zero), like(zero, NAN)
    totals, states = stack(start_of(zero), cells), stack(nothing, cells)
    inverses, references = stack(np.float32(0), SCRATCH), stack(np.float32(0), SCRATCH)
    for item in range(lo, hi):
        line, lines = strip_of(task, item)
        xs = (cursor(task, x, 2, line, L),)
        for c in range(0, lines, L):
            begin = load_wide(moved(xs, 0, c)[0], (1, min(lines - c, L)), 0.0, 1, L)
            totals[c // L] = start_of(begin)
            states[c // L] = nothing
        for chunk in range(chunks):
            for c in range(0, lines, L):
                m, low, k, _, peak = totals[c // L]
                size = 1, min(L, lines - c)
                there = saved, 4 * (line * chunks + chunk * lines) + c, lines, False
                if chunks > 1:
                    store(there, size, m, L)
                    store(moved((there,), 1, 0)[0], size, low, L)
                    store(moved((there,), 2, 0)[0], size, k, L)
                    store(moved((there,), 3, 0)[0], size, peak, L)
            at = moved(xs, chunk * CHUNK, 0)[0], None, None, None
            if chunk < chunks - 1:
                sweep(log_sum_tile, at, CHUNK, lines, totals, ROWS, 0, L)
        for chunk in range(chunks - 1, -1, -1):
            for c in range(0, lines, L):
                size = 1, min(L, lines - c)
                there = saved, 4 * (line * chunks + chunk * lines) + c, lines, False
                if chunks > 1:
                    m = load(there, size, 0.0, 1, L)
                    low = load(moved((there,), 1, 0)[0], size, 0.0, 1, L)
                    k = load(moved((there,), 2, 0)[0], size, 0.0, 1, L)
                    peak = load(moved((there,), 3, 0)[0], size, 0.0, 1, L)
                    totals[c // L] = state_of(m, low, k, peak)
            begin = chunk * CHUNK
            steps = min(CHUNK, n - begin)
            # One step more in front: the last step before this chunk, for whom the first +inf is.
            inverse, reference = (inverses, lines, lines, False), (references, lines, lines, False)
            for c in range(0, lines, L):
                k = totals[c // L][2]
                store((references, c, 0, False), (1, min(L, lines - c)), k, L)
            at = moved(xs, begin, 0)[0], None, inverse, reference
            sweep(log_sum_tile, at, steps, lines, totals, ROWS, 0, L)
            there = moved(
                (cursor(task, dy, 0, line, L), cursor(task, dx, 1, line, L), xs[0]), begin, 0
            )
            far = moved((there[0], there[1], there[2], None, inverse, reference), steps - 1, 0)
            sweep(decay_tile, turned_round(far), steps, lines, states, ROWS, 0, L)
    fence()


@kernel
def logcumsumexp_recomputed_along(task, lo, hi):
    _logcumsumexp_recomputed(task, lo, hi, 1, 1)


@kernel
def logcumsumexp_recomputed_across(task, lo, hi):
    _logcumsumexp_recomputed(task, lo, hi, SIDE_CELLS, lines_across(pointer(task, TENSORS)))
