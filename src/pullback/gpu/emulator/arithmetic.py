"""What one instruction does to 32 lanes, as Numba functions over vectors."""

from __future__ import annotations

from pullback.cpu.emit import inlined
from pullback.cpu.memory import get, put
from pullback.cpu.vector import (
    absolute,
    as_float,
    as_int,
    copysign,
    floor,
    fma,
    is_nan,
    like,
    mask_bits,
    round_even,
    select,
    shift_logical,
    sqrt,
    to_f32,
    to_f64,
    to_i64,
)
from pullback.gpu.emulator import table as t
from pullback.gpu.emulator.vectors import (
    ceil,
    cosine,
    count_ones,
    exp2,
    from_bf16,
    from_f16,
    lanes_of,
    leading_zeros,
    log2,
    quotient,
    rest,
    reversed_bits,
    signed_high,
    signed_quotient,
    signed_rest,
    sine,
    to_bf16,
    to_f16,
    trunc,
    unsigned_high,
)

_HIGH_WORD = -(1 << 32)


@inlined
def row(p, number):
    """A register: 32 lanes."""
    return get(p, number * t.LANES, 1, 32)


@inlined
def commit(p, number, v, bits):
    """Write the lanes that `bits` names."""
    if bits != t.FULL:
        v = select(lanes_of(bits), v, row(p, number))
    put(p, number * t.LANES, 1, v, False)


# --- floats -------------------------------------------------------------------------------------


@inlined
def lesser(x, y):
    """PTX's min: a number beside NaN, -0 below 0."""
    first = (x < y) | ((x == y) & (as_int(x) < 0)) | is_nan(y)
    return select(first & ~is_nan(x), x, select(is_nan(y) & ~is_nan(x), x, y))


@inlined
def greater(x, y):
    return -lesser(-x, -y)


@inlined
def flushed(v, tiny):
    """Subnormals to zeros of their sign."""
    return select(absolute(v) < tiny, copysign(like(v, 0.0), v), v)


@inlined
def real_op(op, x, y, z):
    """Operations that f32 and f64 share, each rounded once."""
    r = x
    if op == t.ADD:
        r = x + y
    elif op == t.SUB:
        r = x - y
    elif op == t.MUL:
        r = x * y
    elif op == t.FMA:
        r = fma(x, y, z)
    elif op == t.DIV:
        r = x / y
    elif op == t.NEG:
        r = -x
    elif op == t.ABS:
        r = absolute(x)
    elif op == t.SQRT:
        r = sqrt(x)
    elif op == t.RCP:
        r = like(x, 1.0) / x
    elif op == t.COPYSIGN:  # PTX takes the sign of its first operand
        r = copysign(y, x)
    else:
        r = _ordered(op, x, y, z)
    return r


@inlined
def _ordered(op, x, y, z):
    r = x
    if op == t.MIN:
        r = lesser(x, y)
    elif op == t.MAX:
        r = greater(x, y)
    elif op == t.MIN_NAN:
        r = select(is_nan(x) | is_nan(y), x + y, lesser(x, y))
    elif op == t.MAX_NAN:
        r = select(is_nan(x) | is_nan(y), x + y, greater(x, y))
    elif op == t.MIN3:
        r = lesser(lesser(x, y), z)
    elif op == t.MAX3:
        r = greater(greater(x, y), z)
    return r


@inlined
def f32_op(op, x, y, z):
    """The approximations of f32 are computed in f64 and rounded."""
    r = x
    if op == t.EX2:
        r = to_f32(exp2(to_f64(x)))
    elif op == t.LG2:
        r = to_f32(log2(to_f64(x)))
    elif op == t.RSQRT:
        r = to_f32(like(to_f64(x), 1.0) / sqrt(to_f64(x)))
    elif op == t.SIN:
        r = to_f32(sine(to_f64(x)))
    elif op == t.COS:
        r = to_f32(cosine(to_f64(x)))
    elif op == t.TANH:
        power = exp2(to_f64(absolute(x)) * -2.8853900817779268)  # e^-2|x|
        r = copysign(to_f32((like(power, 1.0) - power) / (like(power, 1.0) + power)), x)
    else:
        r = real_op(op, x, y, z)
    return r


