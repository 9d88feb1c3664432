"""Octets: eight steps of a line of halves, as two quads in two lanes of four vectors.

Column k of a tile holds step k of each quad: inside a quad a scan needs no shuffles. Along the axis
a tile has four octets of one line, across it one octet of several lines.

    load_octets(cursor, size, fill, rows, L)   four columns, in f32
    quads(p, v, k, L)                          the first (0) or second (1) quads of all octets
    both_quads(p, u, v, L)                     and back
    store_octets(cursor, size, v, numbers, L)  numbers: no NaN among them
    is_moderate(cursor, rows, L)                   whether a whole tile has moderate factors only
    is_modest(cursor, rows, L)                 whether it is zero, or within 2^-50 and 2^50
    steps_to_octets(v, L)  octets_to_steps     a tile of steps, and back
    in_both_quads(mask, L)                     lines of an octet whose quads are both in the mask
    sweep_octets(tile, octet, either_of(tile, octet), cursors, n, lines, states, L)
        tile(cursors, place, state, rows, L) -> (whether it could, state) over n steps; where it
        could not, octet(cursors, place, size, state, L) -> state
    sweep_octets_back(...)                     the same, last tile first
"""

from collections.abc import Callable
from itertools import chain
from typing import Final

from llvmlite import ir
from numba import types

from pullback.cpu.emit import I32, I64, Lane, Vec, constant, op, shuffle, splatted
from pullback.cpu.memory import decoded, encoded
from pullback.cpu.tile_blocks import opaque
from pullback.cpu.tiles import Tile, by_type, joined, moved, steps_and_lines, tile_mask
from pullback.ops.scan.cpu_quads import combined, common_step, parted_words, rounded, straight
from pullback.ops.scan.cpu_side_by_side import tiles_at

STEPS: Final = 4  # of a quad
OCTET: Final = 2 * STEPS
ROWS: Final = 4 * OCTET  # of a tile along the axis
F32, HALF = ir.FloatType(), ir.IntType(16)


def _is_bf16(p: types.CPointer) -> bool:
    return p.dtype == types.uint16


def _tile(b: ir.IRBuilder, cursor: types.BaseTuple, at: ir.Value, rows: int, L: int) -> Tile:
    tile = Tile(b, cursor, at, rows, L)
    if isinstance(cursor[2], types.IntegerLiteral):
        tile.step = I64(cursor[2].literal_value)
    return tile


# --- order of lanes -------------------------------------------------------------------------------


