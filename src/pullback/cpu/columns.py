"""Tiles of a scan: B steps of W lines or blocks, loaded from memory and stored to it.

A tile is B *columns*: column s holds step s in W lanes, in the working type of the scan. B follows
from the element size and is part of the bits; W is not. Three walks place the lanes:

    ALONG    lane l is block l of one line: W rows of B steps, one after the other in memory
    LINES    lane l is line l: W rows of B steps, a line apart
    ACROSS   lane l is line l and lines are neighbours in memory: B rows of W lines
    APART    lane l is in a piece of its own of one line: W rows of B steps. k and left are Vecs of
             int32, c is the last place from which whole rows are inside the line

The rows of ALONG and LINES are transposed in registers. Two steps of 16 bits are transposed as one
word and split afterwards. A *cursor* is (pointer, index of step 0 of line 0, step along the line,
pitch from line to line). `back` is 1 where the steps of all cursors run against memory order, else
0: a kernel serves both directions.

    block_of(p)  lanes_along(p)  lanes_lines(p, tensors)  lanes_across(p)    B and W
    loads(neutral, ahead, alike) -> load_tile(cursors, k, c, left, like, walk, back, unordered)
    store_tile(p, cursors, k, c, left, values, streaming, mode, walk, back)
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from pullback.cpu.apart import all_inside, cut, registers_apart, store_apart
from pullback.cpu.emit import (
    I32,
    I64,
    LLVM_ELEMENT,
    Lane,
    Vec,
    constant,
    llvm_call,
    op,
    shaped,
    shuffle,
)
from pullback.cpu.memory import decoded, encoded
from pullback.cpu.tile_rows import ACROSS, ALONG, APART, Rows, packed, size_of, steps_of_block
from pullback.cpu.tiles import Pointer, literal
from pullback.cpu.transfer import asked_for, block_at, either, lane_bytes, masked_store
from pullback.cpu.transpose import SIDE, columns_of_rows, rows_of_columns

# How a store encodes: any number; no NaN among them; values that came from such memory.
ANY, NUMBERS, EXACT = range(3)
# Blocks of a tile along a line by element size: one register of the working type, or the fastest.
# 16 blocks of bf16 would need descending stores of 64-byte registers, which take cumsum_backward
# 4096x4096 1.5 to 2.3 times as long where they are not aligned.
LANES_ALONG = {2: 8, 4: 4, 8: 4}
# Of walks that only save, in which most tiles are but looked at: cummax backward sorted f32 takes
# 1.3 times as long with four lanes.
LANES_AHEAD = {2: 8, 4: 16, 8: 4}
LINE_BYTES = 64


@op
def block_of(p: Pointer):
    return literal(steps_of_block(p), p)


def lanes_of_lines(size: int, tensors: int) -> int:
    """Lines of a transposed tile. Those a power of two apart share a set of the first cache, which
    holds eight of their cache lines: cumprod_backward f64 4096x4096 takes 1.8 times as long with
    four lanes."""
    if tensors > 2:
        return {2: 8, 4: 4, 8: 2}[size]
    return {2: 16, 4: 8, 8: 4}[size]


def lanes_by(table: dict[int, int]) -> Callable:
    """Lanes along a line by element size."""

    def lanes(p: Pointer):
        return literal(table[size_of(p)], p)

    return op(lanes)


lanes_along = lanes_by(LANES_ALONG)


lanes_ahead = lanes_by(LANES_AHEAD)


@op
def lanes_lines(p: Pointer, tensors: Lane):
    return literal(lanes_of_lines(size_of(p), tensors.literal_value), p, tensors)


@op
def lanes_across(p: Pointer):
    return literal(LINE_BYTES // size_of(p), p)


@op
def cells_across(p: Pointer, lines: Lane):
    """Tiles that so many lines take at most, wherever the first begins."""
    return literal(lines.literal_value * size_of(p) // LINE_BYTES + 2, p, lines)


@op
def prefetch_tile(cursors: types.BaseTuple, k: types.Integer, c: types.Integer, B: Lane):
    """The rows across of a tile, at any place."""

    def emit(b, cursors_, k_, c_, _B):
        for t in range(len(cursors)):
            p, start, step = (b.extract_value(cursors_, [t, m]) for m in range(3))
            for s in range(B.literal_value):
                at = b.add(b.add(start, c_), b.mul(b.add(k_, I64(s)), step))
                asked_for(b, p, at)

    return types.void(cursors, types.int64, types.int64, B), emit


# --- loads ----------------------------------------------------------------------------------------


def _registers(rows: Rows, places, kind, count, neutral) -> list[ir.Value]:
    """The rows of one group; of fewer steps, each by a load with a mask."""
    b, size = rows.b, size_of(rows.p)

    def whole():
        return packed(b, [b.load(block_at(b, rows.pointer, at, kind), align=size) for at in places])

    def masked():
        mask, rest = rows.mask(count), constant(kind, neutral)
        out = []
        for at in places:
            where = block_at(b, rows.pointer, at, kind)
            values = [where, I32(size), mask, rest]
            out.append(llvm_call(b, "masked.load", kind, values, [kind, where.type]))
        return packed(b, out)

    if not rows.may_be_short:
        all_ = whole()
    else:
        all_ = either(b, b.icmp_signed(">=", count, I64(rows.B)), whole, masked)
    return _unpacked(b, all_)


def _unpacked(b, values) -> list[ir.Value]:
    return [b.extract_value(values, r) for r in range(values.type.count)]


def _loaded(
    rows: Rows, dtype: types.Type, unordered: bool, count, neutral, inside=None
) -> list[ir.Value]:
    b, p = rows.b, rows.p
    if rows.walk == ACROSS:
        kind = ir.VectorType(LLVM_ELEMENT[p.dtype], rows.W)
        raw = [b.load(block_at(b, rows.pointer, at, kind), align=size_of(p)) for at in rows.places]
        return [decoded(b, p, v, dtype) for v in raw]
    words: list[ir.Value] = []
    for places, width in rows.groups():
        kind = ir.VectorType(rows.word, width)
        if inside is None:
            registers = _registers(rows, places, kind, count, neutral)
        else:
            registers = _unpacked(b, registers_apart(rows, places, kind, count, inside))
        as_they_are = unordered and width == rows.W and len(registers) == SIDE
        words += registers if as_they_are else columns_of_rows(b, registers)
    words = words if unordered else rows.placed(words, True)
    if size_of(p) == 2:
        columns = [v for w in words for v in _split(b, p, w, dtype)]
    else:
        columns = [decoded(b, p, w, dtype) for w in words]
    columns = columns if unordered else rows.in_walk_order(columns)
    return columns if inside is None else cut(b, columns, count, neutral)


def _split(b, p, words, dtype):
    """The two steps in each word."""
    n = words.type.count
    raw = b.bitcast(words, ir.VectorType(ir.IntType(16), 2 * n))
    places = range(0, 2 * n, 2), range(1, 2 * n, 2)
    if p.dtype == types.uint16:  # a shift and a mask
        return [decoded(b, p, shuffle(b, raw, raw, part), dtype) for part in places]
    both = decoded(b, p, shuffle(b, raw, raw, [*places[0], *places[1]]), dtype)
    return [shuffle(b, both, both, range(k, k + n)) for k in (0, n)]


def _number(t: object) -> types.Type:
    return t if isinstance(t, Vec) else types.int64


def loads(
    neutral: tuple[float, ...], ahead: tuple[int, ...], alike: tuple[int, ...] = ()
) -> Callable:
    """load_tile(cursors, k, c, left, like, walk, back, unordered): the tile at step k of line c, of
    which a line has `left` steps. What is read one step ahead has one less. `unordered`: of one
    line, in any order of steps and lanes. Inputs `alike` may have all lines across in one."""

    def load_tile(
        cursors: types.BaseTuple,
        k: object,
        c: types.Integer,
        left: object,
        like: Vec,
        walk: Lane,
        back: types.Integer,
        unordered: Lane,
    ):
        main = cursors[0][0]
        B = steps_of_block(main)
        tile = types.UniTuple(like, B)
        anyhow = bool(unordered.literal_value) and walk.literal_value == ALONG

        def emit(b, cursors_, k_, c_, left_, _like, _walk, back_, _unordered):
            tiles, inside = [], None
            if walk.literal_value == APART:
                inside = all_inside(b, k_, c_)
            for t, cursor in enumerate(cursors):
                own, column = b.extract_value(cursors_, t), c_
                if t in alike and walk.literal_value == ACROSS:
                    column = b.mul(c_, b.extract_value(own, 3))
                if walk.literal_value == APART:  # -1, or 0 of an input that stands still
                    moves = b.icmp_signed("!=", b.extract_value(own, 2), I64(0))
                    column = b.sext(moves, I64) if t in alike else I64(-1)
                rows = Rows(
                    b, cursor[0], own, (k_, column), like.n, B, walk.literal_value, back_, main
                )
                count = b.sub(left_, constant(left_.type, ahead[t]))
                columns = _loaded(rows, like.dtype, anyhow, count, neutral[t], inside)
                tiles.append(packed(b, columns))
            return packed(b, tiles)

        tiles = types.UniTuple(tile, len(cursors))
        numbers = _number(k), types.int64, _number(left)
        return tiles(cursors, *numbers, like, walk, types.int64, unordered), emit

    return op(load_tile)


# --- stores ---------------------------------------------------------------------------------------


def encoded_as(b, p, v, dtype, mode):
    if p.dtype != types.uint16 or mode == ANY:
        return encoded(b, p, v, dtype)
    if dtype == types.float64:
        v = b.fptrunc(v, shaped(ir.FloatType(), v.type))
    kind = shaped(I32, v.type)
    bits = b.bitcast(v, kind)
    if mode == NUMBERS:  # no NaN has to be kept one
        odd = b.and_(b.lshr(bits, constant(kind, 16)), constant(kind, 1))
        bits = b.add(bits, b.add(odd, constant(kind, 0x7FFF)))
    return b.trunc(b.lshr(bits, constant(kind, 16)), shaped(ir.IntType(16), v.type))


def _paired(b, p, pair, dtype, mode):
    """Two steps in each word."""
    n = pair[0].type.count
    if p.dtype == types.uint16:
        kind = ir.VectorType(I32, n)
        low, high = (b.zext(encoded_as(b, p, v, dtype, mode), kind) for v in pair)
        return b.or_(low, b.shl(high, constant(kind, 16)))
    raw = encoded_as(b, p, shuffle(b, *pair, range(2 * n)), dtype, mode)
    raw = shuffle(b, raw, raw, [k + h for k in range(n) for h in (0, n)])
    return b.bitcast(raw, ir.VectorType(I32, n))


def _write(b, pointer, at, v, nbytes, back):
    """Past the caches in pieces of so many bytes, or plainly (0)."""
    size = lane_bytes(v.type)
    n = nbytes // size or v.type.count
    for k in range(0, v.type.count, n)[:: -1 if back else 1]:
        piece = shuffle(b, v, v, range(k, k + n))
        where = b.bitcast(block_at(b, pointer, at, v.type), v.type.element.as_pointer())
        where = b.bitcast(b.gep(where, [I64(k)]), piece.type.as_pointer())
        out = b.store(piece, where, align=nbytes or min(size, 2))
        if nbytes:
            out.set_metadata("nontemporal", b.module.add_metadata([I32(1)]))


def _stored(rows: Rows, columns, dtype, count, streaming, mode) -> None:
    b, p = rows.b, rows.p
    registers: list[tuple[Any, Any]] = []
    if rows.walk == ACROSS:
        raw = [encoded_as(b, p, c, dtype, mode) for c in columns]
        registers, nbytes = list(zip(rows.places, raw, strict=True)), LINE_BYTES
    else:
        columns = rows.in_walk_order(columns)
        if size_of(p) == 2:
            pairs = (columns[k : k + 2] for k in range(0, len(columns), 2))
            words = [_paired(b, p, pair, dtype, mode) for pair in pairs]
        else:
            words = [encoded_as(b, p, c, dtype, mode) for c in columns]
        words = rows.placed(words, False)
        for g, (places, width) in enumerate(rows.groups()):
            four = words[g * SIDE : (g + 1) * SIDE]
            registers += zip(places, rows_of_columns(b, four, width), strict=True)
        nbytes = 16

    def in_pieces_of(nbytes, back=False):
        for at, v in registers[::-1] if back and rows.together else registers:
            _write(b, rows.pointer, at, v, nbytes, back)

    def streamed():
        if rows.walk == ACROSS:
            in_pieces_of(nbytes)
            return
        # In the order of the walk: a cache line that two tiles share is then completed at once.
        runs_back = b.icmp_signed("!=", rows.back, I64(0))
        either(b, runs_back, lambda: in_pieces_of(nbytes, True), lambda: in_pieces_of(nbytes))

    def masked():
        mask = rows.mask(count)
        for at, v in registers:
            masked_store(b, rows.pointer, at, mask, v)

    def plainly():
        in_pieces_of(0)

    if rows.walk == APART:
        store_apart(rows, registers, count)
        return

    def all_of_them():
        if registers[0][1].type.count * lane_bytes(registers[0][1].type) % nbytes:
            plainly()
        else:
            either(b, streaming, streamed, plainly)

    if rows.may_be_short:
        either(b, b.icmp_signed("<", count, I64(rows.B)), masked, all_of_them)
    else:
        all_of_them()


@op
def masks_rows(p: Pointer):
    """Whether LINES loads and stores tiles that a line cuts short."""
    return literal(int(size_of(p) > 2), p)


@op
def store_tile(
    p: Pointer,
    cursors: types.BaseTuple,
    k: object,
    c: types.Integer,
    left: object,
    values: types.BaseTuple,
    streaming: types.Boolean,
    mode: Lane,
    walk: Lane,
    back: types.Integer,
):
    """To each cursor its columns; none to no cursors. p: whose lane order it is."""

    def emit(b, _p, cursors_, k_, c_, left_, values_, streaming_, _mode, _walk, back_):
        for t, cursor in enumerate(cursors):
            tile = values[t]
            column = I64(-1) if walk.literal_value == APART else c_
            rows = Rows(
                b, cursor[0], b.extract_value(cursors_, t), (k_, column), tile[0].n, len(tile),
                walk.literal_value, back_, p,
            )  # fmt: skip
            columns = [b.extract_value(values_, [t, s]) for s in range(len(tile))]
            _stored(rows, columns, tile[0].dtype, left_, streaming_, mode.literal_value)

    numbers = _number(k), types.int64, _number(left)
    sig = types.void(p, cursors, *numbers, values, types.boolean, mode, walk, types.int64)
    return sig, emit
