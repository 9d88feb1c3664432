"""Run our chunks on OpenMP workers that are still spinning after a PyTorch op.

PyTorch's OpenMP workers spin for milliseconds after each op and hold cores on which our own workers
would have to queue: small calls right after a torch op are 1.05 to 1.77 times faster this way.
Gain (OpenMP threads after a torch op): softmax 512x512 f32 1.77.
PULLBACK_OPENMP=0 switches it off.

A worker is spinning if its CPU-time clock advances between two reads: it only advances while the
thread runs. A sleeping OpenMP pool is left alone, as is one with more threads than the job may use,
or less than half as many.

OpenMP keeps a pool for each thread that calls it, and makes one for a thread that has none. We use
that of the main thread only. A forked child has lost those threads, but OpenMP does not know and
would wait for ever: a process that has been forked never uses them (see pool.py).
"""

from __future__ import annotations

from typing import Final

from numba import types
from numba.extending import register_jitable

from pullback.cpu.atomics import FUTEX, INT, exchange_if, load, pause, store
from pullback.cpu.threads import this_thread
from pullback.cpu.words import address_of, call, stack_words

# Byte offsets of this state within the pool's state, which starts as zeros.
PARALLEL: Final = 0  # address of GOMP_parallel, once a library has brought it along
SIZE: Final = 8  # address of omp_get_max_threads
OWNER: Final = 16  # the thread that owns the OpenMP pool; 0: never use it
CLOCK: Final = 24  # that of one of its workers; 0 until it has run a job
BUSY: Final = 32
PARALLEL_NAME: Final = 40
SIZE_NAME: Final = 64
DONOR_BYTES: Final = 128

# What is written there.
NAMES: Final = {PARALLEL_NAME: b"GOMP_parallel", SIZE_NAME: b"omp_get_max_threads"}

_PROBE_SPINS: Final = 8  # rounds of `pause` between two looks at a clock
_INT: Final = (1 << 32) - 1  # the half of a word that C's int run_on_openmp

_find = types.ExternalFunction("dlsym", INT(INT, INT))
_clock_of = types.ExternalFunction("pthread_getcpuclockid", types.int32(INT, INT))
_read_clock = types.ExternalFunction("clock_gettime", types.int32(types.int32, INT))


@register_jitable
def _is_loaded(donor):
    """Whether OpenMP is where all libraries see it, as PyTorch puts it."""
    if load(donor + PARALLEL) == 0:
        store(donor + SIZE, _find(0, donor + SIZE_NAME))
        if load(donor + SIZE) != 0:
            store(donor + PARALLEL, _find(0, donor + PARALLEL_NAME))
    return load(donor + PARALLEL) != 0


@register_jitable
def _time_of(clock, pair):
    """Read a clock into two words; False if its thread is gone."""
    return _read_clock(types.int32(clock), address_of(pair)) == 0


@register_jitable
def _is_spinning(donor):
    clock = load(donor + CLOCK)
    if clock == 0:
        return True  # unknown: this job registers a worker
    before, after = stack_words(2), stack_words(2)
    if not _time_of(clock, before):  # OpenMP has replaced its threads
        store(donor + CLOCK, 0)
        return False
    for _ in range(_PROBE_SPINS):
        pause()
    _time_of(clock, after)
    return before[0] != after[0] or before[1] != after[1]


@register_jitable
def run_on_openmp(donor, threads, act, job):
    """Have every OpenMP thread call act(job), the caller too; False if they are not spinning."""
    if FUTEX == 0 or load(donor + OWNER) != this_thread() or not _is_loaded(donor):
        return False
    size = call(load(donor + SIZE), ()) & _INT
    if size < 2 or size > threads or 2 * size < threads:
        return False
    if not _is_spinning(donor) or not exchange_if(donor + BUSY, 0, 1):
        return False
    call(load(donor + PARALLEL), (act, job, size, 0))
    store(donor + BUSY, 0)
    return True


@register_jitable
def register_worker(donor):
    """On every OpenMP thread: note the CPU clock of a worker, to test later if it spins."""
    if FUTEX == 0:  # not Linux: never called
        return
    me = this_thread()
    if load(donor + CLOCK) == 0 and me != load(donor + OWNER):
        clock = stack_words(1)
        clock[0] = 0
        if _clock_of(me, address_of(clock)) == 0:
            store(donor + CLOCK, clock[0])