@inlined
def f64_op(op, x, y, z):
    r = x
    if op == t.ROUGH_RCP:  # of the upper halves alone: code must refine what it gets
        upper = as_float(as_int(x) & _HIGH_WORD)
        r = as_float(as_int(like(x, 1.0) / upper) & _HIGH_WORD)
    elif op == t.ROUGH_RSQRT:
        upper = as_float(as_int(x) & _HIGH_WORD)
        r = as_float(as_int(like(x, 1.0) / sqrt(upper)) & _HIGH_WORD)
    else:
        r = real_op(op, x, y, z)
    return r


@inlined
def to_odd(x):
    """f64 to f32 such that a second rounding, to a half, is the only one that counts."""
    near = to_f32(x)
    back = to_f64(near)
    bits = as_int(near)
    # Towards zero, and then an odd last bit wherever something was left.
    away = absolute(back) > absolute(x)
    bits = select(away, bits - 1, bits)
    inexact = (back != x) & ~is_nan(x)
    return as_float(select(inexact, bits | 1, bits))


@inlined
def from_half(v, kind):
    r = from_f16(v)
    if kind == t.BF16:
        r = from_bf16(v)
    return r


@inlined
def to_half(x, kind):
    """From f64, rounded once."""
    odd = to_odd(x)
    r = to_f16(odd)
    if kind == t.BF16:
        r = to_bf16(odd)
    return r


# --- integers -----------------------------------------------------------------------------------


@inlined
def extended(v, kind):
    """A word as its type reads it."""
    if kind == t.U16 or kind == t.F16 or kind == t.BF16:
        v = v & 0xFFFF
    elif kind == t.S16:
        v = (v << 16) >> 16
    elif kind == t.U8:
        v = v & 0xFF
    elif kind == t.S8:
        v = (v << 24) >> 24
    return v


@inlined
def integer_op(op, unsigned, x, y, z, flip):
    """`flip` is the sign bit: with it turned, signed comparisons are unsigned ones."""
    r = x
    if op == t.ADD:
        r = x + y
    elif op == t.SUB:
        r = x - y
    elif op == t.MUL:
        r = x * y
    elif op == t.FMA:
        r = x * y + z
    elif op == t.AND:
        r = x & y
    elif op == t.OR:
        r = x | y
    elif op == t.XOR:
        r = x ^ y
    elif op == t.NOT:
        r = ~x
    elif op == t.NEG:
        r = -x
    elif op == t.ABS:
        r = select(x < 0, -x, x)
    elif op == t.MIN or op == t.MAX:
        turned = flip if unsigned else 0
        less = (x ^ turned) < (y ^ turned)
        r = select(less, x, y) if op == t.MIN else select(less, y, x)
    elif op == t.DIV or op == t.REM:
        r = _divided(op, unsigned, x, y)
    elif op == t.MULHI:
        r = unsigned_high(x, y) if unsigned else signed_high(x, y)
    elif op == t.POPC:
        r = count_ones(x)
    elif op == t.CLZ:
        r = leading_zeros(x)
    elif op == t.BREV:
        r = reversed_bits(x)
    return r


@inlined
def _divided(op, unsigned, x, y):
    """Whatever stands in lanes that are off must not trap."""
    r = x
    if unsigned:
        safe = select(y == 0, 1, y)
        r = quotient(x, safe) if op == t.DIV else rest(x, safe)
    else:
        minus = y == -1
        safe = select((y == 0) | minus, 1, y)
        r = signed_quotient(x, safe) if op == t.DIV else signed_rest(x, safe)
        if op == t.DIV:
            r = select(minus, -x, r)
    return r


