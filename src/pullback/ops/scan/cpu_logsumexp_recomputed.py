"""The backward of the running log-sum-exp of f16 and bf16, whose y is too coarse to read.

The sums of the forward are taken again: through a chunk ahead, a group of tiles at a time, keeping
e^x and the sum that enters each block; then back, last group first. With s·2^k the sum at a step,

    T[j] = dy[j] / s[j] + T[j+1],  dx[j] = e^x[j]·2^-k·T[j]

in f32 inside a block, and from block to block in f64. 1/s is scaled to about one at the end of the
group, so that dy decides what fits. A group that is not usual goes block by block as pairs.
"""

import numpy as np

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, word
from pullback.cpu.memory import advance, as_f32_pointer, as_f64_pointer, fence, filled_wide
from pullback.cpu.program import TENSORS, WORKSPACE
from pullback.cpu.sweep import cursor, length, strip_of
from pullback.cpu.tile_blocks import block_by_block
from pullback.cpu.tiles import (
    by_type,
    last,
    lines_across,
    load,
    load_wide,
    moved,
    spread,
    stack,
    store,
    turned_round,
)
from pullback.cpu.vector import (
    absolute,
    all_lanes,
    any_lane,
    half,
    join,
    like,
    maximum,
    not_le,
    to_f32,
    to_f64,
)
from pullback.ops.scan.cpu_columns import (
    GROUPS,
    READ,
    STEPS,
    ask_for,
    ask_to_write,
    cell_of,
    columns_rows,
    group_at,
    load_columns,
    mirrored,
    over,
    running,
    store_columns,
    zero_tile,
)
from pullback.ops.scan.cpu_decay_pairs import first_state, moving, unusual_decay_tile, weighted
from pullback.ops.scan.cpu_decays import any_faint, fits
from pullback.ops.scan.cpu_exponents import exp_near, ln2, parts, power
from pullback.ops.scan.cpu_logsumexp import (
    below,
    entering,
    start_of,
    state_of,
    unusual_log_sum_tile,
)
from pullback.ops.scan.cpu_quads import common_step
from pullback.ops.scan.recomputed import RECOMPUTED

# Steps to a chunk, along and across, and how many lines lie side by side there.
ALONG, ACROSS, SIDE = 4096, RECOMPUTED, 64
TILES_ALONG, TILES_ACROSS = ALONG // 64, ACROSS // STEPS * GROUPS
HALVES_ALONG, HALVES_ACROSS = 2 * TILES_ALONG, 2 * TILES_ACROSS
ALL_GROUPS = 2 + ACROSS // STEPS  # of a chunk; along there are fewer
KEPT = ALL_GROUPS * GROUPS
SCRATCH = (GROUPS * 64 + 1) * 8
HUGE, TINY = 2.0**100, 2.0**-100  # what is between them stays a normal number in a product


# --- groups ---------------------------------------------------------------------------------------


