"""Tiles whose lanes are at places of their own, and have steps of their own: see cpu/short_pieces.

Lane r begins k[r] steps into the line and has count[r] more. Rows are loaded whole where all lanes
are `inside` the line, and what a lane lacks is then replaced in the columns.
"""

from llvmlite import ir

from pullback.cpu.emit import I32, I64, LLVM_ELEMENT, constant, llvm_call, splatted
from pullback.cpu.tile_rows import Rows, packed, size_of
from pullback.cpu.transfer import block_at, either, masked_store


def all_inside(b: ir.IRBuilder, k: ir.Value, last: ir.Value) -> ir.Value:
    """Whether no lane is beyond the last place from which whole rows may be read."""
    beyond = b.icmp_signed(">", k, splatted(b, b.trunc(last, I32), k.type.count))
    bits = b.bitcast(beyond, ir.IntType(k.type.count))
    return b.icmp_unsigned("==", bits, ir.Constant(bits.type, 0))


def _mask(rows: Rows, count: ir.Value, r: int, first: int, n: int) -> ir.Value:
    """Of n elements of row r in memory, from element `first` on, those that its lane has."""
    b, kind = rows.b, ir.VectorType(I32, n)
    turned = b.trunc(b.mul(rows.back, I64(rows.B - 1)), I32)
    steps = ir.Constant(kind, list(range(first, first + n)))
    steps = b.xor(steps, splatted(b, turned, n))
    own = b.extract_element(count, I32(r))
    return b.icmp_signed("<", steps, splatted(b, own, n))


def registers_apart(
    rows: Rows, places: list[ir.Value], kind: ir.VectorType, count: ir.Value, inside: ir.Value
) -> ir.Value:
    """The rows, of as many words as `kind` has."""
    b, size = rows.b, size_of(rows.p)

    def whole() -> ir.Value:
        return packed(b, [b.load(block_at(b, rows.pointer, at, kind), align=size) for at in places])

    def masked() -> ir.Value:
        raw, out = ir.VectorType(LLVM_ELEMENT[rows.p.dtype], rows.B), []
        for r, at in enumerate(places):
            where = block_at(b, rows.pointer, at, raw)
            values = [where, I32(size), _mask(rows, count, r, 0, rows.B), constant(raw, 0)]
            row = llvm_call(b, "masked.load", raw, values, [raw, where.type])
            out.append(b.bitcast(row, kind))
        return packed(b, out)

    return either(b, inside, whole, masked)


def cut(
    b: ir.IRBuilder, columns: list[ir.Value], count: ir.Value, neutral: float
) -> list[ir.Value]:
    """The columns, neutral where lanes have no step."""
    return [
        b.select(b.icmp_signed(">", count, constant(count.type, s)), c, constant(c.type, neutral))
        for s, c in enumerate(columns)
    ]


def store_apart(rows: Rows, registers: list[tuple[ir.Value, ir.Value]], count: ir.Value) -> None:
    """Groups of registers (place, words), a register for each lane."""
    b, element = rows.b, LLVM_ELEMENT[rows.p.dtype]
    for number, (at, v) in enumerate(registers):
        n = v.type.count * rows.per_word
        group, r = divmod(number, rows.W)
        v = b.bitcast(v, ir.VectorType(element, n))
        masked_store(b, rows.pointer, at, _mask(rows, count, r, group * n, n), v)
