"""Running sums: y[j] = x[0] + … + x[j]. The backward is the same walk from the far end.

A line is cut into chunks, wherever it lies and whoever computes it: the sum of a chunk is taken on
its own, and `base` is the sum of the chunks before. So a long line can be shared by threads.
"""

import math

from numba import types

from pullback.cpu.chain import is_turn, link_of, pass_on, received, wait_for_turn
from pullback.cpu.emit import Lane, inlined, op
from pullback.cpu.kernel import kernel, pointer, word
from pullback.cpu.memory import STORAGE, fence, filled_wide
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
)
from pullback.cpu.vector import any_lane, is_nan, select
from pullback.ops.scan.cpu_side_by_side import tiles_at

BLOCK = 8
CHUNK = 1 << 15
NAN = math.nan
CELLS = 256


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


@op
def block_of(p: types.CPointer):
    """How many steps one tree covers. Across the axis a tile has as many rows: few enough for a
    cache that holds only eight lines whose addresses are a power of two apart."""
    return literal(4 if STORAGE[p.dtype].wide == types.float64 else 8, p)


@op
def sum_rows(p: types.CPointer, L: Lane):
    """How many steps a tile has."""
    block, along = (4, 16) if STORAGE[p.dtype].wide == types.float64 else (8, 32)
    return literal(along if L.literal_value == 1 else block, p, L)


@by_type
def block_sums(v, L):
    """The sums of each line's steps so far, by doubling."""
    if v.n == 8 * L.literal_value:
        return lambda v, L: sums(v, L)

    def of_four(v, L):
        v += earlier(v, -0.0, 1, L)
        return v + earlier(v, -0.0, 2, L)

    return of_four


@inlined
def running_sum(tiles, state, L):
    total, base = state
    v = block_sums(tiles[0], L)
    return spread(base + total, v) + v, (total + last(v, L), base)


@inlined
def sum_tile(at, place, size, state, L):
    x, y = at
    v = load_wide(x, size, -0.0, sum_rows(x[0], L), L)
    v, state = in_blocks(running_sum, (v,), state, block_of(x[0]), L)
    store_sums(y, size, v, state, L)
    return state


@inlined
def store_sums(y, size, v, state, L):
    # A sum that was NaN stays NaN.
    if any_lane(is_nan(state[0] + state[1])):
        v = one_nan(v)
    store(y, size, v, L)


# Against the order of memory, lanes stay as they lie and the sums are those of the later ones: to
# turn every vector round, there and back, takes longer than to sum it.


@by_type
def block_sums_against(v, L):
    if v.n == 4 * L.literal_value:

        def of_four(v, L):
            v += later(v, -0.0, 1, L)
            return v + later(v, -0.0, 2, L)

        return of_four

    def of_eight(v, L):
        v += later(v, -0.0, 1, L)
        v += later(v, -0.0, 2, L)
        return v + later(v, -0.0, 4, L)

    return of_eight


@inlined
def running_sum_against(tiles, state, L):
    total, base = state
    v = block_sums_against(tiles[0], L)
    return spread(base + total, v) + v, (total + first(v, L), base)


@inlined
def sum_tile_against(at, place, size, state, L):
    x, y = at
    v = load_wide(x, size, -0.0, sum_rows(x[0], L), L)
    v, state = in_blocks_back(running_sum_against, (v,), state, block_of(x[0]), L)
    store_sums(y, size, v, state, L)
    return state


@by_type
def sweep_sums(at, n, lines, states, rows, L):
    """`sum_tile` over n steps; without a look at the strides of every tile where there are none."""
    return _sums_along if L.literal_value == 1 else _sums_across


def _sums_along(at, n, lines, states, rows, L):
    x, y = at
    state, k = states[0], 0
    if x[2] == 1 and y[2] == 1:
        while k + rows <= n:
            here = (x[0], x[1] + k, 1, x[3]), (y[0], y[1] + k, 1, y[3])
            state = sum_tile(here, (k, 0), None, state, L)
            k += rows
    elif x[2] == -1 and y[2] == -1:
        while k + rows <= n:
            low = k + rows - 1
            here = (x[0], x[1] - low, 1, x[3]), (y[0], y[1] - low, 1, y[3])
            state = sum_tile_against(here, (k, 0), None, state, L)
            k += rows
    while k < n:
        state = sum_tile(moved(at, k, 0), (k, 0), (n - k, 1), state, L)
        k += rows
    states[0] = state


def _sums_across(at, n, lines, states, rows, L):
    for k in range(0, n, rows):
        tiles_at(sum_tile, at, k, k + rows, n, lines, states, rows, L)


@inlined
def _cumsum(task, lo, hi, cells, L):
    p, q, n = pointer(task, TENSORS), pointer(task, TENSORS + 1), length(task)
    # -0.0 is what changes no sum: 0.0 would turn a sum of negative zeros positive.
    none = filled_wide(p, -0.0, L)
    states = stack((none, none), cells)
    for item in range(lo, hi):
        line, lines = strip_of(task, item)
        for c in range(0, lines, L):
            states[c // L] = none, none
        at = cursor(task, p, 0, line, L), cursor(task, q, 1, line, L)
        for begin in range(0, n, CHUNK):
            steps = min(CHUNK, n - begin)
            there = moved(at, begin, 0)
            sweep_sums(there, steps, lines, states, sum_rows(p, L), L)
            for c in range(0, lines, L):
                total, base = states[c // L]
                states[c // L] = none, base + total
    fence()


@kernel
def cumsum_along(task, lo, hi):
    _cumsum(task, lo, hi, 1, 1)


@kernel
def cumsum_across(task, lo, hi):
    _cumsum(task, lo, hi, CELLS, lines_across(pointer(task, TENSORS)))


@inlined
def total_tile(at, size, state, L):
    v = load_wide(at[0], size, -0.0, sum_rows(at[0][0], L), L)
    return in_blocks(running_sum, (v,), state, block_of(at[0][0]), L)[1]


@kernel
def cumsum_chained(task, lo, hi):
    """Chunks of a few long lines. Whose base is not known yet sums up its chunk meanwhile, so that
    the chunk after it need not wait for the scan of this one."""
    p, q, n = pointer(task, TENSORS), pointer(task, TENSORS + 1), length(task)
    lines, rows = word(task, STRIP), sum_rows(p, 1)
    none = filled_wide(p, -0.0, 1)
    states = stack((none, none), 1)
    for item in range(lo, hi):
        chunk = item // lines
        line = item - chunk * lines
        link, begin = link_of(task, line), chunk * CHUNK
        steps = min(CHUNK, n - begin)
        at = moved((cursor(task, p, 0, line, 1), cursor(task, q, 1, line, 1)), begin, 0)
        early = begin + steps < n and not is_turn(link, chunk)
        if early:
            states[0] = none, none
            sweep(total_tile, at, steps, 1, states, rows, 0, 0, 1)
        wait_for_turn(link, chunk)
        base = received(link, none) if chunk > 0 else none
        if early:
            pass_on(link, chunk, base + states[0][0])
        states[0] = none, base
        sweep_sums(at, steps, 1, states, rows, 1)
        if not early:
            pass_on(link, chunk, base + states[0][0])
    fence()
