"""LLVM vectors as values inside Numba kernels.

`Vec(dtype, n)` holds n lanes; n is a power of two and LLVM splits it over the registers there are.
Every operation is written out as IR without fast-math, so association is exactly as in the source
and the bits are the same on SSE, AVX2 and AVX-512. A scalar beside a Vec is rounded to the lane
type and splat: `x * 0.5`, `shift_up(v, 0, 1)`. Lane counts and lane numbers (n, k) are literals.

    make      splat(x, n)  like(v, x)  iota(v)  first_lanes(count, n)
    operators + - * /  unary -  & | ^ ~ << >>  < <= > >= == !=   (>> keeps the sign)
    float     fma(a, b, c)  sqrt(v)  absolute(v)  copysign(v, sign)  round_even(v)  floor(v)
    int       shift_logical(v, k)
    order     maximum(u, v)  minimum(u, v): v where unordered;  not_le(u, v)  is_nan(v)
    masks     select(m, u, v)  any_lane(m)  all_lanes(m)  mask_bits(m)  count(m)
    lanes     lane(v, k)  lane_at(v, i)  set_lane(v, i, x)  broadcast_lane(v, k)  reverse(v)
              shift_up(v, fill, k): lane i <- lane i-k, the first k from the end of fill
              shift_down(v, fill, k): lane i <- lane i+k, the last k from the start of fill
              half(v, 0 | 1)  join(u, v)
    types     to_f32 to_f64 to_i32 to_i64 to_u8: values;  as_float as_int: bits of the same width
    fold      reduce_add  reduce_max  reduce_min: lanes i and i+n/2, then i and i+n/4, ...
"""

import inspect
import operator
from collections.abc import Callable
from functools import partial

from llvmlite import ir
from numba import types
from numba.core.imputils import lower_builtin, lower_cast
from numba.core.typing.templates import AbstractTemplate, infer_global, signature

from pullback.cpu.emit import (
    I32,
    Lane,
    Scalar,
    Vec,
    constant,
    lanes_below,
    llvm_call,
    op,
    shaped,
    shuffle,
    splatted,
    widened,
)


@lower_cast(types.Number, Vec)
@lower_cast(types.Boolean, Vec)
def _scalar_to_vec(context, builder, scalar, vec, value):
    return splatted(builder, context.cast(builder, value, scalar, vec.dtype), vec.n)


def _same(*args: types.Type) -> Vec | None:
    """The one Vec type among the arguments, the scalars aside."""
    found = {a for a in args if isinstance(a, Vec)}
    return found.pop() if len(found) == 1 else None


def _is_float(v: Vec) -> bool:
    return isinstance(v.dtype, types.Float)


def _is_signed(v: Vec) -> bool:
    return getattr(v.dtype, "signed", False)


def _lanewise(emit: Callable, result: Callable, only: Callable, *functions: Callable) -> None:
    """Register Python operators for vectors: emit(builder, vec type, *values)."""
    operands = len(inspect.signature(emit).parameters) - 2
    for function in functions:

        class Operator(AbstractTemplate):
            key = function

            def generic(self, args, kws):
                vec = _same(*args)
                scalars = (a for a in args if not isinstance(a, Vec))
                if vec and only(vec) and all(isinstance(a, Scalar) for a in scalars):
                    return signature(result(vec), *[vec] * len(args))
                return None

        infer_global(function)(Operator)
        lower_builtin(function, *[Vec] * operands)(
            lambda _, b, sig, values: emit(b, sig.args[0], *values)
        )


def _unchanged(v: Vec) -> Vec:
    return v


def _mask(v: Vec) -> Vec:
    return v.of(types.boolean)


def _not_mask(v: Vec) -> bool:
    return v.dtype != types.boolean


def _not_float(v: Vec) -> bool:
    return not _is_float(v)


def _arithmetic(name: str) -> Callable:
    return lambda b, t, u, v: getattr(b, "f" + name if _is_float(t) else name)(u, v)


def _compared(sign: str, b: ir.IRBuilder, t: Vec, u: ir.Value, v: ir.Value) -> ir.Value:
    if _is_float(t):  # as in Python: NaN equals nothing, and differs from everything
        return (b.fcmp_unordered if sign == "!=" else b.fcmp_ordered)(sign, u, v)
    return (b.icmp_signed if _is_signed(t) else b.icmp_unsigned)(sign, u, v)


def _picked(sign: str, b: ir.IRBuilder, t: Vec, u: ir.Value, v: ir.Value) -> ir.Value:
    return b.select(_compared(sign, b, t, u, v), u, v)


def _negated(b: ir.IRBuilder, t: Vec, v: ir.Value) -> ir.Value:
    return b.fneg(v) if _is_float(t) else b.neg(v)


def _shifted_right(b: ir.IRBuilder, t: Vec, v: ir.Value, k: ir.Value) -> ir.Value:
    return (b.ashr if _is_signed(t) else b.lshr)(v, k)


