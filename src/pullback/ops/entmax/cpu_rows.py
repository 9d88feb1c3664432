"""Rows of entmax in Numba: the candidates for the support, and the root that makes them sum to 1.

With b = alpha - 1, p = exp_b(w) = max(1 + b·w, 0)^(1/b) of w = x - m - c, where m is the maximum of
the row; exp_b is e^w at b = 0. The root c >= 0 of Σ p = 1 is found by Newton's method on log_b Σ p
= ((Σ p)^b - 1) / b, which is linear in c for softmax and, for alpha <= 2, convex: from c = 0 the
steps climb to the root and never pass it. The sum is taken without the maximum, whose own term is
1 + expm1(...): so rows that are nearly one-hot keep the digits of what is missing to 1.

For alpha > 2 the maximum's own u = 1 - b·c may be as small as n^-b, far below the last place of c.
There the unknown is -log p of the maximum, from 0 to log n, in which log Σ p is linear for rows of
equals; a bracket guards the steps. A root is (c, u of the maximum), and u = 1 + b·w the sum of the
latter and b·(x - m).

The first steps look at LANES elements alone, the greatest of each class of positions: the root of
fewer lies no higher, so what is off the support there is off it for good. The rest, the candidates,
are listed once, and everything after looks at the list: z = x - m and where it stands. A row with
more than fit the list is listed piece by piece, in every pass. Arithmetic is in f64 for all dtypes.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

import numpy as np
from numba import types

from pullback.cpu.elementary import exp, exp_parts_within, log, per_type, scale_or_flush
from pullback.cpu.emit import inlined
from pullback.cpu.memory import (
    STORAGE,
    as_f64_pointer,
    filled,
    get,
    get_first,
    put,
    put_first,
    read,
    write,
)
from pullback.cpu.tiles import by_type
from pullback.cpu.vector import (
    absolute,
    any_lane,
    is_nan,
    lane,
    like,
    maximum,
    reduce_add,
    reduce_max,
    select,
    splat,
    to_f32,
    to_f64,
)
from pullback.ops.simplex.cpu_candidates import note_places

LANES = 16
CAPACITY = 1024  # candidates of a list
ROOM = CAPACITY + 2 * LANES  # whole vectors are written at its end
LONGEST = 1 << 30  # positions that a list spans: they are int32
INFINITY, NAN = np.inf, np.nan
FEW_STEPS = 4  # among LANES elements: where they lead is only a beginning
STEPS = 64  # a cap: rows of alpha <= 2 take six or so, others twice that
# Of each storage type the relative distance of neighbours, and the absolute one at 0.
STORAGE_DIGITS = {
    types.int16: (2.0**-10, 2.0**-24),
    types.uint16: (2.0**-7, 2.0**-133),
    types.float32: (2.0**-23, 2.0**-149),
    types.float64: (2.0**-50, 2.0**-50),  # the root has rounding errors of its own
}
SERIES = 2.0**-4  # below this, a quotient that cancels is a power series
exp_floor = per_type(-104.0, -746.0)  # e^x rounds to 0 from here on down


def is_double(p) -> bool:
    return STORAGE[p.dtype].compute == types.float64


# --- memory -------------------------------------------------------------------------------------
#
# A cursor on a row is (pointer, index of the first element, step along the axis).


@inlined
def load(at, j, count, fill):
    """LANES elements from position j on in the compute type, `fill` beyond `count`."""
    p, start, along = at
    i = start + j * along
    if count >= LANES:
        return get(p, i, along, LANES)
    return get_first(p, i, along, count, filled(p, fill, LANES))


@by_type
def _narrowed(p, v):
    return (lambda p, v: v) if is_double(p) else (lambda p, v: to_f32(v))


@inlined
def store(at, j, count, v):
    """The first `count` lanes of an f64 vector to position j."""
    p, start, along = at
    i = start + j * along
    if count >= LANES:
        put(p, i, along, _narrowed(p, v), False)
    else:
        put_first(p, i, along, count, _narrowed(p, v))


@by_type
def store_one(p, i, v):
    """One f64 number."""
    if is_double(p):
        return lambda p, i, v: write(p, i, v)
    return lambda p, i, v: write(p, i, np.float32(v))


@inlined
def fill(at, begin, end, value):
    for j in range(begin, end, LANES):
        store(at, j, end - j, splat(value, LANES))


# --- lists of candidates ------------------------------------------------------------------------


@inlined
def note(at, n, begin, cut, places):
    """Where elements are at least `cut`, or NaN, counted from `begin`. Gives how many there are,
    and the position at which the list was full or the row at its end."""
    count, j, last = 0, begin, min(n, begin + LONGEST)
    cuts = filled(at[0], cut, LANES)
    while j < last and count <= CAPACITY - LANES:
        v = load(at, j, n - j, -INFINITY)
        count = note_places(as_f64_pointer(0), places, count, j - begin, v, cuts)
        j += LANES
    end = min(j, n)
    while count > 0 and places[count - 1] >= end - begin:  # what fills the last step is -inf
        count -= 1
    return count, end


@inlined
def fetch(at, begin, places, count, found):
    """The elements at these places."""
    p, start, along = at
    for k in range(count):
        found[k] = read(p, start + (begin + places[k]) * along) * 1.0


@inlined
def scatter(at, begin, places, count, found):
    """And back."""
    p, start, along = at
    for k in range(count):
        store_one(p, start + (begin + places[k]) * along, found[k])


@inlined
def relative(x, top):
    """x - m; the maximum itself is at 0, infinite or not."""
    return select(x == top, 0.0, x - top)


@inlined
def candidates(x, n, begin, cut, top, found, places):
    """List what is at least `cut`, relative to the top; LANES of -inf follow."""
    count, end = note(x, n, begin, cut, places)
    fetch(x, begin, places, count, found)
    for k in range(0, count, LANES):
        put(found, k, 1, relative(get(found, k, 1, LANES), top), False)
    put(found, count, 1, splat(-INFINITY, LANES), False)
    return count, end


@inlined
def survey(x, n):
    """The greatest of each class of positions, and whether there is a NaN."""
    tops = filled(x[0], -INFINITY, LANES)
    nan = is_nan(tops)
    for j in range(0, n, LANES):
        v = load(x, j, n - j, -INFINITY)
        nan = nan | is_nan(v)
        tops = maximum(v, tops)
    return tops, any_lane(nan)


# --- functions of one variable that keep their digits near 0 ------------------------------------


@inlined
def log1p(s):
    u = 1.0 + s
    return select(u == INFINITY, u, log(u) + (s - (u - 1.0)) / u)


@inlined
def expm1(y):
    e = exp(y)
    careful = (e - 1.0) * (y / log(e))
    return select(e == 1.0, y, select(absolute(y) < 1.0, careful, e - 1.0))


@inlined
def shrink(y):
    """(1 - e^-y) / y."""
    near = absolute(y) < SERIES
    series = 1.0 - y * (0.5 - y * (1.0 / 6 - y * (1.0 / 24 - y * (1.0 / 120 - y * (1.0 / 720)))))
    safe = select(near, 1.0, y)
    return select(near, series, (1.0 - exp(-safe)) / safe)


@inlined
def exp_below(x, top):
    """e^(x - top) for x <= top in the compute type; 0 in place of subnormals."""
    power, k = exp_parts_within(maximum(exp_floor(x), relative(x, top)))
    return scale_or_flush(power, k)


@inlined
def exact_exp_below(x, top):
    """The same, and what the difference was rounded by is made up for."""
    e, difference = exp_below(x, top), x - top
    seen = difference - x
    lost = (x - (difference - seen)) - (top + seen)
    return e + select((e == 0) | (x == top), 0.0, e * lost)


# --- the map at a given c -----------------------------------------------------------------------


@inlined
def powers(z, at, beta):
    """u = 1 + b·w (1 at b = 0), p, and ∂p/∂w = p / u; the last two 0 off the support. `at` is the
    root."""
    s = beta * (z - at[0])
    u = 1.0 + s if beta <= 1.0 else at[1] + beta * z
    off = u <= 0
    if beta == 0.0:
        p = exp(z - at[0])
        return like(z, 1.0), p, p
    if beta == 1.0:
        return u, select(off, 0.0, u), select(off, 0.0, like(u, 1.0))
    if beta == 0.5:
        slope = select(off, 0.0, u)
        return u, slope * slope, slope
    inverse = 1.0 / u
    lost = (s - (u - 1.0)) * inverse if beta < 1.0 else like(z, 0.0)
    p = select(off, 0.0, exp((log(u) + lost) * (1.0 / beta)))
    return u, p, select(p == 0, 0.0, p * inverse)


@inlined
def log_base(z, at, beta):
    """log u, on the support."""
    return log1p(beta * (z - at[0])) if beta <= 1.0 else log(at[1] + beta * z)


@inlined
def log_power(z, at, beta):
    """log p, on the support."""
    return z - at[0] if beta == 0.0 else log_base(z, at, beta) * (1.0 / beta)


@inlined
def root_at(t, beta):
    """The root that a search for c, or for -log p of the maximum, has come to."""
    if beta <= 1.0:
        return t, 1.0 - beta * t
    own = splat(-beta * t, 1)
    return lane(-expm1(own), 0) / beta, lane(exp(own), 0)


@by_type
def _slack(p):
    """What the dtype may have rounded off a number, with something to spare."""
    slack = 2.0**-46 if is_double(p) else 2.0**-20
    return lambda p: slack


@inlined
def cut_at(p, top, at, beta):
    """What is less than this is off the support of this root, and of those beyond it."""
    if beta == 0.0:
        return -INFINITY
    if top == INFINITY:
        return top
    return top - at[1] / beta - (abs(top) + 1.0 / beta) * _slack(p)


# --- the root -----------------------------------------------------------------------------------


@inlined
def _sums(found, count, at, beta, sums):
    """Σ p and Σ ∂p/∂w over what is less than the maximum, and how many are equal to it."""
    total, slope, many = sums
    for k in range(0, count, LANES):
        z = get(found, k, 1, LANES)
        _, p, slopes = powers(z, at, beta)
        highest = z == 0
        total = total + select(highest, 0.0, p)
        slope = slope + select(highest, 0.0, slopes)
        many = many + select(highest, like(z, 1.0), 0.0)
    return total, slope, many


@inlined
def _newton(rest, slope, many, t, at, beta):
    """What is beyond 1, and the step of Newton's method."""
    v = splat(-t, 1)  # log p of the maximum
    if beta <= 1.0 and beta != 0.0:
        v = log1p(splat(-beta * t, 1)) * (1.0 / beta)
    short = expm1(v)
    excess = rest + (many - 1.0) * (1.0 + short) + short
    level = log1p(excess)
    own = many * (1.0 + short)
    if beta <= 1.0:
        step = (1.0 + excess) / (slope + own / at[1]) * level * shrink(beta * level)
    else:
        step = (1.0 + excess) / (slope * at[1] + own) * level
    return lane(excess, 0), lane(step, 0)


