"""Columns: eight steps of a line under each other in one lane, so that a scan needs no shuffles.

A tile is eight columns of W lanes, lane W·k + l of one Vec. Across the axis that is step k of line
l. Along it, it is step k of block l, W blocks of eight steps one after the other: the tile is
turned on its way from memory and back. Inside a block the code is the same for both, and so are the
bits; only the way from block to block differs.

    load_columns(cursor, W, L)       a whole tile, its columns in the order that costs least
    store_columns(cursor, v, L)      from that order
    ordered(p, v, L)  paired(...)    from that order to the steps', and back
    running(v, W)                    the sums of each block's steps so far
    over(v, fill, k, W)              one level of that tree: what the later k of 2·k steps add
    mirrored(v, W)                   the steps of each block, last one first
    group_at(cursors, g, W, L)       tile g of a group: cpu_groups walks over them
"""

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba import types

from pullback.cpu.emit import (
    I32,
    I64,
    LLVM_ELEMENT,
    Lane,
    Vec,
    constant,
    inlined,
    op,
    shuffle,
)
from pullback.cpu.kernel import words
from pullback.cpu.loops import step
from pullback.cpu.memory import STORAGE, decoded, encoded
from pullback.cpu.sweep import AXIS
from pullback.cpu.tiles import Tile, by_type, joined, literal
from pullback.cpu.transfer import asked_for, block_at, either, lane_bytes, lowest, stored

Pointer: Any = types.CPointer
STEPS: Final = 8
GROUPS: Final = 8  # tiles that are worked on together
PARTS: Final = 2 * GROUPS
_REGISTER: Final = 32  # bytes


@op
def compute_lanes(p: Pointer):
    """How many lanes a column has where all is computed in the element's own precision."""
    return literal(4 if STORAGE[p.dtype].compute == types.float64 else 8, p)


@op
def columns_rows(W: Lane, L: Lane):
    """How many steps a tile has."""
    return literal(STEPS * W.literal_value if L.literal_value == 1 else STEPS, W, L)


@op
def zero_tile(p: Pointer, wide: Lane, W: Lane):
    """Zeros in the columns of a tile."""
    storage = STORAGE[p.dtype]
    out = Vec(storage.wide if wide.literal_value else storage.compute, STEPS * W.literal_value)
    return out(p, wide, W), lambda b, *_: constant(out.llvm, 0)


# --- turning ------------------------------------------------------------------------------------

# A square of four rows: pairs of rows exchange elements, then pairs of pairs. Lanes of 32 bits stay
# within 128 bits that way, two squares at a time; lanes of 64 bits cross them.
_PAIRS = {
    4: ((0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)),
    8: ((0, 4, 2, 6), (1, 5, 3, 7)),
}
_FOURS = {
    4: ((0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)),
    8: ((0, 1, 4, 5), (2, 3, 6, 7)),
}


