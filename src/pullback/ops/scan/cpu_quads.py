"""Quads: four steps of a line under each other in one lane, so that a scan needs no shuffles.

A tile is four vectors. Across the axis lane c of vector k is step k of line c. Along it, lane l of
vector k is step 4·l + k of one line: the tile is turned on its way from memory and back, which also
serves a walk against the order of memory. Inside a quad the code is the same for both, and so are
the bits; only the way from quad to quad differs: from lane to lane along, from tile to tile across.

    load_quads(cursor, size, fill, L)  four vectors like `fill`
    store_quads(cursor, size, v, L)
    chained(step, carry, totals, L)    carry -> what enters each quad, and the carry after them:
                                       step(carry, totals) from one quad to the next
    chained_back(...)                  the same, last quad first
    sweep_quads(tile, cursors, n, lines, states, wide, L)
                                       tile(cursors, place, size, state, L) -> state over n steps;
                                       place is (step, line) of the tile's beginning
    sweep_quads_back(...)              the same tiles, last one first
"""

from llvmlite import ir
from numba import types

from pullback.cpu.emit import I64, Lane, Vec, op, shuffle
from pullback.cpu.memory import decoded, encoded
from pullback.cpu.tile_blocks import halved
from pullback.cpu.tiles import Tile, by_type, joined, moved, steps_and_lines, tile_mask
from pullback.cpu.vector import join
from pullback.ops.scan.cpu_side_by_side import tiles_at
from pullback.ops.scan.cpu_turned import STEPS, Turned

# --- memory ---------------------------------------------------------------------------------------


def _tile(b: ir.IRBuilder, cursor: types.BaseTuple, at: ir.Value, W: int, L: int) -> Tile:
    tile = Tile(b, cursor, at, STEPS * W if L == 1 else STEPS, L)
    if isinstance(cursor[2], types.IntegerLiteral):
        tile.step = I64(cursor[2].literal_value)
    return tile


def _split(b: ir.IRBuilder, v: ir.Value, W: int) -> ir.Value:
    kind = ir.VectorType(v.type.element, W)
    out = ir.Constant(ir.ArrayType(kind, STEPS), ir.Undefined)
    for k in range(STEPS):
        out = b.insert_value(out, shuffle(b, v, v, range(k * W, (k + 1) * W)), k)
    return out


@op
def load_quads(cursor: types.BaseTuple, size: object, fill: Vec, L: Lane):
    pointer, W = cursor[0], fill.n

    def emit(b, cursor_, size_, fill_, _L):
        tile = _tile(b, cursor, cursor_, W, L.literal_value)
        turned = Turned(b, tile, W) if L.literal_value == 1 else None
        if isinstance(size, types.NoneType):
            raw = turned.load() if turned else tile.load()
            return _split(b, decoded(b, pointer, raw, fill.dtype), W)
        there = steps_and_lines(b, size_)
        v = decoded(b, pointer, tile.load_part(*there), fill.dtype)
        mask = tile_mask(b, tile.rows, L.literal_value, *there)
        v = b.select(mask, v, joined(b, [fill_] * STEPS))
        return _split(b, turned.columns(v) if turned else v, W)

    return types.UniTuple(fill, STEPS)(cursor, size, fill, L), emit


@op
def store_quads(cursor: types.BaseTuple, size: object, v: types.UniTuple, L: Lane):
    pointer, vec = cursor[0], v.dtype

    def emit(b, cursor_, size_, v_, _L):
        tile = _tile(b, cursor, cursor_, vec.n, L.literal_value)
        columns = [b.extract_value(v_, k) for k in range(STEPS)]
        turned = Turned(b, tile, vec.n) if L.literal_value == 1 else None
        raw = encoded(b, pointer, joined(b, columns), vec.dtype)
        if isinstance(size, types.NoneType):
            (turned or tile).store(raw)
        else:
            tile.store_part(turned.steps(raw) if turned else raw, *steps_and_lines(b, size_))

    return types.void(cursor, size, v, L), emit


# --- from quad to quad ----------------------------------------------------------------------------


