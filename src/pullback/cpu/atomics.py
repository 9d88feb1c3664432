"""Words in shared memory: atomic access, calls by address, and the kernel's wait queue.

Everything here takes plain integer addresses, so compiled code carries no process-specific value
and can be cached on disk. Ordering is sequentially consistent throughout: the waiting protocol of
the pool relies on a store being visible before the load that follows it.
"""

from __future__ import annotations

import platform
import sys
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function as insert_function
from numba.extending import intrinsic, register_jitable

I64: Final = ir.IntType(64)
INT: Final = types.int64
_ORDER: Final = "seq_cst"
_MACHINE: Final = platform.machine()

# The number of the one system call made here; 0 where there is none.
_NUMBERS: Final = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
FUTEX: Final = _NUMBERS.get(_MACHINE, 0) if sys.platform == "linux" else 0
_FUTEX_WAIT_PRIVATE: Final = 128
_FUTEX_WAKE_PRIVATE: Final = 129

_syscall = types.ExternalFunction("syscall", INT(INT, INT, INT, INT, INT, INT, INT))
# Both let another thread have the core.
_YIELD: Final = "SwitchToThread" if sys.platform == "win32" else "sched_yield"
_yield_core = types.ExternalFunction(_YIELD, types.int32())

# The hint of a spin loop, by machine, and its arguments. The yield of aarch64 does nothing on most
# cores; isb takes about as long as the pause of x86.
_X86_PAUSE: Final = ("llvm.x86.sse2.pause", ())
_ARM_PAUSE: Final = ("llvm.aarch64.isb", (15,))
_PAUSES: Final[dict[str, tuple[str, tuple[int, ...]]]] = {
    "x86_64": _X86_PAUSE,
    "AMD64": _X86_PAUSE,
    "aarch64": _ARM_PAUSE,
    "arm64": _ARM_PAUSE,
}


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, I64.as_pointer())


def _read_modify_write(operation: str) -> Any:
    @intrinsic
    def apply(typing_context: Any, address: Any, value: Any) -> Any:
        def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.atomic_rmw(operation, _pointer(builder, args[0]), args[1], _ORDER)

        return INT(INT, INT), lower

    return apply


_add = _read_modify_write("add")
_and = _read_modify_write("and")
_or = _read_modify_write("or")


# Numba finds a function in its disk cache only if the intrinsics it uses have a stable name:
# module-level wrappers give the three generated ones theirs.
@register_jitable
def fetch_add(address, value):
    return _add(address, value)


@register_jitable
def fetch_and(address, value):
    return _and(address, value)


@register_jitable
def fetch_or(address, value):
    return _or(address, value)


@intrinsic
def load(typing_context: Any, address: Any) -> Any:
    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, args[0]), _ORDER, 8)

    return INT(INT), lower


@intrinsic
def store(typing_context: Any, address: Any, value: Any) -> Any:
    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _pointer(builder, args[0]), _ORDER, 8)
        return context.get_dummy_value()

    return types.void(INT, INT), lower


@intrinsic
def exchange_if(typing_context: Any, address: Any, expected: Any, value: Any) -> Any:
    """Store `value` where `expected` stands; True when it did."""

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pair = builder.cmpxchg(_pointer(builder, args[0]), args[1], args[2], _ORDER, _ORDER)
        return builder.extract_value(pair, 1)

    return types.boolean(INT, INT, INT), lower


@register_jitable
def give_way():
    """Offer this core to whoever else wants it."""
    _yield_core()


@intrinsic
def pause(typing_context: Any) -> Any:
    """Tell the core that this is a spin loop."""

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _MACHINE in _PAUSES:
            name, numbers = _PAUSES[_MACHINE]
            arguments = [ir.Constant(ir.IntType(32), number) for number in numbers]
            hint = ir.FunctionType(ir.VoidType(), [number.type for number in arguments])
            builder.call(insert_function(builder.module, hint, name), arguments)
        return context.get_dummy_value()

    return types.void(), lower


@intrinsic
def lowest_bit(typing_context: Any, word: Any) -> Any:
    """Index of the lowest set bit of a word that is not zero."""

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return INT(INT), lower


@intrinsic
def call_kernel(typing_context: Any, kernel: Any, block: Any, low: Any, high: Any) -> Any:
    """`kernel(block, low, high)` through its address."""

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        prototype = ir.FunctionType(ir.VoidType(), [I64, I64, I64])
        builder.call(builder.inttoptr(args[0], prototype.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(INT, INT, INT, INT), lower


@register_jitable
def sleep_while(address, value):
    """Sleep while the low half of the word equals `value`'s; may also return for no reason."""
    _syscall(FUTEX, address, _FUTEX_WAIT_PRIVATE, value & 0xFFFFFFFF, 0, 0, 0)


@register_jitable
def wake(address, sleepers):
    """Wake up to so many threads that sleep on the word."""
    _syscall(FUTEX, address, _FUTEX_WAKE_PRIVATE, sleepers, 0, 0, 0)