def square(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Four rows as four columns, and back."""
    size = lane_bytes(rows[0].type)
    low, high = (
        [shuffle(b, rows[i], rows[i + 1], lanes) for i in (0, 2)] for lanes in _PAIRS[size]
    )
    if size == 4:
        return [
            shuffle(b, pair[0], pair[1], lanes) for pair in (low, high) for lanes in _FOURS[size]
        ]
    return [shuffle(b, pair[0], pair[1], lanes) for lanes in _FOURS[size] for pair in (low, high)]


def _parts(b: ir.IRBuilder, v: ir.Value, n: int) -> list[ir.Value]:
    return [shuffle(b, v, v, range(i, i + n)) for i in range(0, v.type.count, n)]


def _swapped(b: ir.IRBuilder, v: ir.Value) -> ir.Value:
    return joined(b, _parts(b, v, v.type.count // 2)[::-1])


# Columns of four f32 are half a register: column k lies beside column k + 4, as turning leaves it.
_PAIRED = (0, 4, 1, 5, 2, 6, 3, 7)


def _is_paired(p: types.CPointer, width: int, L: Lane) -> bool:
    return p.dtype == types.float32 and width == 4 and L.literal_value == 1


def _columns(b: ir.IRBuilder, v: ir.Value, back: bool) -> ir.Value:
    """W rows of eight, as they lie in memory, as eight columns of W."""
    rows = _parts(b, v, STEPS)
    rows = rows[::-1] if back else rows
    if lane_bytes(v.type) == 8:
        sides = zip(*(_parts(b, row, 4) for row in rows), strict=True)
        columns = [c for side in sides for c in square(b, list(side))]
        return joined(b, columns[::-1] if back else columns)
    if len(rows) == 4:
        if back:
            rows = [_swapped(b, row) for row in rows]
        columns = square(b, rows)
        return joined(b, columns[::-1] if back else columns)
    fours = [[_parts(b, c, 4) for c in square(b, rows[i : i + 4])] for i in (0, 4)]
    columns = [joined(b, [four[k][side] for four in fours]) for side in (0, 1) for k in range(4)]
    return joined(b, columns[::-1] if back else columns)


def _rows(b: ir.IRBuilder, v: ir.Value, back: bool) -> ir.Value:
    """The way back."""
    if lane_bytes(v.type) == 4 and v.type.count == 4 * STEPS:
        columns = _parts(b, v, 8)
        rows = square(b, columns[::-1] if back else columns)
        rows = [_swapped(b, row) for row in rows] if back else rows
        return joined(b, rows[::-1] if back else rows)
    columns = _parts(b, v, v.type.count // STEPS)
    columns = columns[::-1] if back else columns
    if lane_bytes(v.type) == 8:
        left, right = (square(b, columns[k : k + 4]) for k in (0, 4))
        rows = [joined(b, list(row)) for row in zip(left, right, strict=True)]
    else:
        fours = [_parts(b, c, 4) for c in columns]
        rows = []
        for i in (0, 1):
            rows += square(b, [joined(b, [fours[k][i], fours[k + 4][i]]) for k in range(4)])
    return joined(b, rows[::-1] if back else rows)


def _reordered(order: Callable) -> Callable:
    def reorder(p: Pointer, v: Vec, L: Lane):
        width = v.n // STEPS

        def emit(b, _p, v_, _L):
            if not _is_paired(p, width, L):
                return v_
            lanes = [order(k) * width + l for k in range(STEPS) for l in range(width)]
            return shuffle(b, v_, v_, lanes)

        return v(p, v, L), emit

    return op(reorder)


paired, ordered = _reordered(lambda k: _PAIRED[k]), _reordered(_PAIRED.index)

# --- memory -------------------------------------------------------------------------------------


@op
def load_columns(cursor: types.BaseTuple, W: Lane, L: Lane):
    """A whole tile; along the axis of a step of 1 or -1."""
    pointer, width = cursor[0], L.literal_value
    dtype = STORAGE[pointer.dtype].compute
    n = STEPS * W.literal_value

    def emit(b, cursor_, _W, _L):
        tile = Tile(b, cursor, cursor_, n // width, width)
        if width > 1:
            return decoded(b, pointer, tile.load(), dtype)

        def along(back: bool) -> ir.Value:
            at = block_at(b, tile.p, lowest(b, tile.i, n) if back else tile.i, tile.raw)
            raw = b.load(at, align=lane_bytes(tile.raw))
            return _columns(b, decoded(b, pointer, raw, dtype), back)

        forwards = b.icmp_signed("==", tile.step, I64(1))
        return either(b, forwards, lambda: along(False), lambda: along(True))

    return Vec(dtype, n)(cursor, W, L), emit


def _stored_whole(b: ir.IRBuilder, tile: Tile, i: ir.Value, raw: ir.Value) -> None:
    """Past the cache in whole registers where they are aligned: half as many stores."""
    n = _REGISTER // lane_bytes(raw.type)
    where = b.ptrtoint(b.gep(tile.p, [i]), I64)
    aligned = b.icmp_unsigned("==", b.and_(where, I64(_REGISTER - 1)), I64(0))

    def streamed() -> None:
        for k in range(0, raw.type.count, n):
            piece = shuffle(b, raw, raw, range(k, k + n))
            at = block_at(b, tile.p, b.add(i, I64(k)), piece.type)
            b.store(piece, at, align=_REGISTER).set_metadata(
                "nontemporal", b.module.add_metadata([I32(1)])
            )

    whole = b.and_(tile.streaming, aligned)
    either(b, whole, streamed, lambda: stored(b, tile.p, i, raw, tile.streaming))


@op
def store_columns(cursor: types.BaseTuple, v: Vec, L: Lane):
    pointer, width = cursor[0], L.literal_value

    def emit(b, cursor_, v_, _L):
        tile = Tile(b, cursor, cursor_, v.n // width, width)
        if width > 1:
            tile.store(encoded(b, pointer, v_, v.dtype))
            return

        def along(back: bool) -> None:
            raw = encoded(b, pointer, _rows(b, v_, back), v.dtype)
            _stored_whole(b, tile, lowest(b, tile.i, v.n) if back else tile.i, raw)

        forwards = b.icmp_signed("==", tile.step, I64(1))
        either(b, forwards, lambda: along(False), lambda: along(True))

    return types.void(cursor, v, L), emit


# --- sums ---------------------------------------------------------------------------------------


@op
def over(v: Vec, fill: object, k: Lane, W: Lane):
    """Of every 2·k steps, the later k see the last of the earlier k, the others `fill`."""
    span, width = k.literal_value, W.literal_value
    lanes = [
        (i // width // span * span - 1) * width + i % width if i // width // span % 2 else v.n + i
        for i in range(v.n)
    ]
    return v(v, v, k, W), lambda b, v_, fill_, *_: shuffle(b, v_, fill_, lanes)


@op
def mirrored(v: Vec, W: Lane):
    """The steps of each block, last one first."""
    width = W.literal_value
    lanes = [(STEPS - 1 - i // width) * width + i % width for i in range(v.n)]
    return v(v, W), lambda b, v_, _: shuffle(b, v_, v_, lanes)


@inlined
def running(v, W):
    v += over(v, -0.0, 1, W)
    v += over(v, -0.0, 2, W)
    return v + over(v, -0.0, 4, W)


# --- memory ahead ---------------------------------------------------------------------------------

READ, WRITE = 0, 1
_AHEAD = 64  # tiles between a request for memory and its use, along
_LINE, _PAGE = 64, 4096
_ASIDE = 4 * _LINE


@op
def ask_for(cursor: types.BaseTuple, g: types.Integer, purpose: Lane, W: Lane, L: Lane):
    """Ask for memory that is needed later, on the way past tile g of a group: along, some tiles
    ahead; across, the next steps of these lines, or, where steps are so far apart that those would
    drive these out of the cache, lines further on, and what is written soon. A line of memory holds
    several tiles there, each of which asks for its share of the rows."""
    pointer, width = cursor[0], L.literal_value
    size = lane_bytes(ir.VectorType(LLVM_ELEMENT[pointer.dtype], 1))
    tiles = max(1, _LINE // size // W.literal_value)  # to a line of memory

    def emit(b, cursor_, g_, _purpose, _W, _L):
        p, i, by = (b.extract_value(cursor_, k) for k in range(3))
        if width == 1:
            rows = STEPS * W.literal_value
            places = [b.mul(by, I64(_AHEAD * rows + k)) for k in range(0, rows, _LINE // size)]
        else:
            share = STEPS // tiles
            far = b.icmp_signed("==", b.and_(by, I64(_PAGE // size - 1)), I64(0))
            aside = 0 if purpose.literal_value == WRITE else _ASIDE // size
            on = b.select(far, I64(aside), b.mul(by, I64(STEPS)))
            first = b.mul(b.and_(g_, I64(tiles - 1)), I64(share))
            rows = [b.add(first, I64(k)) for k in range(share)]
            places = [b.add(on, b.mul(by, row)) for row in rows]
        for place in places:
            written = purpose.literal_value == WRITE
            asked_for(b, p, b.add(i, place), early=width == 1 and not written, written=written)

    return types.void(cursor, types.int64, purpose, W, L), emit


@by_type
def ask_to_write(cursor, g, W, L):
    """Across the axis, outputs meet in the cache: there it helps to ask for them as well."""
    if L.literal_value == 1:
        return lambda cursor, g, W, L: None
    return lambda cursor, g, W, L: ask_for(cursor, g, WRITE, W, L)


# --- walking ------------------------------------------------------------------------------------


@inlined
def as_met(task, lo, hi, item):
    """The items from lo to hi in the order of memory, as the walk along a line goes: so that what
    is asked for ahead at the end of a line is the next one's."""
    return lo + hi - 1 - item if step(words(task, AXIS), 0) < 0 else item


@op
def group_at(cursors: types.BaseTuple, g: types.Integer, W: Lane, L: Lane):
    """Tile g of a group from here: along, so many tiles on; across, so many lines on."""

    def emit(b, cursors_, g_, _W, _L):
        blocks = b.mul(g_, I64(W.literal_value))
        for t, kind in enumerate(cursors):
            if isinstance(kind, types.BaseTuple):
                i, along = b.extract_value(cursors_, [t, 1]), b.extract_value(cursors_, [t, 2])
                by = b.mul(blocks, b.mul(along, I64(STEPS))) if L.literal_value == 1 else blocks
                cursors_ = b.insert_value(cursors_, b.add(i, by), [t, 1])
        return cursors_

    return cursors(cursors, types.int64, W, L), emit


@by_type
def cell_of(g, L):
    """Which state belongs to a group."""
    return (lambda g, L: 0) if L.literal_value == 1 else (lambda g, L: g)
