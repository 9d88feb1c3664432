"""Running log-sum-exp.

    y[j] = log(e^x[0] + … + e^x[j])

Sums are kept relative to a power of two, the *reference*. Moving it multiplies by powers of two and
rounds nothing, so no bit depends on when it moves. The usual tile has all its exponents near the
reference and sums plain numbers; any other goes through pairs of numbers and exponents, in the same
tree, and moves the reference.
"""

import math

from numba import types

from pullback.cpu.elementary import per_type
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, word
from pullback.cpu.memory import STORAGE, fence, filled_wide, on_stack
from pullback.cpu.program import TENSORS
from pullback.cpu.sweep import OPTION, cursor, length, strip_of
from pullback.cpu.tile_blocks import block_by_block
from pullback.cpu.tiles import (
    by_type,
    earlier,
    last,
    lines_across,
    load_wide,
    moved,
    spread,
    stack,
    store,
)
from pullback.cpu.vector import (
    absolute,
    any_lane,
    fma,
    half,
    join,
    like,
    maximum,
    not_le,
    select,
    to_f32,
    to_f64,
)
from pullback.ops.scan.cpu_columns import (
    GROUPS,
    PARTS,
    READ,
    STEPS,
    as_met,
    ask_for,
    cell_of,
    columns_rows,
    group_at,
    load_columns,
    ordered,
    paired,
    running,
    store_columns,
    zero_tile,
)
from pullback.ops.scan.cpu_distant import with_distant_sums
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
from pullback.ops.scan.cpu_groups import BOX_ACROSS, BOX_ALONG, sweep_groups
from pullback.ops.scan.cpu_panels import AS_BEFORE, in_panels

CELLS = 128
INFINITY, NAN = math.inf, math.nan

# How far above the reference a usual tile of the forward may reach, and what counts as nothing.
above = per_type(50.0, 600.0)
below = per_type(-80.0, -700.0)
FARTHEST = 2.0**20  # references of usual tiles: f32 tells neighbours apart there


@by_type
def summed(p, s, low, b):
    """s + b, with what its rounding lost added to `low`. f64 holds sums of f32 well enough."""
    if STORAGE[p.dtype].compute != types.float64:
        return lambda p, s, low, b: (s + to_f64(b), low)

    def with_losses(p, s, low, b):
        total = s + b
        part = total - s
        return total, low + ((s - (total - part)) + (b - part))

    return with_losses


@by_type
def as_wide(p, s):
    """A sum in the type that exponentials of p's element are taken in."""
    if STORAGE[p.dtype].wide == types.float64:
        return lambda p, s: to_f64(s)
    return lambda p, s: to_f32(s)


@by_type
def as_compute(p, v):
    if STORAGE[p.dtype].compute == types.float64:
        return lambda p, v: to_f64(v)
    return lambda p, v: to_f32(v)


# A state is (s, low, k, top, peak): the sum (s + low)·2^k so far, in f64; up to where x is usual,
# NaN if nothing is; the largest x, for sums whose exponent is beyond the limit.


@inlined
def state_of(p, s, low, k, peak):
    usual = (absolute(k) <= FARTHEST) & (s == s)
    top = as_compute(p, select(usual, k * ln2(k) + above(k), NAN))
    return s, low, k, top, peak


@inlined
def start_of(p, x):
    """The state before a line that begins with x: its reference is that of x."""
    _, k = exponential(p, x)
    zero = to_f64(like(x, 0.0))
    k = select(absolute(x) <= limit(x), k, -infinite(k))
    return state_of(p, zero, zero, k, like(x, -INFINITY))


@by_type
def entering(p, s, low, totals, L):
    """The sum before each block, what it lacks, and both after the last."""
    if totals.n == L.literal_value:
        return lambda p, s, low, totals, L: (s, low, summed(p, s, low, totals))

    def block_after_block(p, s, low, totals, L):
        a, b, (s, low) = entering(p, s, low, half(totals, 0), L)
        c, d, after = entering(p, s, low, half(totals, 1), L)
        return join(a, c), join(b, d), after

    return block_after_block


@by_type
def growth(p, e, inverse):
    """e·inverse; of what is too small for f32, nothing."""
    if STORAGE[p.dtype].wide == types.float64:
        return lambda p, e, inverse: e * inverse
    return lambda p, e, inverse: fma(e, inverse, 1.0) - 1.0


