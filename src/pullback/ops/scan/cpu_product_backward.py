"""The gradient of running products: R[j] = dy[j] + x[j+1]·R[j+1], dx[j] = y[j-1]·R[j].

The walk goes from the far end of a line, through the quads of the forward. Before it is known what
comes after a quad, it is known what the quad makes of it:

    c = x[j+4]·R[j+4]   becomes   x[j]·R[j] = p·c + b,   and   R[j+k] = p[k]·c + b[k]

No division: zeros in the input cost nothing. For halves, which save no y, see
cpu_product_halves_backward.
"""

from numba import types

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer
from pullback.cpu.memory import STORAGE, fence, on_stack
from pullback.cpu.program import TENSORS
from pullback.cpu.staging import move_row
from pullback.cpu.sweep import backwards, cursor, length, strip_of, sweep
from pullback.cpu.tile_blocks import in_blocks, opaque
from pullback.cpu.tiles import by_type, first, lines_across, moved, spread, stack
from pullback.cpu.vector import (
    absolute,
    all_lanes,
    any_lane,
    fma,
    is_nan,
    select,
    shift_down,
    shift_up,
    splat,
)
from pullback.ops.scan.cpu_abreast import (
    OUT_BOX,
    abreast_back,
    are_even,
    load_steps,
    one_of,
    store_steps,
    sweep_abreast,
)
from pullback.ops.scan.cpu_panels import in_panels
from pullback.ops.scan.cpu_product import (
    EXACT_STEPS,
    INFINITY,
    WIDTH,
    any_error,
    error_in_range,
    left_range,
    one_nan_each,
    ones,
    rows_of_products,
)
from pullback.ops.scan.cpu_product_halves import multiplied, selected
from pullback.ops.scan.cpu_quads import (
    chained_back,
    load_quads,
    store_quads,
    sweep_quads_back,
)
from pullback.ops.scan.cpu_side_by_side import tiles_at
from pullback.ops.scan.cpu_sum import one_nan
from pullback.ops.scan.cpu_turned import STEPS

SIDE = 2048  # lines of an item across
PITCH = SIDE + 32
CELLS, ROOM = SIDE // 4, STEPS * PITCH
# Lines of f64 that go together: of more, the nearest cache does not hold all that is read at once.
ABREAST = 2


@inlined
def affine(carry, totals):
    p, b = totals
    return fma(p, carry, b)


@inlined
def applied(p, b, c):
    return fma(p[0], c, b[0]), fma(p[1], c, b[1]), fma(p[2], c, b[2]), b[3] + c


@inlined
def parts(v, g):
    """Of each quad p and b, and what they make of x[j]·R[j], from x and dy."""
    b2 = fma(v[3], g[3], g[2])
    b1 = fma(v[2], b2, g[1])
    b0 = fma(v[1], b1, g[0])
    p1 = v[3] * v[2]
    p0 = p1 * v[1]
    return (p0, p1, v[3]), (b0, b1, b2, g[3]), (p0 * v[0], v[0] * b0)


@inlined
def is_affine(totals):
    return absolute(totals[0]) < INFINITY


@inlined
def _recurrence(v, g, later, L):
    """R of each step, and x[j]·R[j] of the first, from x, dy and what comes after the tile."""
    p, b, totals = parts(v, g)
    c, carry = chained_back(affine, later, totals, L)
    r = applied(p, b, c)
    finite = is_affine(totals)
    if not all_lanes(finite):
        # inf · 0 between two factors is no number, though in their places they may never meet:
        # quads with an infinite factor go step by step. What leaves a quad enters the one before
        # it, so that after as many rounds as there are quads all of them are right.
        c = left = spread(later, v[0])
        for _ in range(opaque(WIDTH)):
            r = selected(finite, applied(p, b, c), _step_by_step(v, g, c))
            left = select(finite, affine(c, totals), v[0] * r[0])
            c = _entering(left, later, L)
        carry = first(left, L)
    return r, carry


@inlined
def _step_by_step(v, g, c):
    r3 = g[3] + c
    r2 = g[2] + v[3] * r3
    r1 = g[1] + v[2] * r2
    return g[0] + v[1] * r1, r1, r2, r3


@by_type
def _entering(left, later, L):
    """What enters each quad from the one after it; a single quad has none."""
    if L.literal_value > 1:
        return lambda left, later, L: later
    return lambda left, later, L: shift_down(left, spread(later, left), 1)


@inlined
def gradient_tile(at, place, size, state, L):
    dy, _, x, _, _ = at
    v = load_quads(x, size, ones(L), L)
    r, later = _recurrence(v, load_quads(dy, size, ones(L) * 0.0, L), state[0], L)
    store_gradients(at, place, size, r, L)
    return later, state[1]


@inlined
def store_gradients(at, place, size, r, L):
    _, dx, _, y, begin = at
    before = _before(y, begin + place[0] == 0, size, L)
    out = multiplied(before, r)
    if any_lane(is_nan(out[0]) | is_nan(out[1]) | is_nan(out[2]) | is_nan(out[3])):
        out = one_nan_each(out)
    store_quads(dx, size, out, L)


@inlined
def _before(y, begins, size, L):
    """y[j-1]."""
    p, i, step, streaming = y
    before = p, i if begins else i - step, step, streaming
    if begins:
        return _first_before(before, size, L)
    return load_quads(before, size, ones(L), L)


@by_type
def _first_before(y, size, L):
    """The same where nothing comes before the first step."""
    if L.literal_value > 1:

        def across(y, size, L):
            w = load_quads(y, size, ones(L), L)
            return ones(L), w[0], w[1], w[2]

        return across

    def along(y, size, L):
        w = load_quads(y, size, ones(L), L)
        return shift_up(w[3], 1.0, 1), w[0], w[1], w[2]

    return along


