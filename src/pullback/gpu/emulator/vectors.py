"""Operations on the 32 lanes of a warp that kernels of the CPU have no use for."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from pullback.cpu.emit import I32, Vec, constant, llvm_call, op
from pullback.cpu.float16 import bf16_decoded, bf16_encoded, f16_decoded, f16_encoded

I16 = ir.IntType(16)
_INT32 = Vec(types.int32, 32)
_FLOAT32 = Vec(types.float32, 32)
_SHORT = ir.VectorType(I16, 32)


@op
def lanes_of(bits: types.Integer):
    """The mask whose lane i is bit i."""
    mask = Vec(types.boolean, 32)
    return mask(types.int64), lambda b, bits_: b.bitcast(b.trunc(bits_, I32), mask.llvm)


@op
def ones(bits: types.Integer):
    """How many of 64 bits are set."""
    return types.int64(types.int64), lambda b, bits_: b.ctpop(bits_)


def _unary(name: str, only: Callable[[Any], bool], *more: int) -> Callable[..., Any]:
    def apply(v: Vec):
        if not only(v):
            return None
        extra = [ir.Constant(ir.IntType(1), value) for value in more]
        return v(v), lambda b, v_: llvm_call(b, name, v.llvm, [v_, *extra], [v.llvm])

    return op(apply)


def _is_float(v: Vec) -> bool:
    return isinstance(v.dtype, types.Float)


def _is_int(v: Vec) -> bool:
    return isinstance(v.dtype, types.Integer)


exp2, log2 = _unary("exp2", _is_float), _unary("log2", _is_float)
sine, cosine = _unary("sin", _is_float), _unary("cos", _is_float)
ceil, trunc = _unary("ceil", _is_float), _unary("trunc", _is_float)
count_ones = _unary("ctpop", _is_int)
leading_zeros = _unary("ctlz", _is_int, 0)
reversed_bits = _unary("bitreverse", _is_int)


def _division(name: str) -> Callable[..., Any]:
    def divide(u: Vec, v: Vec):
        return (u(u, u), lambda b, u_, v_: getattr(b, name)(u_, v_)) if u == v else None

    return op(divide)


# Not to be asked for a divisor of 0, nor for -2^k / -1.
signed_quotient, signed_rest = _division("sdiv"), _division("srem")
quotient, rest = _division("udiv"), _division("urem")


@op
def zero_extended(v: Vec):
    """Words as unsigned numbers of 64 bits."""
    wide = v.of(types.int64)
    return wide(v), lambda b, v_: b.zext(v_, wide.llvm)


def _from_unsigned(dtype: types.Type) -> Callable[..., Any]:
    def convert(v: Vec):
        to = v.of(dtype)
        return to(v), lambda b, v_: b.uitofp(v_, to.llvm)

    return op(convert)


unsigned_to_f32, unsigned_to_f64 = _from_unsigned(types.float32), _from_unsigned(types.float64)


def _high(extend: str, shift: str) -> Callable[..., Any]:
    """The upper half of a product."""

    def multiply(u: Vec, v: Vec):
        width = u.dtype.bitwidth
        wide = ir.VectorType(ir.IntType(2 * width), u.n)

        def emit(b, u_, v_):
            product = b.mul(getattr(b, extend)(u_, wide), getattr(b, extend)(v_, wide))
            return b.trunc(getattr(b, shift)(product, constant(wide, width)), u.llvm)

        return (u(u, u), emit) if u == v else None

    return op(multiply)


signed_high, unsigned_high = _high("sext", "ashr"), _high("zext", "lshr")


def _decoding(decode: Callable[..., Any]) -> Callable[..., Any]:
    def halves(v: Vec):
        """The low 16 bits of words, as numbers."""
        sig = _FLOAT32(_INT32)
        return (sig, lambda b, v_: decode(b, b.trunc(v_, _SHORT))) if v == _INT32 else None

    return op(halves)


def _encoding(encode: Callable[..., Any]) -> Callable[..., Any]:
    def halves(v: Vec):
        """Numbers rounded to halves, in the low 16 bits of words."""
        sig = _INT32(_FLOAT32)
        return (sig, lambda b, v_: b.zext(encode(b, v_), _INT32.llvm)) if v == _FLOAT32 else None

    return op(halves)


from_f16, from_bf16 = _decoding(f16_decoded), _decoding(bf16_decoded)
to_f16, to_bf16 = _encoding(f16_encoded), _encoding(bf16_encoded)
