"""The native code that recognises and launches calls, run by the interpreter.

Machine code leaves no trace of the lines it ran. What Numba compiles is Python all the same: with
memory and the interpreter's C functions read through ctypes, the very functions of the call cache
run uncompiled, and their lines and branches can be counted. The functions are copied, with
globals of their own: nothing that is compiled before or after changes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib import import_module
from types import FunctionType
from typing import Any

from numba import types

Function = Callable[..., Any]

# Files of `pullback.cpu` whose functions run here, those that others call first.
MODULES = ("headers", "operands", "native_launch", "dispatch_guard", "call_match", "call_cache")
_WORD = ctypes.c_int64


class Words:
    """Memory from an address on, in words."""

    __slots__ = ("address",)

    def __init__(self, address: int) -> None:
        self.address = address

    def __getitem__(self, number: int) -> int:
        return _WORD.from_address(self.address + 8 * number).value

    def __setitem__(self, number: int, value: int) -> None:
        _WORD.from_address(self.address + 8 * number).value = value


class Errors:
    """The error that native code would have set."""

    last: BaseException | None = None

    @classmethod
    def guard(cls, function: Function, failed: int) -> Function:
        """This function of the interpreter, which sets an error instead of raising it."""

        def guarded(*args: int) -> int:
            try:
                return int(function(*args) or 0)
            except BaseException as error:
                cls.last = error
                return failed

        return guarded

    @classmethod
    def clear(cls) -> None:
        cls.last = None

    @classmethod
    def taken(cls) -> BaseException:
        error, cls.last = cls.last, None
        return error or SystemError("no result, and no error set")


_STACK: list[Any] = []  # of the calls that run


def _stack_words(count: int) -> Words:
    _STACK.append((_WORD * max(count, 1))())
    return Words(ctypes.addressof(_STACK[-1]))


def _framed(function: Function) -> Function:
    """A function that gives its stack back when it returns."""

    def framed(*args: int) -> Any:
        before = len(_STACK)
        try:
            return function(*args)
        finally:
            del _STACK[before:]

    return framed


def _call(address: int, arguments: tuple[int, ...]) -> int:
    function = ctypes.PYFUNCTYPE(_WORD, *[_WORD] * len(arguments))(address)
    result: int = Errors.guard(function, -1)(*arguments)
    return result


def _allocate(record: Words) -> int:
    from pullback.cpu.buffer_pool_native import allocate_method
    from pullback.internals.numpy import ARRAY_DATA

    header = _stack_words(ARRAY_DATA + 1)  # of an array that holds the record
    header[ARRAY_DATA] = record.address
    function = ctypes.PYFUNCTYPE(_WORD, _WORD, _WORD, _WORD)(allocate_method().address)
    result: int = Errors.guard(function, 0)(header.address, 0, 0)
    return result


def _of_interpreter(external: Any) -> Function:
    """The C function that an external function of Numba's stands for."""
    kinds: dict[Any, Any] = {types.int64: _WORD, types.int32: ctypes.c_int, types.void: None}
    takes = [kinds[kind] for kind in external.sig.args]
    prototype = ctypes.PYFUNCTYPE(kinds[external.sig.return_type], *takes)
    failed = -1 if external.symbol in ("PyLong_AsLongLong", "PyObject_RichCompareBool") else 0
    return Errors.guard(prototype((external.symbol, ctypes.pythonapi)), failed)


_PRIMITIVES: dict[str, Function] = {
    "at": Words,
    "address_of": lambda words: words.address,
    "stack_words": _stack_words,
    "call": _call,
    "allocate": _allocate,
    "clear_error": Errors.clear,
    "lock": lambda held: None,  # ctypes holds it all the time
    "unlock": lambda: 0,
    "raise_if_interrupted": lambda status: None,
}


def functions() -> dict[str, Function]:
    """The functions of MODULES as module.name, to be run as they stand."""
    made: dict[str, Function] = {}
    copies: dict[Function, Function] = {}  # of what modules import from each other
    for module in MODULES:
        found = vars(import_module(f"pullback.cpu.{module}"))
        own = {**found}
        for name, value in found.items():
            if name in _PRIMITIVES:
                own[name] = _PRIMITIVES[name]
            elif isinstance(value, types.ExternalFunction):
                own[name] = _of_interpreter(value)
            elif isinstance(value, FunctionType) and value in copies:
                own[name] = copies[value]
        for name, value in found.items():
            plain = _uncompiled(value)
            if plain is not None and plain.__module__ == found["__name__"]:
                own[name] = copies[plain] = FunctionType(plain.__code__, own, name)
                made[f"{module}.{name}"] = own[name]
    return made


def _uncompiled(value: Any) -> Any:
    """The function itself, also of one that is compiled at first use (`kernel.native`)."""
    if isinstance(value, FunctionType):
        return value
    lazy = getattr(value, "__wrapped__", None)
    if lazy is None or lazy.__module__ != "pullback.cpu.kernel":
        return None
    return next(
        c.cell_contents for c in lazy.__closure__ if isinstance(c.cell_contents, FunctionType)
    )


class _Method:
    """A C function of a table, its arguments and their number, for the interpreter."""

    def __init__(self, function: Function, drop: Function) -> None:
        self._function, self._drop = function, drop

    def of(self, table: Any) -> Function:
        def call(*passed: Any) -> Any:
            words = (_WORD * max(len(passed), 1))(*map(id, passed))
            found = self._function(id(table), ctypes.addressof(words), len(passed))
            if not found:
                raise Errors.taken()
            result = ctypes.cast(found, ctypes.py_object).value
            self._drop(found)
            return result

        return call


def install() -> None:
    """From now on, in this process, new call caches and launches run uncompiled."""
    from pullback.cpu import call_cache, native_launch

    own = functions()
    drop = _of_interpreter(vars(call_cache)["drop"])
    framed = {name: _framed(function) for name, function in own.items()}
    methods: Any = (
        _Method(framed["call_cache._lookup"], drop),
        _Method(framed["call_cache._insert"], drop),
    )
    launch = _Method(framed["native_launch._launch"], drop).of(None)
    call_cache._methods = lambda: methods  # type: ignore[assignment]
    native_launch._entry = lambda: launch  # type: ignore[assignment]
