"""The adjoints of the simplex maps in Numba: sums over the row, then one step per element.

Usual rows, with finite sums and some mass, need no test in the step; any other row is looked at
again and takes the guarded one. While a row is written, the next is on its way from memory.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable

import numpy as np
from numba import types

from pullback.cpu.elementary import exp
from pullback.cpu.emit import inlined
from pullback.cpu.numerics import one_nan
from pullback.cpu.row_steps import (
    LANES,
    computed,
    exists,
    give,
    is_void,
    largest,
    nan_of,
    narrowed,
    no_max,
    prefetch_lanes,
    prefetch_step,
    take,
    take_wide,
    to_next,
    whole_steps,
)
from pullback.cpu.row_sums import (
    each,
    each_rarely,
    total,
    total_of_two,
    total_of_two_listed,
    total_wide,
)
from pullback.cpu.rows import row_kernels
from pullback.cpu.tiles import by_type, moved, spread, stack
from pullback.cpu.vector import (
    absolute,
    all_lanes,
    fma,
    is_nan,
    like,
    maximum,
    not_le,
    select,
    sqrt,
    to_f64,
)
from pullback.ops.simplex.cpu_exponential import bias_of, floor_of, scaled_exp

INFINITY, NAN = np.inf, np.nan

# Cells of the steps: what is taken off, in two pieces; the mass of the row; how far to prefetch;
# whether steps whose y are all 0 are left out.


def _writers(gradient: Callable, careful: Callable) -> tuple[Callable, Callable]:
    """Steps that write dx: of usual rows, and of any."""

    @inlined
    def plain(at, left, cells, L):
        prefetch_step(at[1], cells[3], L)
        if not cells[4]:
            prefetch_step(at[0], cells[3], L)
        give(at[2], left, gradient(at, left, cells, L), L)

    @inlined
    def guarded(at, left, cells, L):
        v = careful(at, left, cells, L)
        mass = spread(cells[2], v)
        v = one_nan(select(is_nan(mass), like(v, NAN), v))
        give(at[2], left, select(mass == 0, 0.0, v), L)

    return plain, guarded


# --- the greatest of a row, and whether it has a NaN --------------------------------------------
#
# Cells: the greatest by lanes, which passes over NaN, and any NaN by lanes.


@inlined
def _note_size(cells, v, L):
    maxima, nans = cells
    maxima[0] = maximum(narrowed(v, L), maxima[0])
    nans[0] = nan_of(v, nans[0])


@inlined
def _no_sizes(p, L):
    none = no_max(p, L)
    maxima, nans = stack(none, 1), stack(none, 1)
    maxima[0], nans[0] = none, none
    return maxima, nans


@inlined
def _largest_or_nan(cells, L):
    nan, top = largest(cells[1][0], L), largest(cells[0][0], L)
    return select(is_nan(nan), nan, top)


@inlined
def _see_size(at, left, cells, L):
    _note_size(cells, absolute(take(at[0], left, 0.0, L)), L)


# --- dx = s·(dy - Σ s·dy / Σ s) -----------------------------------------------------------------


@inlined
def _taken_off(p, mean):
    high = computed(p, mean)
    low = computed(p, select(absolute(mean) < INFINITY, mean - to_f64(high), 0.0))
    return high, low


@inlined
def _reduced(dy, cells):
    return dy - spread(cells[0], dy) - spread(cells[1], dy)


@inlined
def _product(at, left, cells, L):
    return (take(at[1], left, 0.0, L) * take(at[0], left, 0.0, L),)


@inlined
def _softmax_gradient(at, left, cells, L):
    return take(at[1], left, 0.0, L) * _reduced(take(at[0], left, 0.0, L), cells)


_write_softmax, _write_any_softmax = _writers(_softmax_gradient, _softmax_gradient)


@inlined
def softmax(at, n, width, L):
    """With s = y the mass is 1, or 0 if all y are 0, which only rows with infinite sums need to
    know."""
    dy, y, _ = at
    p, (mean,) = dy[0], total(_product, (dy, y), None, n, width, L)
    (high, low), finite = _taken_off(p, mean), absolute(mean) < INFINITY
    if all_lanes(finite | ~exists(width, L)):
        cells = high, low, high, to_next(y, n), False
        each(_write_softmax, at, cells, n, width, L)
    else:
        # a regular row beside others stays so
        sizes = _no_sizes(p, L)
        each_rarely(_see_size, (y,), sizes, n, width, L)
        mass = select(finite, 1.0, _largest_or_nan(sizes, L))
        each_rarely(_write_any_softmax, at, (high, low, computed(p, mass)), n, width, L)


# Elements of a row from which on it pays to leave out steps whose y are all 0.
# Gain (steps with support found first): entmax15 backward 256x32000 f32 1.65.
SKIPPED, LONGEST = 4096, 1 << 17
STEPS = LONGEST // LANES


@by_type
def _sums(terms, at, n, width, skips, L):
    """Sums of two terms over each row. Steps that are not left out are found first, so that what
    they need of dy is on its way."""

    def row(terms, at, n, width, skips, L):
        places, found, (whole, _) = stack(0, STEPS), 0, whole_steps(at, n)
        if whole == 0 or not skips:  # a row that is not of neighbours has no whole steps
            return total_of_two(terms, at, None, n, width, 1)
        for j in range(0, whole, LANES):
            dy, y = moved(at, 0, j)
            if not is_void(y, (n - j,)):
                places[found] = j
                found += 1
                prefetch_lanes(dy, 0)
        return total_of_two_listed(terms, at, None, n, places, found)

    def across(terms, at, n, width, skips, L):
        return total_of_two(terms, at, None, n, width, L)

    return row if L.literal_value == 1 else across


def sparse(weight: Callable) -> Callable:
    """The adjoint with s = weight(y), 0 for most y: dy has no influence there."""

    @inlined
    def terms(at, left, cells, L):
        y = take(at[1], left, 0.0, L)
        s = weight(y)
        return select(not_le(s, 0.0), s * take(at[0], left, 0.0, L), 0.0), s

    @inlined
    def gradient(at, left, cells, L):
        y = take(at[1], left, 0.0, L)
        if cells[4] and is_void(at[1], left):
            return like(y, 0.0)
        s = weight(y)
        dx = s * _reduced(take(at[0], left, 0.0, L), cells)
        return select(not_le(s, 0.0), dx, 0.0)

    plain, guarded = _writers(gradient, gradient)

    @inlined
    def adjoint(at, n, width, L):
        dy, y, _ = at
        p, skips = dy[0], SKIPPED <= n <= LONGEST and L == 1
        product, mass = _sums(terms, (dy, y), n, width, skips, L)
        mean = select(mass == 0, 0.0, product / mass)
        (high, low), finite = _taken_off(p, mean), absolute(mean) < INFINITY
        cells = high, low, computed(p, select(finite, 1.0, mass)), to_next(y, n), skips
        if all_lanes(finite | ~exists(width, L)):
            each(plain, at, cells, n, width, L)
        else:
            each_rarely(guarded, at, cells, n, width, L)

    return adjoint


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
# power would make it subnormal goes without: what e^y may lack then is too small to be seen. Cells:
# the sum with that share, and without.

SHIFT = 64.0
LARGE = 40.0  # more than any log-probability: e^y·2^SHIFT is finite up to here


@by_type
def least_total(p):
    """The smallest sum that 2^-SHIFT leaves normal."""
    least = 2.0 ** ((-1022 if p.dtype == types.float64 else -126) + SHIFT)
    return lambda p: least


@inlined
def _dy(at, left, cells, L):
    _note_size(cells, take(at[1], left, -INFINITY, L), L)
    return (take_wide(at[0], left, 0.0, L),)


@inlined
def _log_gradient(at, left, cells, L):
    dy, y = take(at[0], left, 0.0, L), take(at[1], left, 0.0, L)
    shift = like(y, SHIFT)
    power = scaled_exp(at[1][0], y, bias_of(shift), floor_of(shift))
    return fma(-power, spread(cells[0], y), dy)


@inlined
def _careful_log_gradient(at, left, cells, L):
    dy, y = take(at[0], left, 0.0, L), take(at[1], left, 0.0, L)
    scaled, whole = spread(cells[0], y), spread(cells[1], y)
    unscaled = (y > LARGE) | (absolute(whole) < least_total(at[1][0]))
    dx = _log_gradient(at, left, cells, L)
    dx = select(unscaled, fma(-exp(y), whole, dy), dx)
    # e^y may round to zero; times an infinite sum, what is not zero is infinite.
    endless = dy - select(y > -INFINITY, like(y, 1.0), 0.0) * scaled
    return select(absolute(scaled) == INFINITY, endless, dx)


_write_log, _write_any_log = _writers(_log_gradient, _careful_log_gradient)


@inlined
def log_softmax(at, n, width, L):
    dy, y, _ = at
    p, sizes = dy[0], _no_sizes(dy[0], L)
    (whole,) = total_wide(_dy, (dy, y), sizes, n, width, L)
    top = _largest_or_nan(sizes, L)
    mass = select(is_nan(top), top, select(top == -INFINITY, like(top, 0.0), 1.0))
    size = absolute(whole)
    in_range = (size < INFINITY) & ((size >= least_total(p)) | (size == 0))
    regular = in_range & (top > -INFINITY) & (top <= LARGE)
    scaled = computed(p, whole * 2.0**-SHIFT)
    cells = scaled, computed(p, whole), computed(p, mass), to_next(y, n), False
    if all_lanes(regular | ~exists(width, L)):
        each(_write_log, at, cells, n, width, L)
    else:
        each_rarely(_write_any_log, at, cells, n, width, L)


SOFTMAX = row_kernels(softmax, 3, "softmax", __name__)
LOG_SOFTMAX = row_kernels(log_softmax, 3, "log_softmax", __name__)
SPARSEMAX = row_kernels(sparsemax, 3, "sparsemax", __name__)
ENTMAX15 = row_kernels(entmax15, 3, "entmax15", __name__)
