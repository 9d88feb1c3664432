"""What the units of the machine do with one instruction of a warp."""

from __future__ import annotations

from pullback.cpu.emit import inlined
from pullback.cpu.memory import get, put
from pullback.cpu.vector import select, shift_logical, to_f32, to_f64, to_i32, to_i64
from pullback.gpu.emulator import table as t
from pullback.gpu.emulator.arithmetic import (
    bits_put,
    bits_taken,
    bytes_chosen,
    commit,
    extended,
    f32_op,
    f64_op,
    flushed,
    from_half,
    integer_comparison,
    integer_op,
    real_comparison,
    real_op,
    rounded,
    row,
    shifted,
    to_half,
    to_integer,
)
from pullback.gpu.emulator.vectors import lanes_of, unsigned_to_f32, unsigned_to_f64
from pullback.gpu.emulator.vectors import zero_extended as widened

_FLIP_32 = -(1 << 31)
_FLIP_64 = -(1 << 63)
_TINY = 1.1754943508222875e-38  # the least normal f32


@inlined
def is_unsigned(kind):
    return kind == t.U8 or kind == t.U16 or kind == t.U32 or kind == t.U64


@inlined
def float32(code, words, reals, bits):
    x, y, z = row(reals, code[t.A]), row(reals, code[t.B]), row(reals, code[t.C])
    if code[t.FLAGS] & t.MIXED:
        x = from_half(row(words, code[t.A]), code[t.FROM])
        if code[t.OP] == t.FMA:
            y = from_half(row(words, code[t.B]), code[t.FROM])
    if code[t.FLAGS] & t.FTZ:
        x, y, z = flushed(x, _TINY), flushed(y, _TINY), flushed(z, _TINY)
    r = f32_op(code[t.OP], x, y, z)
    if code[t.FLAGS] & t.FTZ:
        r = flushed(r, _TINY)
    commit(reals, code[t.DST], r, bits)


@inlined
def float32x2(code, pairs, bits):
    """Two numbers of f32 in each register, beside each other."""
    for part in range(2):
        x, y, z = (
            get(pairs, code[t.A] * 64 + part, 2, 32),
            get(pairs, code[t.B] * 64 + part, 2, 32),
            get(pairs, code[t.C] * 64 + part, 2, 32),
        )
        place = code[t.DST] * 64 + part
        r = select(lanes_of(bits), real_op(code[t.OP], x, y, z), get(pairs, place, 2, 32))
        put(pairs, place, 2, r, False)


@inlined
def float64(code, long_reals, bits):
    x, y, z = row(long_reals, code[t.A]), row(long_reals, code[t.B]), row(long_reals, code[t.C])
    commit(long_reals, code[t.DST], f64_op(code[t.OP], x, y, z), bits)


@inlined
def half(code, words, bits):
    """Arithmetic of halves in f64, where nothing is lost but by fma; rounded once."""
    kind = code[t.TYPE]
    x, y, z = (
        to_f64(from_half(row(words, code[t.A]), kind)),
        to_f64(from_half(row(words, code[t.B]), kind)),
        to_f64(from_half(row(words, code[t.C]), kind)),
    )
    commit(words, code[t.DST], to_half(real_op(code[t.OP], x, y, z), kind), bits)


@inlined
def int32(code, words, bits):
    kind, op = code[t.TYPE], code[t.OP]
    width = 16 if kind == t.U16 or kind == t.S16 else 32
    unsigned = is_unsigned(kind)
    x, y, z = row(words, code[t.A]), row(words, code[t.B]), row(words, code[t.C])
    r = x
    if op == t.SHL or op == t.SHR:
        r = shifted(op, unsigned, extended(x, kind), y, width)
    elif op == t.BFE:
        r = bits_taken(unsigned, x, y, z, 32)
    elif op == t.BFI:
        r = bits_put(x, y, z, row(words, code[t.V]), 32)
    elif op == t.PRMT:
        r = bytes_chosen(x, y, z)
    else:
        r = integer_op(
            op, unsigned, extended(x, kind), extended(y, kind), extended(z, kind), _FLIP_32
        )
        if code[t.FLAGS] & t.PAIRED:
            high, other = extended(x >> 16, kind), extended(y >> 16, kind)
            high = integer_op(op, unsigned, high, other, other, _FLIP_32)
            r = (r & 0xFFFF) | (high << 16)
    commit(words, code[t.DST], r, bits)


