"""Parts of tiles, by way of the stack: tails, missing lines, unaligned heads, any other strides.

A *box* is a cursor on the stack that has the steps and lines of one whole tile, laid out as the
walk loads and stores them. What a part lacks is filled with the scan's neutral elements, so that
the same tile serves it.

    boxes_for(cursors, W, B, walk, back)   a box for each cursor
    copies_in(neutral, ahead) -> copy_in(cursors, boxes, k, c, steps, lines, left, W, B, walk, back)
    copy_out(cursors, boxes, k, c, steps, lines, W, B, walk, back)
"""

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.core import cgutils

from pullback.cpu.emit import I32, I64, LLVM_ELEMENT, Lane, constant, llvm_call, op
from pullback.cpu.memory import STORAGE, encoded
from pullback.cpu.tile_rows import ACROSS, ALONG, first_lanes, packed, size_of
from pullback.cpu.transfer import block_at, either, lane_bytes, masked_store

PIECE = 32  # bytes that move at once


@op
def boxes_for(cursors: types.BaseTuple, W: Lane, B: Lane, walk: Lane, back: types.Integer):
    lanes, steps = W.literal_value, B.literal_value
    row = lanes * steps if walk.literal_value == ALONG else steps

    def emit(b, _cursors, _W, _B, _walk, back_):
        if walk.literal_value == ACROSS:
            places = I64(0), I64(lanes), I64(1)
        else:
            places = b.mul(back_, I64(row - 1)), b.sub(I64(1), b.mul(back_, I64(2))), I64(steps)
        boxes = []
        for cursor in cursors:
            element = LLVM_ELEMENT[cursor[0].dtype]
            with b.goto_entry_block():
                memory = b.alloca(ir.ArrayType(element, lanes * steps))
                memory.align = 64
            place = b.bitcast(memory, element.as_pointer())
            boxes.append(packed(b, [place, *places]))
        return packed(b, boxes) if boxes else ir.Constant(ir.LiteralStructType([]), ir.Undefined)

    return cursors(cursors, W, B, walk, types.int64), emit