# Logarithms of sums in a block are taken from a measure: the sum before it, its logarithm, its
# inverse, and how much of it is added; for f64 only the sum and what it lacks.


@by_type
def measured(p, before, lacks, k, total):
    if STORAGE[p.dtype].compute == types.float64:
        return lambda p, before, lacks, k, total: (before, lacks, lacks, lacks)

    def with_logarithm(p, before, lacks, k, total):
        before = as_wide(p, before)
        inverse = 1.0 / before
        return before, log_of(p, before, k), inverse, growth(p, total, inverse)

    return with_logarithm


@by_type
def logs(p, e, measure, k):
    """log(sum·2^k) for the sums e since `measure`."""
    if STORAGE[p.dtype].compute == types.float64:

        def far(p, e, measure, k):
            before, lacks, _, _ = measure
            return log_of(p, spread(before, e) + (e + spread(lacks, e)), spread(k, e))

        return far

    def near_or_far(p, e, measure, k):
        before, base, inverse, grows = measure
        d = growth(p, e, spread(inverse, e))
        near = fma(d, log_near_series(p, d), spread(base, d))
        if any_lane(not_le(grows, NEAR)):  # sums only grow
            near = select(not_le(d, NEAR), log_of(p, spread(before, e) + e, spread(k, e)), near)
        return near

    return near_or_far


@by_type
def log_sum_tile(at, size, state, L):
    def by_blocks(at, size, state, L):
        rows = columns_rows(lines_across(at[0][0]), L)
        return block_by_block(unusual_log_sum_tile, at, size, state, rows, STEPS, L)

    return by_blocks


# Usual tiles, a group at a time: what needs no state but its reference, then the sums from tile to
# tile, then what follows from them. `tiles` says which tiles of the cursors these are; `columns`
# and `measures` are for the group alone.


@inlined
def usual_log_sums(at, groups, states, first, rooms, L):
    """A few whole tiles that are all usual, or nothing."""
    tiles = 0, groups
    if not summed_blocks(at, tiles, states, first, rooms, L):
        return False
    sums_before(at[0][0], tiles, states, first, rooms, L)
    logs_of_blocks(at, tiles, states, first, rooms, L)
    return True