_lanewise(_arithmetic("add"), _unchanged, _not_mask, operator.add, operator.iadd)
_lanewise(_arithmetic("sub"), _unchanged, _not_mask, operator.sub, operator.isub)
_lanewise(_arithmetic("mul"), _unchanged, _not_mask, operator.mul, operator.imul)
_lanewise(_arithmetic("div"), _unchanged, _is_float, operator.truediv, operator.itruediv)
_lanewise(_negated, _unchanged, _not_mask, operator.neg)
_lanewise(lambda b, t, u, v: b.and_(u, v), _unchanged, _not_float, operator.and_, operator.iand)
_lanewise(lambda b, t, u, v: b.or_(u, v), _unchanged, _not_float, operator.or_, operator.ior)
_lanewise(lambda b, t, u, v: b.xor(u, v), _unchanged, _not_float, operator.xor, operator.ixor)
_lanewise(lambda b, t, v: b.not_(v), _unchanged, _not_float, operator.invert)
_lanewise(lambda b, t, u, v: b.shl(u, v), _unchanged, _not_float, operator.lshift)
_lanewise(_shifted_right, _unchanged, _not_float, operator.rshift)
for _function, _sign in {
    operator.lt: "<", operator.le: "<=", operator.gt: ">",
    operator.ge: ">=", operator.eq: "==", operator.ne: "!=",
}.items():  # fmt: skip
    _lanewise(partial(_compared, _sign), _mask, _unchanged, _function)


# --- making -------------------------------------------------------------------------------------


@op
def splat(x: Scalar, n: Lane):
    """x in n lanes, of x's own type."""
    x = types.unliteral(x)
    return Vec(x, n.literal_value)(x, n), lambda b, x_, _: splatted(b, x_, n.literal_value)


@op
def like(v: Vec, x: Scalar):
    """x in as many lanes as v, rounded to v's lane type."""
    return v(v, v.dtype), lambda b, _, x_: splatted(b, x_, v.n)


@op
def iota(v: Vec):
    """0, 1, 2, ... of v's type."""
    return v(v), lambda b, _: ir.Constant(v.llvm, list(range(v.n)))


@op
def first_lanes(count: types.Integer, n: Lane):
    """Mask of the lanes i < count."""
    sig = Vec(types.boolean, n.literal_value)(types.int64, n)
    return sig, lambda b, count_, _: lanes_below(b, count_, n.literal_value)


# --- float and int ------------------------------------------------------------------------------


def _llvm_float(name: str, arity: int) -> Callable:
    def emit(t: Vec):
        return lambda b, *values: llvm_call(b, name, t.llvm, list(values), [t.llvm])

    def one(v: Vec):
        return (v(v), emit(v)) if _is_float(v) else None

    def two(u: object, v: object):
        t = _same(u, v)
        return (t(t, t), emit(t)) if t and _is_float(t) else None

    def three(u: object, v: object, w: object):
        t = _same(u, v, w)
        return (t(t, t, t), emit(t)) if t and _is_float(t) else None

    return op((one, two, three)[arity - 1])


fma = _llvm_float("fma", 3)
sqrt = _llvm_float("sqrt", 1)
absolute = _llvm_float("fabs", 1)
copysign = _llvm_float("copysign", 2)
round_even = _llvm_float("roundeven", 1)
floor = _llvm_float("floor", 1)


@op
def shift_logical(v: Vec, k: object):
    """v >> k with zeros from the left."""
    return (v(v, v), lambda b, v_, k_: b.lshr(v_, k_)) if _not_float(v) else None


def _choice(sign: str) -> Callable:
    def choose(u: object, v: object):
        t = _same(u, v)
        return t and (t(t, t), lambda b, u_, v_: _picked(sign, b, t, u_, v_))

    return op(choose)


maximum, minimum = _choice(">"), _choice("<")


@op
def not_le(u: object, v: object):
    """Lanes where u > v or either is NaN."""
    t = _same(u, v)
    return t and (_mask(t)(t, t), lambda b, u_, v_: b.fcmp_unordered(">", u_, v_))


@op
def is_nan(v: Vec):
    return _mask(v)(v), lambda b, v_: b.fcmp_unordered("uno", v_, v_)


# --- masks --------------------------------------------------------------------------------------


@op
def select(mask: Vec, u: object, v: object):
    """u where the mask is set, else v."""
    t = _same(u, v)
    return t and (t(mask, t, t), lambda b, m, u_, v_: b.select(m, u_, v_))


def _halves(b: ir.IRBuilder, v: ir.Value) -> tuple[ir.Value, ir.Value]:
    n = v.type.count // 2
    return shuffle(b, v, v, range(n)), shuffle(b, v, v, range(n, 2 * n))


def _bits(b: ir.IRBuilder, mask: ir.Value) -> ir.Value:
    return b.bitcast(mask, ir.IntType(mask.type.count))


@op
def mask_bits(mask: Vec):
    """Bit i is lane i (n <= 64)."""
    return types.int64(mask), lambda b, m: widened(b, _bits(b, m))


