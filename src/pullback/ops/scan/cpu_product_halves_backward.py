"""The gradient of running products of f16 and bf16, which save no y: R[j] = dy[j] + x[j+1]·R[j+1],
dx[j] = y[j-1]·R[j].

A chunk is walked twice: forwards for the product that enters each octet, and for what the octet
makes of sums: what comes after it as c = x·R leaves it as slope·c + offset; then back for the sums.
An octet whose products and sums stay well inside the range of f32 goes in f32, any other step by
step in f64.
"""

import math

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, word
from pullback.cpu.memory import as_f32_pointer, as_f64_pointer, fence, get, on_stack, prefetch, put
from pullback.cpu.numerics import one_nan
from pullback.cpu.program import TENSORS, WORKSPACE
from pullback.cpu.staging import move_row
from pullback.cpu.sweep import cursor, length, strip_of
from pullback.cpu.tile_blocks import in_blocks, in_blocks_back
from pullback.cpu.tiles import by_type, load, moved, spread, stack, store
from pullback.cpu.vector import (
    absolute,
    all_lanes,
    any_lane,
    as_int,
    copysign,
    fma,
    is_nan,
    like,
    maximum,
    select,
    splat,
    to_f32,
    to_f64,
)
from pullback.ops.scan.cpu_octets import (
    OCTET,
    both_quads,
    either_of,
    in_both_quads,
    is_moderate,
    is_modest,
    load_octets,
    octets_to_steps,
    quads,
    steps_to_octets,
    store_octets,
    sweep_octets,
    sweep_octets_back,
)
from pullback.ops.scan.cpu_panels import in_panels
from pullback.ops.scan.cpu_product_halves import (
    LARGE,
    SMALL,
    moderate_lines,
    multiplied,
    next_product,
    products,
    scaled,
    scales,
    times,
)
from pullback.ops.scan.cpu_quads import chained, chained_back
from pullback.ops.scan.recomputed import RECOMPUTED

# How many steps of how many lines are a chunk; across, one has room for its rows on the stack.
CHUNK, CHUNK_ACROSS = 1 << 13, RECOMPUTED
SIDE = 128
PITCH = SIDE + 32
CELLS, ROOM = SIDE // 8, CHUNK_ACROSS * PITCH
SAVED, SAVED_ACROSS = CHUNK // OCTET, CHUNK_ACROSS // OCTET * SIDE

# Products of an octet's steps so far lie from 2^-24 on and below 2^24, dy and what enters the octet
# within 2^-50 and 2^50: no product of them comes near the ends of f32. Bits as in cpu_octets.
_LEAST, _LIMIT = (127 - 24) << 23, (127 + 24) << 23
SHIFT, CALM = (1 << 31) - _LEAST, _LIMIT - _LEAST - (1 << 31)
LEAST_MODEST, LIMIT_MODEST = 2.0**-50, 2.0**50
LINE, AHEAD = 32, 8  # halves of a cache line; rows between a request for memory and its use
INFINITY = math.inf
NOTHING = 2.0**-300  # no such product times a sum is a half


@inlined
def affine(carry, totals):
    p, b = totals
    return fma(p, carry, b)


# --- the products that enter octets ---------------------------------------------------------------


@by_type
def _cell(place, L):
    if L.literal_value > 1:
        return lambda place, L: place[0] // OCTET * SIDE + place[1]
    return lambda place, L: place[0] // OCTET


@inlined
def quads_of(p, v, L):
    return quads(p, v, 0, L), quads(p, v, 1, L)


@inlined
def own_sums(v, g):
    """What a quad makes of nothing: x·R of its first step."""
    return v[0] * fma(v[1], fma(v[2], fma(v[3], g[3], g[2]), g[1]), g[0])


@inlined
def octet_of(slopes, own):
    return slopes[0] * slopes[1], fma(slopes[0], own[1], own[0])


@inlined
def keep(dy, size, v, slope, rows, slopes, offsets, i, L):
    """Slope and offset of octets."""
    g = load_octets(dy, size, 0.0, rows, L)
    whole = octet_of(slope, quads_of(dy[0], own_sums(v, g), L))
    put(slopes, i, 1, whole[0], False)
    put(offsets, i, 1, whole[1], False)


@inlined
def entering_tile(at, place, state, rows, L):
    dy, x, saved, slopes, offsets = at
    if not is_moderate(x, rows, L):
        return False, state
    v, i = load_octets(x, None, 1.0, rows, L), _cell(place, L)
    slope = quads_of(x[0], products(v)[3], L)
    c, carry = chained(times, state[0], (to_f64(slope[0] * slope[1]),), L)
    put(saved, i, 1, c, False)
    keep(dy, None, v, slope, rows, slopes, offsets, i, L)
    return True, (carry,)


