"""How the vector operations are made: the Vec type, the IR pieces, and the two decorators."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import TypeAlias

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

LLVM_ELEMENT = {
    types.float32: ir.FloatType(),
    types.float64: ir.DoubleType(),
    types.boolean: ir.IntType(1),
    types.int16: ir.IntType(16),
    types.uint16: ir.IntType(16),
    types.uint8: ir.IntType(8),
    types.int32: ir.IntType(32),
    types.int64: ir.IntType(64),
}
I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


class Vec(types.Type):
    """n lanes of one scalar type."""

    def __init__(self, dtype: types.Type, n: int):
        if dtype not in LLVM_ELEMENT or n < 1 or n & (n - 1):
            raise TypeError(f"Vec: no vector of {n} x {dtype}")
        self.dtype, self.n = dtype, n
        super().__init__(f"Vec({dtype}, {n})")

    @property
    def key(self) -> tuple[types.Type, int]:
        return self.dtype, self.n

    def of(self, dtype: types.Type) -> "Vec":
        """The vector of as many lanes of another type."""
        return Vec(dtype, self.n)

    @property
    def llvm(self) -> ir.VectorType:
        return ir.VectorType(LLVM_ELEMENT[self.dtype], self.n)


@register_model(Vec)
class _VecModel(models.PrimitiveModel):
    def __init__(self, manager, vec):
        super().__init__(manager, vec, vec.llvm)


def shaped(element: ir.Type, like: ir.Type) -> ir.Type:
    """`element`, or as many lanes of it as `like` has: one emitter serves scalars and vectors."""
    return ir.VectorType(element, like.count) if isinstance(like, ir.VectorType) else element


def constant(kind: ir.Type, value: float) -> ir.Constant:
    many = isinstance(kind, ir.VectorType)
    return ir.Constant(kind, [value] * kind.count if many else value)


def shuffle(b: ir.IRBuilder, u: ir.Value, v: ir.Value, lanes: Iterable[int]) -> ir.Value:
    lanes = list(lanes)
    return b.shuffle_vector(u, v, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))


def splatted(b: ir.IRBuilder, x: ir.Value, n: int) -> ir.Value:
    undefined = ir.Constant(ir.VectorType(x.type, n), ir.Undefined)
    return shuffle(b, b.insert_element(undefined, x, I32(0)), undefined, [0] * n)


def widened(b: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    return bits if bits.type == I64 else b.zext(bits, I64)


def at_most(b: ir.IRBuilder, count: ir.Value, n: int) -> ir.Value:
    return b.select(b.icmp_signed("<", count, I64(n)), count, I64(n))


def lanes_below(b: ir.IRBuilder, count: ir.Value, n: int) -> ir.Value:
    """Mask of the lanes i < count."""
    numbers = ir.Constant(ir.VectorType(I32, n), list(range(n)))
    return b.icmp_signed("<", numbers, splatted(b, b.trunc(at_most(b, count, n), I32), n))


def _mangled(kind: ir.Type) -> str:
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{_mangled(kind.element)}"
    if isinstance(kind, ir.PointerType):
        return "p0"
    return f"i{kind.width}" if isinstance(kind, ir.IntType) else kind.intrinsic_name


def llvm_call(b, name: str, result: ir.Type, values: list, overloaded: list[ir.Type]) -> ir.Value:
    """Call the LLVM intrinsic `name`, overloaded on the given types."""
    full = ".".join(["llvm." + name, *map(_mangled, overloaded)])
    kind = ir.FunctionType(result, [v.type for v in values])
    return b.call(cgutils.get_or_insert_function(b.module, kind, full), values)


Lane: TypeAlias = types.IntegerLiteral
Scalar: TypeAlias = types.Number | types.Boolean


def op(define: Callable) -> Callable:
    """Make a Numba intrinsic of `define(*types) -> (signature, emit(builder, *values))`.

    A parameter's annotation is the class its Numba type must have. Literal integers reach `emit` as
    IR constants, so that it can decide on them.
    """
    parameters = inspect.signature(define).parameters.values()
    wanted = [p.annotation for p in parameters]

    def typed(_context, *args):
        if len(args) != len(wanted) or not all(map(isinstance, args, wanted)):
            return None
        if (found := define(*args)) is None:
            return None
        sig, emit = found

        def lower(context, builder, sig, values):
            known = [
                ir.Constant(v.type, t.literal_value) if isinstance(t, types.IntegerLiteral) else v
                for t, v in zip(sig.args, values, strict=True)
            ]
            out = emit(builder, *known)
            return context.get_dummy_value() if sig.return_type is types.void else out

        return sig, lower

    functools.update_wrapper(typed, define)
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_ONLY)
    typed.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
    return intrinsic(prefer_literal=True)(typed)


# A function inside a kernel needs neither the wrappers nor the checks of one that Python calls: to
# leave them out nearly halves the time of compilation.
INLINED = {
    "forceinline": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "error_model": "numpy",
    "boundscheck": False,
    "nogil": True,
    "_nrt": False,
}


def inlined(function: Callable) -> Callable:
    """A function kernels may call: always inlined, or vectors would travel through memory."""

    @overload(function, jit_options=INLINED, strict=False, prefer_literal=True)
    def chosen(*_args):
        return function

    return function