def _at_once(step, carry, totals, L):
    return carry, step(carry, totals)


@by_type
def chained(step, carry, totals, L):
    if L.literal_value > 1 or totals[0].n == 1:
        return _at_once

    def lane_by_lane(step, carry, totals, L):
        u, carry = chained(step, carry, halved(totals, 0), L)
        v, carry = chained(step, carry, halved(totals, 1), L)
        return join(u, v), carry

    return lane_by_lane


@by_type
def chained_back(step, carry, totals, L):
    if L.literal_value > 1 or totals[0].n == 1:
        return _at_once

    def lane_by_lane(step, carry, totals, L):
        v, carry = chained_back(step, carry, halved(totals, 1), L)
        u, carry = chained_back(step, carry, halved(totals, 0), L)
        return join(u, v), carry

    return lane_by_lane


# --- walking --------------------------------------------------------------------------------------


@op
def common_step(cursors: types.BaseTuple):
    """1 or -1 if every cursor walks so, else 0."""

    def emit(b, cursors_):
        steps = [
            b.extract_value(cursors_, [t, 2])
            for t, kind in enumerate(cursors)
            if isinstance(kind, types.BaseTuple)
        ]
        out = I64(0)
        for value in (1, -1):
            same = ir.IntType(1)(1)
            for step in steps:
                same = b.and_(same, b.icmp_signed("==", step, I64(value)))
            out = b.select(same, I64(value), out)
        return out

    return types.int64(cursors), emit


@op
def straight(cursors: types.BaseTuple, k: types.Integer, step: Lane):
    """The cursors k steps on, that step being known."""
    known = types.Tuple(
        [
            types.Tuple([c[0], types.int64, step, types.boolean])
            if isinstance(c, types.BaseTuple)
            else c
            for c in cursors
        ]
    )

    def emit(b, cursors_, k_, _step):
        by = k_ if step.literal_value == 1 else b.neg(k_)
        for t, kind in enumerate(cursors):
            if isinstance(kind, types.BaseTuple):
                there = b.add(b.extract_value(cursors_, [t, 1]), by)
                cursors_ = b.insert_value(cursors_, there, [t, 1])
        return cursors_

    return known(cursors, types.int64, step), emit


@by_type
def sweep_quads(tile, cursors, n, lines, states, W, L):
    return _along if L.literal_value == 1 else _across


def _along(tile, cursors, n, lines, states, W, L):
    state, rows, k = states[0], STEPS * W, 0
    step = common_step(cursors)
    if step == 1:
        while k + rows <= n:
            state = tile(straight(cursors, k, 1), (k, 0), None, state, L)
            k += rows
    elif step == -1:
        while k + rows <= n:
            state = tile(straight(cursors, k, -1), (k, 0), None, state, L)
            k += rows
    while k < n:
        state = tile(moved(cursors, k, 0), (k, 0), (n - k, 1), state, L)
        k += rows
    states[0] = state


def _across(tile, cursors, n, lines, states, W, L):
    for k in range(0, n, STEPS):
        tiles_at(tile, cursors, k, k + STEPS, n, lines, states, STEPS, L)


@by_type
def sweep_quads_back(tile, cursors, n, lines, states, W, L):
    return _back_along if L.literal_value == 1 else _back_across


def _back_along(tile, cursors, n, lines, states, W, L):
    state, rows = states[0], STEPS * W
    step = common_step(cursors)
    k = (n - 1) // rows * rows
    while k >= 0 and (step == 0 or k + rows > n):
        state = tile(moved(cursors, k, 0), (k, 0), (n - k, 1), state, L)
        k -= rows
    if step == 1:
        while k >= 0:
            state = tile(straight(cursors, k, 1), (k, 0), None, state, L)
            k -= rows
    else:
        while k >= 0:
            state = tile(straight(cursors, k, -1), (k, 0), None, state, L)
            k -= rows
    states[0] = state


def _back_across(tile, cursors, n, lines, states, W, L):
    for k in range((n - 1) // STEPS * STEPS, -1, -STEPS):
        tiles_at(tile, cursors, k, k - STEPS, n, lines, states, STEPS, L)