@inlined
def entering_octet(at, place, size, state, L):
    dy, x, saved, slopes, offsets = at
    steps, i = load(x, size, 1.0, OCTET, L), _cell(place, L)
    v = steps_to_octets(steps, L)
    slope = quads_of(x[0], products(v)[3], L)
    put(saved, i, 1, state[0], False)
    keep(dy, size, v, slope, OCTET, slopes, offsets, i, L)
    _, after = in_blocks(next_product, (to_f64(steps),), state[0], 1, L)
    moderate_after = times(state[0], (to_f64(slope[0] * slope[1]),))
    return (select(moderate_lines(v, L), moderate_after, after),)


entering_either = either_of(entering_tile, entering_octet)


# --- the way back ---------------------------------------------------------------------------------


@inlined
def before_each(p, v, L):
    """The product of an octet before each step, whether all are calm, and those of the quads."""
    w = products(v)
    slopes = quads_of(p, w[3], L)
    f = both_quads(p, like(slopes[0], 1.0), slopes[0], L)
    before = f, f * w[0], f * w[1], f * w[2]
    places = maximum(
        maximum(_place(before[1]), _place(before[2])), maximum(_place(before[3]), _place(f * w[3]))
    )
    return before, places < CALM, slopes


@inlined
def _place(v):
    return as_int(absolute(v)) + SHIFT


@inlined
def sums(p, v, g, c, slope, own, L):
    """R of each step, given slope and own sum of the second quad."""
    r = to_f32(c)
    r3 = g[3] + both_quads(p, fma(slope, r, own), r, L)
    r2 = fma(v[3], r3, g[2])
    r1 = fma(v[2], r2, g[1])
    return fma(v[1], r1, g[0]), r1, r2, r3


@inlined
def is_modest_sum(c):
    size = absolute(c)
    return (size >= LEAST_MODEST) & (size < LIMIT_MODEST) | (size == 0)


@inlined
def is_in_range(c):
    size = absolute(c)
    return (size >= SMALL) & (size < LARGE) | (size < NOTHING)


@inlined
def multiplied_by(p, c, v, L):
    """By any product c, though f32 may not hold it."""
    there, back = scales(c)
    # A huge product stays finite, for a sum may be zero.
    near = c * there
    huge = (absolute(near) > LARGE) & (absolute(c) < INFINITY)
    u, w = to_f32(select(huge, copysign(like(c, LARGE), c), near)), to_f32(back)
    return scaled(both_quads(p, w, w, L), scaled(both_quads(p, u, u, L), v))


@inlined
def gradient_tile(at, place, state, rows, L):
    dy, dx, x, saved, slopes, offsets = at
    i = _cell(place, L)
    slope, offset = _kept(slopes, i, rows, L), _kept(offsets, i, rows, L)
    c, later = chained_back(affine, state[0], (to_f64(slope), to_f64(offset)), L)
    if not (is_modest(dy, rows, L) and all_lanes(is_modest_sum(c))):
        return False, state
    v, g = load_octets(x, None, 1.0, rows, L), load_octets(dy, None, 0.0, rows, L)
    before, calm, quad_slopes = before_each(x[0], v, L)
    if not all_lanes(calm):
        return False, state
    own = quads(x[0], own_sums(v, g), 1, L)
    out = multiplied(before, sums(x[0], v, g, c, quad_slopes[1], own, L))
    y = _kept(saved, i, rows, L)
    if all_lanes(is_in_range(y)):
        u = to_f32(y)
        out = scaled(both_quads(x[0], u, u, L), out)
    else:
        out = multiplied_by(x[0], y, out, L)
        if any_lane(is_nan(out[0] + out[1]) | is_nan(out[2] + out[3])):
            return False, state
    store_octets(dx, None, out, 1, L)
    return True, (later,)


@by_type
def _kept(p, i, rows, L):
    """What was kept of the octets of a tile."""
    n = rows.literal_value * L.literal_value // OCTET
    return lambda p, i, rows, L: get(p, i, 1, n)


@inlined
def _before(tiles, carry, L):
    return carry, carry * tiles[0]


@inlined
def _step_back(tiles, later, L):
    v, g, before = tiles
    r = g + later
    return before * r, v * r


@inlined
def gradient_octet(at, place, size, state, L):
    dy, dx, x, saved, _, _ = at
    c, y = state[0], _kept(saved, _cell(place, L), OCTET, L)
    x_, g_ = load(x, size, 1.0, OCTET, L), load(dy, size, 0.0, OCTET, L)
    v, g = steps_to_octets(x_, L), steps_to_octets(g_, L)
    before, calm, slope = before_each(x[0], v, L)
    own = quads_of(x[0], own_sums(v, g), L)
    fast = multiplied(before, sums(x[0], v, g, c, slope[1], own[1], L))
    fast = octets_to_steps(multiplied_by(x[0], y, fast, L), L)
    whole = octet_of(slope, own)
    later = affine(c, (to_f64(whole[0]), to_f64(whole[1])))
    v64 = to_f64(x_)
    apart, _ = in_blocks(_before, (v64,), y, 1, L)
    slow, after = in_blocks_back(_step_back, (v64, to_f64(g_), apart), c, 1, L)
    modest = is_modest_sum(g[0]) & is_modest_sum(g[1]) & is_modest_sum(g[2]) & is_modest_sum(g[3])
    well = in_both_quads(calm & modest, L) & is_modest_sum(c)
    store(dx, size, one_nan(select(spread(well, x_), fast, to_f32(slow))), L)
    return (select(well, later, after),)


