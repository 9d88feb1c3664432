"""Running sums: y[j] = x[0] + … + x[j]. The backward is the same walk from the far end.

A line is cut into chunks, wherever it lies and whoever computes it: the sum of a chunk is taken on
its own, and `base` is the sum of the chunks before. So a long line can be shared by threads.
"""

import math

from numba import types

from pullback.cpu.chain import is_turn, link_of, pass_on, received, wait_for_turn
from pullback.cpu.emit import Lane, inlined, op
from pullback.cpu.kernel import kernel, pointer, word
from pullback.cpu.memory import STORAGE, fence, filled_wide, on_stack
from pullback.cpu.program import TENSORS
from pullback.cpu.sweep import STRIP, cursor, length, strip_of, sweep
from pullback.cpu.tile_blocks import in_blocks, in_blocks_back
from pullback.cpu.tiles import (
    by_type,
    earlier,
    first,
    last,
    later,
    lines_across,
    literal,
    load_wide,
    moved,
    spread,
    stack,
    store,
    with_second,
)
from pullback.cpu.vector import absolute, any_lane, half, is_nan, join, select, splat
from pullback.ops.scan.cpu_columns import as_met
from pullback.ops.scan.cpu_fours import LINES, in_fours
from pullback.ops.scan.cpu_octets import both_quads, load_octets, quads, store_octets
from pullback.ops.scan.cpu_pairs import load_pairs, store_pairs, to_block, totals_of, within
from pullback.ops.scan.cpu_panels import in_panels
from pullback.ops.scan.cpu_quads import chained, chained_back
from pullback.ops.scan.cpu_side_by_side import rows_at

BLOCK = 8
CHUNK = 1 << 15
NAN, INFINITY = math.nan, math.inf
SIDE = 2048  # lines of an item across
PITCH = SIDE + 32
CELLS, ROOM = SIDE // 4, 8 * PITCH


@inlined
def sums(v, L):
    """The sums of each line's steps so far, by doubling."""
    v += earlier(v, -0.0, 1, L)
    v += earlier(v, -0.0, 2, L)
    return v + earlier(v, -0.0, 4, L)


@inlined
def one_nan(v):
    """One NaN for all: which of two a machine keeps depends on the order of operands."""
    return select(is_nan(v), NAN, v)


# --- tiles ----------------------------------------------------------------------------------------

# One tree covers four steps, or four pairs of halves. Across the axis a tile has as many rows, few
# enough for a cache that holds only eight lines whose addresses are a power of two apart.
TREE = 4
# Against the order of memory, lanes stay as they lie and the sums are those of the later ones: to
# turn every vector round, there and back, takes longer than to sum it.
AHEAD, BACK = 0, 1


@op
def sum_rows(p: types.CPointer, L: Lane):
    """How many steps a tile has."""
    rows = (16, TREE) if STORAGE[p.dtype].wide == types.float64 else (32, 2 * TREE)
    return literal(rows[L.literal_value > 1], p, L)


# The state of a line: the sum of its chunk so far, the sum of the chunks before, and in f64, which
# nothing wider carries, what was rounded off the first.


@by_type
def nothing(p, L):
    if STORAGE[p.dtype].compute == types.float64:
        return lambda p, L: (splat(-0.0, L), splat(-0.0, L), splat(0.0, L))
    return lambda p, L: (filled_wide(p, -0.0, L), filled_wide(p, -0.0, L))


@by_type
def carried(state):
    """The sum of everything so far."""
    if len(state) == 2:
        return lambda state: state[1] + state[0]

    def corrected(state):
        total, base, error = state
        plain = base + total
        # A zero keeps its sign where nothing is to be added.
        return select(error == 0, plain, plain + error)

    return corrected


@by_type
def added(state, v):
    if len(state) == 2:
        return lambda state, v: (state[0] + v, state[1])

    def compensated(state, v):
        old, base, error = state
        total = old + v
        part = total - old
        lost = (old - (total - part)) + (v - part)
        return total, base, error + select(absolute(lost) < INFINITY, lost, 0.0)

    return compensated


@inlined
def _running_sum(tiles, state, L):
    v = tiles[0]
    v += earlier(v, -0.0, 1, L)
    v += earlier(v, -0.0, 2, L)
    return spread(carried(state), v) + v, added(state, last(v, L))


@inlined
def _running_sum_back(tiles, state, L):
    v = tiles[0]
    v += later(v, -0.0, 1, L)
    v += later(v, -0.0, 2, L)
    return spread(carried(state), v) + v, added(state, first(v, L))