@op
def count(mask: Vec):
    """How many lanes are set."""
    return types.int64(mask), lambda b, m: widened(b, b.ctpop(_bits(b, m)))


def _agreed(combine: str, sign: str, value: int) -> Callable:
    def agreed(mask: Vec):
        def emit(b, m):
            # Full-width lanes fold in registers; bits would first be packed, byte by byte.
            m = b.sext(m, shaped(I32, m.type))
            while m.type.count > 8:
                m = getattr(b, combine)(*_halves(b, m))
            bits = _bits(b, b.icmp_signed("<", m, constant(m.type, 0)))
            return b.icmp_unsigned(sign, bits, ir.Constant(bits.type, value))

        return types.boolean(mask), emit

    return op(agreed)


any_lane = _agreed("or_", "!=", 0)
all_lanes = _agreed("and_", "==", -1)


# --- lanes --------------------------------------------------------------------------------------


@op
def lane(v: Vec, k: Lane):
    """Lane k as a scalar; -1 is the last."""
    return v.dtype(v, k), lambda b, v_, _: b.extract_element(v_, I32(k.literal_value % v.n))


@op
def lane_at(v: Vec, i: types.Integer):
    """Lane i known only at run time: goes through memory."""
    return v.dtype(v, types.int64), lambda b, v_, i_: b.extract_element(v_, i_)


@op
def set_lane(v: Vec, i: types.Integer, x: Scalar):
    return v(v, types.int64, v.dtype), lambda b, v_, i_, x_: b.insert_element(v_, x_, i_)


@op
def broadcast_lane(v: Vec, k: Lane):
    return v(v, k), lambda b, v_, _: shuffle(b, v_, v_, [k.literal_value % v.n] * v.n)


@op
def reverse(v: Vec):
    return v(v), lambda b, v_: shuffle(b, v_, v_, range(v.n - 1, -1, -1))


@op
def shift_up(v: Vec, fill: object, k: Lane):
    start = v.n - k.literal_value
    return v(v, v, k), lambda b, v_, fill_, _: shuffle(b, fill_, v_, range(start, start + v.n))


@op
def shift_down(v: Vec, fill: object, k: Lane):
    start = k.literal_value
    return v(v, v, k), lambda b, v_, fill_, _: shuffle(b, v_, fill_, range(start, start + v.n))


@op
def half(v: Vec, k: Lane):
    """The lower (0) or upper (1) half of the lanes."""
    t = Vec(v.dtype, v.n // 2)
    start = k.literal_value * t.n
    return t(v, k), lambda b, v_, _: shuffle(b, v_, v_, range(start, start + t.n))


@op
def join(u: Vec, v: Vec):
    t = Vec(v.dtype, 2 * v.n)
    return (t(u, v), lambda b, u_, v_: shuffle(b, u_, v_, range(t.n))) if u == v else None


# --- types --------------------------------------------------------------------------------------


def _converted(b: ir.IRBuilder, source: Vec, target: Vec, v: ir.Value) -> ir.Value:
    if source == target:
        return v
    if _is_float(source) and _is_float(target):
        return (b.fpext if target.dtype == types.float64 else b.fptrunc)(v, target.llvm)
    if _is_float(source):
        return b.fptosi(v, target.llvm)
    if _is_float(target):
        return (b.sitofp if _is_signed(source) else b.uitofp)(v, target.llvm)
    if target.llvm.element.width < source.llvm.element.width:
        return b.trunc(v, target.llvm)
    return (b.sext if _is_signed(source) else b.zext)(v, target.llvm)


def _conversion(dtype: types.Type) -> Callable:
    def convert(v: Vec):
        t = v.of(dtype)
        return t(v), lambda b, v_: _converted(b, v, t, v_)

    return op(convert)


def _reinterpretation(*dtypes: types.Type) -> Callable:
    """The bits of a Vec as that one of the types which has its width."""
    by_width = {dtype.bitwidth: dtype for dtype in dtypes}

    def reinterpret(v: Vec):
        dtype = by_width.get(v.dtype.bitwidth)
        return dtype and (v.of(dtype)(v), lambda b, v_: b.bitcast(v_, v.of(dtype).llvm))

    return op(reinterpret)


to_f32, to_f64 = _conversion(types.float32), _conversion(types.float64)
to_i32, to_i64 = _conversion(types.int32), _conversion(types.int64)
to_u8 = _conversion(types.uint8)
as_float = _reinterpretation(types.float32, types.float64)
as_int = _reinterpretation(types.int32, types.int64)


# --- folds --------------------------------------------------------------------------------------


def _fold(join_halves: Callable) -> Callable:
    """A reduction by halves: the order is part of the result, so it is fixed here."""

    def reduce(v: Vec):
        def emit(b, v_):
            while v_.type.count > 1:
                v_ = join_halves(b, v, *_halves(b, v_))
            return b.extract_element(v_, I32(0))

        return v.dtype(v), emit

    return op(reduce)


reduce_add = _fold(_arithmetic("add"))
reduce_max, reduce_min = _fold(partial(_picked, ">")), _fold(partial(_picked, "<"))
