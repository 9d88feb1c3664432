"""Exponentials of the rows of a segment, relative to its maximum, and their sum.

A block of rows leaves its maximum m and the sum of e^(x - m), in the wide type. Blocks of long
segments leave them as partial results, which are brought to the common maximum in order. Where x
and m are the same infinity, their difference counts as 0: entries at +inf share the mass equally.
NaN makes the sum NaN, and all that follows from it.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

import math

from numba import types

from pullback.cpu.elementary import exp, log
from pullback.cpu.emit import inlined
from pullback.cpu.memory import as_f32_pointer, as_f64_pointer, filled, get, put
from pullback.cpu.tiles import by_type
from pullback.cpu.vector import absolute, fma, like, maximum, select, splat
from pullback.ops.segment.cpu_extremum import get_part, put_part
from pullback.ops.segment.cpu_list import fetch_listed
from pullback.ops.segment.cpu_strip import as_compute, as_wide, load
from pullback.ops.segment.cpu_sum import finite_rest, nothing, plus, summed
from pullback.ops.segment.cpu_words import BLOCK

INFINITY = math.inf
PARTS = 3  # of a block: the maximum, the sum and its correction
KEPT = BLOCK * 32  # exponentials of a strip of a block


@by_type
def kept_pointer(p):
    """A pointer to the type that p's element is computed in."""
    double = p.dtype == types.float64
    return (lambda p: as_f64_pointer(0)) if double else (lambda p: as_f32_pointer(0))


@by_type
def power(p, x, m):
    """e^(x - m) for x <= m. Rounding x - m would cost digits of the result, so what it loses is
    made up for; f16 and bf16 have none to lose."""

    def rounded(p, x, m):
        return exp(select(x == m, like(x, 0.0), x - m))

    def exact(p, x, m):
        d = x - m
        back = d - x
        lost = (x - (d - back)) - (m + back)
        e = exp(select(x == m, like(x, 0.0), d))
        return select(absolute(lost) < 1.0, fma(e, lost, e), e)  # of infinities NaN is lost

    return exact if p.dtype in (types.float32, types.float64) else rounded


@inlined
def largest(p, places, rows, at, along, count, n):
    """The maximum of each column; NaN is left out."""
    m = filled(p, -INFINITY, n)
    for j in range(rows):
        fetch_listed(p, places, j, at, n)
        m = maximum(load(p, places[j] + at, along, count, n), m)
    return m


@inlined
def keep_powers(p, places, rows, kept, m, at, along, count, n):
    """e^(x - m) of all rows of a block, kept; their sum and its correction."""
    total, rest = nothing(p, n)
    for j in range(rows):
        e = power(p, load(p, places[j] + at, along, count, n), m)
        put(kept, j * n, 1, e, False)
        total, rest = plus(p, total, rest, as_wide(p, e))
    return total, rest


@inlined
def kept_power(kept, j, n):
    return get(kept, j * n, 1, n)


@inlined
def put_sum(task, slot, column, count, m, total, rest):
    put_part(task, PARTS * slot, column, count, m)
    put_part(task, PARTS * slot + 1, column, count, total)
    put_part(task, PARTS * slot + 2, column, count, finite_rest(rest))


@inlined
def combined(task, p, slot, blocks, column, count, n):
    """The maximum and the sum of a long segment, from those of its blocks."""
    m = splat(-INFINITY, n)
    for k in range(slot, slot + blocks):
        m = maximum(get_part(task, PARTS * k, column, count, n), m)
    total, rest = splat(-0.0, n), splat(-0.0, n)
    for k in range(slot, slot + blocks):
        scale = power(as_f64_pointer(0), get_part(task, PARTS * k, column, count, n), m)
        v = get_part(task, PARTS * k + 1, column, count, n)
        total, rest = plus(p, total, rest, v * scale)
        v = get_part(task, PARTS * k + 2, column, count, n)
        total, rest = plus(p, total, rest, v * scale)
    return m, summed(p, total, rest)


@inlined
def put_whole(task, slot, column, count, m, sum):
    """The maximum and the sum of a long segment, in place of those of its first block."""
    put_part(task, PARTS * slot, column, count, m)
    put_part(task, PARTS * slot + 1, column, count, sum)


@inlined
def get_whole(task, p, block, column, count, n):
    """The same again, for one of its blocks."""
    slot = block[5] - (block[2] - block[1]) // BLOCK
    m = get_part(task, PARTS * slot, column, count, n)
    sum = get_part(task, PARTS * slot + 1, column, count, n)
    return as_compute(p, m), as_wide(p, sum)


@inlined
def inverse(m, sum):
    """1 / sum; 0 where all is -inf, which has no mass."""
    return select((m == -INFINITY) & (sum == sum), 0.0, 1.0 / sum)


@inlined
def log_sum(m, sum):
    """log sum; +inf where all is -inf, so that log-probabilities are -inf."""
    return select((m == -INFINITY) & (sum == sum), INFINITY, log(sum))