@inlined
def int64(code, words, doubles, bits):
    op, unsigned = code[t.OP], is_unsigned(code[t.TYPE])
    x = row(doubles, code[t.A])
    r = x
    if op == t.SHL or op == t.SHR:
        r = shifted(op, unsigned, x, widened(row(words, code[t.B])), 64)
    elif op == t.BFE:
        start, length = widened(row(words, code[t.B])), widened(row(words, code[t.C]))
        r = bits_taken(unsigned, x, start, length, 64)
    else:
        y, z = row(doubles, code[t.B]), row(doubles, code[t.C])
        r = integer_op(op, unsigned, x, y, z, _FLIP_64)
    if op == t.POPC or op == t.CLZ:
        commit(words, code[t.DST], to_i32(r), bits)
    else:
        commit(doubles, code[t.DST], r, bits)


@inlined
def wide(code, words, doubles, bits):
    """The whole product of two words, and what is added to it."""
    x, y = row(words, code[t.A]), row(words, code[t.B])
    product = to_i64(x) * to_i64(y)
    if code[t.TYPE] == t.U32:
        product = widened(x) * widened(y)
    commit(doubles, code[t.DST], product + row(doubles, code[t.C]), bits)


@inlined
def compared(code, words, doubles, reals, long_reals, second):
    """Lanes where a comparison holds; of two halves in a register the upper ones, if `second`."""
    kind, op = code[t.TYPE], code[t.OP]
    found = 0
    if kind == t.F64:
        found = real_comparison(op, row(long_reals, code[t.A]), row(long_reals, code[t.B]))
    elif kind == t.F32:
        x, y = row(reals, code[t.A]), row(reals, code[t.B])
        if code[t.FLAGS] & t.FTZ:
            x, y = flushed(x, _TINY), flushed(y, _TINY)
        found = real_comparison(op, x, y)
    elif kind == t.F16 or kind == t.BF16:
        v, w = row(words, code[t.A]), row(words, code[t.B])
        if second:
            v, w = shift_logical(v, 16), shift_logical(w, 16)
        found = real_comparison(op, from_half(v, kind), from_half(w, kind))
    elif kind == t.U64 or kind == t.S64:
        x, y = row(doubles, code[t.A]), row(doubles, code[t.B])
        found = integer_comparison(op, kind == t.U64, x, y, _FLIP_64)
    else:
        x, y = extended(row(words, code[t.A]), kind), extended(row(words, code[t.B]), kind)
        found = integer_comparison(op, is_unsigned(kind), x, y, _FLIP_32)
    return found


@inlined
def setp(code, words, doubles, reals, long_reals, predicates, bits):
    found = compared(code, words, doubles, reals, long_reals, False)
    other = ~found & t.FULL
    if code[t.FLAGS] & t.PAIRED:
        other = compared(code, words, doubles, reals, long_reals, True)
    if code[t.FROM] >= 0:
        also = predicates[code[t.C]]
        if code[t.COUNT]:
            also = ~also
        found = _combined(code[t.FROM], found, also) & t.FULL
        other = _combined(code[t.FROM], other, also) & t.FULL
    predicates[code[t.DST]] = (predicates[code[t.DST]] & ~bits) | (found & bits)
    predicates[code[t.V]] = (predicates[code[t.V]] & ~bits) | (other & bits)


@inlined
def _combined(op, x, y):
    return x & y if op == t.AND else x | y if op == t.OR else x ^ y


@inlined
def predicate(code, predicates, bits):
    x, y = predicates[code[t.A]], predicates[code[t.B]]
    r = ~x & t.FULL if code[t.OP] == t.NOT else _combined(code[t.OP], x, y)
    predicates[code[t.DST]] = (predicates[code[t.DST]] & ~bits) | (r & bits)


@inlined
def selp(code, words, doubles, predicates, bits):
    mask = lanes_of(predicates[code[t.C]])
    if code[t.TYPE] == t.F64 or code[t.TYPE] == t.U64 or code[t.TYPE] == t.S64:
        r = select(mask, row(doubles, code[t.A]), row(doubles, code[t.B]))
        commit(doubles, code[t.DST], r, bits)
    else:
        w = select(mask, row(words, code[t.A]), row(words, code[t.B]))
        commit(words, code[t.DST], w, bits)