@inlined
def shifted(op, unsigned, x, by, width):
    """All of `by` counts: beyond the width nothing is left, or the sign."""
    most = like(x, width - 1)
    near = select((by >= 0) & (by < width), by, most)
    beyond = (by < 0) | (by >= width)
    r = x
    if op == t.SHL:
        r = select(beyond, 0, x << near)
    elif unsigned:
        r = select(beyond, 0, shift_logical(x, near))
    else:
        r = x >> near
    return r


@inlined
def bits_taken(unsigned, x, start, length, width):
    """bfe: `length` bits from `start` on; the sign is that of the last one."""
    start, length = start & 0xFF, length & 0xFF
    moved = shifted(t.SHR, unsigned, x, start, width)
    unused = like(x, width) - select(length > width, width, length)
    kept = shifted(t.SHR, unsigned, shifted(t.SHL, unsigned, moved, unused, width), unused, width)
    return select(length == 0, 0, kept)


@inlined
def bits_put(x, y, start, length, width):
    """bfi: the low bits of x over those of y."""
    start, length = start & 0xFF, length & 0xFF
    mask = shifted(t.SHL, True, like(x, -1), length, width)
    mask = shifted(t.SHL, True, ~mask, start, width)
    return (shifted(t.SHL, True, x, start, width) & mask) | (y & ~mask)


@inlined
def bytes_chosen(x, y, selector):
    """prmt: each of four bytes is one of eight, or its sign spread out."""
    r = like(x, 0)
    for byte in range(4):
        which = shift_logical(selector, like(x, 4 * byte)) & 0xF
        source = select((which & 4) != 0, y, x)
        found = shift_logical(source, (which & 3) << 3) & 0xFF
        sign = select((found & 0x80) != 0, like(x, 0xFF), 0)
        r = r | (select((which & 8) != 0, sign, found) << like(x, 8 * byte))
    return r


# --- comparisons --------------------------------------------------------------------------------


@inlined
def real_comparison(op, x, y):
    """Lanes as bits."""
    unordered = mask_bits(is_nan(x) | is_nan(y))
    plain = op - t.EQU + t.EQ if t.EQU <= op <= t.GEU else op
    found = t.FULL
    if plain == t.EQ:
        found = mask_bits(x == y)
    elif plain == t.NE:
        found = mask_bits(x != y)
    elif plain == t.LT:
        found = mask_bits(x < y)
    elif plain == t.LE:
        found = mask_bits(x <= y)
    elif plain == t.GT:
        found = mask_bits(x > y)
    elif plain == t.GE:
        found = mask_bits(x >= y)
    elif plain == t.NAN:
        return unordered
    return found | unordered if t.EQU <= op <= t.GEU else found & ~unordered


@inlined
def integer_comparison(op, unsigned, x, y, flip):
    if unsigned:
        x, y = x ^ flip, y ^ flip
    found = 0
    if op == t.EQ:
        found = mask_bits(x == y)
    elif op == t.NE:
        found = mask_bits(x != y)
    elif op == t.LT:
        found = mask_bits(x < y)
    elif op == t.LE:
        found = mask_bits(x <= y)
    elif op == t.GT:
        found = mask_bits(x > y)
    elif op == t.GE:
        found = mask_bits(x >= y)
    return found


# --- conversions --------------------------------------------------------------------------------


@inlined
def rounded(x, mode):
    if mode == t.TO_EVEN:
        x = round_even(x)
    elif mode == t.TO_ZERO:
        x = trunc(x)
    elif mode == t.TO_MINUS:
        x = floor(x)
    elif mode == t.TO_PLUS:
        x = ceil(x)
    return x


@inlined
def to_integer(x, low, high):
    """Within bounds that f64 has; NaN is 0."""
    x = select(is_nan(x), 0.0, x)
    x = select(x < low, low, x)
    # The greatest numbers of 64 bits are none of f64: the greatest below them.
    return to_i64(select(x > high, high, x))
