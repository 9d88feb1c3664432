"""Running products, carried in f64 for every element.

    forward   y[j] = x[0] · … · x[j]
    backward  R[j] = dy[j] + x[j+1]·R[j+1],  dx[j] = y[j-1]·R[j], walked from the far end

Trees of four f32 or half factors stay inside the range of f64, whatever the factors. f64 has no
such room: its products are taken one by one, and carried with their rounding errors.
"""

import math

from numba import types

from pullback.cpu.emit import I64, Lane, inlined, op
from pullback.cpu.kernel import kernel, pointer, word
from pullback.cpu.memory import STORAGE, as_f64_pointer, fence
from pullback.cpu.program import TENSORS, WORKSPACE
from pullback.cpu.sweep import cursor, length, strip_of, sweep
from pullback.cpu.tile_blocks import in_blocks
from pullback.cpu.tiles import (
    by_type,
    earlier,
    last,
    lines_across,
    literal,
    load,
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
    fma,
    is_nan,
    select,
    splat,
    to_f32,
    to_f64,
)
from pullback.ops.scan.cpu_sum import one_nan

CELLS = 256
# Where y is recomputed: steps whose products wait on the stack, and how many lines fit there.
CHUNK = 256
SIDE = 64
SCRATCH = CHUNK * SIDE
SIDE_CELLS = SIDE // 8
INFINITY = math.inf


@op
def _rows(p: types.CPointer):
    rows = types.literal(1 if STORAGE[p.dtype].compute == types.float64 else 4)
    return rows(p), lambda b, _: I64(rows.literal_value)


@op
def _forward_rows(p: types.CPointer, L: Lane):
    """How many steps a tile of the forward has: several trees of four."""
    along = 16 if STORAGE[p.dtype].wide == types.float64 else 32
    rows = along if L.literal_value == 1 else 8
    return literal(1 if STORAGE[p.dtype].compute == types.float64 else rows, p, L)


@by_type
def _narrowed(p, v):
    """f64 as `store` takes it. Halves go by way of f32, rounded to odd: then the second rounding
    is the only one that counts."""
    if STORAGE[p.dtype].wide == types.float64:
        return lambda p, v: v

    def to_odd(p, v):
        near = to_f32(v)
        error = v - to_f64(near)
        bits = as_int(near)
        inexact = (error < 0) | (error > 0)
        outward = (error < 0) ^ (v < 0)
        moved_on = select(outward, bits - 1, bits + 1)
        return as_float(select(inexact & ((bits & 1) == 0), moved_on, bits))

    return to_odd


@by_type
def products(v, L):
    """The products of each line's steps so far, by doubling."""
    if v.n == L.literal_value:
        return lambda v, L: v

    def of_four(v, L):
        v *= earlier(v, 1.0, 1, L)
        return v * earlier(v, 1.0, 2, L)

    return of_four


@inlined
def finite_or(v, alternative):
    return select(absolute(v) < INFINITY, v, alternative)


@by_type
def product_tile(at, size, state, L):
    x = at[0]
    if STORAGE[x[0].dtype].compute == types.float64:
        return _product_compensated
    return _product_plain


@inlined
def _four_factors(tiles, carry, L):
    v = products(tiles[0], L)
    return spread(carry, v) * v, carry * last(v, L)


def _product_plain(at, size, state, L):
    x, y = at
    carry, error = state
    v = to_f64(load(x, size, 1.0, _forward_rows(x[0], L), L))
    v, carry = in_blocks(_four_factors, (v,), carry, 4, L)
    v = _narrowed(y[0], v)
    # A product that was NaN stays NaN.
    if any_lane(is_nan(carry)):
        v = one_nan(v)
    store(y, size, v, L)
    return carry, error


def _product_compensated(at, size, state, L):
    x, y = at
    carry, error = state
    v = load(x, size, 1.0, 1, L)
    product = carry * v
    error = fma(carry, v, -product) + error * v
    # Where a product left the range, its error is no number.
    error = select((absolute(product) < INFINITY) & (absolute(error) < INFINITY), error, 0.0)
    store(y, size, one_nan(product + error), L)
    return product, error