@inlined
def mov(code, words, doubles, bits):
    if code[t.TYPE] == t.F64 or code[t.TYPE] == t.U64 or code[t.TYPE] == t.S64:
        commit(doubles, code[t.DST], row(doubles, code[t.A]), bits)
    else:
        commit(words, code[t.DST], row(words, code[t.A]), bits)


@inlined
def to_real(words, doubles, reals, long_reals, source, at):
    """An operand as f64, exactly, but for numbers of 64 bits."""
    x = to_f64(row(reals, at))
    if source == t.F64:
        x = row(long_reals, at)
    elif source == t.F16 or source == t.BF16:
        x = to_f64(from_half(row(words, at), source))
    elif source == t.S64:
        x = to_f64(row(doubles, at))
    elif source == t.U64:
        x = unsigned_to_f64(row(doubles, at))
    elif source == t.U32:
        x = to_f64(widened(row(words, at)))
    elif source != t.F32:
        x = to_f64(extended(row(words, at), source))
    return x


@inlined
def cvt_to_float(code, words, doubles, reals, long_reals, bits):
    to, source, at = code[t.TYPE], code[t.FROM], code[t.A]
    x = rounded(to_real(words, doubles, reals, long_reals, source, at), code[t.OP])
    if to == t.F64:
        commit(long_reals, code[t.DST], x, bits)
    elif to == t.F32:
        r = to_f32(x)
        if source == t.S64:
            r = to_f32(row(doubles, at))
        elif source == t.U64:
            r = unsigned_to_f32(row(doubles, at))
        if code[t.FLAGS] & t.FTZ:
            r = flushed(r, _TINY)
        commit(reals, code[t.DST], r, bits)
    else:
        w = to_half(x, to)
        if code[t.FLAGS] & t.PAIRED:
            low = to_real(words, doubles, reals, long_reals, source, code[t.B])
            w = (w << 16) | to_half(low, to)
        commit(words, code[t.DST], w, bits)


@inlined
def cvt_to_int(code, words, doubles, reals, long_reals, bits):
    to, source, at = code[t.TYPE], code[t.FROM], code[t.A]
    r = row(doubles, at if source == t.S64 or source == t.U64 else 0)
    if source == t.F16 or source == t.BF16 or source == t.F32 or source == t.F64:
        x = rounded(to_real(words, doubles, reals, long_reals, source, at), code[t.OP])
        r = to_integer(x, _least(to), _greatest(to))
    elif source != t.S64 and source != t.U64:
        low = row(words, 0 if code[t.FLAGS] & t.NARROWED else at)
        if code[t.FLAGS] & t.NARROWED:
            low = to_i32(row(doubles, at))
        r = widened(low) if source == t.U32 else to_i64(extended(low, source))
    if to == t.S64 or to == t.U64:
        commit(doubles, code[t.DST], r, bits)
    else:
        commit(words, code[t.DST], extended(to_i32(r), to), bits)


@inlined
def _least(kind):
    if is_unsigned(kind):
        return 0.0
    return -128.0 if kind == t.S8 else -32768.0 if kind == t.S16 else _wide_least(kind)


@inlined
def _wide_least(kind):
    return -2147483648.0 if kind == t.S32 else -9223372036854775808.0


@inlined
def _greatest(kind):
    if kind == t.S32:
        return 2147483647.0
    if kind == t.U32:
        return 4294967295.0
    if kind == t.S64 or kind == t.U64:  # what fits into 63 bits
        return 9223372036854774784.0
    return 255.0 if kind == t.U8 else 127.0 if kind == t.S8 else _short_greatest(kind)


@inlined
def _short_greatest(kind):
    return 65535.0 if kind == t.U16 else 32767.0


@inlined
def vote(code, words, predicates, bits):
    told = predicates[code[t.A]]
    if code[t.FLAGS]:
        told = ~told
    told &= bits
    if code[t.OP] == t.BALLOT:
        for lane in range(t.LANES):
            if bits >> lane & 1:
                words[code[t.DST] * t.LANES + lane] = told
        return
    every, some = told == bits, told != 0
    holds = some if code[t.OP] == t.ANY else every
    if code[t.OP] == t.UNI:
        holds = every or not some
    kept = predicates[code[t.DST]] & ~bits
    predicates[code[t.DST]] = kept | bits if holds else kept
