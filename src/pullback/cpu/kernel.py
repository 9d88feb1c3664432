"""The one way a Numba kernel is written, compiled and cached.

A kernel is a module-level function over a range of its items,

    @kernel
    def forward(task, lo, hi): ...

`task` is a pointer to a block of 64-bit words: addresses, extents, strides, options. Its Numba
type carries the storage type of the tensors and of the index tensors, so that Numba's own type
dispatch specialises the kernel and no kernel mentions a dtype. Compiled, every kernel has the C
signature `void(int64*, int64, int64)`: the thread pool and foreign runtimes call it by address.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, models, register_model

from pullback.contract.element import ElementKind
from pullback.contract.imports import IMPORTS, guard_forks, uninterrupted
from pullback.cpu.cache import POLICY, KernelCache, cache_folder, module_hash, source_hash
from pullback.cpu.notice import compiling
from pullback.internals.numba import linked_into

__all__ = ["POLICY", "Kernel", "KernelCache", "cache_folder", "kernel", "native", "source_hash"]


guard_forks()


class Task(types.Type):
    """A pointer to the words of one launch, typed by what its tensors store."""

    def __init__(self, element: types.Type, index: types.Type) -> None:
        self.element, self.index = element, index
        super().__init__(name=f"Task({element}, {index})")

    @property
    def key(self) -> tuple[types.Type, types.Type]:
        return self.element, self.index


@register_model(Task)
class _TaskModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Task) -> None:
        super().__init__(dmm, fe_type, ir.IntType(64).as_pointer())


def _load_word(builder: Any, task: Any, slot: Any) -> Any:
    return builder.load(builder.gep(task, [slot]))


@intrinsic
def word(typingctx, task, slot):
    """Word `slot` of the task, as an int64."""
    sig = types.int64(task, types.intp)
    return sig, lambda ctx, b, sig, args: _load_word(b, *args)


@intrinsic
def set_word(typingctx, task, slot, value):
    """Write word `slot`: how a kernel reports a status to its caller."""

    def codegen(ctx, b, sig, args):
        b.store(args[2], b.gep(args[0], [args[1]]))
        return ctx.get_dummy_value()

    return types.void(task, types.intp, types.int64), codegen


@intrinsic
def real(typingctx, task, slot):
    """Word `slot` read as the bits of a float64."""
    sig = types.float64(task, types.intp)
    return sig, lambda ctx, b, sig, args: b.bitcast(_load_word(b, *args), ir.DoubleType())


@intrinsic
def words(typingctx, task, slot):
    """A pointer to the words from `slot` on: extents and strides."""
    sig = types.CPointer(types.int64)(task, types.intp)
    return sig, lambda ctx, b, sig, args: b.gep(args[0], [args[1]])


def _address_as(builder: Any, ctx: Any, sig: Any, address: Any) -> Any:
    return builder.inttoptr(address, ctx.get_value_type(sig.return_type))


@intrinsic
def pointer(typingctx, task, slot):
    """The address in word `slot`, as a pointer to the element's storage type."""
    sig = types.CPointer(task.element)(task, types.intp)
    return sig, lambda ctx, b, sig, args: _address_as(b, ctx, sig, _load_word(b, *args))


@intrinsic
def index_pointer(typingctx, task, slot):
    """The address in word `slot`, as a pointer to the index type."""
    sig = types.CPointer(task.index)(task, types.intp)
    return sig, lambda ctx, b, sig, args: _address_as(b, ctx, sig, _load_word(b, *args))


class Kernel:
    """A kernel before compilation; `address` compiles it for an element on first use."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__doc__ = function.__doc__
        self.name = f"{function.__module__}.{function.__qualname__}"
        self._function = function
        self._addresses: dict[tuple[Any, Any], int] = {}
        module_hash(function.__module__)  # now, of the source that this function was made of

    def __repr__(self) -> str:
        return f"<kernel {self.name}>"

    def signature(self, element: ElementKind, index: ElementKind) -> Any:
        task = Task(_numba_type(element), _numba_type(index))
        return types.void(task, types.int64, types.int64)

    def address(self, element: ElementKind, index: ElementKind = ElementKind.I64) -> int:
        """The C address of this kernel for tensors of `element` and indices of `index`."""
        known = self._addresses.get((element, index))
        if known is not None:
            return known
        address = native_address(cached(self._function), self.signature(element, index))
        return self._addresses.setdefault((element, index), address)

    def assembly(self, element: ElementKind, index: ElementKind = ElementKind.I64) -> str:
        """The machine code, for tests that look for vector instructions: compiled anew, since what
        comes from the disk cache has none to show."""
        signature = self.signature(element, index)
        fresh = njit(**POLICY)(self._function)
        native_address(fresh, signature)
        return str(fresh.inspect_asm(signature.args))


kernel = Kernel


_kept: dict[Any, Any] = {}


def cached(function: Callable[..., Any], **policy: Any) -> Any:
    """A function as Numba compiles it, or loads it from disk: always the same one, kept for ever as
    its addresses are, since Numba frees code with the last reference to it."""
    key = function, *policy.items()
    with IMPORTS:
        if key not in _kept:
            dispatcher = njit(**{**POLICY, **policy})(function)
            dispatcher._cache = KernelCache(function)
            _kept[key] = dispatcher
        return _kept[key]


def native_address(dispatcher: Any, signature: Any) -> int:
    """Compile (or load) `dispatcher` for `signature` and give its address as a C function."""
    # Numba's own lock comes second. LLVM calls back to Python, where exceptions would be lost.
    name = dispatcher.py_func.__qualname__
    with IMPORTS, uninterrupted(), compiling(name):
        with linked_into(name):
            dispatcher.compile(signature)
        result = dispatcher.get_compile_result(signature)
        return int(result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name))


def native(signature: Any) -> Callable[[Callable[..., Any]], Callable[[], int]]:
    """Decorator: a runtime function with a fixed C signature, compiled on first use and cached."""

    def wrap(function: Callable[..., Any]) -> Callable[[], int]:
        module_hash(function.__module__)
        return cache(lambda: native_address(cached(function), signature))

    return wrap


def _numba_type(element: ElementKind) -> Any:
    return getattr(types, element.row.storage)