def _filled(b, p, pointer, n: int, neutral: float) -> None:
    lanes, compute = min(PIECE // size_of(p), n), STORAGE[p.dtype].compute
    kind = ir.VectorType(LLVM_ELEMENT[compute], lanes)
    raw = encoded(b, p, constant(kind, neutral), compute)
    for k in range(0, n, lanes):
        b.store(raw, block_at(b, pointer, I64(k), raw.type), align=size_of(p))


def _has(b: ir.IRBuilder, count: ir.Value, size: int) -> ir.Value:
    return b.icmp_unsigned("!=", b.and_(count, I64(size)), I64(0))


def _moved_run(b, p, i, q, j, count, element) -> None:
    """count elements from p[i] on to q[j] on: whole pieces, then what is left by halves."""
    lanes = PIECE // lane_bytes(ir.VectorType(element, 1))

    def piece(n, done):
        kind = ir.VectorType(element, n)
        v = b.load(block_at(b, p, b.add(i, done), kind), align=lane_bytes(kind))
        b.store(v, block_at(b, q, b.add(j, done), kind), align=lane_bytes(kind))

    with cgutils.for_range(b, b.udiv(count, I64(lanes)), intp=I64) as loop:
        piece(lanes, b.mul(loop.index, I64(lanes)))
    n = lanes // 2
    while n:
        with b.if_then(_has(b, count, n)):
            piece(n, b.and_(count, I64(-2 * n)))
        n //= 2


def _moved(b, source, target, outer, inner, walk) -> None:
    """outer x inner elements; the inner ones are lines across, else steps."""
    p, i, *by = source
    q, j, *to = target
    near, far = (1, 0) if walk == ACROSS else (0, 1)
    one, minus = (
        b.and_(b.icmp_signed("==", by[near], I64(v)), b.icmp_signed("==", to[near], I64(v)))
        for v in (1, -1)
    )
    last = b.sub(inner, I64(1))
    with cgutils.for_range(b, outer, intp=I64) as loop:
        here = b.add(i, b.mul(loop.index, by[far]))
        there = b.add(j, b.mul(loop.index, to[far]))

        def in_a_run():
            low, high = (b.select(minus, b.sub(at, last), at) for at in (here, there))
            _moved_run(b, p, low, q, high, inner, p.type.pointee)

        def one_by_one():
            with cgutils.for_range(b, inner, intp=I64) as lane:
                value = b.load(b.gep(p, [b.add(here, b.mul(lane.index, by[near]))]))
                b.store(value, b.gep(q, [b.add(there, b.mul(lane.index, to[near]))]))

        either(b, b.or_(one, minus), in_a_run, one_by_one)


def _unpacked(b, cursors_, t, k=None, c=None):
    p, i, step, pitch = (b.extract_value(cursors_, [t, m]) for m in range(4))
    if k is not None:
        i = b.add(i, b.add(b.mul(k, step), b.mul(c, pitch)))
    return p, i, step, pitch


# --- rows -----------------------------------------------------------------------------------------


class MaskedRows:
    """Rows of at most n elements as the walk loads them: of the steps of a line, or of lines that
    are neighbours. Each travels by one access with a mask. No machine below AVX-512 masks lanes of
    16 bits: those go in pieces."""

    def __init__(self, b, cursor, box, shape, walk: int, back: ir.Value) -> None:
        self.b, self.back = b, back
        self.pointer, self.start, *by = cursor
        near, far = (1, 0) if walk == ACROSS else (0, 1)
        self.near, self.far = by[near], by[far]
        self.box, (self.most, self.n) = box[0], shape
        self.kind = ir.VectorType(self.pointer.type.pointee, self.n)

    def lie_well(self) -> ir.Value:
        way = self.b.sub(I64(1), self.b.mul(self.back, I64(2)))
        return self.b.icmp_signed("==", self.near, way)

    def mask(self, count: ir.Value) -> ir.Value:
        return first_lanes(self.b, self.n, count, self.back)

    def place(self, r: ir.Value) -> ir.Value:
        low = self.b.sub(self.start, self.b.mul(self.back, I64(self.n - 1)))
        return self.b.add(low, self.b.mul(r, self.far))

    def boxed(self, r: ir.Value) -> ir.Value:
        return block_at(self.b, self.box, self.b.mul(r, I64(self.n)), self.kind)

    def each(self, count: ir.Value, emit: Callable, before: Callable) -> None:
        """emit(r) for as many rows; `before` unless they are all there."""
        b = self.b

        def all_of_them():
            for r in range(self.most):
                emit(I64(r))

        def some():
            before()
            with cgutils.for_range(b, count, intp=I64) as loop:
                emit(loop.index)

        either(b, b.icmp_signed("==", count, I64(self.most)), all_of_them, some)

    def copy_in(self, rows: ir.Value, count: ir.Value, neutral: float, fill: Callable) -> None:
        b, size = self.b, lane_bytes(self.kind)
        mask, rest = self.mask(count), constant(self.kind, neutral)

        def one(r):
            where = block_at(b, self.pointer, self.place(r), self.kind)
            values = [where, I32(size), mask, rest]
            row = llvm_call(b, "masked.load", self.kind, values, [self.kind, where.type])
            b.store(row, self.boxed(r), align=size)

        self.each(rows, one, fill)

    def copy_out(self, rows: ir.Value, count: ir.Value) -> None:
        mask = self.mask(count)

        def one(r):
            row = self.b.load(self.boxed(r), align=lane_bytes(self.kind))
            masked_store(self.b, self.pointer, self.place(r), mask, row)

        self.each(rows, one, lambda: None)


def _sizes(walk: int, steps, lines) -> tuple:
    """How many rows there are, and of how many elements."""
    return (steps, lines) if walk == ACROSS else (lines, steps)


def _by_rows(b, p, rows: MaskedRows, walk: int, as_rows: Callable, in_pieces: Callable) -> None:
    if walk == ALONG or size_of(p) == 2:
        in_pieces()
    else:
        either(b, rows.lie_well(), as_rows, in_pieces)


def copies_in(neutral: tuple[float, ...], ahead: tuple[int, ...]) -> Callable:
    """(cursors, boxes, k, c, steps, lines, left, W, B, walk, back): steps x lines elements of each
    cursor, of which a line has `left` from k on. What is read one step ahead has one less."""

    def copy_in(
        cursors: types.BaseTuple,
        boxes: types.BaseTuple,
        k: types.Integer,
        c: types.Integer,
        steps: types.Integer,
        lines: types.Integer,
        left: types.Integer,
        W: Lane,
        B: Lane,
        walk: Lane,
        back: types.Integer,
    ):
        way, lanes, block = walk.literal_value, W.literal_value, B.literal_value

        def one(b, t, source, box, steps_, lines_, back_):
            p = cursors[t][0]
            sizes = _sizes(way, steps_, lines_)
            rows = MaskedRows(b, source, box, _sizes(way, block, lanes), way, back_)

            def fill():
                _filled(b, p, box[0], lanes * block, neutral[t])

            def in_pieces():
                fill()
                _moved(b, source, box, *sizes, way)

            _by_rows(b, p, rows, way, lambda: rows.copy_in(*sizes, neutral[t], fill), in_pieces)

        def emit(b, cursors_, boxes_, k_, c_, steps_, lines_, left_, _W, _B, _walk, back_):
            for t in range(len(cursors)):
                there = b.sub(left_, I64(ahead[t]))
                count = b.select(b.icmp_signed("<", steps_, there), steps_, there)
                source, box = _unpacked(b, cursors_, t, k_, c_), _unpacked(b, boxes_, t)
                one(b, t, source, box, count, lines_, back_)

        return types.void(cursors, boxes, *[types.int64] * 5, W, B, walk, types.int64), emit

    return op(copy_in)


@op
def copy_out(
    cursors: types.BaseTuple,
    boxes: types.BaseTuple,
    k: types.Integer,
    c: types.Integer,
    steps: types.Integer,
    lines: types.Integer,
    W: Lane,
    B: Lane,
    walk: Lane,
    back: types.Integer,
):
    way, lanes, block = walk.literal_value, W.literal_value, B.literal_value

    def one(b, p, target, box, sizes, back_):
        rows = MaskedRows(b, target, box, _sizes(way, block, lanes), way, back_)
        _by_rows(
            b, p, rows, way,
            lambda: rows.copy_out(*sizes),
            lambda: _moved(b, box, target, *sizes, way),
        )  # fmt: skip

    def emit(b, cursors_, boxes_, k_, c_, steps_, lines_, _W, _B, _walk, back_):
        for t, cursor in enumerate(cursors):
            target, box = _unpacked(b, cursors_, t, k_, c_), _unpacked(b, boxes_, t)
            one(b, cursor[0], target, box, _sizes(way, steps_, lines_), back_)

    return types.void(cursors, boxes, *[types.int64] * 4, W, B, walk, types.int64), emit
