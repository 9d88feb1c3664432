"""Running extrema of f16 and bf16: most tiles have no record, and their codes tell so as they are.

As numbers of 16 bits, codes without a sign are in the order of what they stand for, and those with
one lie below them. So if the extremum has no sign, a larger code is a record or a NaN; what remains
are the NaNs with a sign, the largest codes of all if the sign counts as a bit like any other.

    holds(x, size, best, sign, last, rows, L)   whether `best` surely is the extremum of a tile, too
    store_held(y, size, best, sign, rows, L)    `best` to all of it
"""

from llvmlite import ir
from numba import types

from pullback.cpu.emit import I64, Lane, Vec, constant, op, splatted
from pullback.cpu.memory import encoded
from pullback.cpu.tiles import Tile, by_type
from pullback.cpu.transfer import block_at, either, lowest
from pullback.ops.scan.cpu_octets import folded, none_set

CODE = ir.IntType(16)
INFINITY = {types.int16: 0x7C00, types.uint16: 0x7F80}
SIGN = 0x8000
ROWS = 32  # of the tiles this is for


def _is_for(x: types.BaseTuple, size: types.Type, rows: Lane, L: Lane) -> bool:
    whole = isinstance(size, types.NoneType) and rows.literal_value == ROWS
    return x[0].dtype in INFINITY and whole and L.literal_value == 1


def _code(b: ir.IRBuilder, p: types.CPointer, best: ir.Value) -> ir.Value:
    """The extremum as it would be stored: it came from such memory."""
    value = b.extract_element(best, I64(0))
    if p.dtype == types.int16:
        return encoded(b, p, value, types.float32)
    bits = b.bitcast(value, ir.IntType(32))
    return b.trunc(b.lshr(bits, bits.type(16)), CODE)


def _flip(b: ir.IRBuilder, sign: ir.Value) -> ir.Value:
    return b.trunc(b.lshr(sign, I64(16)), CODE)


@op
def _holds(x: types.BaseTuple, best: Vec, sign: types.Integer, last: Lane):
    infinity = INFINITY[x[0].dtype]

    def emit(b, x_, best_, sign_, _last):
        tile = Tile(b, x, x_, ROWS, 1)
        code = _code(b, x[0], best_)
        known = b.icmp_signed(">=", code, CODE(0))
        limit = code
        if last.literal_value:  # what ties with the extremum takes over: zeros, NaNs, itself
            known = b.and_(
                b.icmp_signed(">", code, CODE(0)), b.icmp_signed("<=", code, CODE(infinity))
            )
            limit = b.sub(code, CODE(1))
        ahead, back = (b.icmp_signed("==", tile.step, I64(step)) for step in (1, -1))
        known = b.and_(known, b.or_(ahead, back))
        begin = b.select(back, lowest(b, tile.i, ROWS), tile.i)

        def compared() -> ir.Value:
            v = b.load(block_at(b, tile.p, begin, tile.raw), align=2)
            v = b.xor(v, splatted(b, _flip(b, sign_), ROWS))
            most, largest = folded(b, v, ">", True), folded(b, v, ">", False)
            beyond = b.or_(
                b.icmp_signed(">", most, splatted(b, limit, 16)),
                b.icmp_unsigned(">", largest, constant(largest.type, SIGN | infinity)),
            )
            return none_set(b, beyond)

        return either(b, known, compared, lambda: ir.IntType(1)(0))

    return types.boolean(x, best, types.int64, last), emit


@by_type
def holds(x, size, best, sign, last, rows, L):
    if _is_for(x, size, rows, L):
        return lambda x, size, best, sign, last, rows, L: _holds(x, best, sign, last)
    return lambda x, size, best, sign, last, rows, L: False