gradient_either = either_of(gradient_tile, gradient_octet)


# --- kernels --------------------------------------------------------------------------------------


# Rows a power of two apart meet in the same set of the cache, and a chunk is read twice: across the
# axis its rows are moved close together first, and what was dy leaves as dx.


@by_type
def close(cursor, box, steps, lines, L):
    if L.literal_value == 1:
        return lambda cursor, box, steps, lines, L: cursor

    def moved_in(cursor, box, steps, lines, L):
        p, i, step, _ = cursor
        for row in range(steps):
            for c in range(0, lines, LINE):
                prefetch(p, i + (row + AHEAD) * step + c)
            move_row(p, i + row * step, box, row * PITCH, lines, False)
        return moved(((box, 0, PITCH, False),), 0, 0)[0]

    return moved_in


@by_type
def target(dx, dy, L):
    if L.literal_value == 1:
        return lambda dx, dy, L: dx
    return lambda dx, dy, L: dy


@by_type
def move_out(dx, box, steps, lines, L):
    if L.literal_value == 1:
        return lambda dx, box, steps, lines, L: None

    def rows(dx, box, steps, lines, L):
        p, i, step, streaming = dx
        for row in range(steps):
            move_row(box, row * PITCH, p, i + row * step, lines, streaming)

    return rows


@inlined
def _cumprod_recomputed(task, lo, hi, chunk, cells, saved_cells, room, L):
    dy, dx, x = pointer(task, TENSORS), pointer(task, TENSORS + 1), pointer(task, TENSORS + 2)
    kept, narrow = as_f64_pointer(word(task, WORKSPACE)), as_f32_pointer(word(task, WORKSPACE))
    n = length(task)
    chunks = (n + chunk - 1) // chunk
    one, none = (splat(1.0, L),), (splat(0.0, L),)
    carried, states = stack(one, cells), stack(none, cells)
    saved = on_stack(kept, saved_cells)
    slopes, offsets = on_stack(narrow, saved_cells), on_stack(narrow, saved_cells)
    dy_box, x_box = on_stack(dy, room), on_stack(x, room)
    for item in range(lo, hi):
        line, lines = strip_of(task, item)
        for c in range(0, lines, L):
            carried[c // L] = one
            states[c // L] = none
        at = cursor(task, dy, 0, line, L), cursor(task, dx, 1, line, L), cursor(task, x, 2, line, L)
        # Forwards through the chunks, and back: on the way out what enters each chunk goes to the
        # workspace. A single chunk needs none.
        for turn in range(2 * chunks - 1):
            number = min(turn, 2 * (chunks - 1) - turn)
            begin = number * chunk
            steps = min(chunk, n - begin)
            for c in range(0, lines if chunks > 1 else 0, L):
                there = kept, line * chunks + number * lines + c, 0, False
                if turn < chunks:
                    store(there, (1, min(L, lines - c)), carried[c // L][0], L)
                else:
                    carried[c // L] = (load(there, (1, min(L, lines - c)), 1.0, 1, L),)
            here, last = moved(at, begin, 0), turn >= chunks - 1
            x_ = close(here[2], x_box, steps, lines, L)
            # On the way out dy is not wanted yet: x in its place costs no memory.
            dy_ = close(here[0], dy_box, steps, lines, L) if last else x_
            ahead = dy_, x_, saved, slopes, offsets
            sweep_octets(
                entering_tile, entering_octet, entering_either, ahead, steps, lines, carried, L
            )
            if last:
                back = dy_, target(here[1], dy_, L), x_, saved, slopes, offsets
                sweep_octets_back(
                    gradient_tile, gradient_octet, gradient_either, back, steps, lines, states, L
                )
                move_out(here[1], dy_box, steps, lines, L)
    fence()


@kernel
def cumprod_recomputed_along(task, lo, hi):
    _cumprod_recomputed(task, lo, hi, CHUNK, 1, SAVED, 1, 1)


@inlined
def _across(task, lo, hi):
    _cumprod_recomputed(task, lo, hi, CHUNK_ACROSS, CELLS, SAVED_ACROSS, ROOM, 8)


_in_panels = in_panels(_across, OCTET, {0: 0.0, 2: 1.0})


@kernel
def cumprod_recomputed_across(task, lo, hi):
    _in_panels(task, lo, hi)
