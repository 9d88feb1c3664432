"""The gradient of running products of few long lines, shared by threads, with the bits of one.

What each quad makes of what comes after it, c -> p·c + b, is known before c is. So a chunk that has
to wait for its turn finds p and b of its quads meanwhile; when the turn comes it takes c through
them, one fma each, and hands it on before it computes its gradients.
"""

from pullback.cpu.chain import is_turn, link_of, pass_on, received, wait_for_turn
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, word
from pullback.cpu.memory import address, fence
from pullback.cpu.program import TENSORS
from pullback.cpu.sweep import STRIP, cursor, length
from pullback.cpu.tiles import moved, stack
from pullback.cpu.vector import all_lanes, splat
from pullback.ops.scan.cpu_product import WIDTH, ones
from pullback.ops.scan.cpu_product_backward import (
    affine,
    applied,
    gradient_tile,
    is_affine,
    parts,
    store_gradients,
)
from pullback.ops.scan.cpu_quads import (
    chained_back,
    common_step,
    load_quads,
    straight,
    sweep_quads_back,
)
from pullback.ops.scan.cpu_turned import STEPS

CHUNK = 2048  # steps of a turn: what is kept of them fits the nearest cache
ROWS = STEPS * WIDTH
TILES = CHUNK // ROWS


@inlined
def _find_parts(at, kept, slopes, offsets, step):
    """p and b of all quads of a chunk; whether no product among them leaves the range."""
    well = ones(1) > 0.0
    for t in range(TILES):
        dy, _, x, _, _ = straight(at, t * ROWS, step)
        v, g = load_quads(x, None, ones(1), 1), load_quads(dy, None, ones(1) * 0.0, 1)
        p, b, totals = parts(v, g)
        kept[t] = p, b
        slopes[t], offsets[t] = totals
        well &= is_affine(totals)
    return all_lanes(well)


@inlined
def _take_through(slopes, offsets, carry):
    """What enters each quad, left in the place of its p; and what leaves the chunk."""
    for t in range(TILES - 1, -1, -1):
        slopes[t], carry = chained_back(affine, carry, (slopes[t], offsets[t]), 1)
    return carry


@inlined
def _find_gradients(at, kept, entering, step):
    for t in range(TILES - 1, -1, -1):
        p, b = kept[t]
        r = applied(p, b, entering[t])
        store_gradients(straight(at, t * ROWS, step), (t * ROWS, 0), None, r, 1)


@kernel
def cumprod_backward_chained(task, lo, hi):
    dy, dx = pointer(task, TENSORS), pointer(task, TENSORS + 1)
    x, y = pointer(task, TENSORS + 2), pointer(task, TENSORS + 3)
    lines, n = word(task, STRIP), length(task)
    chunks = (n + CHUNK - 1) // CHUNK
    none = splat(0.0, 1)
    states = stack((none, none), 1)
    one = ones(1)
    kept = stack(((one, one, one), (one, one, one, one)), TILES)
    slopes, offsets = stack(one, TILES), stack(one, TILES)
    for item in range(lo, hi):
        number = item // lines
        line = item - number * lines
        link, begin = link_of(task, line), (chunks - 1 - number) * CHUNK
        walk = (
            cursor(task, dy, 0, line, 1),
            cursor(task, dx, 1, line, 1),
            cursor(task, x, 2, line, 1),
            cursor(task, y, 3, line, 1),
            begin,
        )
        at = moved(walk, begin, 0)
        step = common_step(at)
        # The first chunk, which alone may be cut short, never waits. The step before a chunk is
        # read when it may have been handed on: in place of y that would be too late.
        early = not is_turn(link, number) and step != 0 and address(dx) != address(y)
        if early and step == 1:
            early = _find_parts(at, kept, slopes, offsets, 1)
        elif early:
            early = _find_parts(at, kept, slopes, offsets, -1)
        wait_for_turn(link, number)
        carry = received(link, none) if number > 0 else none
        if early:
            pass_on(link, number, _take_through(slopes, offsets, carry))
            if step == 1:
                _find_gradients(at, kept, slopes, 1)
            else:
                _find_gradients(at, kept, slopes, -1)
        else:
            states[0] = carry, none
            sweep_quads_back(gradient_tile, at, min(CHUNK, n - begin), 1, states, WIDTH, 1)
            pass_on(link, number, states[0][0])
    fence()
