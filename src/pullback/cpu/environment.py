"""The floating-point environment. Kernels mean every operation as written: denormals are numbers.

Other runtimes flush denormals to zero on their threads (XLA does, PyTorch can be told to), and a
new thread inherits that. So programs and workers set the default themselves: the same bits, whoever
calls.
"""

from __future__ import annotations

import platform
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function as insert_function
from numba.extending import intrinsic

_I64: Final = ir.IntType(64)
_I32: Final = ir.IntType(32)
_VOID: Final = ir.VoidType()


def _x86(builder: Any, name: str, word: Any) -> None:
    kind = ir.FunctionType(_VOID, [word.type])
    builder.call(insert_function(builder.module, kind, f"llvm.x86.sse.{name}"), [word])


def _read_x86(builder: Any) -> Any:
    word = builder.alloca(_I32)
    _x86(builder, "stmxcsr", word)
    return builder.zext(builder.load(word), _I64)


def _write_x86(builder: Any, value: Any) -> None:
    word = builder.alloca(_I32)
    builder.store(builder.trunc(value, _I32), word)
    _x86(builder, "ldmxcsr", word)


def _read_arm(builder: Any) -> Any:
    kind = ir.FunctionType(_I64, [])
    return builder.call(insert_function(builder.module, kind, "llvm.aarch64.get.fpcr"), [])


def _write_arm(builder: Any, value: Any) -> None:
    kind = ir.FunctionType(_VOID, [_I64])
    builder.call(insert_function(builder.module, kind, "llvm.aarch64.set.fpcr"), [value])


def _read_nothing(builder: Any) -> Any:
    return ir.Constant(_I64, 0)


def _write_nothing(builder: Any, value: Any) -> None:
    """Elsewhere the environment is taken as it comes."""


# How the control register is read and written, and its default: to nearest, ties to even, no
# denormal flushed, no exception raised.
_X86: Final = (_read_x86, _write_x86, 0x1F80)
_ARM: Final = (_read_arm, _write_arm, 0)
_MACHINES: Final = {"x86_64": _X86, "AMD64": _X86, "aarch64": _ARM, "arm64": _ARM}
_READ, _WRITE, _DEFAULT = _MACHINES.get(platform.machine(), (_read_nothing, _write_nothing, 0))


@intrinsic
def exact_arithmetic(typing_context: Any) -> Any:
    """Enter the default environment; what to give `restore_arithmetic` afterwards."""

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        before = _READ(builder)
        _WRITE(builder, ir.Constant(_I64, _DEFAULT))
        return before

    return types.int64(), lower


@intrinsic
def restore_arithmetic(typing_context: Any, before: Any) -> Any:
    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _WRITE(builder, args[0])
        return context.get_dummy_value()

    return types.void(types.int64), lower
