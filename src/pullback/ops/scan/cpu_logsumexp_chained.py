"""Running log-sum-exp of a few long lines, and its backward: threads share a line.

A line is cut into chunks. Nearly all the work on a chunk needs of the chunks before it only a
reference, and any reference does, as long as it is near: so each chunk takes its own, and waits for
its turn only with the sums inside its blocks at hand. From there it is one addition per block to
what the next chunk waits for. The additions are those of the whole line, in the same order: a
chunk's borders change no bit. A chunk that is not usual is scanned as a whole when its turn comes.
"""

import math
from typing import Final

from pullback.cpu.atomics import store as publish
from pullback.cpu.chain import link_of, wait_for_turn
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, word
from pullback.cpu.memory import as_f64_pointer, fence, filled_wide, on_stack
from pullback.cpu.program import TENSORS
from pullback.cpu.sweep import STRIP, cursor, length
from pullback.cpu.tiles import lines_across, load_wide, moved, stack
from pullback.cpu.vector import absolute, half, lane, like, reduce_max, to_f64
from pullback.ops.scan.cpu_columns import (
    GROUPS,
    PARTS,
    columns_rows,
    compute_lanes,
    load_columns,
    zero_tile,
)
from pullback.ops.scan.cpu_decay_pairs import first_state, started
from pullback.ops.scan.cpu_decays import (
    decay_tile,
    decays_before,
    summed_decays,
    usual_decays,
    weighted_blocks,
)
from pullback.ops.scan.cpu_exponents import parts, power
from pullback.ops.scan.cpu_groups import BOX_ALONG, sweep_groups
from pullback.ops.scan.cpu_logsumexp import (
    as_wide,
    log_sum_tile,
    logs_of_blocks,
    measured,
    start_of,
    state_of,
    summed_blocks,
    sums_before,
    usual_log_sums,
)
from pullback.ops.scan.cpu_logsumexp_backward import cursors_at
from pullback.ops.scan.cpu_quads import common_step

INFINITY = math.inf
CHUNK: Final = 8192
TILES: Final = CHUNK // 32
HALVES: Final = 2 * TILES
LINKS: Final = 3  # links to a line: a turn and four numbers need more room than one has
CLOSE: Final = 40.0  # so far apart sums and references still fit all types, in powers of two


@inlined
def chunk_of(task, item):
    """The line of an item, which of its chunks it is, the link, where it begins, and its steps."""
    lines = word(task, STRIP)
    chunk = item // lines
    line, begin = item - chunk * lines, chunk * CHUNK
    return line, chunk, link_of(task, LINKS * line), begin, min(CHUNK, length(task) - begin)


@inlined
def in_groups(usual, at, tiles, states, rooms):
    """Whether all tiles of a chunk are usual."""
    for g in range(0, tiles, GROUPS):
        if not usual(at, (g, min(g + GROUPS, tiles)), states, 0, rooms, 1):
            return False
    return True


@inlined
def told(link, k, v):
    """Number k of those that were passed on, as a vector like v."""
    return like(v, as_f64_pointer(link + 8 * (1 + k))[0])


@inlined
def tell(link, k, v):
    as_f64_pointer(link + 8 * (1 + k))[0] = lane(to_f64(v), 0)


@inlined
def _received_sum(p, link, none):
    s, low, k, _, peak = none
    return state_of(p, told(link, 0, s), told(link, 1, low), told(link, 2, k), told(link, 3, peak))


@inlined
def _pass_on_sum(link, chunk, state):
    s, low, k, _, peak = state
    tell(link, 0, s)
    tell(link, 1, low)
    tell(link, 2, k)
    tell(link, 3, peak)
    publish(link, chunk + 1)


@inlined
def _close(p, state, reference):
    """Whether a sum is near enough to a reference to be told in its terms."""
    s, _, k, _, _ = state
    _, e = parts(as_wide(p, s), k)
    return lane(absolute(e - reference), 0) <= CLOSE and lane(absolute(k - reference), 0) <= CLOSE


@inlined
def _largest(p, x):
    """The largest of the first tile, where a chunk has its reference."""
    return like(filled_wide(p, 0.0, 1), reduce_max(load_columns(x, lines_across(p), 1)))


