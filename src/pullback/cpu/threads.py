"""What the thread pool asks of the system: threads, and how one sleeps until another wakes it.

Linux has a wait queue for any word (futex), and lets a thread be kept off a core. Elsewhere the
threads and locks of CPython serve, which every system has and which need no GIL. Its locks are made
of a mutex and a condition variable on macOS and Windows. Used as binary semaphores, they let one
thread sleep (acquire) until another wakes it (release). PULLBACK_FUTEX=0 takes them on Linux too.
"""

from __future__ import annotations

import signal
import sys
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_jitable

from pullback.cpu.atomics import FUTEX, I64, INT, give_way, load, sleep_while, store, wake

CPUS_BYTES: Final = 128  # a cpu_set_t
_C_INT = types.int32

# Threads that the pool starts take no signal that another thread should see; only those the
# hardware sends them.
_NAMES: Final = ("SIGILL", "SIGTRAP", "SIGBUS", "SIGFPE", "SIGSEGV")
_OF_HARDWARE: Final = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
_SIGNALS_BLOCKED: Final = ~sum(1 << number - 1 for number in _OF_HARDWARE)
_HAS_MASKS: Final = hasattr(signal, "pthread_sigmask")
_BLOCK: Final = int(getattr(signal, "SIG_BLOCK", 0))
_SET_MASK: Final = int(getattr(signal, "SIG_SETMASK", 0))

# What `unsigned long` holds there.
_LONG: Final = (1 << 32) - 1 if sys.platform == "win32" else -1
_SELF: Final = "pthread_self" if FUTEX else "PyThread_get_thread_ident"

_pthread_create = types.ExternalFunction("pthread_create", _C_INT(INT, INT, INT, INT))
_pthread_detach = types.ExternalFunction("pthread_detach", _C_INT(INT))
_pthread_sigmask = types.ExternalFunction("pthread_sigmask", _C_INT(_C_INT, INT, INT))
_pthread_setaffinity = types.ExternalFunction("pthread_setaffinity_np", _C_INT(INT, INT, INT))
_pthread_self = types.ExternalFunction(_SELF, INT())
_current_core = types.ExternalFunction("sched_getcpu", _C_INT())
_start_thread = types.ExternalFunction("PyThread_start_new_thread", INT(INT, INT))
_allocate_lock = types.ExternalFunction("PyThread_allocate_lock", INT())
_acquire_lock = types.ExternalFunction("PyThread_acquire_lock", _C_INT(INT, _C_INT))
_release_lock = types.ExternalFunction("PyThread_release_lock", types.void(INT))


@intrinsic
def scratch(typing_context: Any) -> Any:
    """Address of 40 zeroed words on the stack of the calling function."""

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = ir.ArrayType(I64, 40)
        with builder.goto_entry_block():
            slot = builder.alloca(words)
        builder.store(ir.Constant(words, None), slot)
        return builder.ptrtoint(slot, I64)

    return INT(), lower


@register_jitable
def this_thread():
    """What `threading.get_ident` says."""
    return _pthread_self() & _LONG


# --- sleeping -------------------------------------------------------------------------------------


@register_jitable
def new_lock():
    """A lock to sleep on, with nobody awake yet; 0 if there is no memory for one."""
    lock = _allocate_lock()
    if lock != 0:
        _acquire_lock(lock, _C_INT(1))
    return lock


@register_jitable
def sleep_on(lock, word, value):
    """Sleep while the low half of the word equals `value`'s; may also return for no reason. One
    thread sleeps on a lock; without one (0) the word itself is slept on, where that is possible."""
    if lock != 0:
        _acquire_lock(lock, _C_INT(1))
    elif FUTEX != 0:
        sleep_while(word, value)
    else:
        give_way()


@register_jitable
def wake_on(lock, word):
    """Wake the thread that sleeps there, or let the next one that would not sleep."""
    if lock != 0:
        _release_lock(lock)
    elif FUTEX != 0:
        wake(word, 1)


# --- starting -------------------------------------------------------------------------------------


@register_jitable
def block_signals(mask):
    """Have threads that are started from now on take none. `mask` is some scratch memory, for
    `restore_signals` too."""
    if _HAS_MASKS:
        store(mask, _SIGNALS_BLOCKED)
        _pthread_sigmask(_C_INT(_BLOCK), mask, mask + CPUS_BYTES)


@register_jitable
def restore_signals(mask):
    if _HAS_MASKS:
        _pthread_sigmask(_C_INT(_SET_MASK), mask + CPUS_BYTES, 0)


@register_jitable
def start_thread(entry, argument, handle, portable):
    """Start a thread that calls entry(argument); False if the system refuses. Unless it is
    `portable`, the word at `handle` says which thread it is."""
    if FUTEX == 0 or portable:
        return _start_thread(entry, argument) & _LONG != _LONG
    if _pthread_create(handle, 0, entry, argument) != 0:
        return False
    _pthread_detach(load(handle))
    return True


@register_jitable
def keep_off_this_core(thread, excluded, cores):
    """Forbid a thread the core of the calling one; `excluded` is a word that remembers it, `cores`
    are those this process may use.

    A virtual machine's scheduler takes a halted core for a busy one, or packs threads to save
    cores, and then queues the worker behind the very thread it should help, for milliseconds.
    """
    if FUTEX == 0 or thread == 0:  # 0 if its creator has not come back from creating it
        return
    core = types.int64(_current_core())
    if core < 0 or core >= CPUS_BYTES * 8 or load(excluded) == core + 1:
        return
    allowed = scratch()
    others = 0
    for word in range(0, CPUS_BYTES, 8):
        bits = load(cores + word)
        if word == core // 64 * 8:
            bits &= ~(1 << core % 64)
        store(allowed + word, bits)
        others |= bits
    if others != 0:
        _pthread_setaffinity(thread, CPUS_BYTES, allowed)
        store(excluded, core + 1)