@inlined
def _cumprod(task, lo, hi, cells, L):
    p, q = pointer(task, TENSORS), pointer(task, TENSORS + 1)
    start = splat(1.0, L), splat(0.0, L)
    states = stack(start, cells)
    for item in range(lo, hi):
        line, lines = strip_of(task, item)
        for c in range(0, lines, L):
            states[c // L] = start
        at = cursor(task, p, 0, line, L), cursor(task, q, 1, line, L)
        sweep(product_tile, at, length(task), lines, states, _forward_rows(p, L), 0, 0, L)
    fence()


@kernel
def cumprod_along(task, lo, hi):
    _cumprod(task, lo, hi, 1, 1)


@kernel
def cumprod_across(task, lo, hi):
    _cumprod(task, lo, hi, CELLS, lines_across(pointer(task, TENSORS)))


# --- backward -----------------------------------------------------------------------------------


@by_type
def recurrence_tile(at, size, state, L):
    x = at[2]
    if STORAGE[x[0].dtype].compute == types.float64:
        return _recurrence_compensated
    return _recurrence_plain


@by_type
def _before(y, before, size, rows, L):
    """y[j-1]: the saved y one step further on in this walk, or what was recomputed for it."""
    if isinstance(y, types.NoneType):
        return lambda y, before, size, rows, L: load(before, size, 1.0, rows, L)
    if isinstance(size, types.NoneType):
        return lambda y, before, size, rows, L: load(moved((y,), 1, 0)[0], None, 1.0, rows, L)

    def up_to_the_start(y, before, size, rows, L):
        return load(moved((y,), 1, 0)[0], (size[0] - 1, size[1]), 1.0, rows, L)

    return up_to_the_start


@inlined
def _any_step(mask, L):
    """Per line, whether any of its four steps is set."""
    mask |= earlier(mask, False, 1, L)
    mask |= earlier(mask, False, 2, L)
    return spread(last(mask, L), mask)


def _recurrence_plain(at, size, state, L):
    """`later` is x[j+1]·R[j+1] of the step before this tile in the walk."""
    dy, dx, x, y, known = at
    later, error = state
    v = to_f64(load(x, size, 1.0, 4, L))
    g = to_f64(load(dy, size, 0.0, 4, L))
    before = to_f64(_before(y, known, size, 4, L))
    a, b = earlier(v, 1.0, 1, L), g
    b = fma(a, earlier(b, 0.0, 1, L), b)
    a *= earlier(a, 1.0, 1, L)
    b = fma(a, earlier(b, 0.0, 2, L), b)
    a *= earlier(a, 1.0, 2, L)
    r = fma(a, spread(later, a), b)
    infinite = ~(absolute(v) < INFINITY)
    if any_lane(infinite):
        # inf · 0 between two factors is no number, though in their places they may never meet.
        one_by_one = g
        for _ in range(4):
            one_by_one = g + earlier(v * one_by_one, spread(later, v), 1, L)
        r = select(_any_step(infinite, L), one_by_one, r)
    store(dx, size, one_nan(_narrowed(dx[0], before * r)), L)
    return last(v, L) * last(r, L), error


def _recurrence_compensated(at, size, state, L):
    dy, dx, x, y, known = at
    later, error = state
    v, g = load(x, size, 1.0, 1, L), load(dy, size, 0.0, 1, L)
    before = _before(y, known, size, 1, L)
    r = g + later
    part = r - g
    error += (g - (r - part)) + (later - part)
    error = select((absolute(r) < INFINITY) & (absolute(error) < INFINITY), error, 0.0)
    correction = before * error
    plain = before * r
    corrected = fma(before, r, correction)
    store(dx, size, one_nan(select(absolute(correction) < INFINITY, corrected, plain)), L)
    later = v * r
    error = fma(v, r, -later) + v * error
    error = select((absolute(later) < INFINITY) & (absolute(error) < INFINITY), error, 0.0)
    return later, error


@inlined
def _cumprod_backward(task, lo, hi, cells, L):
    dy, dx = pointer(task, TENSORS), pointer(task, TENSORS + 1)
    x, y = pointer(task, TENSORS + 2), pointer(task, TENSORS + 3)
    start = splat(0.0, L), splat(0.0, L)
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
        )
        sweep(recurrence_tile, at, length(task), lines, states, _rows(x), 0, 1, L)
    fence()


