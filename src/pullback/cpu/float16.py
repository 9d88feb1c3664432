"""f16 and bf16 codes to f32 and back, as IR for scalars and vectors: rounds to nearest even, once.

f16 uses the machine's conversions where the compile target has them. Where it has not, LLVM would
call a runtime routine that is not linked into a Numba process, so exact integer code takes over;
both give the same bits. PULLBACK_SOFT_F16=1 forces the integer code.
"""

import os
from functools import cache

import llvmlite.binding as llvm
from llvmlite import ir

from pullback.cpu.emit import I32, constant, shaped
from pullback.internals.numba import target_machine

I16, F32 = ir.IntType(16), ir.FloatType()
QUIET = 0x00400000  # the bit that makes an f32 NaN a quiet one
SMALLEST_F16_NORMAL = 113 << 23  # 2^-14 as f32 bits
REBIAS = 112 << 23  # the distance of the two exponent biases

_PROBE = """
define <4 x float> @decoded(<4 x half> %x) {
  %y = fpext <4 x half> %x to <4 x float>
  ret <4 x float> %y
}
define <4 x half> @encoded(<4 x float> %x) {
  %y = fptrunc <4 x float> %x to <4 x half>
  ret <4 x half> %y
}
"""


@cache
def f16_in_hardware() -> bool:
    """Ask the compiler itself: it knows the CPU name and features Numba was told to use."""
    if os.environ.get("PULLBACK_SOFT_F16"):
        return False
    machine = target_machine()
    assembly = machine.emit_assembly(llvm.parse_assembly(_PROBE))
    return not any(routine in assembly for routine in ("extendhfsf2", "truncsfhf2", "gnu_"))


def bf16_decoded(b: ir.IRBuilder, raw: ir.Value) -> ir.Value:
    bits = shaped(I32, raw.type)
    return b.bitcast(b.shl(b.zext(raw, bits), constant(bits, 16)), shaped(F32, raw.type))


def bf16_encoded(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    kind = shaped(I32, x.type)
    bits = b.bitcast(x, kind)
    high = b.lshr(bits, constant(kind, 16))
    odd = b.and_(high, constant(kind, 1))
    rounded = b.lshr(b.add(bits, b.add(odd, constant(kind, 0x7FFF))), constant(kind, 16))
    quiet = b.or_(high, constant(kind, QUIET >> 16))
    return b.trunc(b.select(b.fcmp_unordered("uno", x, x), quiet, rounded), shaped(I16, x.type))


def f16_decoded(b: ir.IRBuilder, raw: ir.Value) -> ir.Value:
    if f16_in_hardware():
        half = b.bitcast(raw, shaped(ir.HalfType(), raw.type))
        return b.fpext(half, shaped(F32, raw.type))
    return _f16_decoded_by_integers(b, raw)


def f16_encoded(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    if f16_in_hardware():
        half = b.fptrunc(x, shaped(ir.HalfType(), x.type))
        return b.bitcast(half, shaped(I16, x.type))
    return _f16_encoded_by_integers(b, x)


def _f16_decoded_by_integers(b: ir.IRBuilder, raw: ir.Value) -> ir.Value:
    kind, real = shaped(I32, raw.type), shaped(F32, raw.type)

    def const(value: int) -> ir.Constant:
        return constant(kind, value)

    code = b.zext(raw, kind)
    sign = b.shl(b.and_(code, const(0x8000)), const(16))
    moved = b.shl(b.and_(code, const(0x7FFF)), const(13))
    normal = b.add(moved, const(REBIAS))
    # A subnormal is mantissa * 2^-24: give it the exponent of 2^-14 and take that 2^-14 away.
    lifted = b.bitcast(b.add(moved, const(SMALLEST_F16_NORMAL)), real)
    base = b.bitcast(const(SMALLEST_F16_NORMAL), real)
    subnormal = b.bitcast(b.fsub(lifted, base), kind)
    special = b.add(normal, const(REBIAS))
    quiet = b.or_(special, const(QUIET))
    above = b.select(b.icmp_unsigned(">", moved, const(0x0F800000)), quiet, special)
    out = b.select(b.icmp_unsigned("<", moved, const(0x00800000)), subnormal, normal)
    out = b.select(b.icmp_unsigned(">=", moved, const(0x0F800000)), above, out)
    return b.bitcast(b.or_(out, sign), real)


def _f16_encoded_by_integers(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    kind, real = shaped(I32, x.type), shaped(F32, x.type)

    def const(value: int) -> ir.Constant:
        return constant(kind, value)

    bits = b.bitcast(x, kind)
    sign = b.and_(b.lshr(bits, const(16)), const(0x8000))
    size = b.and_(bits, const(0x7FFFFFFF))
    odd = b.and_(b.lshr(size, const(13)), const(1))
    normal = b.lshr(b.add(b.sub(size, const(REBIAS)), b.add(odd, const(0xFFF))), const(13))
    # Below 2^-14: adding 1/2 lets the addition itself round the mantissa to multiples of 2^-24.
    base = const(126 << 23)
    total = b.fadd(b.bitcast(size, real), b.bitcast(base, real))
    subnormal = b.sub(b.bitcast(total, kind), base)
    payload = b.or_(b.and_(b.lshr(size, const(13)), const(0x3FF)), const(0x7E00))
    nan = b.icmp_unsigned(">", size, const(0x7F800000))
    above = b.select(nan, payload, const(0x7C00))
    out = b.select(b.icmp_unsigned("<", size, const(SMALLEST_F16_NORMAL)), subnormal, normal)
    out = b.select(b.icmp_unsigned(">=", size, const(0x47800000)), above, out)
    return b.trunc(b.or_(out, sign), shaped(I16, x.type))
