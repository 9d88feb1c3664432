"""What stands before a line, and what is left at its end: a value for each lane.

lanes_from(p, i, pitch, count, like)   p[i], p[i + pitch], ... of the first `count` lanes, as
                                       Vecs of another's type; of the others 0
lanes_to(p, i, pitch, count, v)        and there
at_step(columns, value, numbers, k)    columns that have a value at step k; `numbers` are those
                                       of the first steps of their lanes
"""

from llvmlite import ir
from numba import types

from pullback.cpu.emit import I64, LLVM_ELEMENT, Vec, constant, op
from pullback.cpu.memory import decoded, encoded
from pullback.cpu.tiles import Pointer, by_type
from pullback.cpu.transfer import block_at, either, gathered, lane_bytes, scattered
from pullback.cpu.vector import select


def _in_a_row(b: ir.IRBuilder, pitch: ir.Value, count: ir.Value, n: int) -> ir.Value:
    near = b.icmp_signed("==", pitch, I64(1))
    return b.and_(near, b.icmp_signed("==", count, I64(n)))


@op
def lanes_from(p: Pointer, i: types.Integer, pitch: types.Integer, count: types.Integer, like: Vec):
    kind = ir.VectorType(LLVM_ELEMENT[p.dtype], like.n)

    def emit(b, p_, i_, pitch_, count_, _like):
        raw = either(
            b,
            _in_a_row(b, pitch_, count_, like.n),
            lambda: b.load(block_at(b, p_, i_, kind), align=lane_bytes(kind)),
            lambda: gathered(b, p_, i_, pitch_, count_, kind, constant(kind, 0)),
        )
        return decoded(b, p, raw, like.dtype)

    return like(p, *[types.int64] * 3, like), emit


@op
def lanes_to(p: Pointer, i: types.Integer, pitch: types.Integer, count: types.Integer, v: Vec):
    def emit(b, p_, i_, pitch_, count_, v_):
        raw = encoded(b, p, v_, v.dtype)

        def whole():
            b.store(raw, block_at(b, p_, i_, raw.type), align=lane_bytes(raw.type))

        def apart():
            scattered(b, p_, i_, pitch_, count_, raw)

        either(b, _in_a_row(b, pitch_, count_, v.n), whole, apart)

    return types.void(p, *[types.int64] * 3, v), emit


@by_type
def at_step(columns, value, numbers, k):
    if len(columns) == 4:
        return lambda columns, value, numbers, k: (
            select(numbers == k, value, columns[0]),
            select(numbers == k - 1, value, columns[1]),
            select(numbers == k - 2, value, columns[2]),
            select(numbers == k - 3, value, columns[3]),
        )
    return lambda columns, value, numbers, k: (
        at_step(columns[:4], value, numbers, k) + at_step(columns[4:], value, numbers, k - 4)
    )
