"""Signals during a long launch.

The interpreter notes a signal when it comes and runs its handler later, in the main thread, between
two steps of Python code. A launch is one step, and Ctrl-C would wait until it is over. So the
main thread looks at the clock between two chunks, and ten times a second asks the interpreter to
run what handlers there are. If one raises, no further chunk begins, and the launch ends with
INTERRUPTED and the error set. Other threads never ask: no handler runs there, and when the
interpreter ends, it ends them as they ask for its lock, in the middle of a job.
"""

from __future__ import annotations

import sys
from typing import Final

from numba import types
from numba.extending import register_jitable

from pullback.cpu.atomics import INT
from pullback.cpu.words import address_of, at

INTERRUPTED: Final = -3  # a status that no kernel has

# Words of a watch: seconds and nanoseconds of the clock, when to ask next, if a handler has raised.
_SECONDS, _NANOSECONDS, _DUE, _RAISED, WATCH_WORDS = range(5)
_INTERVAL: Final = 100_000_000
# CLOCK_MONOTONIC_COARSE of Linux, which takes a few nanoseconds to read; CLOCK_MONOTONIC of macOS.
_CLOCK: Final = 6

_read_clock = types.ExternalFunction("clock_gettime", types.int32(types.int32, INT))
_milliseconds = types.ExternalFunction("GetTickCount64", INT())
_IS_WINDOWS: Final = sys.platform == "win32"
_ensure_lock = types.ExternalFunction("PyGILState_Ensure", types.int32())
_release_lock = types.ExternalFunction("PyGILState_Release", types.void(types.int32))
_run_handlers = types.ExternalFunction("PyErr_CheckSignals", types.int32())


@register_jitable
def start_watch(watch):
    watch[_DUE] = watch[_RAISED] = 0


@register_jitable
def _time(watch):
    """Nanoseconds of a clock that never goes back; 0 if there is none."""
    if _IS_WINDOWS:
        return _milliseconds() * 1_000_000
    if _read_clock(types.int32(_CLOCK), address_of(watch)) != 0:
        return 0
    return watch[_SECONDS] * 1_000_000_000 + watch[_NANOSECONDS]


@register_jitable
def is_interrupted(address):
    """Ask whether a handler raises, if it is time to. The watch at this address is that of the main
    thread, which may hold the lock or not."""
    watch = at(address)
    now = _time(watch)
    if now == 0 or now < watch[_DUE]:
        return False
    is_first = watch[_DUE] == 0
    watch[_DUE] = now + _INTERVAL
    if is_first:
        return False
    state = _ensure_lock()
    raised = _run_handlers() != 0
    _release_lock(state)
    watch[_RAISED] = raised
    return raised


@register_jitable
def was_interrupted(address):
    """Whether a handler has raised since the watch was started; 0 is no watch."""
    return address != 0 and at(address)[_RAISED] != 0