@by_type
def _scanned(tiles, state, way, L):
    if way.literal_value == BACK:
        return lambda tiles, state, way, L: in_blocks_back(_running_sum_back, tiles, state, TREE, L)
    return lambda tiles, state, way, L: in_blocks(_running_sum, tiles, state, TREE, L)


@by_type
def sum_tile(at, size, state, way, L):
    """The sums of a tile; without a second tensor, only the state after it."""
    return SUM_TILES.get(at[0][0].dtype, _sum_steps)


def _sum_steps(at, size, state, way, L):
    x, y = at
    v = load_wide(x, size, -0.0, sum_rows(x[0], L), L)
    v, state = _scanned((v,), state, way, L)
    # A sum that was NaN stays NaN.
    if any_lane(is_nan(carried(state))):
        v = one_nan(v)
    store(y, size, v, L)
    return state


@by_type
def _entering(total, base, totals, way, L):
    """What enters each block, in all its pairs, and the total after them."""
    if totals.n == L.literal_value:
        return lambda total, base, totals, way, L: (to_block(base + total, L), total + totals)
    if way.literal_value == BACK:

        def backwards(total, base, totals, way, L):
            v, total = _entering(total, base, half(totals, 1), way, L)
            u, total = _entering(total, base, half(totals, 0), way, L)
            return join(u, v), total

        return backwards

    def forwards(total, base, totals, way, L):
        u, total = _entering(total, base, half(totals, 0), way, L)
        v, total = _entering(total, base, half(totals, 1), way, L)
        return join(u, v), total

    return forwards


def _sum_pairs(at, size, state, way, L):
    x, y = at
    total, base = state
    even, odd = load_pairs(x, size, -0.0, way, L)
    v = even + odd
    v += within(v, -0.0, 1, way, L)
    v += within(v, -0.0, 2, way, L)
    c, total = _entering(total, base, totals_of(v, way, L), way, L)
    odd = c + v
    even += within(odd, c, 1, way, L)
    if any_lane(is_nan(total + base)):
        store_pairs(y, size, (one_nan(even), one_nan(odd)), way, 0, L)
    else:
        store_pairs(y, size, (even, odd), way, 1, L)
    return total, base


@inlined
def _plus(carry, totals):
    return carry + totals[0]


@by_type
def _in_order(v, way):
    """Columns in the order of memory in that of the walk, and back."""
    if way.literal_value == BACK:
        return lambda v, way: (v[3], v[2], v[1], v[0])
    return lambda v, way: v


@by_type
def _octets_scanned(p, v, total, base, way, L):
    """From the sums of each quad: what enters it, and the total after them."""
    if way.literal_value == BACK:

        def backwards(p, v, total, base, way, L):
            first = quads(p, v, 1, L)
            c, total = chained_back(_plus, total, (first + quads(p, v, 0, L),), L)
            c = spread(base, c) + c
            return both_quads(p, c + first, c, L), total

        return backwards

    def forwards(p, v, total, base, way, L):
        first = quads(p, v, 0, L)
        c, total = chained(_plus, total, (first + quads(p, v, 1, L),), L)
        c = spread(base, c) + c
        return both_quads(p, c, c + first, L), total

    return forwards


def _sum_octets(at, size, state, way, L):
    x, y = at
    total, base = state
    v = _in_order(load_octets(x, size, -0.0, sum_rows(x[0], L), L), way)
    second = v[0] + v[1]
    third = second + v[2]
    fourth = third + v[3]
    c, total = _octets_scanned(x[0], fourth, total, base, way, L)
    v = c + v[0], c + second, c + third, c + fourth
    if any_lane(is_nan(total + base)):
        v = one_nan(v[0]), one_nan(v[1]), one_nan(v[2]), one_nan(v[3])
        store_octets(y, size, _in_order(v, way), 0, L)
    else:
        store_octets(y, size, _in_order(v, way), 1, L)
    return total, base


# bf16 parts into pairs by a shift and a mask; f16 is turned while it is converted.
SUM_TILES = {types.int16: _sum_octets, types.uint16: _sum_pairs}


@by_type
def sweep_sums(at, box, n, lines, states, rows, L):
    """`sum_tile` over n steps; without a look at the strides of every tile where there are none."""
    return _sums_along if L.literal_value == 1 else _sums_across


