"""Rows of entmax in Numba: how they are walked, and the root that makes them sum to 1.

With b = alpha - 1, p = exp_b(w) = max(1 + b·w, 0)^(1/b) of w = x - m - c, where m is the maximum of
the row; exp_b is e^w at b = 0. The root c >= 0 of Σ p = 1 is found by Newton's method on log_b Σ p
= ((Σ p)^b - 1) / b, which is linear in c for softmax and, for alpha <= 2, convex: from c = 0 the
steps climb to the root and never pass it. For alpha > 2 a bracket guards them. The sum is taken
without the maximum, whose own term is 1 + expm1(...): so rows that are nearly one-hot keep the
digits of what is missing to 1.

L = 1 walks one row, LANES positions at a time; L = LANES walks LANES columns side by side. Sums
over a row have LANES partial sums by position modulo LANES, folded in one order: the same bits
either way. Arithmetic is in f64 for every dtype.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

import numpy as np
from numba import types

from pullback.cpu.elementary import exp, log
from pullback.cpu.emit import inlined
from pullback.cpu.memory import (
    STORAGE,
    address,
    as_f64_pointer,
    filled,
    get,
    get_first,
    put,
    put_first,
)
from pullback.cpu.tiles import by_type, spread, stack
from pullback.cpu.vector import (
    absolute,
    any_lane,
    is_nan,
    lane,
    like,
    maximum,
    not_le,
    reduce_add,
    reduce_max,
    select,
    splat,
    to_f32,
    to_f64,
)

LANES = 16
INFINITY, NAN = np.inf, np.nan
STEPS = 64  # a cap: rows of alpha <= 2 take six or so, others twice that
ENOUGH = 2.0**-48  # a step this small beside c is the last
# Of each storage type the relative distance of neighbours, and the absolute one at 0.
STORAGE_DIGITS = {
    types.int16: (2.0**-10, 2.0**-24),
    types.uint16: (2.0**-7, 2.0**-133),
    types.float32: (2.0**-23, 2.0**-149),
    types.float64: (2.0**-50, 2.0**-50),  # the root has rounding errors of its own
}
SERIES = 2.0**-4  # below this, a quotient that cancels is a power series


# --- memory -------------------------------------------------------------------------------------
#
# A cursor is (pointer, index of the first element, step along the axis, step from lane to lane).


@inlined
def cursor(p, start, along, L):
    return p, start, along, along if L == 1 else 1


@inlined
def stride(L):
    """Positions of the axis that one vector takes."""
    return LANES if L == 1 else 1


@inlined
def count_at(n, width, j, L):
    """Lanes that exist from position j on."""
    return n - j if L == 1 else width


@inlined
def load(at, j, count, fill):
    """The lanes at position j in f64, `fill` beyond `count`."""
    p, start, along, apart = at
    i = start + j * along
    if count >= LANES:
        return to_f64(get(p, i, apart, LANES))
    return to_f64(get_first(p, i, apart, count, filled(p, fill, LANES)))


# --- sums over a row ----------------------------------------------------------------------------


@by_type
def partial(L):
    """Partial sums: cells of LANES lanes, one along a row, LANES across columns."""
    if L.literal_value == 1:
        return lambda L: stack(splat(0.0, LANES), 1)
    return lambda L: stack(splat(0.0, LANES), LANES)


@inlined
def clear(cells, L):
    for k in range(1 if L == 1 else LANES):
        cells[k] = splat(0.0, LANES)


@inlined
def add(cells, j, term, L):
    k = 0 if L == 1 else j % LANES
    cells[k] = cells[k] + term


@by_type
def fold(cells, L):
    """The sum of each row, as Vec(L): halves are added to halves."""

    def row(cells, L):
        return splat(reduce_add(cells[0]), 1)

    def columns(cells, L):
        half = LANES // 2
        while half > 0:
            for k in range(half):
                cells[k] = cells[k] + cells[k + half]
            half //= 2
        return cells[0]

    return row if L.literal_value == 1 else columns


@by_type
def _greatest(v, L):
    if L.literal_value == 1:
        return lambda v, L: splat(reduce_max(v), 1)
    return lambda v, L: v


@inlined
def top_of(x, n, width, tops, L):
    """The greatest of each row that is no NaN; to `tops` those of positions modulo LANES."""
    for k in range(1 if L == 1 else LANES):
        tops[k] = splat(-INFINITY, LANES)
    for j in range(0, n, stride(L)):
        k = 0 if L == 1 else j % LANES
        tops[k] = maximum(load(x, j, count_at(n, width, j, L), -INFINITY), tops[k])
    top = tops[0]
    for k in range(1, 1 if L == 1 else LANES):
        top = maximum(tops[k], top)
    return _greatest(top, L)


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


# --- the map at a given c -----------------------------------------------------------------------


@inlined
def relative(x, top, c):
    """w = x - m - c; the maximum itself is at -c, infinite or not."""
    t = spread(top, x)
    return select(x == t, 0.0, x - t) - spread(c, x)


@inlined
def powers(w, beta):
    """u = 1 + b·w (1 at b = 0) and p. All rows of a vector have the same b."""
    b = spread(beta, w)
    s = b * w
    u = 1.0 + s
    same = lane(beta, 0)
    if same == 0.0:
        return like(w, 1.0), exp(w)
    if same == 1.0:
        return u, select(u <= 0, 0.0, u)
    if same == 0.5:
        return u, select(u <= 0, 0.0, u * u)
    return u, select(u <= 0, 0.0, exp((log(u) + (s - (u - 1.0)) / u) / b))


@inlined
def log_power(w, beta):
    """log p, on the support."""
    b = spread(beta, w)
    return select(b == 0, w, log1p(b * w) / b)


@inlined
def in_support(w, beta):
    """Whether any lane may have p > 0, or is NaN."""
    b = spread(beta, w)
    return any_lane(not_le(1.0 + b * w, 0.0) | (b == 0))


@inlined
def _sums(x, n, width, top, c, beta, cells, L):
    """Σ p and Σ ∂p/∂w over what is less than the maximum, and how many are equal to it."""
    total, slope, many = cells
    clear(total, L)
    clear(slope, L)
    clear(many, L)
    for j in range(0, n, stride(L)):
        v = load(x, j, count_at(n, width, j, L), -INFINITY)
        w = relative(v, top, c)
        if in_support(w, beta):
            u, p = powers(w, beta)
            highest = v == spread(top, v)
            add(total, j, select(highest, 0.0, p), L)
            add(slope, j, select(highest | (p == 0), 0.0, p / u), L)
            add(many, j, select(highest, like(v, 1.0), 0.0), L)
    return fold(total, L), fold(slope, L), fold(many, L)


@inlined
def _newton(rest, slope, many, c, beta):
    """What is missing to 1, negated, and the step of Newton's method."""
    v = select(beta == 0, -c, log1p(-beta * c) / beta)
    short = expm1(v)  # p - 1 of the maximum
    excess = rest + (many - 1.0) * (1.0 + short) + short
    own = (1.0 + short) / (1.0 - beta * c)
    level = log1p(excess)
    return excess, (1.0 + excess) / (slope + many * own) * level * shrink(beta * level)