@by_type
def _enough(p):
    """A step this small beside the whole is the last. A Newton step leaves about its own square to
    go, or as much where the function bends sharply: enough for all dtypes but f64."""
    enough = 2.0**-48 if is_double(p) else 2.0**-30
    return lambda p: enough


@inlined
def _climb(x, n, top, beta, t, listed, cut, steps, found, places):
    """From a t that lies no higher: where the search for it ends, a bound below it, and the list:
    `listed` candidates, or -1 where they do not fit. `cut` is that of t."""
    logs = splat(log(n * 1.0), 1)
    low, high = t * (1.0 - 2.0**-40), lane(logs, 0) * (1.0 + 2.0**-40)
    if beta <= 1.0:
        high = lane(logs * shrink(beta * logs), 0) * (1.0 + 2.0**-40)
    for number in range(steps):
        zero, at = splat(0.0, LANES), root_at(t, beta)
        sums = zero, zero, zero
        begin, count = n if listed >= 0 else 0, listed
        if listed >= 0:
            sums = _sums(found, listed, at, beta, sums)
        while begin < n:
            first = begin == 0
            count, begin = candidates(x, n, begin, cut, top, found, places)
            if first and begin == n:
                listed = count
            sums = _sums(found, count, at, beta, sums)
        total, slope, many = (
            splat(reduce_add(sums[0]), 1),
            splat(reduce_add(sums[1]), 1),
            splat(reduce_add(sums[2]), 1),
        )
        excess, step = _newton(total, slope, many, t, at, beta)
        if excess >= 0:
            low = max(low, t)
        else:
            high = t
        there = t + step
        bisected = there < low or there > high or (number % 4 == 3 and beta > 1)
        if bisected:
            there = (low + high) * 0.5
        moved, t = abs(there - t), there
        if moved <= (2.0**-48 if bisected else _enough(x[0])) * t:
            break
        if listed < 0:
            cut = max(cut, cut_at(x[0], top, root_at(low, beta), beta))
    return t, low, listed, cut


@inlined
def root(x, n, tops, top, beta, found, places):
    """The root of a row without NaN whose top is not -inf; its candidates: how many are listed, or
    -1 where they do not fit; and the cut they are listed by."""
    put(found, 0, 1, relative(to_f64(tops), top), False)
    few = _climb(x, LANES, top, beta, 0.0, LANES, -INFINITY, FEW_STEPS, found, places)
    cut = cut_at(x[0], top, root_at(few[1], beta), beta)
    t, _, listed, cut = _climb(x, n, top, beta, few[1], -1, cut, STEPS, found, places)
    return root_at(t, beta), listed, cut


@inlined
def listed_from(x, n, begin, listed, cut, top, found, places):
    """The list from a position on, if there is one for each: its length, and where it ends."""
    if listed >= 0:
        return listed, n
    return candidates(x, n, begin, cut, top, found, places)


@inlined
def top_of(tops):
    return reduce_max(tops) * 1.0
