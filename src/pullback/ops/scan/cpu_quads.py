"""Quads: four steps of a line under each other in one lane, so that a scan needs no shuffles.

A tile is four vectors. Across the axis lane c of vector k is step k of line c. Along it, lane l of
vector k is step 4·l + k of one line: the tile is turned on its way from memory and back, which also
serves a walk against the order of memory. Inside a quad the code is the same for both, and so are
the bits; only the way from quad to quad differs: from lane to lane along, from tile to tile across.

    quads_of(p, L)                     lanes of a tile, for p's wide type
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

from typing import Final

from llvmlite import ir
from numba import types

from pullback.cpu.emit import I64, Lane, Vec, op, shuffle
from pullback.cpu.memory import STORAGE, _decoded, _encoded
from pullback.cpu.tile_blocks import halved
from pullback.cpu.tiles import _joined, _mask, _size, _Tile, by_type, literal, moved
from pullback.cpu.transfer import block_at, by_step, gathered, lane_bytes, lowest, scattered, stored
from pullback.cpu.vector import join
from pullback.ops.scan.cpu_side_by_side import tiles_at

STEPS: Final = 4


@op
def quads_of(p: types.CPointer, L: Lane):
    lanes = 4 if STORAGE[p.dtype].wide == types.float64 else 8
    return literal(lanes if L.literal_value == 1 else L.literal_value, p, L)


# --- turning --------------------------------------------------------------------------------------

# A square of four rows: pairs of rows exchange elements, then pairs of pairs. Lanes of 32 bits stay
# within 128 bits that way, lanes of 64 bits need another order.
_ROUNDS = {
    4: ((0, 4, 1, 5), (2, 6, 3, 7), (0, 1, 4, 5), (2, 3, 6, 7), (0, 1, 2, 3)),
    8: ((0, 4, 2, 6), (1, 5, 3, 7), (0, 1, 4, 5), (2, 3, 6, 7), (0, 2, 1, 3)),
}


def _square(b: ir.IRBuilder, rows: list[ir.Value], size: int) -> list[ir.Value]:
    """Four rows of four as four columns, and back."""
    low, high, left, right, order = _ROUNDS[size]
    (a, c), (d, e) = (
        (shuffle(b, rows[i], rows[i + 1], low), shuffle(b, rows[i], rows[i + 1], high))
        for i in (0, 2)
    )
    turned = [
        shuffle(b, a, d, left),
        shuffle(b, a, d, right),
        shuffle(b, c, e, left),
        shuffle(b, c, e, right),
    ]
    return [turned[i] for i in order]


_PAIRED = (0, 4, 1, 5, 2, 6, 3, 7)  # two rows of four 16-bit lanes, element by element
_SWAPPED = (4, 0, 5, 1, 6, 2, 7, 3)
_UNPAIRED = (0, 2, 4, 6, 1, 3, 5, 7)
_UNSWAPPED = (1, 3, 5, 7, 0, 2, 4, 6)


def _as(b: ir.IRBuilder, v: ir.Value, bits: int) -> ir.Value:
    """The same 128 bits in lanes of so many bits."""
    return b.bitcast(v, ir.VectorType(ir.IntType(bits), 128 // bits))


def _columns_of_halves(b: ir.IRBuilder, pairs: list[ir.Value], back: bool) -> ir.Value:
    """Rows of four 16-bit lanes, two to a vector, as their columns one after the other."""
    pairs = [_as(b, shuffle(b, v, v, _SWAPPED if back else _PAIRED), 32) for v in pairs]
    found = []
    for u, v in zip(pairs[::2], pairs[1::2], strict=True):
        found.append([_as(b, shuffle(b, u, v, half), 64) for half in ((0, 4, 1, 5), (2, 6, 3, 7))])
    if len(found) == 2:
        (u0, u1), (v0, v1) = found
        columns = [shuffle(b, *uv, k) for uv in ((u0, v0), (u1, v1)) for k in ((0, 2), (1, 3))]
    else:
        columns = [shuffle(b, v, v, [k]) for v in found[0] for k in (0, 1)]
    whole = _joined(b, columns[::-1] if back else columns)
    return b.bitcast(whole, ir.VectorType(ir.IntType(16), 8 * len(pairs)))


def _pairs_of_halves(b: ir.IRBuilder, whole: ir.Value, back: bool) -> list[ir.Value]:
    """The way back."""
    words = whole.type.count // 4
    whole = b.bitcast(whole, ir.VectorType(I64, words))
    width = words // 4
    columns = [shuffle(b, whole, whole, range(k * width, (k + 1) * width)) for k in range(4)]
    columns = columns[::-1] if back else columns
    pairs = []
    for group in range(width):
        u, v = (
            _as(b, shuffle(b, columns[k], columns[k + 1], (group, width + group)), 32)
            for k in (0, 2)
        )
        pairs += [shuffle(b, u, v, k) for k in ((0, 2, 4, 6), (1, 3, 5, 7))]
    order = _UNSWAPPED if back else _UNPAIRED
    pairs = [_as(b, v, 16) for v in pairs]
    return [shuffle(b, v, v, order) for v in pairs]


class _Turned:
    """A tile along the axis: its lanes in memory, and as columns one after the other."""

    def __init__(self, b: ir.IRBuilder, tile: _Tile, W: int):
        self.b, self.tile, self.W = b, tile, W
        self.halves = lane_bytes(tile.raw) == 2
        self.row = ir.VectorType(tile.raw.element, 8 if self.halves else 4)

    def _places(self, back: bool) -> list[ir.Value]:
        """Where the rows of the tile begin, in the order of the walk."""
        n = STEPS * self.W
        begin = lowest(self.b, self.tile.i, n) if back else self.tile.i
        places = [self.b.add(begin, I64(k)) for k in range(0, n, self.row.count)]
        return places[::-1] if back else places

    def _contiguous(self, back: bool) -> ir.Value:
        b = self.b
        rows = [
            b.load(block_at(b, self.tile.p, at, self.row), align=lane_bytes(self.row))
            for at in self._places(back)
        ]
        if self.halves:
            return _columns_of_halves(b, rows, back)
        columns = _square(b, rows, lane_bytes(self.row))
        return _joined(b, columns[::-1] if back else columns)

    def _store_contiguous(self, v: ir.Value, back: bool) -> None:
        b, W = self.b, self.W
        if self.halves:
            rows = _pairs_of_halves(b, v, back)
        else:
            columns = [shuffle(b, v, v, range(k * W, (k + 1) * W)) for k in range(STEPS)]
            rows = _square(b, columns[::-1] if back else columns, lane_bytes(self.row))
        for at, row in sorted_by_place(zip(self._places(back), rows, strict=True), back):
            stored(b, self.tile.p, at, row, self.tile.streaming)

    def columns(self, v: ir.Value) -> ir.Value:
        """A tile in the order of the walk as its columns."""
        order = [l * STEPS + k for k in range(STEPS) for l in range(self.W)]
        return shuffle(self.b, v, v, order)

    def steps(self, v: ir.Value) -> ir.Value:
        order = [k * self.W + l for l in range(self.W) for k in range(STEPS)]
        return shuffle(self.b, v, v, order)

    def load(self) -> ir.Value:
        t, n = self.tile, I64(STEPS * self.W)
        return by_step(
            self.b,
            t.step,
            lambda: self._contiguous(False),
            lambda: self._contiguous(True),
            lambda: self.columns(gathered(self.b, t.p, t.i, t.step, n, t.raw)),
        )

    def store(self, v: ir.Value) -> None:
        t, n = self.tile, I64(STEPS * self.W)
        by_step(
            self.b,
            t.step,
            lambda: self._store_contiguous(v, False),
            lambda: self._store_contiguous(v, True),
            lambda: scattered(self.b, t.p, t.i, t.step, n, self.steps(v)),
        )


def sorted_by_place(rows, back: bool) -> list:
    """Stores in the order of memory: lines past the cache are then filled at once."""
    return list(rows)[::-1] if back else list(rows)


def _tile(b: ir.IRBuilder, cursor: types.BaseTuple, at: ir.Value, W: int, L: int) -> _Tile:
    tile = _Tile(b, cursor, at, STEPS * W if L == 1 else STEPS, L)
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
        turned = _Turned(b, tile, W) if L.literal_value == 1 else None
        if isinstance(size, types.NoneType):
            raw = turned.load() if turned else tile.load()
            return _split(b, _decoded(b, pointer, raw, fill.dtype), W)
        there = _size(b, size_)
        v = _decoded(b, pointer, tile.load_part(*there), fill.dtype)
        mask = _mask(b, tile.rows, L.literal_value, *there)
        v = b.select(mask, v, _joined(b, [fill_] * STEPS))
        return _split(b, turned.columns(v) if turned else v, W)

    return types.UniTuple(fill, STEPS)(cursor, size, fill, L), emit


@op
def store_quads(cursor: types.BaseTuple, size: object, v: types.UniTuple, L: Lane):
    pointer, vec = cursor[0], v.dtype

    def emit(b, cursor_, size_, v_, _L):
        tile = _tile(b, cursor, cursor_, vec.n, L.literal_value)
        turned = _Turned(b, tile, vec.n) if L.literal_value == 1 else None
        whole = _joined(b, [b.extract_value(v_, k) for k in range(STEPS)])
        raw = _encoded(b, pointer, whole, vec.dtype)
        if isinstance(size, types.NoneType):
            (turned or tile).store(raw)
        else:
            tile.store_part(turned.steps(raw) if turned else raw, *_size(b, size_))

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
def _common_step(cursors: types.BaseTuple):
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
def _straight(cursors: types.BaseTuple, k: types.Integer, step: Lane):
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
    step = _common_step(cursors)
    if step == 1:
        while k + rows <= n:
            state = tile(_straight(cursors, k, 1), (k, 0), None, state, L)
            k += rows
    elif step == -1:
        while k + rows <= n:
            state = tile(_straight(cursors, k, -1), (k, 0), None, state, L)
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
    step = _common_step(cursors)
    k = (n - 1) // rows * rows
    while k >= 0 and (step == 0 or k + rows > n):
        state = tile(moved(cursors, k, 0), (k, 0), (n - k, 1), state, L)
        k -= rows
    if step == 1:
        while k >= 0:
            state = tile(_straight(cursors, k, 1), (k, 0), None, state, L)
            k -= rows
    else:
        while k >= 0:
            state = tile(_straight(cursors, k, -1), (k, 0), None, state, L)
            k -= rows
    states[0] = state


def _back_across(tile, cursors, n, lines, states, W, L):
    for k in range((n - 1) // STEPS * STEPS, -1, -STEPS):
        tiles_at(tile, cursors, k, k - STEPS, n, lines, states, STEPS, L)