def _quads(pointer: types.CPointer, n: int, L: int) -> list[int]:
    """Which quads the lanes of a column hold: as the shortest way from memory leaves them."""
    if L == 1 and n == ROWS // STEPS and _is_bf16(pointer):
        return [0, 1, 4, 5, 2, 3, 6, 7]
    return [*range(0, n // L, 2), *range(1, n // L, 2)]


def _lanes(pointer: types.CPointer, n: int, L: int, second: int) -> list[int]:
    """The lanes of the first or second quads, octet after octet."""
    order = _quads(pointer, n, L)
    return [order.index(q) * L + c for q in range(second, n // L, 2) for c in range(L)]


def _places(n: int, L: int) -> list[list[int]]:
    """Where the lanes of each column lie among n lanes in the order of steps."""
    octets = range(0, n // L, OCTET)
    return [
        [(octet + quad + k) * L + c for quad in (0, STEPS) for octet in octets for c in range(L)]
        for k in range(STEPS)
    ]


@op
def quads(p: types.CPointer, v: Vec, k: Lane, L: Lane):
    lanes = _lanes(p, v.n, L.literal_value, k.literal_value)
    return Vec(v.dtype, v.n // 2)(p, v, k, L), lambda b, _p, v_, *_: shuffle(b, v_, v_, lanes)


@op
def both_quads(p: types.CPointer, u: Vec, v: Vec, L: Lane):
    n, width = 2 * v.n, L.literal_value
    lanes = _lanes(p, n, width, 0) + _lanes(p, n, width, 1)
    order = [lanes.index(i) for i in range(n)]
    return Vec(v.dtype, n)(p, v, v, L), lambda b, _p, u_, v_, _L: shuffle(b, u_, v_, order)


def _columns(b: ir.IRBuilder, v: ir.Value, L: int) -> list[ir.Value]:
    return [shuffle(b, v, v, lanes) for lanes in _places(v.type.count, L)]


def _steps(b: ir.IRBuilder, columns: list[ir.Value], L: int) -> ir.Value:
    n = STEPS * columns[0].type.count
    where = {place: i for i, place in enumerate(chain(*_places(n, L)))}
    v = joined(b, columns)
    return shuffle(b, v, v, [where[i] for i in range(n)])


# Along the axis, two columns of bf16 come as words of 32 bits; f16 is turned as f32, eight steps
# to a row. Nothing crosses 128 bits.
_WORDS = (0, 2, 8, 10, 4, 6, 12, 14)
_LOW, _HIGH = (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)
_LEFT, _RIGHT = (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)


def _square(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Four rows of four as four columns, twice, and back."""
    pairs = [
        (shuffle(b, rows[0], rows[1], part), shuffle(b, rows[2], rows[3], part))
        for part in (_LOW, _HIGH)
    ]
    return [shuffle(b, u, v, part) for u, v in pairs for part in (_LEFT, _RIGHT)]


def _parts(b: ir.IRBuilder, v: ir.Value, n: int) -> list[ir.Value]:
    return [shuffle(b, v, v, range(k, k + n)) for k in range(0, v.type.count, n)]


def _columns_along(b: ir.IRBuilder, pointer: types.CPointer, raw: ir.Value) -> list[ir.Value]:
    if not _is_bf16(pointer):
        return _square(b, [decoded(b, pointer, v, types.float32) for v in _parts(b, raw, OCTET)])
    words = _parts(b, b.bitcast(raw, ir.VectorType(I32, ROWS // 2)), ROWS // 4)
    columns: list[ir.Value] = []
    for k in (0, 1):
        pair = shuffle(b, words[0], words[1], [i + k for i in _WORDS])
        columns += parted_words(b, b.bitcast(pair, ir.VectorType(HALF, ROWS // 2)))
    return columns


def _raw_along(b: ir.IRBuilder, pointer: types.CPointer, columns: list[ir.Value]) -> ir.Value:
    """The way back, for numbers."""
    if not _is_bf16(pointer):
        rows = _square(b, columns)
        return joined(b, [encoded(b, pointer, v, types.float32) for v in rows])
    pairs = []
    for k in (0, 2):
        pair = combined(b, rounded(b, columns[k]), rounded(b, columns[k + 1]))
        pairs.append(b.bitcast(pair, ir.VectorType(I32, ROWS // 4)))
    words = joined(b, [shuffle(b, pairs[0], pairs[1], part) for part in (_LOW, _HIGH)])
    return b.bitcast(words, ir.VectorType(HALF, ROWS))


# --- memory ---------------------------------------------------------------------------------------


def _quad(b: ir.IRBuilder, columns: list[ir.Value]) -> ir.Value:
    out = ir.Constant(ir.ArrayType(columns[0].type, STEPS), ir.Undefined)
    for k, column in enumerate(columns):
        out = b.insert_value(out, column, k)
    return out


@op
def load_octets(cursor: types.BaseTuple, size: object, fill: types.Float, rows: Lane, L: Lane):
    pointer, width, n = cursor[0], L.literal_value, rows.literal_value

    def emit(b, cursor_, size_, fill_, _rows, _L):
        tile = _tile(b, cursor, cursor_, n, width)
        if isinstance(size, types.NoneType) and width == 1 and n == ROWS:
            return _quad(b, _columns_along(b, pointer, tile.load()))
        if isinstance(size, types.NoneType):
            v = decoded(b, pointer, tile.load(), types.float32)
        else:
            there = steps_and_lines(b, size_)
            v = decoded(b, pointer, tile.load_part(*there), types.float32)
            v = b.select(tile_mask(b, n, width, *there), v, splatted(b, fill_, v.type.count))
        return _quad(b, _columns(b, v, width))

    columns = types.UniTuple(Vec(types.float32, n * width // STEPS), STEPS)
    return columns(cursor, size, types.float32, rows, L), emit


@op
def store_octets(cursor: object, size: object, v: types.UniTuple, numbers: Lane, L: Lane):
    if isinstance(cursor, types.NoneType):
        return types.void(cursor, size, v, numbers, L), lambda *_: None
    pointer, width = cursor[0], L.literal_value  # type: ignore[index]
    rows = STEPS * v.dtype.n // width
    along = width == 1 and rows == ROWS and (numbers.literal_value or not _is_bf16(pointer))

    def emit(b, cursor_, size_, v_, _numbers, _L):
        tile = _tile(b, cursor, cursor_, rows, width)
        columns = [b.extract_value(v_, k) for k in range(STEPS)]
        if isinstance(size, types.NoneType) and along:
            tile.store(_raw_along(b, pointer, columns))
            return
        steps = _steps(b, columns, width)
        if numbers.literal_value and _is_bf16(pointer):
            words = b.lshr(rounded(b, steps), constant(ir.VectorType(I32, steps.type.count), 16))
            raw = b.trunc(words, tile.raw)
        else:
            raw = encoded(b, pointer, steps, types.float32)
        if isinstance(size, types.NoneType):
            tile.store(raw)
        else:
            tile.store_part(raw, *steps_and_lines(b, size_))

    return types.void(cursor, size, v, numbers, L), emit


# Moderate factors lie from 2^-14 on and below 2^15: eight of them make 2^-112 to 2^120. The bits of
# halves are in order as integers; shifted so that these come first, one comparison does.
_EXPONENT = {types.int16: (15, 10), types.uint16: (127, 7)}  # bias, and bits after it


def _places_of(dtype: types.Type, least: int, limit: int) -> tuple[int, int]:
    bias, fraction = _EXPONENT[dtype]
    return max(bias + least, 0) << fraction, min(bias + limit, 2 * bias + 1) << fraction


def folded(b: ir.IRBuilder, v: ir.Value, sign: str, signed: bool) -> ir.Value:
    """The largest or smallest of the lanes, as 16 of them."""
    compare = b.icmp_signed if signed else b.icmp_unsigned
    while v.type.count > 16:
        u, v = _parts(b, v, v.type.count // 2)
        v = b.select(compare(sign, u, v), u, v)
    return v


def none_set(b: ir.IRBuilder, mask: ir.Value) -> ir.Value:
    bits = b.bitcast(b.sext(mask, ir.VectorType(HALF, 16)), ir.IntType(256))
    return b.icmp_unsigned("==", bits, ir.Constant(bits.type, 0))


@op
def is_moderate(cursor: types.BaseTuple, rows: Lane, L: Lane):
    least, limit = _places_of(cursor[0].dtype, -14, 15)

    def emit(b, cursor_, _rows, _L):
        v = _tile(b, cursor, cursor_, rows.literal_value, L.literal_value).load()
        v = b.add(b.and_(v, constant(v.type, 0x7FFF)), constant(v.type, (1 << 15) - least))
        v = folded(b, v, ">", True)
        return none_set(b, b.icmp_signed(">=", v, constant(v.type, limit - least - (1 << 15))))

    return types.boolean(cursor, rows, L), emit


@op
def is_modest(cursor: types.BaseTuple, rows: Lane, L: Lane):
    least, limit = _places_of(cursor[0].dtype, -50, 50)

    def emit(b, cursor_, _rows, _L):
        v = _tile(b, cursor, cursor_, rows.literal_value, L.literal_value).load()
        # One less, so that zero is the largest without a sign, and the smallest with one.
        v = b.add(b.and_(v, constant(v.type, 0x7FFF)), constant(v.type, -1))
        most = folded(b, v, ">", True)
        beyond = b.icmp_signed(">=", most, constant(most.type, limit - 1))
        if least:
            low = folded(b, v, "<", False)
            beyond = b.or_(beyond, b.icmp_unsigned("<", low, constant(low.type, least - 1)))
        return none_set(b, beyond)

    return types.boolean(cursor, rows, L), emit


@op
def steps_to_octets(v: Vec, L: Lane):
    columns = types.UniTuple(Vec(v.dtype, v.n // STEPS), STEPS)
    return columns(v, L), lambda b, v_, _: _quad(b, _columns(b, v_, L.literal_value))


@op
def octets_to_steps(v: types.UniTuple, L: Lane):
    whole = Vec(v.dtype.dtype, STEPS * v.dtype.n)
    return whole(v, L), lambda b, v_, _: _steps(
        b, [b.extract_value(v_, k) for k in range(STEPS)], L.literal_value
    )


@op
def in_both_quads(mask: Vec, L: Lane):
    def emit(b, mask_, _L):
        return b.and_(*_parts(b, mask_, mask_.type.count // 2))

    return Vec(mask.dtype, L.literal_value)(mask, L), emit


# --- walking --------------------------------------------------------------------------------------


@by_type
def sweep_octets(tile, octet, either, cursors, n, lines, states, L):
    return _along if L.literal_value == 1 else _across


def _along(tile, octet, either, cursors, n, lines, states, L):
    state, k, step = states[0], 0, common_step(cursors)
    while k < n:
        could = True
        if step == 1:
            while could and k + ROWS <= n:
                could, state = tile(straight(cursors, k, 1), (k, 0), state, ROWS, L)
                k += ROWS if could else 0
        elif step == -1:
            while could and k + ROWS <= n:
                could, state = tile(straight(cursors, k, -1), (k, 0), state, ROWS, L)
                k += ROWS if could else 0
        for _ in range(opaque(min(n - k + OCTET - 1, ROWS) // OCTET)):
            state = octet(moved(cursors, k, 0), (k, 0), (n - k, 1), state, L)
            k += OCTET
    states[0] = state


@by_type
def sweep_octets_back(tile, octet, either, cursors, n, lines, states, L):
    return _back_along if L.literal_value == 1 else _back_across


def _back_along(tile, octet, either, cursors, n, lines, states, L):
    state, step = states[0], common_step(cursors)
    k = (n - 1) // ROWS * ROWS
    while k >= 0:
        could = k + ROWS <= n
        if step == 1:
            while could and k >= 0:
                could, state = tile(straight(cursors, k, 1), (k, 0), state, ROWS, L)
                k -= ROWS if could else 0
        elif step == -1:
            while could and k >= 0:
                could, state = tile(straight(cursors, k, -1), (k, 0), state, ROWS, L)
                k -= ROWS if could else 0
        if k >= 0:
            i = k + (min(n - k, ROWS) - 1) // OCTET * OCTET
            for _ in range(opaque((i - k) // OCTET + 1)):
                state = octet(moved(cursors, i, 0), (i, 0), (n - i, 1), state, L)
                i -= OCTET
            k -= ROWS
    states[0] = state


def _across(tile, octet, either, cursors, n, lines, states, L):
    for k in range(0, n, OCTET):
        tiles_at(either, cursors, k, k + OCTET, n, lines, states, OCTET, L)


def _back_across(tile, octet, either, cursors, n, lines, states, L):
    for k in range((n - 1) // OCTET * OCTET, -1, -OCTET):
        tiles_at(either, cursors, k, k - OCTET, n, lines, states, OCTET, L)


def either_of(tile: Callable, octet: Callable) -> Callable:
    """An octet of lines side by side: as a tile if it can be one."""

    @by_type
    def either(cursors, place, size, state, L):
        if not isinstance(size, types.NoneType):
            return lambda cursors, place, size, state, L: octet(cursors, place, size, state, L)

        def whole(cursors, place, size, state, L):
            could, after = tile(cursors, place, state, OCTET, L)
            return after if could else octet(cursors, place, None, state, L)

        return whole

    return either
