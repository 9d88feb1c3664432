"""Passes over a row or a strip of rows, and sums that do not depend on where rows lie.

    each(act, cursors, cells, n, width, L)       act(cursors, left, cells, L) on all elements
    total(term, cursors, cells, n, width, L)     the sum, as f64, of each vector in the tuple that
                                                 term(cursors, left, cells, L) gives
    total_of_two  total_wide                     of two vectors; of one in the wide type
    each_rarely  total_rarely                    the same in less code

Sums have one association: by the position on the axis modulo CLASSES, four terms at a time in their
own type, then in f64. Terms as wide as f64 are added one by one and leave their rounding errors.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable
from functools import reduce

from numba import types

from pullback.cpu.emit import Vec, inlined, op, shuffle
from pullback.cpu.memory import STORAGE, filled, filled_wide
from pullback.cpu.numerics import INFINITY, two_sum
from pullback.cpu.row_steps import CLASSES, LANES, cast, whole_steps
from pullback.cpu.tile_rows import packed
from pullback.cpu.tiles import by_type, moved, stack
from pullback.cpu.vector import absolute, half, like, select, splat, to_f64


def _walk(rare: bool) -> Callable:
    @by_type
    def each(act, cursors, cells, n, width, L):
        def row(act, cursors, cells, n, width, L):
            whole, neighbours = whole_steps(cursors, n)
            for j in range(0, whole, LANES):
                act(moved(cursors, 0, j), (n - j,), cells, 1)
            if neighbours > whole:
                act(moved(cursors, 0, whole), (n - whole, None), cells, 1)
            for j in range(neighbours, n, LANES):
                act(moved(cursors, j, 0), n - j, cells, 1)

        def slowly(act, cursors, cells, n, width, L):
            for j in range(0, n, LANES):
                act(moved(cursors, j, 0), n - j, cells, 1)

        def across(act, cursors, cells, n, width, L):
            for j in range(n):
                act(moved(cursors, j, 0), width, cells, L)

        if L.literal_value > 1:
            return across
        return slowly if rare else row

    return each


each, each_rarely = _walk(False), _walk(True)


# --- sums: pairs of a sum and its rounding errors -----------------------------------------------


@by_type
def _is_f64(p):
    exact = STORAGE[p.dtype].compute == types.float64
    return (lambda p: True) if exact else (lambda p: False)


def _two_sum(b, u, v):
    total = b.fadd(u, v)
    from_v = b.fsub(total, u)
    return total, b.fadd(b.fsub(u, b.fsub(total, from_v)), b.fsub(v, from_v))


@op
def _plus(p: types.CPointer, sums: types.BaseTuple, v: Vec):
    """A sum by classes, with the terms of v."""

    def emit(b, _, sums_, v_):
        total, rest = b.extract_value(sums_, 0), b.extract_value(sums_, 1)
        n = total.type.count
        quarters = [shuffle(b, v_, v_, range(k, k + n)) for k in range(0, v.n, n)]
        if STORAGE[p.dtype].compute == types.float64:
            for quarter in quarters:
                total, error = _two_sum(b, total, quarter)
                rest = b.fadd(rest, error)
        else:
            total = b.fadd(total, cast(b, reduce(b.fadd, quarters), total.type))
        return packed(b, [total, rest])

    return sums(p, sums, v), emit


@by_type
def _joined(p, u, v):
    """The sum of two sums. Terms with fewer digits than their sum leave no errors worth keeping."""

    def exactly(p, u, v):
        total, error = two_sum(u[0], v[0])
        return total, u[1] + v[1] + error

    if STORAGE[p.dtype].compute == types.float64:
        return exactly
    return lambda p, u, v: (u[0] + v[0], u[1])


@inlined
def _closed(sums):
    """A sum with its rounding errors, which mean nothing once it is infinite."""
    return select(absolute(sums[0]) < INFINITY, sums[0] + sums[1], sums[0])


@by_type
def _over_lanes(p, sums):
    """The sum of all classes: the tree that it has across."""
    if sums[0].n == 1:
        return lambda p, sums: _closed(sums)

    def halves(p, sums):
        low = half(sums[0], 0), half(sums[1], 0)
        high = half(sums[0], 1), half(sums[1], 1)
        return _over_lanes(p, _joined(p, low, high))

    return halves


@by_type
def _plus_each(p, sums, terms):
    if len(terms) == 1:
        return lambda p, sums, terms: (_plus(p, sums[0], terms[0]),)
    return lambda p, sums, terms: (_plus(p, sums[0], terms[0]), _plus(p, sums[1], terms[1]))


@by_type
def _over_lanes_each(p, sums):
    if len(sums) == 1:
        return lambda p, sums: (_over_lanes(p, sums[0]),)
    return lambda p, sums: (_over_lanes(p, sums[0]), _over_lanes(p, sums[1]))


# --- the same across ----------------------------------------------------------------------------


@by_type
def _note(p, fours, sums, k, v):
    """Add v to class k: at once, or to its four terms."""

    def at_once(p, fours, sums, k, v):
        sums[k] = _plus(p, sums[k], v)

    def by_fours(p, fours, sums, k, v):
        fours[k] += v

    return at_once if STORAGE[p.dtype].compute == types.float64 else by_fours


@by_type
def _note_each(p, fours, sums, k, terms):
    def one(p, fours, sums, k, terms):
        _note(p, fours, sums, k, terms[0])

    def two(p, fours, sums, k, terms):
        _note(p, fours, sums, k, terms[0])
        _note(p, fours, sums, k + CLASSES, terms[1])

    return one if len(terms) == 1 else two


@by_type
def _closed_each(sums, zero):
    if len(zero) == 1:
        return lambda sums, zero: (_closed(sums[0]),)
    return lambda sums, zero: (_closed(sums[0]), _closed(sums[CLASSES]))


def _totals(filled: Callable, sums: int, rare: bool = False) -> Callable:
    cells, zeros = sums * CLASSES, (0.0,) * sums

    @by_type
    def total(term, cursors, cells_of_term, n, width, L):
        def row(term, cursors, cells_of_term, n, width, L):
            p, zero = cursors[0][0], splat(0.0, CLASSES)
            (whole, neighbours), both = whole_steps(cursors, n), _repeated((zero, zero), zeros)
            for j in range(0, whole, LANES):
                here = moved(cursors, 0, j)
                both = _plus_each(p, both, term(here, (n - j,), cells_of_term, 1))
            if neighbours > whole:
                tail = term(moved(cursors, 0, whole), (n - whole, None), cells_of_term, 1)
                both = _plus_each(p, both, tail)
            for j in range(neighbours, n, LANES):
                both = _plus_each(p, both, term(moved(cursors, j, 0), n - j, cells_of_term, 1))
            return _over_lanes_each(p, both)

        def slowly(term, cursors, cells_of_term, n, width, L):
            p, zero = cursors[0][0], splat(0.0, CLASSES)
            both = _repeated((zero, zero), zeros)
            for j in range(0, n, LANES):
                both = _plus_each(p, both, term(moved(cursors, j, 0), n - j, cells_of_term, 1))
            return _over_lanes_each(p, both)

        def across(term, cursors, cells_of_term, n, width, L):
            p, zero = cursors[0][0], splat(0.0, L)
            fours, found = stack(filled(p, 0.0, L), cells), stack((zero, zero), cells)
            for k in range(cells):
                found[k] = (zero, zero)
            for start in range(0, n, LANES):
                for k in range(cells):
                    fours[k] = like(fours[k], 0.0)
                for j in range(start, min(start + LANES, n)):
                    terms = term(moved(cursors, j, 0), width, cells_of_term, L)
                    _note_each(p, fours, found, j % CLASSES, terms)
                if not _is_f64(p):
                    for k in range(cells):
                        found[k] = (found[k][0] + to_f64(fours[k]), found[k][1])
            reach = CLASSES // 2
            while reach > 0:
                for k in range(reach):
                    for first in range(0, cells, CLASSES):
                        found[first + k] = _joined(p, found[first + k], found[first + k + reach])
                reach //= 2
            return _closed_each(found, zeros)

        if L.literal_value > 1:
            return across
        return slowly if rare else row

    return total


@by_type
def _repeated(zero, times):
    return (lambda zero, times: (zero,)) if len(times) == 1 else (lambda zero, times: (zero, zero))


total, total_of_two, total_wide = _totals(filled, 1), _totals(filled, 2), _totals(filled_wide, 1)
total_rarely = _totals(filled, 1, rare=True)


@inlined
def total_of_two_listed(term, cursors, cells, n, places, found):
    """The sums over a row of neighbours where terms are 0 in all whole steps but those listed."""
    p, zero = cursors[0][0], splat(0.0, CLASSES)
    both, whole = ((zero, zero), (zero, zero)), n - n % LANES
    for k in range(found):
        j = places[k]
        both = _plus_each(p, both, term(moved(cursors, 0, j), (n - j,), cells, 1))
    for j in range(whole, n, LANES):
        both = _plus_each(p, both, term(moved(cursors, 0, j), (n - j, None), cells, 1))
    return _over_lanes_each(p, both)
