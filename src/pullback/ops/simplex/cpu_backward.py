"""The adjoints of the simplex maps in Numba: sums over the row, then one step per element.

Cells of a row: the mean that is taken off, its mass, the greatest y. Where the mean is finite and
there is mass, the plain step needs no test; any other row takes the guarded one.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable

import numpy as np

from pullback.cpu.elementary import exp
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer
from pullback.cpu.loops import extent
from pullback.cpu.memory import fence, filled, filled_wide
from pullback.cpu.program import TENSORS
from pullback.cpu.tiles import spread, stack
from pullback.cpu.vector import (
    absolute,
    all_lanes,
    fma,
    is_nan,
    like,
    maximum,
    not_le,
    select,
    splat,
    sqrt,
)
from pullback.ops.simplex.cpu_walk import (
    LANES,
    PARTS,
    SPAN,
    SUMS,
    computed,
    each,
    exists,
    give,
    greatest,
    source,
    strip,
    take,
    take_wide,
    target,
    total,
    walk,
    widened,
)

INFINITY, NAN = np.inf, np.nan


@inlined
def closed(sums):
    """A sum with its rounding errors, which mean nothing once it is infinite."""
    return select(absolute(sums[0]) < INFINITY, sums[0] + sums[1], sums[0])


def adjoint(terms: Callable, settle: Callable, gradient: Callable) -> Callable:
    """A kernel body: settle(sums, sums, greatest y) gives mean and mass of a row from the sums of
    terms(...), then gradient(...) its dx, in the wide type. Both are steps: cursors of dy, y and
    dx, lanes left, cells, part, L."""

    @inlined
    def plain(at, left, cells, part, L):
        give(at[2], left, gradient(at, left, cells, part, L), L)

    @inlined
    def guarded(at, left, cells, part, L):
        v = gradient(at, left, cells, part, L)
        mass = spread(cells[1][part], v)
        v = select(is_nan(v) | is_nan(mass), like(v, NAN), v)  # one NaN, whatever the operands'
        give(at[2], left, select(mass == 0, 0.0, v), L)

    @inlined
    def run(task, lo, hi, L):
        p, n = pointer(task, TENSORS), extent(walk(task, 3))
        zero, none = filled_wide(p, 0.0, LANES), filled(p, -INFINITY, LANES)
        fours, sums = stack(zero, SUMS), stack((splat(0.0, L), splat(0.0, L)), SUMS)
        means, masses = stack(filled_wide(p, 0.0, L), PARTS), stack(filled_wide(p, 0.0, L), PARTS)
        tops = stack(none, PARTS)
        cells = means, masses, tops
        for item in range(lo, hi):
            row, width = strip(task, 3, item)
            dy, y, dx = source(task, 3, 0, row), source(task, 3, 1, row), target(task, 3, row)
            for part in range(PARTS):
                tops[part] = none
            total(terms, (dy, y), cells, n, width, fours, sums, L)
            finite = True
            for part in range((width + LANES - 1) // LANES):
                mean, mass = settle(
                    closed(sums[part]),
                    closed(sums[part + SPAN]),
                    greatest(tops[part], L),
                )
                means[part], masses[part] = widened(p, mean), widened(p, mass)
                usual = (absolute(mean) < INFINITY) & (mass > 0)
                finite = finite and all_lanes(usual | ~exists(width - part * LANES, L))
            if finite:
                each(plain, (dy, y, dx), cells, n, width, L)
            else:
                each(guarded, (dy, y, dx), cells, n, width, L)
        fence()

    return run


# --- dx = s·(dy - Σ s·dy / Σ s) -----------------------------------------------------------------


def weighted(weight: Callable, only: Callable, settle: Callable) -> Callable:
    """The adjoint with s = weight(y); only(s, v) drops what must not be read where s is 0."""

    @inlined
    def terms(at, left, cells, part, L):
        s = widened(at[1][0], weight(take(at[1], left, 0.0, L)))
        return only(s, s * take_wide(at[0], left, 0.0, L)), s

    @inlined
    def gradient(at, left, cells, part, L):
        s = widened(at[1][0], weight(take(at[1], left, 0.0, L)))
        return only(s, s * (take_wide(at[0], left, 0.0, L) - spread(cells[0][part], s)))

    return adjoint(terms, settle, gradient)


@inlined
def _probability(y):
    return y


@inlined
def _membership(y):
    return select(y > 0, 1.0, y * 0)  # NaN stays NaN


@inlined
def _root(y):
    return sqrt(maximum(0.0, y))  # NaN stays NaN


@inlined
def _everywhere(s, v):
    return v


@inlined
def _on_support(s, v):
    return select(not_le(s, 0.0), v, 0.0)


@inlined
def _sum(product, mass, top):
    return product, mass


@inlined
def _mean(product, mass, top):
    return select(mass == 0, 0.0, product / mass), mass


softmax = weighted(_probability, _everywhere, _sum)
sparsemax = weighted(_membership, _on_support, _mean)
entmax15 = weighted(_root, _on_support, _mean)


# --- dx = dy - e^y·Σ dy -------------------------------------------------------------------------


@inlined
def _log_terms(at, left, cells, part, L):
    tops = cells[2]
    y = take(at[1], left, -INFINITY, L)
    tops[part] = select(is_nan(y), y, maximum(y, tops[part]))  # NaN, once in, stays
    return take_wide(at[0], left, 0.0, L), None


@inlined
def _log_mass(total, _, top):
    mass = select(top == -INFINITY, like(top, 0.0), 1.0)
    return total, select(is_nan(top), top, mass)


@inlined
def _log_gradient(at, left, cells, part, L):
    p = at[1][0]
    power = exp(take(at[1], left, 0.0, L))
    total = spread(computed(p, cells[0][part]), power)
    return widened(p, fma(-power, total, take(at[0], left, 0.0, L)))


log_softmax = adjoint(_log_terms, _log_mass, _log_gradient)


# --- kernels ------------------------------------------------------------------------------------


@kernel
def softmax_rows(task, lo, hi):
    softmax(task, lo, hi, 1)


@kernel
def softmax_columns(task, lo, hi):
    softmax(task, lo, hi, LANES)


@kernel
def log_softmax_rows(task, lo, hi):
    log_softmax(task, lo, hi, 1)


@kernel
def log_softmax_columns(task, lo, hi):
    log_softmax(task, lo, hi, LANES)


@kernel
def sparsemax_rows(task, lo, hi):
    sparsemax(task, lo, hi, 1)


@kernel
def sparsemax_columns(task, lo, hi):
    sparsemax(task, lo, hi, LANES)


@kernel
def entmax15_rows(task, lo, hi):
    entmax15(task, lo, hi, 1)


@kernel
def entmax15_columns(task, lo, hi):
    entmax15(task, lo, hi, LANES)