@by_type
def group_size(p, left, L):
    """How many steps the next group has: of whole tiles, or what is left."""
    if L.literal_value > 1:
        return lambda p, left, L: min(left, STEPS)

    def whole_tiles(p, left, L):
        rows = columns_rows(lines_across(p), L)
        return left if left < rows else min(left // rows, GROUPS) * rows

    return whole_tiles


@by_type
def tiles_in(at, size, lines, L):
    """How many whole tiles a group of so many steps has, if it lies well."""
    if L.literal_value > 1:
        return lambda at, size, lines, L: lines // L if size == STEPS else 0
    return lambda at, size, lines, L: (
        size // columns_rows(lines_across(at[2][0]), L) if common_step(at) != 0 else 0
    )


@by_type
def lines_in(tiles, lines, L):
    """How many lines these tiles cover."""
    if L.literal_value > 1:
        return lambda tiles, lines, L: tiles * L
    return lambda tiles, lines, L: lines


# --- ahead ----------------------------------------------------------------------------------------


@inlined
def weights_of_blocks(at, tiles, here, states, rooms, L):
    """e^x·2^-k and the sums of blocks, if all is usual. The group's tiles are those from `here` on
    in the rooms."""
    dy, _, x = at
    p, W = x[0], lines_across(x[0])
    weights, _, totals, _ = rooms
    for g in range(tiles):
        ask_for(group_at((x,), g, W, L)[0], g, READ, W, L)
        _, _, k, top, _ = states[cell_of(g, L)]
        v = load_columns(group_at((x,), g, W, L)[0], W, L)
        if any_lane(not_le(v, spread(top, v))):
            return False
        v = maximum(v, spread(k * ln2(k) + below(k), v))
        t = here + g
        weights[2 * t], weights[2 * t + 1] = half(v, 0), half(v, 1)
    for g in range(tiles):
        ask_for(group_at((dy,), g, W, L)[0], g, READ, W, L)
        k = states[cell_of(g, L)][2]
        t = here + g
        for h in range(2):
            v = weights[2 * t + h]
            e = exp_near(p, v, spread(k, v))
            weights[2 * t + h] = e
            e += over(e, -0.0, 1, W)
            e += over(e, -0.0, 2, W)
            s = last(e, W)
            totals[t] = s if h == 0 else totals[t] + s
    return True


@inlined
def sums_before(p, tiles, here, states, rooms, L):
    _, _, totals, entered = rooms
    for g in range(tiles):
        s, low, k, top, peak = states[cell_of(g, L)]
        before, _, (s, low) = entering(p, s, low, totals[here + g], L)
        entered[here + g] = to_f32(before)
        states[cell_of(g, L)] = s, low, k, top, peak


@inlined
def ahead(at, steps, lines, states, kept, usual, starts, rooms, L):
    """Through a chunk; the states before its groups are kept. Gives how many groups there are.
    `usual` says for how many lines a group is usual."""
    p = at[2][0]
    k = groups = 0
    while k < steps:
        for c in range(0, lines, L):
            kept[groups * GROUPS + c // L] = states[c // L]
        size, here = group_size(p, steps - k, L), moved(at, k, 0)
        tiles = tiles_in(at, size, lines, L)
        done = 0
        if tiles > 0 and weights_of_blocks(here, tiles, groups * GROUPS, states, rooms, L):
            sums_before(p, tiles, groups * GROUPS, states, rooms, L)
            done = lines_in(tiles, lines, L)
        for c in range(done, lines, L):
            x = moved(here, 0, c)[2], None, None, None
            there = size, min(L, lines - c)
            states[c // L] = block_by_block(
                unusual_log_sum_tile, x, there, states[c // L], size, STEPS, L
            )
        starts[groups], usual[groups] = k, done
        k += size
        groups += 1
    for c in range(0, lines, L):
        kept[groups * GROUPS + c // L] = states[c // L]
    return groups


# --- back -----------------------------------------------------------------------------------------


@by_type
def entering_back(t, totals, L):
    """What is carried into each block, the last one first, and what is carried on."""
    if totals.n == L.literal_value:
        return lambda t, totals, L: (t, t + totals)

    def block_after_block(t, totals, L):
        v, t = entering_back(t, half(totals, 1), L)
        u, t = entering_back(t, half(totals, 0), L)
        return join(u, v), t

    return block_after_block


@inlined
def scale_of(p, after):
    """How far the sum after a group is above its reference, in powers of two."""
    s, _, k, _, _ = after
    return parts(to_f32(s), like(k, 0.0))[1]


@inlined
def moved_decay(p, state, after):
    """T in terms of the sums of a group: after it they are about one."""
    t, k, _ = state
    return t * moving(to_f64(k + (after[2] + scale_of(p, after))))


@inlined
def summed_decays(at, tiles, here, kept, rooms, L):
    """The sums inside the blocks, if they fit."""
    p, W = at[2][0], lines_across(at[2][0])
    weights, sums, totals, entered = rooms
    for g in range(tiles):
        t = here + g
        e = join(weights[2 * t], weights[2 * t + 1])
        unit = power(scale_of(p, kept[cell_of(g, L)]))
        sums[t] = spread(unit, e) / (spread(entered[t], e) + running(e, W))
    for g in range(tiles):
        t = here + g
        ask_to_write(group_at((at[1],), g, W, L)[0], g, W, L)
        v = load_columns(group_at((at[0],), g, W, L)[0], W, L)
        b = running(mirrored(v * sums[t], W), W)
        totals[t], sums[t] = last(b, W), mirrored(b, W)
        if any_faint(p, v) or any_lane(not_le(absolute(totals[t]), HUGE)):
            return False
    return True


@inlined
def gradients(at, tiles, here, kept, later, rooms, L):
    p, W = at[2][0], lines_across(at[2][0])
    weights, sums, totals, entered = rooms
    for g in range(tiles - 1, -1, -1):
        t, k, center = later[cell_of(g, L)]
        carried, t = entering_back(t, to_f64(totals[here + g]), L)
        entered[here + g] = to_f32(carried)
        later[cell_of(g, L)] = t, k, center
    for g in range(tiles):
        t = here + g
        _, dx, x = group_at(at, g, W, L)
        after, e = kept[cell_of(g, L)], join(weights[2 * t], weights[2 * t + 1])
        scale = scale_of(p, after)
        e *= spread(power(-scale), e)
        b = spread(entered[t], e) + sums[t]
        if any_lane(e < TINY):
            r = weighted(p, b, spread(-(after[2] + scale), e), load_columns(x, W, L))
            store_columns(dx, to_f32(r), L)
        else:
            store_columns(dx, b * e, L)


@inlined
def usual_group(at, tiles, here, kept, later, rooms, L):
    """A group that was usual on the way ahead, unless something does not fit: `kept` is from the
    states after it on."""
    p = at[2][0]
    for g in range(tiles if L > 1 else 1):
        if not all_lanes(fits(p, moved_decay(p, later[g], kept[g]))):
            return False
    if not summed_decays(at, tiles, here, kept, rooms, L):
        return False
    for g in range(tiles if L > 1 else 1):
        k = -(kept[g][2] + scale_of(p, kept[g]))
        later[g] = moved_decay(p, later[g], kept[g]), k, k
    gradients(at, tiles, here, kept, later, rooms, L)
    return True


@inlined
def unusual_group(at, size, before, later, scratch, L):
    """Its sums once more, as pairs, then the way back."""
    dy, dx, x = at
    inverses, references = scratch
    # In front, for whom the first +inf is: the reference before this group.
    store((references, 0, 0, False), (1, size[1]), before[2], L)
    inverse, reference = (inverses, L, L, False), (references, L, L, False)
    forth = x, None, inverse, reference
    block_by_block(unusual_log_sum_tile, forth, size, before, size[0], STEPS, L)
    back = turned_round(moved((dy, dx, x, None, inverse, reference), size[0] - 1, 0))
    lead = size[0] % STEPS
    if lead > 0:
        later = unusual_decay_tile(back, (lead, size[1]), later, L)
    whole = size[0] - lead, size[1]
    back = moved(back, lead, 0)
    return block_by_block(unusual_decay_tile, back, whole, later, whole[0], STEPS, L)


@inlined
def back(at, steps, lines, groups, kept, later, usual, starts, rooms, scratch, L):
    p = at[2][0]
    for q in range(groups - 1, -1, -1):
        k = starts[q]
        size, here, done = group_size(p, steps - k, L), moved(at, k, 0), usual[q]
        after = advance(kept, (q + 1) * GROUPS)
        if done > 0:
            tiles = tiles_in(at, size, lines, L)
            if not usual_group(here, tiles, q * GROUPS, after, later, rooms, L):
                done = 0
        for c in range(done, lines, L):
            before = kept[q * GROUPS + c // L]
            there = size, min(L, lines - c)
            later[c // L] = unusual_group(
                moved(here, 0, c), there, before, later[c // L], scratch, L
            )


# --- kernels --------------------------------------------------------------------------------------

# What is kept of a state between chunks: its sum in f64, then its reference and its peak.


@inlined
def keep_state(sums, rest, size, state, L):
    s, _, k, _, peak = state
    store(sums, size, s, L)
    store(rest, size, k, L)
    store(moved((rest,), 1, 0)[0], size, peak, L)


@inlined
def kept_state(p, sums, rest, size, L):
    s, k = load(sums, size, 0.0, 1, L), load(rest, size, 0.0, 1, L)
    return state_of(p, s, like(s, 0.0), k, load(moved((rest,), 1, 0)[0], size, 0.0, 1, L))


@inlined
def places(task, lines, cell, c):
    """Where states of a chunk are kept: two f32 and a f64 for each line."""
    sums, rest = as_f64_pointer(word(task, WORKSPACE)), as_f32_pointer(word(task, WORKSPACE))
    return (sums, 2 * cell + c, 0, False), (rest, 4 * cell + 2 * lines + c, lines, False)


@inlined
def _logcumsumexp_recomputed(task, lo, hi, chunk, tiles, halves, cells, L):
    dy, dx, x = pointer(task, TENSORS), pointer(task, TENSORS + 1), pointer(task, TENSORS + 2)
    n = length(task)
    chunks = (n + chunk - 1) // chunk
    zero, narrow = filled_wide(x, 0.0, L), zero_tile(x, 0, lines_across(x))
    nothing, few = first_state(zero), filled_wide(x, 0.0, lines_across(x))
    sums, later = stack(start_of(x, zero), cells), stack(nothing, cells)
    kept = stack(start_of(x, zero), KEPT)
    rooms = (
        stack(half(narrow, 0), halves),
        stack(narrow, tiles),
        stack(few, tiles),
        stack(few, tiles),
    )
    usual, starts = stack(0, ALL_GROUPS), stack(0, ALL_GROUPS)
    scratch = stack(np.float32(0), SCRATCH), stack(np.float32(0), SCRATCH)
    for item in range(lo, hi):
        line, lines = strip_of(task, item)
        at = cursor(task, dy, 0, line, L), cursor(task, dx, 1, line, L), cursor(task, x, 2, line, L)
        for c in range(0, lines, L):
            begin = load_wide(moved(at, 0, c)[2], (1, min(lines - c, L)), 0.0, 1, L)
            sums[c // L] = start_of(x, begin)
            later[c // L] = nothing
        # Ahead through the chunks, and back: on the way out the state before each chunk goes to the
        # workspace. A single chunk needs none.
        for turn in range(2 * chunks - 1):
            number = min(turn, 2 * (chunks - 1) - turn)
            begin = number * chunk
            steps, here = min(chunk, n - begin), moved(at, begin, 0)
            for c in range(0, lines if chunks > 1 else 0, L):
                size = 1, min(L, lines - c)
                in_f64, in_f32 = places(task, lines, line * chunks + number * lines, c)
                if turn < chunks:
                    keep_state(in_f64, in_f32, size, sums[c // L], L)
                else:
                    sums[c // L] = kept_state(x, in_f64, in_f32, size, L)
            groups = ahead(here, steps, lines, sums, kept, usual, starts, rooms, L)
            if turn >= chunks - 1:
                back(here, steps, lines, groups, kept, later, usual, starts, rooms, scratch, L)
    fence()


@kernel
def logcumsumexp_recomputed_along(task, lo, hi):
    _logcumsumexp_recomputed(task, lo, hi, ALONG, TILES_ALONG, HALVES_ALONG, 1, 1)


@kernel
def logcumsumexp_recomputed_across(task, lo, hi):
    L = lines_across(pointer(task, TENSORS))
    _logcumsumexp_recomputed(task, lo, hi, ACROSS, TILES_ACROSS, HALVES_ACROSS, GROUPS, L)