@kernel
def logcumsumexp_chained(task, lo, hi):
    p, q = pointer(task, TENSORS), pointer(task, TENSORS + 1)
    none = start_of(p, filled_wide(p, 0.0, 1))
    states = stack(none, 1)
    W, box = lines_across(p), on_stack(q, BOX_ALONG)
    zero = filled_wide(p, 0.0, W)
    before = to_f64(zero), to_f64(zero)
    rooms = (
        stack(half(zero_tile(p, 0, W), 0), PARTS),
        stack(half(zero_tile(p, 1, W), 0), HALVES),
        stack(zero, TILES),
        stack(before, TILES),
        stack(measured(p, *before, zero, zero), GROUPS),
    )
    for item in range(lo, hi):
        line, chunk, link, begin, steps = chunk_of(task, item)
        at = cursor(task, p, 0, line, 1), cursor(task, q, 1, line, 1), None, None
        at = moved(at, begin, 0)
        tiles = steps // columns_rows(W, 1)
        early = chunk > 0 and steps == CHUNK and common_step(at) != 0
        if early:
            states[0] = start_of(p, _largest(p, at[0]))
            early = in_groups(summed_blocks, at, tiles, states, rooms)
        reference = states[0][2]
        wait_for_turn(link, chunk)
        if chunk > 0:
            states[0] = _received_sum(p, link, none)
        else:
            states[0] = start_of(p, load_wide(at[0], (1, 1), 0.0, 1, 1))
        if early and _close(p, states[0], reference):
            s, low, k, _, peak = states[0]
            f = to_f64(power(k - reference))
            states[0] = state_of(p, s * f, low * f, reference, peak)
            sums_before(p, (0, tiles), states, 0, rooms, 1)
            _pass_on_sum(link, chunk, states[0])
            for g in range(0, tiles, GROUPS):
                logs_of_blocks(at, (g, min(g + GROUPS, tiles)), states, 0, rooms, 1)
        else:
            sweep_groups(
                usual_log_sums, log_sum_tile, at, box, (steps, 0), 1, states, rooms, 0, W, 1
            )
            _pass_on_sum(link, chunk, states[0])
    fence()


# --- backward -------------------------------------------------------------------------------------


@inlined
def _received_decay(link, none):
    t, k, center = none
    return told(link, 0, t), told(link, 1, k), told(link, 2, center)


@inlined
def _pass_on_decay(link, chunk, state):
    t, k, center = state
    tell(link, 0, t)
    tell(link, 1, k)
    tell(link, 2, center)
    publish(link, chunk + 1)


@kernel
def logcumsumexp_backward_chained(task, lo, hi):
    x = pointer(task, TENSORS + 2)
    none = first_state(filled_wide(x, 0.0, 1))
    states = stack(none, 1)
    W, box = compute_lanes(x), on_stack(x, BOX_ALONG)
    part, few = half(zero_tile(x, 0, W), 0), half(half(half(zero_tile(x, 0, W), 0), 0), 0)
    rooms = (
        stack(part, HALVES),
        stack(zero_tile(x, 0, W), TILES),
        stack(few, TILES),
        stack(to_f64(few), TILES),
        stack(0, TILES),
        stack(part, PARTS),
    )
    for item in range(lo, hi):
        line, chunk, link, begin, steps = chunk_of(task, item)
        at = moved(cursors_at(task, line, 1), begin, 0)
        tiles = steps // columns_rows(W, 1)
        states[0] = started(x, load_wide(at[3], (1, 1), 0.0, 1, 1))
        reference = states[0][2]
        ends = begin + steps == length(task)
        early = chunk > 0 and not ends and common_step(at) != 0
        early = early and in_groups(summed_decays, at, tiles, states, rooms)
        wait_for_turn(link, chunk)
        if chunk > 0:
            states[0] = _received_decay(link, none)
        t, k, center = states[0]
        # An infinite center: k is no exponent, but a y.
        early = early and lane(absolute(center), 0) != INFINITY
        early = early and lane(absolute(k - reference), 0) <= CLOSE
        if early:
            states[0] = t * power(k - reference), reference, reference
            early = decays_before(x, (0, tiles), states, 0, rooms, 1)
        if early:
            _pass_on_decay(link, chunk, states[0])
            for g in range(0, tiles, GROUPS):
                weighted_blocks(at, (g, min(g + GROUPS, tiles)), states, 0, rooms, 1)
        else:
            states[0] = t, k, center
            left = 1 if ends else 0
            sweep_groups(
                usual_decays, decay_tile, at, box, (steps, 0), 1, states, rooms, left, W, 1
            )
            _pass_on_decay(link, chunk, states[0])
    fence()
