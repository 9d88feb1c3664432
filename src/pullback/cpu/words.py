"""Words of memory in native code: at an address, on the stack, as arguments of a C function."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import unpack_tuple
from numba.extending import intrinsic

from pullback.cpu.atomics import I64, INT


@intrinsic(prefer_literal=True)
def symbol(typing_context: Any, name: Any) -> Any:
    """Address of a symbol of this process: cached code that knows it by name stays valid."""

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        known = builder.module.globals.get(name.literal_value)
        state = known or ir.GlobalVariable(builder.module, I64, name.literal_value)
        state.linkage = "external"
        return builder.ptrtoint(state, I64)

    return INT(name), lower


@intrinsic
def at(typing_context: Any, address: Any) -> Any:
    """The words at an address."""
    signature = types.CPointer(INT)(INT)
    return signature, lambda context, builder, signature, args: builder.inttoptr(
        args[0], context.get_value_type(signature.return_type)
    )


@intrinsic
def stack_words(typing_context: Any, count: Any) -> Any:
    """So many words on the stack of the calling function."""
    return types.CPointer(INT)(INT), lambda context, builder, signature, args: builder.alloca(
        I64, size=args[0]
    )


@intrinsic
def address_of(typing_context: Any, words: Any) -> Any:
    return INT(words), lambda context, builder, signature, args: builder.ptrtoint(args[0], I64)


@intrinsic
def call(typing_context: Any, function: Any, arguments: Any) -> Any:
    """Call a C function of words by its address."""

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values = unpack_tuple(builder, args[1])
        prototype = ir.FunctionType(I64, [I64] * len(values))
        return builder.call(builder.inttoptr(args[0], prototype.as_pointer()), values)

    return INT(INT, arguments), lower