@inlined
def root(x, n, width, top, beta, cells, tops, L):
    """c of each row; NaN if the row holds one. The search begins at the root of the LANES elements
    in `tops`: that of fewer lies no higher, and from there on few others count."""
    few = as_f64_pointer(address(tops)), 0, 1 if L == 1 else LANES, 1
    c = _climb(few, LANES, LANES, top, beta, like(beta, 0.0), cells, L)
    return _climb(x, n, width, top, beta, c, cells, L)


@inlined
def _climb(x, n, width, top, beta, c, cells, L):
    """The root, from a c that lies no higher."""
    logs = log(like(beta, n * 1.0))
    low = like(beta, 0.0)
    high = logs * shrink(beta * logs) * (1.0 + 2.0**-40)
    active = beta == beta
    for k in range(STEPS):
        rest, slope, many = _sums(x, n, width, top, c, beta, cells, L)
        excess, step = _newton(rest, slope, many, c, beta)
        low = select(excess >= 0, maximum(c, low), low)
        high = select(excess < 0, c, high)
        there = c + step
        middle = (low + high) * 0.5
        outside = (there < low) | (there > high)
        if k % 4 == 3:
            outside = outside | (beta > 1)
        there = select(outside, middle, there)
        moved = absolute(there - c)
        c = select(active, there, c)
        active = active & (moved > ENOUGH * c)
        if not any_lane(active):
            break
    return select(is_nan(rest), rest, c)


# --- results ------------------------------------------------------------------------------------


@by_type
def _narrowed(p, v):
    if STORAGE[p.dtype].compute == types.float64:
        return lambda p, v: v
    return lambda p, v: to_f32(v)


@inlined
def store(at, j, count, v):
    """The first `count` lanes of an f64 vector to position j."""
    p, start, along, apart = at
    i = start + j * along
    if count >= LANES:
        put(p, i, apart, _narrowed(p, v), False)
    else:
        put_first(p, i, apart, count, _narrowed(p, v))


@inlined
def store_one(p, i, v):
    """One f64 number."""
    put_first(p, i, 1, 1, _narrowed(p, splat(v, 1)))
