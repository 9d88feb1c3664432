"""Running products, carried in f64 for every element: y[j] = x[0] · … · x[j].

Four f32 factors stay inside the range of f64, whatever they are: they go in quads (cpu_quads). f64
has no such room: its products are taken one by one, and carried with their rounding errors. For
halves see cpu_product_halves.
"""

import math

from numba import types

from pullback.cpu.emit import inlined, op
from pullback.cpu.kernel import kernel, pointer
from pullback.cpu.memory import STORAGE, fence, on_stack
from pullback.cpu.program import TENSORS
from pullback.cpu.sweep import cursor, length, strip_of, sweep
from pullback.cpu.tile_blocks import in_blocks
from pullback.cpu.tiles import Pointer, by_type, lines_across, literal, moved, stack
from pullback.cpu.vector import (
    absolute,
    any_lane,
    fma,
    is_nan,
    select,
    splat,
)
from pullback.ops.scan.cpu_abreast import (
    OUT_BOX,
    abreast,
    are_even,
    load_steps,
    one_of,
    store_steps,
    sweep_abreast,
)
from pullback.ops.scan.cpu_fours import LINES, in_fours
from pullback.ops.scan.cpu_octets import OCTET
from pullback.ops.scan.cpu_panels import in_panels
from pullback.ops.scan.cpu_product_halves import cumprod_of_halves, products, scaled, times
from pullback.ops.scan.cpu_quads import (
    chained,
    load_quads,
    store_quads,
    sweep_quads,
)
from pullback.ops.scan.cpu_sum import one_nan

CELLS = 256
WIDTH = 4  # quads of a tile along the axis
EXACT_STEPS = 4  # of a tile of f64
ABREAST = 4  # lines of f64 that go together
INFINITY = math.inf


@by_type
def ones(L):
    """A one for each quad of a tile."""
    if L.literal_value > 1:
        return lambda L: splat(1.0, L)
    return lambda L: splat(1.0, WIDTH)


@inlined
def one_nan_each(v):
    return one_nan(v[0]), one_nan(v[1]), one_nan(v[2]), one_nan(v[3])


# --- forward --------------------------------------------------------------------------------------


@inlined
def product_tile(at, place, size, state, L):
    x, y = at
    v = products(load_quads(x, size, ones(L), L))
    entering, carry = chained(times, state[0], (v[3],), L)
    v = scaled(entering, v)
    # A product that was NaN stays NaN.
    if any_lane(is_nan(carry)):
        v = one_nan_each(v)
    store_quads(y, size, v, L)
    return carry, state[1]


@inlined
def any_error(value, error):
    return error


@inlined
def error_in_range(value, error):
    """Where a number left the range, its error is none."""
    return select((absolute(value) < INFINITY) & (absolute(error) < INFINITY), error, 0.0)


@inlined
def _next(v, state, kept):
    """One factor more, and what is rounded off with it."""
    carry, error = state
    product = carry * v
    error = kept(product, fma(error, v, fma(carry, v, -product)))
    return product + error, (product, error)


@inlined
def _plain(tiles, state, L):
    return _next(tiles[0], state, any_error)


@inlined
def _guarded(tiles, state, L):
    v, state = _next(tiles[0], state, error_in_range)
    return one_nan(v), state


@inlined
def left_range(state):
    """What is not finite stays so: if the last of several states is finite, all were."""
    return any_lane(~(absolute(state[0]) + absolute(state[1]) < INFINITY))


@inlined
def _product_compensated(at, size, state, L):
    x, y = at
    factors = (load_steps(x, size, 1.0, EXACT_STEPS, L),)
    v, after = in_blocks(_plain, factors, state, 1, L)
    if left_range(after):
        v, after = in_blocks(_guarded, factors, state, 1, L)
    store_steps(y, size, v, L)
    return after


@by_type
def _sweep_products(at, n, lines, states, L):
    if STORAGE[at[0][0].dtype].compute == types.float64:

        def one_by_one(at, n, lines, states, L):
            sweep(_product_compensated, at, n, lines, states, EXACT_STEPS, 0, 0, L)

        return one_by_one

    def in_quads(at, n, lines, states, L):
        sweep_quads(product_tile, at, n, lines, states, WIDTH, L)

    return in_quads


@by_type
def _cumprod(task, lo, hi, cells, L):
    storage = STORAGE[task.element]
    if storage.compute == types.float64 and L.literal_value == 1:
        return _cumprod_abreast
    return cumprod_of_halves if storage.wide == types.float32 else _cumprod_wide


def _cumprod_wide(task, lo, hi, cells, L):
    p, q = pointer(task, TENSORS), pointer(task, TENSORS + 1)
    start = splat(1.0, L), splat(0.0, L)
    states = stack(start, cells)
    for item in range(lo, hi):
        line, lines = strip_of(task, item)
        for c in range(0, lines, L):
            states[c // L] = start
        at = cursor(task, p, 0, line, L), cursor(task, q, 1, line, L)
        _sweep_products(at, length(task), lines, states, L)
    fence()


def _cumprod_abreast(task, lo, hi, cells, L):
    p, q, n = pointer(task, TENSORS), pointer(task, TENSORS + 1), length(task)
    states, box, done = stack((splat(1.0, L), splat(0.0, L)), ABREAST), on_stack(q, OUT_BOX), 0
    for item in range(lo, hi):
        here = (item - lo) % ABREAST
        if here == 0:
            done, state = 0, (splat(1.0, ABREAST), splat(0.0, ABREAST))
            at = abreast(task, p, 0, item), abreast(task, q, 1, item)
            even = are_even(task, 0, item, ABREAST) and are_even(task, 1, item, ABREAST)
            if even and item + ABREAST <= hi:
                done, state = sweep_abreast(_product_compensated, at, box, n, state, ABREAST)
            for line in range(ABREAST):
                states[line] = one_of(state, line)
        states[0] = states[here]
        rest = moved((cursor(task, p, 0, item, L), cursor(task, q, 1, item, L)), done, 0)
        sweep(_product_compensated, rest, n - done, 1, states, EXACT_STEPS, 0, 0, L)
    fence()


@kernel
def cumprod_along(task, lo, hi):
    _cumprod(task, lo, hi, 1, 1)


@op
def rows_of_products(p: Pointer):
    """Steps of a tile across: a quad, or of halves an octet."""
    return literal(OCTET if STORAGE[p.dtype].wide == types.float32 else EXACT_STEPS, p)


@inlined
def _start_of_four(p):
    return splat(1.0, LINES), splat(1.0, LINES)


@inlined
def _four_products(v, carry):
    v = products(v)
    entering, carry = chained(times, carry, (v[3],), LINES)
    v = scaled(entering, v)
    if any_lane(is_nan(carry)):
        v = one_nan_each(v)
    return v, carry


_in_panels = in_panels(
    lambda task, lo, hi: _cumprod(task, lo, hi, CELLS, lines_across(pointer(task, TENSORS))),
    rows_of_products,
    {0: 1.0},
    at_once=in_fours(_four_products, _start_of_four),
)


@kernel
def cumprod_across(task, lo, hi):
    _in_panels(task, lo, hi)