@inlined
def _next_back(tiles, state, kept):
    """One step further on in this walk, and what is rounded off with it."""
    v, g, before = tiles
    later, error = state
    r = g + later
    part = r - g
    error = kept(r, error + ((g - (r - part)) + (later - part)))
    correction = before * error
    corrected = fma(before, r, correction)
    out = select(absolute(correction) < INFINITY, corrected, before * r)
    later = v * r
    return out, (later, kept(later, fma(v, error, fma(v, r, -later))))


@inlined
def _plain(tiles, state, L):
    return _next_back(tiles, state, any_error)


@inlined
def _guarded(tiles, state, L):
    return _next_back(tiles, state, error_in_range)


@inlined
def _gradient_compensated(at, size, state, L):
    dy, dx, x, y = at
    tiles = (
        load_steps(x, size, 1.0, EXACT_STEPS, L),
        load_steps(dy, size, 0.0, EXACT_STEPS, L),
        _one_before(y, size, L),
    )
    v, after = in_blocks(_plain, tiles, state, 1, L)
    if left_range(after):
        v, after = in_blocks(_guarded, tiles, state, 1, L)
    store_steps(dx, size, one_nan(v), L)
    return after


@by_type
def _one_before(y, size, L):
    """The saved y one step further on in this walk."""
    if isinstance(size, types.NoneType):
        return lambda y, size, L: load_steps(moved((y,), 1, 0)[0], None, 1.0, EXACT_STEPS, L)

    def part(y, size, L):
        return load_steps(moved((y,), 1, 0)[0], (size[0] - 1, size[1]), 1.0, EXACT_STEPS, L)

    return part


@by_type
def _sweep_gradients(at, box, n, lines, states, L):
    if STORAGE[at[0][0].dtype].compute == types.float64:
        return _one_by_one
    return _quads_along if L.literal_value == 1 else _quads_across


def _one_by_one(at, box, n, lines, states, L):
    at = at[0], at[1], at[2], at[3]
    sweep(_gradient_compensated, backwards(at, n), n, lines, states, EXACT_STEPS, 0, 1, L)


def _quads_along(at, box, n, lines, states, L):
    sweep_quads_back(gradient_tile, at, n, lines, states, WIDTH, L)


def _quads_across(at, box, n, lines, states, L):
    """Gradients wait on the stack until whole rows are there: see cpu/staging."""
    dy, (p, i, step, streaming), x, y, begin = at
    there = dy, box, x, y, begin
    for k in range((n - 1) // STEPS * STEPS, -1, -STEPS):
        tiles_at(_boxed_tile, there, k, k - STEPS, n, lines, states, STEPS, L)
        for row in range(min(STEPS, n - k)):
            move_row(box, row * PITCH, p, i + (k + row) * step, lines, streaming)


@inlined
def _boxed_tile(at, place, size, state, L):
    dy, box, x, y, begin = at
    boxed = dy, (box, place[1], PITCH, False), x, y, begin
    return gradient_tile(boxed, place, size, state, L)


@by_type
def _cumprod_backward(task, lo, hi, cells, room, L):
    if task.element == types.float64 and L.literal_value == 1:
        return _gradients_abreast
    return _gradients


def _gradients_abreast(task, lo, hi, cells, room, L):
    dy, dx = pointer(task, TENSORS), pointer(task, TENSORS + 1)
    x, y, n = pointer(task, TENSORS + 2), pointer(task, TENSORS + 3), length(task)
    states, box, done = stack((splat(0.0, L), splat(0.0, L)), ABREAST), on_stack(dx, OUT_BOX), 0
    for item in range(lo, hi):
        here = (item - lo) % ABREAST
        if here == 0:
            done, state = 0, (splat(0.0, ABREAST), splat(0.0, ABREAST))
            at = (
                abreast_back(task, dy, 0, item),
                abreast_back(task, dx, 1, item),
                abreast_back(task, x, 2, item),
                abreast_back(task, y, 3, item),
            )
            if _are_even(task, item) and item + ABREAST <= hi:
                done, state = sweep_abreast(_gradient_compensated, at, box, n - 1, state, ABREAST)
            for line in range(ABREAST):
                states[line] = one_of(state, line)
        states[0] = states[here]
        lines = (
            cursor(task, dy, 0, item, L),
            cursor(task, dx, 1, item, L),
            cursor(task, x, 2, item, L),
            cursor(task, y, 3, item, L),
        )
        rest = moved(backwards(lines, n), done, 0)
        sweep(_gradient_compensated, rest, n - done, 1, states, EXACT_STEPS, 0, 1, L)
    fence()


@inlined
def _are_even(task, line):
    return (
        are_even(task, 0, line, ABREAST)
        and are_even(task, 1, line, ABREAST)
        and are_even(task, 2, line, ABREAST)
        and are_even(task, 3, line, ABREAST)
    )


def _gradients(task, lo, hi, cells, room, L):
    dy, dx = pointer(task, TENSORS), pointer(task, TENSORS + 1)
    x, y = pointer(task, TENSORS + 2), pointer(task, TENSORS + 3)
    box = on_stack(dx, room)
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
            0,
        )
        _sweep_gradients(at, box, length(task), lines, states, L)
    fence()


@kernel
def cumprod_backward_along(task, lo, hi):
    _cumprod_backward(task, lo, hi, 1, 1, 1)


@inlined
def _across(task, lo, hi):
    _cumprod_backward(task, lo, hi, CELLS, ROOM, lines_across(pointer(task, TENSORS)))


_in_panels = in_panels(_across, rows_of_products, {0: 0.0, 2: 1.0, 3: 1.0})


@kernel
def cumprod_backward_across(task, lo, hi):
    _in_panels(task, lo, hi)
