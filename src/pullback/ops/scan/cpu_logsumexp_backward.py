"""The backward of the running log-sum-exp: over lines with y, or without.

Halves have no y worth reading: there the sums of the forward are taken again, chunk by chunk from
the far end.
"""

import math

import numpy as np
from numba import types

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, word
from pullback.cpu.memory import as_f32_pointer, as_f64_pointer, fence, filled_wide
from pullback.cpu.program import TENSORS, WORKSPACE
from pullback.cpu.sweep import cursor, length, strip_of, sweep
from pullback.cpu.tile_blocks import block_by_block, in_blocks
from pullback.cpu.tiles import (
    by_type,
    expect,
    last,
    lines_across,
    load,
    load_wide,
    long_rows,
    moved,
    spread,
    stack,
    store,
    turned_round,
)
from pullback.cpu.vector import (
    any_lane,
    like,
    maximum,
    not_le,
    to_f32,
    to_f64,
)
from pullback.ops.scan.cpu_columns import (
    GROUPS,
    as_met,
    running,
    sweep_groups,
    zero_tile,
)
from pullback.ops.scan.cpu_decays import decay_tile, first_state, started, usual_decays
from pullback.ops.scan.cpu_exponents import (
    exp_near,
    ln2,
)
from pullback.ops.scan.cpu_logsumexp import (
    CELLS,
    below,
    start_of,
    state_of,
    store_inverse,
    unusual_log_sum_tile,
)
from pullback.ops.scan.cpu_sum import BLOCK

# Where y is recomputed: steps whose sums wait on the stack, along and across, and how many lines
# lie side by side there.
ALONG, ACROSS, SIDE = 2048, 256, 64
SCRATCH, SIDE_CELLS = (ACROSS + 1) * SIDE, SIDE // 8
INFINITY = math.inf


@inlined
def _logcumsumexp_backward(task, lo, hi, cells, L):
    dy, dx = pointer(task, TENSORS), pointer(task, TENSORS + 1)
    x, y = pointer(task, TENSORS + 2), pointer(task, TENSORS + 3)
    states = stack(first_state(filled_wide(x, 0.0, L)), cells)
    narrow = zero_tile(x, 0)
    zero = filled_wide(x, 0.0, lines_across(x))
    rooms = (
        stack(narrow, GROUPS),
        stack(zero_tile(x, 1), GROUPS),
        stack(zero, GROUPS),
        stack(zero, GROUPS),
        stack(0, GROUPS),
        stack(narrow, GROUPS),
        stack(narrow, GROUPS),
    )
    for item in range(lo, hi):
        line, lines = strip_of(task, as_met(task, lo, hi, item))
        at = (
            cursor(task, dy, 0, line, L),
            cursor(task, dx, 1, line, L),
            cursor(task, x, 2, line, L),
            cursor(task, y, 3, line, L),
            None,
            None,
        )
        for c in range(0, lines, L):
            size = (1, min(lines - c, L))
            states[c // L] = started(x, load_wide(moved(at, 0, c)[3], size, 0.0, 1, L))
        sweep_groups(usual_decays, decay_tile, at, length(task), lines, states, rooms, 0, 1, L)
    fence()


@kernel
def logcumsumexp_backward_along(task, lo, hi):
    _logcumsumexp_backward(task, lo, hi, 1, 1)


@kernel
def logcumsumexp_backward_across(task, lo, hi):
    _logcumsumexp_backward(task, lo, hi, CELLS, lines_across(pointer(task, TENSORS)))


# --- backward without y: halves -----------------------------------------------------------------


@by_type
def sum_tile(at, size, state, L):
    """The sums of the forward, without logarithms."""
    return _sums if isinstance(size, types.NoneType) else _sums_by_blocks


@inlined
def _sums_by_blocks(at, size, state, L):
    return block_by_block(unusual_log_sum_tile, at, size, state, long_rows(at[0][0], L), BLOCK, L)


@inlined
def _running_sums(tiles, s, L):
    e = running(tiles[0], L)
    return spread(to_f32(s), e) + e, s + to_f64(last(e, L))


def _sums(at, size, state, L):
    x, _, inverses, references = at
    s, low, k, top, peak = state
    rows = long_rows(x[0], L)
    expect(x, rows, L)
    v = load_wide(x, size, -INFINITY, rows, L)
    if any_lane(not_le(v, spread(top, v))):
        return _sums_by_blocks(at, size, state, L)
    reference = spread(k, v)
    e = exp_near(x[0], maximum(v, reference * ln2(v) + below(v)), reference)
    t, s = in_blocks(_running_sums, (e,), s, BLOCK, L)
    store_inverse(inverses, references, size, t, reference, L)
    return s, low, k, top, peak


# What is kept of a state: its sum in f64, then its reference and its peak.


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
def _logcumsumexp_recomputed(task, lo, hi, chunk, cells, L):
    dy, dx, x = pointer(task, TENSORS), pointer(task, TENSORS + 1), pointer(task, TENSORS + 2)
    n = length(task)
    chunks = (n + chunk - 1) // chunk
    zero = filled_wide(x, 0.0, L)
    nothing = first_state(zero)
    totals, states = stack(start_of(x, zero), cells), stack(nothing, cells)
    inverses, references = stack(np.float32(0), SCRATCH), stack(np.float32(0), SCRATCH)
    rows = long_rows(x, L)
    for item in range(lo, hi):
        line, lines = strip_of(task, item)
        xs = cursor(task, x, 2, line, L)
        for c in range(0, lines, L):
            begin = load_wide(moved((xs,), 0, c)[0], (1, min(lines - c, L)), 0.0, 1, L)
            totals[c // L] = start_of(x, begin)
            states[c // L] = nothing
        # The state before each chunk but the last goes to the workspace.
        for k in range(chunks - 1):
            for c in range(0, lines, L):
                sums, rest = places(task, lines, line * chunks + k * lines, c)
                keep_state(sums, rest, (1, min(L, lines - c)), totals[c // L], L)
            at = moved((xs,), k * chunk, 0)[0], None, None, None
            sweep(sum_tile, at, chunk, lines, totals, rows, 0, 0, L)
        for k in range(chunks - 1, -1, -1):
            begin = k * chunk
            steps = min(chunk, n - begin)
            for c in range(0, lines, L):
                size = 1, min(L, lines - c)
                if k < chunks - 1:
                    sums, rest = places(task, lines, line * chunks + k * lines, c)
                    totals[c // L] = kept_state(x, sums, rest, size, L)
                # In front, for whom the first +inf is: the reference before this chunk.
                store((references, c, 0, False), size, totals[c // L][2], L)
            inverse, reference = (inverses, lines, lines, False), (references, lines, lines, False)
            at = moved((xs,), begin, 0)[0], None, inverse, reference
            sweep(sum_tile, at, steps, lines, totals, rows, 0, 0, L)
            ends = cursor(task, dy, 0, line, L), cursor(task, dx, 1, line, L), xs
            ends = moved(ends, begin, 0)
            ends = moved((ends[0], ends[1], ends[2], None, inverse, reference), steps - 1, 0)
            sweep(decay_tile, turned_round(ends), steps, lines, states, rows, steps % BLOCK, 0, L)
    fence()


@kernel
def logcumsumexp_recomputed_along(task, lo, hi):
    _logcumsumexp_recomputed(task, lo, hi, ALONG, 1, 1)


@kernel
def logcumsumexp_recomputed_across(task, lo, hi):
    _logcumsumexp_recomputed(task, lo, hi, ACROSS, SIDE_CELLS, lines_across(pointer(task, TENSORS)))