def _sums_along(at, box, n, lines, states, rows, L):
    x, y = at
    state, k = states[0], 0
    if x[2] == 1 and y[2] == 1:
        while k + rows <= n:
            here = (x[0], x[1] + k, 1, x[3]), (y[0], y[1] + k, 1, y[3])
            state = sum_tile(here, None, state, AHEAD, L)
            k += rows
    elif x[2] == -1 and y[2] == -1:
        while k + rows <= n:
            low = k + rows - 1
            here = (x[0], x[1] - low, 1, x[3]), (y[0], y[1] - low, 1, y[3])
            state = sum_tile(here, None, state, BACK, L)
            k += rows
    while k < n:
        state = sum_tile(moved(at, k, 0), (n - k, 1), state, AHEAD, L)
        k += rows
    states[0] = state


@inlined
def _tile_across(at, place, size, state, L):
    return sum_tile(at, size, state, AHEAD, L)


def _sums_across(at, box, n, lines, states, rows, L):
    for k in range(0, n, rows):
        rows_at(_tile_across, at, box, PITCH, k, n, lines, states, rows, L)


@inlined
def _cumsum(task, lo, hi, cells, room, L):
    p, q, n = pointer(task, TENSORS), pointer(task, TENSORS + 1), length(task)
    box = on_stack(q, room)
    # -0.0 is what changes no sum: 0.0 would turn a sum of negative zeros positive.
    none = nothing(p, L)
    states = stack(none, cells)
    for item in range(lo, hi):
        line, lines = strip_of(task, as_met(task, lo, hi, item))
        for c in range(0, lines, L):
            states[c // L] = none
        at = cursor(task, p, 0, line, L), cursor(task, q, 1, line, L)
        for begin in range(0, n, CHUNK):
            steps = min(CHUNK, n - begin)
            there = moved(at, begin, 0)
            sweep_sums(there, box, steps, lines, states, sum_rows(p, L), L)
            for c in range(0, lines, L):
                states[c // L] = with_second(none, carried(states[c // L]))
    fence()


@kernel
def cumsum_along(task, lo, hi):
    _cumsum(task, lo, hi, 1, 1, 1)


@inlined
def _rows_across(p):
    return sum_rows(p, lines_across(p))


@inlined
def _start_of_four(p):
    return nothing(p, LINES), filled_wide(p, -0.0, LINES)


@inlined
def _four_sums(v, state):
    w, state = _running_sum((join(join(v[0], v[1]), join(v[2], v[3])),), state, LINES)
    if any_lane(is_nan(carried(state))):
        w = one_nan(w)
    early, late = half(w, 0), half(w, 1)
    return (half(early, 0), half(early, 1), half(late, 0), half(late, 1)), state


_in_panels = in_panels(
    lambda task, lo, hi: _cumsum(task, lo, hi, CELLS, ROOM, lines_across(pointer(task, TENSORS))),
    _rows_across,
    {0: -0.0},
    at_once=in_fours(_four_sums, _start_of_four),
)


@kernel
def cumsum_across(task, lo, hi):
    _in_panels(task, lo, hi)


@inlined
def total_tile(at, size, state, L):
    return sum_tile((at[0], None), size, state, AHEAD, L)


@kernel
def cumsum_chained(task, lo, hi):
    """Chunks of a few long lines. Whose base is not known yet sums up its chunk meanwhile, so that
    the chunk after it need not wait for the scan of this one."""
    p, q, n = pointer(task, TENSORS), pointer(task, TENSORS + 1), length(task)
    lines, rows = word(task, STRIP), sum_rows(p, 1)
    none = nothing(p, 1)
    states = stack(none, 1)
    for item in range(lo, hi):
        chunk = item // lines
        line = item - chunk * lines
        link, begin = link_of(task, line), chunk * CHUNK
        steps = min(CHUNK, n - begin)
        at = moved((cursor(task, p, 0, line, 1), cursor(task, q, 1, line, 1)), begin, 0)
        early = begin + steps < n and not is_turn(link, chunk)
        if early:
            states[0] = none
            sweep(total_tile, at, steps, 1, states, rows, 0, 0, 1)
        wait_for_turn(link, chunk)
        base = received(link, none[0]) if chunk > 0 else none[0]
        if early:
            pass_on(link, chunk, carried(with_second(states[0], base)))
        states[0] = with_second(none, base)
        sweep_sums(at, None, steps, 1, states, rows, 1)
        if not early:
            pass_on(link, chunk, carried(states[0]))
    fence()
