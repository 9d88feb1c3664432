"""The thread pool: how many threads a call may use, and the native runner of programs.

A program is an int64 array of phases, four words each: kernel address, item count, grain, and the
word of the block that gets the address, or 0.
A kernel is `void kernel(int64_t *block, int64_t low, int64_t high)`; word 0 of its block is the
status. Chunks begin at multiples of the grain, whatever the number of threads.

Workers are plain native threads, started when a phase is first split. They know nothing of the
interpreter, so they neither delay its shutdown nor wake up in the middle of it.
"""

from __future__ import annotations

import ctypes
import operator
import os
import sys
from functools import cache
from typing import Final, NamedTuple

from pullback.contract.errors import InvalidProblem
from pullback.contract.imports import IMPORTS, guard_forks, imported, uninterrupted
from pullback.contract.settings import OPENMP
from pullback.cpu import library

_VARIABLE: Final = "PULLBACK_NUM_THREADS"
_WANTED: Final = "a whole number of at least 1"
_FORKED: Final = 0x40  # of the system's flags of a process: forked, and no other program since


class _Native(NamedTuple):
    """The loaded code and the memory its threads share."""

    state: int
    worker: int
    openmp_entry: int
    execute: int


def permanent_alloc(size: int) -> int:
    """Zeroed memory that is never freed: native threads read it until the process is gone."""
    line = 128
    memory = ctypes.create_string_buffer(size + line)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
    return -(-ctypes.addressof(memory) // line) * line


_native: _Native | None = None
_prototype = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)
_threads: Final = ctypes.c_int64.from_address(permanent_alloc(8))  # zero until somebody asks


def set_num_threads(n: int) -> None:
    """Let every call of this process use up to `n` threads, the calling one included."""
    if isinstance(n, bool) or not hasattr(n, "__index__") or operator.index(n) < 1:
        raise InvalidProblem("set_num_threads", "n", _WANTED, repr(n))
    _threads.value = min(operator.index(n), sys.maxsize)


def get_num_threads() -> int:
    """Threads a call may use: the number set, else PULLBACK_NUM_THREADS, else the cores."""
    return _threads.value or _begin_with(_default_threads())


def _begin_with(threads: int) -> int:
    _threads.value = threads
    return threads


def run(program: int, phases: int, block: int, threads: int) -> int:
    """Execute a program without the GIL; the status that ended it, or 0."""
    return _prototype(execute_address())(program, phases, block, threads)


def execute_address() -> int:
    """Address of `int64_t execute(int64_t program, phases, block, threads)`.

    Native code may call it on any thread, with or without the GIL; it needs no preparation, since
    missing workers are started natively too.
    """
    _native or _load()  # which imports, and a fork waits for it
    from pullback.cpu import workers

    return workers.execute_uninterrupted()


def interruptible_address() -> int:
    """The same for threads of the interpreter, which runs signal handlers meanwhile; INTERRUPTED
    with an error set if one raised (see interrupt.py)."""
    return (_native or _load()).execute


def threads_address() -> int:
    """Address of the word that holds the number of threads, for native callers of `execute`."""
    get_num_threads()
    return ctypes.addressof(_threads)


def _default_threads() -> int:
    text = os.environ.get(_VARIABLE, "").strip()
    if not text:
        return len(_cores())
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise InvalidProblem("get_num_threads", _VARIABLE, _WANTED, repr(text))
    return min(int(text), sys.maxsize)


def _cores() -> set[int]:
    """Cores this process may run on."""
    if sys.platform == "linux":
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _load() -> _Native:
    """Compile the native code, or load it from disk, and give it its state. Starts no thread."""
    global _native
    guard_forks()
    with IMPORTS:
        if _native is None:
            with uninterrupted():
                state, workers = _state(), imported("pullback.cpu.workers")
            native = _Native(state, workers.work(), workers.openmp_entry(), workers.execute())
            _reset(native)
            _native = native
        return _native


def shared_memory(symbol: str, size: int) -> int:
    """Zeroed memory that compiled code knows by this symbol: in the library that has the code, or
    new memory, of which LLVM is told."""
    if library.path() is not None:
        return library.address_of(symbol)
    from llvmlite.binding import add_symbol

    from pullback.internals.numba import codegen

    codegen()  # with it LLVM learns the symbols of this process
    address = permanent_alloc(size)
    add_symbol(symbol, address)
    return address


@cache
def _state() -> int:
    """What the threads share, where native code finds it: always the same, since some of that code
    may be loaded already if an interrupt ended an attempt."""
    from pullback.cpu import workers

    return shared_memory(workers.SYMBOL, workers.STATE_BYTES)


def _reset(native: _Native) -> None:
    """An empty pool: no worker, no job, no slot taken."""
    from threading import main_thread

    from pullback.cpu import openmp, threads, workers

    ctypes.memset(native.state, 0, workers.STATE_BYTES)
    word = ctypes.c_int64.from_address
    cores = _cores()
    word(native.state + workers.SPINNERS_MAX).value = len(cores) - 1
    for core in cores:
        if core < 8 * threads.CPUS_BYTES:
            word(native.state + workers.CPUS + core // 64 * 8).value |= 1 << core % 64
    word(native.state + workers.OPENMP_ENTRY).value = native.openmp_entry
    for place, name in openmp.NAMES.items():
        ctypes.memmove(native.state + workers.OPENMP + place, name, len(name))
    main = main_thread().ident or 0
    word(native.state + workers.MAIN).value = main
    owner = main if OPENMP and not _was_forked() else 0
    word(native.state + workers.OPENMP + openmp.OWNER).value = owner
    word(native.state + workers.PORTABLE).value = not has_futex()
    word(native.state + workers.ENTRY).value = native.worker


def has_futex() -> bool:
    """Whether workers sleep in Linux's wait queue; else on locks of CPython, see threads.py."""
    from pullback.cpu.atomics import FUTEX

    return FUTEX != 0 and os.environ.get("PULLBACK_FUTEX", "").strip() != "0"


def _was_forked() -> bool:
    """Whether this process is the copy of another, not started with a program of its own."""
    try:
        with open("/proc/self/stat", "rb") as file:
            status = file.read()
    except OSError:
        return True  # not Linux: nobody knows
    return bool(int(status.rpartition(b")")[2].split()[6]) & _FORKED)


def _after_fork_in_child() -> None:
    """The child has one thread: whatever the others were doing, its pool starts anew."""
    if _native is not None:
        _reset(_native)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
