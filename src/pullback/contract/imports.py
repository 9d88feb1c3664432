"""Modules that are imported when first used, beside signals and forks."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from functools import cache
from importlib import import_module
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
    """A module, imported now. A signal handler may come here in the middle of that very import,
    which can go on only when the handler has returned."""
    with IMPORTS:
        guard_forks()
        module = import_module(name)
    if getattr(module.__spec__, "_initializing", False):
        raise still_importing(name)
    return module


def still_importing(name: str) -> ImportError:
    """The error of a call in a signal handler that interrupted the imports of the first call."""
    return ImportError(
        f"{name} is still being imported by what this call interrupted: make one call before "
        "installing a signal handler that makes others",
        name=name,
    )


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