@inlined
def summed_blocks(at, tiles, states, first, rooms, L):
    """The sums inside the blocks, if all is usual."""
    p, W = at[0][0], lines_across(at[0][0])
    columns, sums, totals, _, _ = rooms
    begin, end = tiles
    for g in range(begin, end):
        x, _, _, _ = group_at(at, g, W, L)
        ask_for(x, g, READ, W, L)
        _, _, k, top, _ = states[first + cell_of(g, L)]
        v = load_columns(x, W, L)
        if any_lane(not_le(v, spread(top, v))):
            return False
        v = maximum(v, spread(as_compute(p, k * ln2(k) + below(k)), v))
        columns[2 * (g - begin)], columns[2 * (g - begin) + 1] = half(v, 0), half(v, 1)
    for h in range(2 * begin, 2 * end):
        k = states[first + cell_of(h // 2, L)][2]
        v = as_wide(p, columns[h - 2 * begin])
        sums[h] = exp_near(p, v, spread(k, v))
    for g in range(begin, end):
        e = running(ordered(p, join(sums[2 * g], sums[2 * g + 1]), L), W)
        totals[g] = last(e, W)
        e = paired(p, e, L)
        sums[2 * g], sums[2 * g + 1] = half(e, 0), half(e, 1)
    return True


@inlined
def sums_before(p, tiles, states, first, rooms, L):
    """The sum before each block: all that one tile waits for another for."""
    _, _, totals, entered, _ = rooms
    for g in range(tiles[0], tiles[1]):
        s, low, k, top, peak = states[first + cell_of(g, L)]
        before, lacks, (s, low) = entering(p, s, low, totals[g], L)
        entered[g] = before, lacks
        states[first + cell_of(g, L)] = s, low, k, top, peak


@inlined
def logs_of_blocks(at, tiles, states, first, rooms, L):
    p, W = at[0][0], lines_across(at[0][0])
    columns, sums, totals, entered, measures = rooms
    begin, end = tiles
    for g in range(begin, end):
        k, (before, lacks) = states[first + cell_of(g, L)][2], entered[g]
        measures[g - begin] = measured(p, before, lacks, spread(k, before), totals[g])
    for h in range(2 * (end - begin)):
        k = states[first + cell_of(begin + h // 2, L)][2]
        columns[h] = as_compute(p, logs(p, sums[2 * begin + h], measures[h // 2], k))
    for g in range(end - begin):
        y = group_at(at, begin + g, W, L)[1]
        store_columns(y, join(columns[2 * g], columns[2 * g + 1]), L)


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
    s, low, k, _, peak = state
    v = load_wide(x, size, -INFINITY, STEPS, L)
    m, j = exponential(p, v)
    m, j = added_up(m, j, L)
    i = maximum(spread(k, j), j)
    tops = maximum(v, earlier(v, -INFINITY, 1, L))
    tops = maximum(tops, earlier(tops, -INFINITY, 2, L))
    tops = maximum(tops, earlier(tops, -INFINITY, 4, L))
    peaks = maximum(tops, spread(peak, v))
    f = shrunk(spread(k, i) - i)
    e = m * shrunk(j - i)
    t = spread(as_wide(p, s), m) * f + (e + spread(as_wide(p, low), m) * f)
    logarithm = select(t == t, unusual_logs(p, m, j, s, k, t, i), NAN)
    beyond = (absolute(i) > limit_exponent(i)) & (t == t)
    result = select(beyond, peaks, logarithm)
    store_inverse(inverses, references, size, t, i, L)
    # The new reference makes s about 1, unless the exponent is there to tell infinities apart.
    reference = last(i, L)
    f = to_f64(shrunk(k - reference))
    s, low = summed(p, s * f, low * f, last(e, L))
    _, e = parts(as_wide(p, s), like(reference, 0.0))
    e = select((absolute(reference) <= limit_exponent(reference)) & (s == s), e, 0.0)
    f = to_f64(power(-e))
    left = s * f, low * f, reference + e, last(peaks, L)
    before = state[0], state[1], k, peak
    result, left = with_distant_sums(p, result, left, before, v, tops, L)
    store(y, size, result, L)
    return state_of(p, *left)


@by_type
def unusual_logs(p, m, j, s, k, t, i):
    """log(t·2^i) for t·2^i = s·2^k + m·2^j: the bits that `logs` gives where all is usual."""
    if STORAGE[p.dtype].compute == types.float64:
        return lambda p, m, j, s, k, t, i: log_of(p, t, i)

    def near_or_far(p, m, j, s, k, t, i):
        before = as_wide(p, s)
        base = log_of(p, before, k)
        d = growth(p, m * grown(j - spread(k, j)), spread(1.0 / before, m))
        near = fma(d, log_near_series(p, d), spread(base, d))
        return select(not_le(d, NEAR), log_of(p, t, i), near)

    return near_or_far


@inlined
def _logcumsumexp(task, lo, hi, cells, room, L):
    p, q = pointer(task, TENSORS), pointer(task, TENSORS + 1)
    states = stack(start_of(p, filled_wide(p, 0.0, L)), cells)
    W, box = lines_across(p), on_stack(q, room)
    zero = filled_wide(p, 0.0, W)
    before = to_f64(zero), to_f64(zero)
    rooms = (
        stack(half(zero_tile(p, 0, W), 0), PARTS),
        stack(half(zero_tile(p, 1, W), 0), PARTS),
        stack(zero, GROUPS),
        stack(before, GROUPS),
        stack(measured(p, *before, zero, zero), GROUPS),
    )
    for item in range(lo, hi):
        line, lines = strip_of(task, as_met(task, lo, hi, item))
        at = cursor(task, p, 0, line, L), cursor(task, q, 1, line, L), None, None
        for c in range(0, lines, L):
            begin = load_wide(moved(at, 0, c)[0], (1, min(lines - c, L)), 0.0, 1, L)
            states[c // L] = start_of(p, begin)
        steps = length(task), word(task, OPTION)
        sweep_groups(usual_log_sums, log_sum_tile, at, box, steps, lines, states, rooms, 0, W, L)
    fence()


@kernel
def logcumsumexp_along(task, lo, hi):
    _logcumsumexp(task, lo, hi, 1, BOX_ALONG, 1)


@inlined
def _across(task, lo, hi):
    _logcumsumexp(task, lo, hi, CELLS, BOX_ACROSS, lines_across(pointer(task, TENSORS)))


_in_panels = in_panels(_across, STEPS, {0: AS_BEFORE}, spare=True)


@kernel
def logcumsumexp_across(task, lo, hi):
    _in_panels(task, lo, hi)