@kernel
def cumprod_backward_along(task, lo, hi):
    _cumprod_backward(task, lo, hi, 1, 1)


@kernel
def cumprod_backward_across(task, lo, hi):
    _cumprod_backward(task, lo, hi, CELLS, lines_across(pointer(task, TENSORS)))


# --- backward without y: halves ------------------------------------------------------------------


@inlined
def total_tile(at, size, state, L):
    x = at[0]
    v = products(to_f64(load(x, size, 1.0, 4, L)), L)
    return (state[0] * last(v, L),)


@inlined
def before_tile(at, size, state, L):
    """The product of everything before each step."""
    x, before = at
    v = products(to_f64(load(x, size, 1.0, 4, L)), L)
    store(before, size, spread(state[0], v) * earlier(v, 1.0, 1, L), L)
    return (state[0] * last(v, L),)


@inlined
def _cumprod_recomputed(task, lo, hi, cells, L):
    dy, dx, x = pointer(task, TENSORS), pointer(task, TENSORS + 1), pointer(task, TENSORS + 2)
    saved = as_f64_pointer(word(task, WORKSPACE))
    n = length(task)
    chunks = (n + CHUNK - 1) // CHUNK
    one, none = (splat(1.0, L),), (splat(0.0, L), splat(0.0, L))
    totals, states = stack(one, cells), stack(none, cells)
    scratch = stack(1.0, SCRATCH)
    for item in range(lo, hi):
        line, lines = strip_of(task, item)
        xs = (cursor(task, x, 2, line, L),)
        for c in range(0, lines, L):
            totals[c // L] = one
            states[c // L] = none
        # The product before each chunk goes to the workspace; a single chunk needs none.
        for chunk in range(chunks - 1):
            sweep(total_tile, moved(xs, chunk * CHUNK, 0), CHUNK, lines, totals, 4, 0, 0, L)
            here = saved, (line * chunks + chunk * lines), 0, False
            for c in range(0, lines, L):
                there = moved((here,), 0, c)[0]
                store(there, (1, min(L, lines - c)), totals[c // L][0], L)
        for chunk in range(chunks - 1, -1, -1):
            for c in range(0, lines, L):
                if chunk == 0:
                    totals[c // L] = one
                else:
                    there = saved, (line * chunks + (chunk - 1) * lines) + c, 0, False
                    totals[c // L] = (load(there, (1, min(L, lines - c)), 1.0, 1, L),)
            begin = chunk * CHUNK
            steps = min(CHUNK, n - begin)
            before = scratch, 0, lines, False
            sweep(before_tile, (moved(xs, begin, 0)[0], before), steps, lines, totals, 4, 0, 0, L)
            at = moved(
                (cursor(task, dy, 0, line, L), cursor(task, dx, 1, line, L), xs[0]), begin, 0
            )
            there = moved((at[0], at[1], at[2], None, before), steps - 1, 0)
            sweep(recurrence_tile, turned_round(there), steps, lines, states, 4, 0, 0, L)
    fence()


@kernel
def cumprod_recomputed_along(task, lo, hi):
    _cumprod_recomputed(task, lo, hi, 1, 1)


@kernel
def cumprod_recomputed_across(task, lo, hi):
    _cumprod_recomputed(task, lo, hi, SIDE_CELLS, lines_across(pointer(task, TENSORS)))
