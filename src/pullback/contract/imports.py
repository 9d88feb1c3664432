"""Modules that are imported when first used, beside signals and forks."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from types import FrameType, TracebackType
from typing import Any

# Held by threads that import, compile or load on first use. A fork waits for it: the locks of
# modules that another thread was importing would stay locked in the child for ever. It is taken
# before the locks of Numba and llvmlite, and no module takes it while it is being imported.
IMPORTS = threading.RLock()


def resolve(path: str) -> Any:
    """The object named "module:attribute", imported now: kernels load only when first used."""
    module, _, attribute = path.partition(":")
    return getattr(imported(module), attribute)


def imported(name: str) -> Any:
    """A module, imported now if it is not there yet."""
    module = sys.modules.get(name)
    if module is None or getattr(module.__spec__, "_initializing", False):
        guard_forks()
        with IMPORTS, uninterrupted():
            module = import_module(name)
    return module


# --- signals ------------------------------------------------------------------------------------

# What `signal` is made of: without the look-up of names of signals, which takes ten times as long
# as all the rest.
_quick = import_module("_signal") if sys.implementation.name == "cpython" else signal
_handler_of: Callable[[int], Any] = _quick.getsignal
_handle: Callable[[int, Any], Any] = _quick.signal


class uninterrupted:  # noqa: N801 - reads as a statement
    """Python's signal handlers wait meanwhile. One that raises in the middle of an import, as that
    of Ctrl-C does, would leave packages of which some modules are missing for ever, and one that
    calls this library would meet them."""

    __slots__ = ("_before", "_came", "_note")

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._came: list[tuple[int, FrameType | None]] = []
        self._note = lambda number, frame: self._came.append((number, frame))

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # no handler runs here
        try:
            for number in range(1, signal.NSIG):
                handler = _handler_of(number)
                if callable(handler):
                    self._before[number] = handler
                    _handle(number, self._note)
        except BaseException:
            self._restore()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        handlers = dict(self._before)
        try:
            self._restore()
        finally:
            self._restore()
            for number, frame in self._came:
                handlers[number](number, frame)

    def _restore(self) -> None:
        """Those that nobody has replaced since. A handler that runs here may end this early."""
        while self._before:
            number, handler = next(iter(self._before.items()))
            if _handler_of(number) is self._note:
                _handle(number, handler)
            del self._before[number]


# --- forks --------------------------------------------------------------------------------------


def _locks() -> Iterator[Any]:
    """What a thread holds that imports, compiles or loads; the latter two once there are some."""
    yield IMPORTS
    yield getattr(sys.modules.get("numba.core.compiler_lock"), "global_compiler_lock", None)
    library = getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None)
    yield getattr(library, "_lock", None)


_held: list[Any] = []


def _before_fork() -> None:
    """Let other threads finish: the child would wait for them for ever."""
    for lock in _locks():
        if lock is not None:
            lock.__enter__()
            _held.append(lock)


def _after_fork() -> None:
    locks = _held[::-1]
    _held.clear()  # while they are ours: another thread may be about to fork
    for lock in locks:
        lock.__exit__(None, None, None)


@cache
def guard_forks() -> None:
    """Have forks wait from now on: before the first import, compilation or load."""
    # What is registered last is called first. The lock of `logging` must not be taken before ours:
    # threads that import and compile may log.
    import logging  # noqa: F401

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
        )


def check_interpreter() -> None:
    """Native code reads objects of the interpreter and relies on its lock."""
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    if "t" in getattr(sys, "abiflags", "") or not locked:
        raise ImportError(
            "pullback needs a Python with the global interpreter lock, this is a free-threaded "
            "build: use python3.14, not python3.14t"
        )
