"""Pairs: the even and the odd steps of a tile of bf16, apart.

Two neighbours are one word of 32 bits: a shift and a mask part them, where other ways take
shuffles; and sums of pairs are half as many to scan. Eight steps, four pairs, are a block.

    load_pairs(cursor, size, fill, back, L)    (even, odd) steps; back: from the end of the tile
    store_pairs(cursor, size, v, back, numbers, L)   numbers: no NaN among them
    within(v, fill, k, back, L)                pair j <- pair j - k of its block, or from `fill`
    totals_of(v, back, L)                      the last pair of each block
    to_block(c, L)                             one value for a block, to all its pairs
"""

from typing import Final

from llvmlite import ir
from numba import types

from pullback.cpu.emit import I32, I64, Lane, Vec, constant, op, shaped, shuffle, splatted
from pullback.cpu.memory import decoded, encoded
from pullback.cpu.tiles import Tile, steps_and_lines, tile_mask

PAIRS: Final = 4  # of a block
F32 = ir.FloatType()


def _rows(L: int) -> int:
    return 32 if L == 1 else 2 * PAIRS


def _parted(b: ir.IRBuilder, v: ir.Value, L: int) -> tuple[ir.Value, ir.Value]:
    even, odd = (
        [row * L + c for row in range(first, v.type.count // L, 2) for c in range(L)]
        for first in (0, 1)
    )
    return shuffle(b, v, v, even), shuffle(b, v, v, odd)


def _interleaved(b: ir.IRBuilder, even: ir.Value, odd: ir.Value, L: int) -> ir.Value:
    n = even.type.count
    order = [k * n + row * L + c for row in range(n // L) for k in (0, 1) for c in range(L)]
    return shuffle(b, even, odd, order)


def _words(b: ir.IRBuilder, v: ir.Value) -> ir.Value:
    return b.bitcast(v, shaped(I32, v.type))


def _tile(b: ir.IRBuilder, cursor: types.BaseTuple, at: ir.Value, L: int) -> Tile:
    tile = Tile(b, cursor, at, _rows(L), L)
    if isinstance(cursor[2], types.IntegerLiteral):
        tile.step = I64(cursor[2].literal_value)
    return tile


def _decoded_pairs(b, pointer, raw: ir.Value, L: int) -> tuple[ir.Value, ir.Value]:
    if L == 1:
        return parted_words(b, raw)
    even, odd = _parted(b, raw, L)
    return decoded(b, pointer, even, types.float32), decoded(b, pointer, odd, types.float32)


def parted_words(b: ir.IRBuilder, raw: ir.Value) -> tuple[ir.Value, ir.Value]:
    """bf16 is the upper half of f32."""
    words = b.bitcast(raw, ir.VectorType(I32, raw.type.count // 2))
    low = b.shl(words, constant(words.type, 16))
    high = b.and_(words, constant(words.type, 0xFFFF0000))
    kind = shaped(F32, words.type)
    return b.bitcast(low, kind), b.bitcast(high, kind)


def combined(b: ir.IRBuilder, even: ir.Value, odd: ir.Value) -> ir.Value:
    high = b.and_(odd, constant(odd.type, 0xFFFF0000))
    words = b.or_(b.lshr(even, constant(even.type, 16)), high)
    return b.bitcast(words, ir.VectorType(ir.IntType(16), 2 * even.type.count))


def rounded(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """f32 numbers whose upper 16 bits are the nearest bf16."""
    bits = _words(b, x)
    odd = b.and_(b.lshr(bits, constant(bits.type, 16)), constant(bits.type, 1))
    return b.add(bits, b.add(odd, constant(bits.type, 0x7FFF)))


def _encoded_numbers(b, even: ir.Value, odd: ir.Value, L: int) -> ir.Value:
    even, odd = rounded(b, even), rounded(b, odd)
    if L == 1:
        return combined(b, even, odd)
    words = _interleaved(b, even, odd, L)
    high = b.lshr(words, constant(words.type, 16))
    return b.trunc(high, shaped(ir.IntType(16), words.type))


def _pair(b: ir.IRBuilder, values: tuple[ir.Value, ir.Value], back: bool) -> ir.Value:
    out = ir.Constant(ir.ArrayType(values[0].type, 2), ir.Undefined)
    for k, value in enumerate(values[::-1] if back else values):
        out = b.insert_value(out, value, k)
    return out


@op
def load_pairs(cursor: types.BaseTuple, size: object, fill: types.Float, back: Lane, L: Lane):
    pointer, width = cursor[0], L.literal_value
    vec = Vec(types.float32, _rows(width) * width // 2)

    def emit(b, cursor_, size_, fill_, _back, _L):
        tile = _tile(b, cursor, cursor_, width)
        if isinstance(size, types.NoneType):
            parts = _decoded_pairs(b, pointer, tile.load(), width)
        else:
            there = steps_and_lines(b, size_)
            v = decoded(b, pointer, tile.load_part(*there), types.float32)
            mask = tile_mask(b, tile.rows, width, *there)
            parts = _parted(b, b.select(mask, v, splatted(b, fill_, v.type.count)), width)
        return _pair(b, parts, bool(back.literal_value))

    return types.UniTuple(vec, 2)(cursor, size, types.float32, back, L), emit


@op
def store_pairs(
    cursor: object, size: object, v: types.UniTuple, back: Lane, numbers: Lane, L: Lane
):
    if isinstance(cursor, types.NoneType):
        return types.void(cursor, size, v, back, numbers, L), lambda *_: None
    pointer, width = cursor[0], L.literal_value  # type: ignore[index]

    def emit(b, cursor_, size_, v_, _back, _numbers, _L):
        tile = _tile(b, cursor, cursor_, width)
        parts = [b.extract_value(v_, k) for k in range(2)]
        even, odd = parts[::-1] if back.literal_value else parts
        if numbers.literal_value:
            raw = _encoded_numbers(b, even, odd, width)
        else:
            raw = encoded(b, pointer, _interleaved(b, even, odd, width), types.float32)
        if isinstance(size, types.NoneType):
            tile.store(raw)
        else:
            tile.store_part(raw, *steps_and_lines(b, size_))

    return types.void(cursor, size, v, back, numbers, L), emit


# --- blocks ---------------------------------------------------------------------------------------


@op
def within(v: Vec, fill: object, k: Lane, back: Lane, L: Lane):
    shift, width = k.literal_value * L.literal_value, PAIRS * L.literal_value
    shift = shift if back.literal_value else -shift
    order = [v.n + i + shift if 0 <= i % width + shift < width else i for i in range(v.n)]
    return v(v, v, k, back, L), lambda b, v_, fill_, *_: shuffle(b, fill_, v_, order)


@op
def totals_of(v: Vec, back: Lane, L: Lane):
    width = L.literal_value
    last = 0 if back.literal_value else (PAIRS - 1) * width
    blocks = range(0, v.n, PAIRS * width)
    out = Vec(v.dtype, len(blocks) * width)
    return out(v, back, L), lambda b, v_, *_: shuffle(
        b, v_, v_, [block + last + c for block in blocks for c in range(width)]
    )


@op
def to_block(c: Vec, L: Lane):
    out = Vec(c.dtype, PAIRS * c.n)
    return out(c, L), lambda b, c_, _: shuffle(b, c_, c_, [i % c.n for i in range(out.n)])
