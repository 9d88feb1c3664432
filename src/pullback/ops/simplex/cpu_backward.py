"""The adjoints of the simplex maps in Numba: sums over the row, then one step per element.

Cells of a row: what is taken off, in two pieces; its mass; the greatest y, which passes over NaN,
and a sum that shows it. Usual rows, with finite sums and some mass, need no test in the step; any
other row is looked at again and takes the guarded one.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable

import numpy as np
from numba import types

from pullback.cpu.elementary import exp
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer
from pullback.cpu.loops import extent
from pullback.cpu.memory import fence, filled, filled_wide
from pullback.cpu.program import TENSORS
from pullback.cpu.tiles import by_type, spread, stack
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
    to_f64,
)
from pullback.ops.simplex.cpu_exponential import bias_of, floor_of, scaled_exp
from pullback.ops.simplex.cpu_overlap import overlapped, overlapped_sparse
from pullback.ops.simplex.cpu_row_max import max_or_nan, max_with, nan_flagged, no_max, no_nan_flag
from pullback.ops.simplex.cpu_steps import give, is_void, take, take_wide
from pullback.ops.simplex.cpu_traits import GROUP, LANES
from pullback.ops.simplex.cpu_walk import (
    PARTS,
    SPAN,
    SUMS,
    computed,
    each_rarely,
    exists,
    source,
    spots,
    strip,
    target,
    walk,
)

INFINITY, NAN = np.inf, np.nan


@inlined
def closed(sums):
    """A sum with its rounding errors, which mean nothing once it is infinite."""
    return select(absolute(sums[0]) < INFINITY, sums[0] + sums[1], sums[0])


@inlined
def _nothing(at, left, cells, part, L):
    return None


@inlined
def _unknown(sum, cells, part, L):
    return like(sum, NAN)


@inlined
def _greatest_seen(sum, cells, part, L):
    return max_or_nan(cells[3], cells[4], part, L)


def adjoint(
    example: Callable,
    sums: tuple,
    finalize_row: Callable,
    steps: tuple,
    weigh: Callable = _nothing,
    look: Callable = _unknown,
) -> Callable:
    """A kernel body: finalize_row(p, cells, part, sum, sum, greatest y) makes the cells of a row
    from the `sums`, (overlapped, terms) of the type of `example`, and gives the lanes that are
    regular; then steps, plain and guarded, give dx. weigh(...) finds the greatest y of irregular
    rows, if it tells their mass. All take cursors of dy, y and dx, lanes left, cells, part, L."""
    (overlapped, terms), (gradient, careful) = sums, steps

    @inlined
    def plain(at, left, cells, part, L):
        give(at[2], left, gradient(at, left, cells, part, L), L)

    @inlined
    def guarded(at, left, cells, part, L):
        v = careful(at, left, cells, part, L)
        mass = spread(cells[2][part], v)
        v = select(is_nan(v) | is_nan(mass), like(v, NAN), v)  # one NaN, whatever the operands'
        give(at[2], left, select(mass == 0, 0.0, v), L)

    @inlined
    def unseen(p, cells, L):
        """No greatest y, and no nan_flag of any."""
        for part in range(spots(L)):
            cells[3][part], cells[4][part] = no_max(p, L), no_nan_flag(p, L)

    @inlined
    def settled(look, p, cells, sums, width, L):
        """Make the cells; whether all rows are regular."""
        regular = True
        for part in range((width + LANES - 1) // LANES):
            first, second = closed(sums[part]), closed(sums[part + SPAN])
            found = finalize_row(p, cells, part, first, second, look(first, cells, part, L))
            regular = all_lanes(found | ~exists(width - part * LANES, L)) and regular
        return regular

    @inlined
    def run(task, lo, hi, L):
        p, n = pointer(task, TENSORS), extent(walk(task, 3))
        zero, maxima, nan_flags = filled(p, 0.0, L), no_max(p, L), no_nan_flag(p, L)
        fours = stack(example(p, 0.0, LANES), SUMS)
        sums = stack((splat(0.0, L), splat(0.0, L)), SUMS)
        scales = stack(zero, PARTS), stack(zero, PARTS), stack(zero, PARTS)
        cells = (*scales, stack(maxima, spots(L)), stack(nan_flags, spots(L)))
        dy, y, dx = source(task, 3, 0, 0, L), source(task, 3, 1, 0, L), target(task, 3, 0, L)
        owed = 0  # columns of the strip behind that are still to be written
        for item in range(lo, hi + 1):
            row, width = strip(task, 3, min(item, hi - 1), L)
            width = width if item < hi else 0
            next_dy, next_y = source(task, 3, 0, row, L), source(task, 3, 1, row, L)
            unseen(p, cells, L)
            after, widths = (next_dy, next_y), (owed, width)
            overlapped(plain, (dy, y, dx), terms, after, cells, n, widths, fours, sums, L)
            dy, y, dx, owed = next_dy, next_y, target(task, 3, row, L), width
            if not settled(look, p, cells, sums, width, L):
                unseen(p, cells, L)
                each_rarely(weigh, (dy, y), cells, n, width, L)
                settled(_greatest_seen, p, cells, sums, width, L)
                each_rarely(guarded, (dy, y, dx), cells, n, width, L)
                owed = 0
        fence()

    return run


# --- dx = s·(dy - Σ s·dy / Σ s) -----------------------------------------------------------------


@inlined
def _take_off(p, cells, part, mean, mass):
    high, low, masses = cells[:3]
    finite = absolute(mean) < INFINITY
    high[part] = computed(p, mean)
    masses[part] = computed(p, select(finite, 1.0, mass))  # a regular row beside others stays so
    low[part] = computed(p, select(finite, mean - to_f64(high[part]), 0.0))
    return finite


@inlined
def _reduced(dy, cells, part):
    return dy - spread(cells[0][part], dy) - spread(cells[1][part], dy)


# With s = y the mass is 1, or 0 if all y are 0, which only rows with infinite sums need to know.


@inlined
def _softmax_terms(at, left, cells, part, L):
    return take(at[1], left, 0.0, L) * take(at[0], left, 0.0, L), None


@inlined
def _softmax_gradient(at, left, cells, part, L):
    return take(at[1], left, 0.0, L) * _reduced(take(at[0], left, 0.0, L), cells, part)


@inlined
def _finalize_softmax(p, cells, part, product, _, top):
    return _take_off(p, cells, part, product, top)


@inlined
def _weigh(at, left, cells, part, L):
    maxima, nan_flags = cells[3], cells[4]
    size = absolute(take(at[1], left, 0.0, L))
    maxima[part] = max_with(at[1], left, size, maxima[part], L)
    nan_flags[part] = nan_flagged(at[1], left, size, nan_flags[part], L)


softmax = adjoint(
    filled,
    (overlapped, _softmax_terms),
    _finalize_softmax,
    (_softmax_gradient, _softmax_gradient),
    _weigh,
)


def sparse(weight: Callable) -> Callable:
    """The adjoint with s = weight(y), 0 for most y: dy is not read there, nor anything computed in
    steps without others."""

    @inlined
    def terms(at, left, cells, part, L):
        s = weight(take(at[1], left, 0.0, L))
        return select(not_le(s, 0.0), s * take(at[0], left, 0.0, L), 0.0), s

    @inlined
    def gradient(at, left, cells, part, L):
        y = take(at[1], left, 0.0, L)
        if is_void(at[1], left):
            return like(y, 0.0)
        s = weight(y)
        dx = s * _reduced(take(at[0], left, 0.0, L), cells, part)
        return select(not_le(s, 0.0), dx, 0.0)

    return adjoint(filled, (overlapped_sparse, terms), _finalize_sparse, (gradient, gradient))


@inlined
def _finalize_sparse(p, cells, part, product, mass, _):
    return _take_off(p, cells, part, select(mass == 0, 0.0, product / mass), mass)


@inlined
def _membership(y):
    return select(y > 0, 1.0, y * 0)  # NaN stays NaN


@inlined
def _root(y):
    return sqrt(maximum(0.0, y))  # NaN stays NaN


sparsemax = sparse(_membership)
entmax15 = sparse(_root)


# --- dx = dy - e^y·Σ dy -------------------------------------------------------------------------
#
# The exponential comes with a power of two, its inverse with the sum: so it is a normal number, and
# the product does not overflow, where the result does neither. A sum so small that its share of the
# power would make it subnormal goes without: what e^y may lack then is too small to be seen.

SHIFT = 64.0
LARGE = 40.0  # more than any log-probability: e^y·2^SHIFT is finite up to here


@by_type
def least_total(p):
    """The smallest sum that 2^-SHIFT leaves normal."""
    least = 2.0 ** ((-1022 if p.dtype == types.float64 else -126) + SHIFT)
    return lambda p: least


@inlined
def _log_terms(at, left, cells, part, L):
    maxima, nan_flags = cells[3], cells[4]
    y = take(at[1], left, -INFINITY, L)
    maxima[part] = max_with(at[1], left, y, maxima[part], L)
    nan_flags[part] = nan_flagged(at[1], left, y, nan_flags[part], L)
    return take_wide(at[0], left, 0.0, L), None


@inlined
def _log_weigh(at, left, cells, part, L):
    """The same where infinities of both signs may meet."""
    maxima, nan_flags = cells[3], cells[4]
    y = take(at[1], left, -INFINITY, L)
    maxima[part] = max_with(at[1], left, y, maxima[part], L)
    nan_flags[part] = nan_flagged(at[1], left, select(is_nan(y), y, 0.0), nan_flags[part], L)


@inlined
def _finalize_log(p, cells, part, total, _, top):
    scaled, whole, masses = cells[:3]
    scaled[part], whole[part] = computed(p, total * 2.0**-SHIFT), computed(p, total)
    mass = select(is_nan(top), top, select(top == -INFINITY, like(top, 0.0), 1.0))
    masses[part] = computed(p, mass)
    size = absolute(total)
    in_range = (size < INFINITY) & ((size >= least_total(p)) | (size == 0))
    return in_range & (top > -INFINITY) & (top <= LARGE)


@inlined
def _log_gradient(at, left, cells, part, L):
    dy, y = take(at[0], left, 0.0, L), take(at[1], left, 0.0, L)
    shift = like(y, SHIFT)
    power = scaled_exp(at[1][0], y, bias_of(shift), floor_of(shift))
    return fma(-power, spread(cells[0][part], y), dy)


@inlined
def _careful_log_gradient(at, left, cells, part, L):
    dy, y = take(at[0], left, 0.0, L), take(at[1], left, 0.0, L)
    scaled, whole = spread(cells[0][part], y), spread(cells[1][part], y)
    unscaled = (y > LARGE) | (absolute(whole) < least_total(at[1][0]))
    dx = _log_gradient(at, left, cells, part, L)
    dx = select(unscaled, fma(-exp(y), whole, dy), dx)
    # e^y may round to zero; times an infinite sum, what is not zero is infinite.
    endless = dy - select(y > -INFINITY, like(y, 1.0), 0.0) * scaled
    return select(absolute(scaled) == INFINITY, endless, dx)


log_softmax = adjoint(
    filled_wide,
    (overlapped, _log_terms),
    _finalize_log,
    (_log_gradient, _careful_log_gradient),
    _log_weigh,
    _greatest_seen,
)


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


@kernel
def softmax_groups(task, lo, hi):
    softmax(task, lo, hi, GROUP)


@kernel
def log_softmax_groups(task, lo, hi):
    log_softmax(task, lo, hi, GROUP)


@kernel
def sparsemax_groups(task, lo, hi):
    sparsemax(task, lo, hi, GROUP)


@kernel
def entmax15_groups(task, lo, hi):
    entmax15(task, lo, hi, GROUP)
