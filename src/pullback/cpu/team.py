"""Threads of OpenMP that wait for more work, awake: PyTorch's do, for milliseconds after each op.

Meanwhile they hold cores on which our own workers would have to queue. So while the team of the
calling thread is awake, it gets the chunks of a job. Whether it is shows the clock that counts the
time a thread has had a core: between two jobs of its owner it stands still, unless the thread
spins. A team that sleeps is left alone, as is one that has more threads than the job may use, or
less than half as many: by default there is one for every core, and two of ours where a core counts
as two.

OpenMP keeps a team for each thread that calls it, and makes one for a thread that has none. We ask
for that of the main thread only. A forked child has lost it, but not OpenMP's memory of it, and
would wait for it for ever: so a process that has been forked has no team (see `pool`).
"""

from __future__ import annotations

from typing import Final

from numba import types
from numba.extending import register_jitable

from pullback.cpu.atomics import INT, exchange_if, load, pause, store
from pullback.cpu.words import address_of, call, stack_words

# Byte offsets of a team within the pool's state, which starts as zeros.
PARALLEL: Final = 0  # address of GOMP_parallel, once a library has brought it along
SIZE: Final = 8  # address of omp_get_max_threads
OWNER: Final = 16  # the thread whose team this is; 0: there may be none
CLOCK: Final = 24  # that of one of its workers; 0 until it has been met
BUSY: Final = 32
PARALLEL_NAME: Final = 40
SIZE_NAME: Final = 64
TEAM_BYTES: Final = 128

# What is written there.
NAMES: Final = {PARALLEL_NAME: b"GOMP_parallel", SIZE_NAME: b"omp_get_max_threads"}

_GLANCE: Final = 8  # rounds of `pause` between two looks at a clock
_INT: Final = (1 << 32) - 1  # the half of a word that C's int takes

_find = types.ExternalFunction("dlsym", INT(INT, INT))
_this_thread = types.ExternalFunction("pthread_self", INT())
_clock_of = types.ExternalFunction("pthread_getcpuclockid", types.int32(INT, INT))
_read_clock = types.ExternalFunction("clock_gettime", types.int32(types.int32, INT))


@register_jitable
def _is_loaded(team):
    """Whether OpenMP is where all libraries see it, as PyTorch puts it."""
    if load(team + PARALLEL) == 0:
        store(team + SIZE, _find(0, team + SIZE_NAME))
        if load(team + SIZE) != 0:
            store(team + PARALLEL, _find(0, team + PARALLEL_NAME))
    return load(team + PARALLEL) != 0


@register_jitable
def _time_of(clock, pair):
    """Read a clock into two words; False if its thread is gone."""
    return _read_clock(types.int32(clock), address_of(pair)) == 0


@register_jitable
def _is_awake(team):
    clock = load(team + CLOCK)
    if clock == 0:
        return True  # nobody knows yet: it is met now
    before, after = stack_words(2), stack_words(2)
    if not _time_of(clock, before):  # a team of another size has taken its place
        store(team + CLOCK, 0)
        return False
    for _ in range(_GLANCE):
        pause()
    _time_of(clock, after)
    return before[0] != after[0] or before[1] != after[1]


@register_jitable
def takes(team, threads, act, job):
    """Have every thread of a waiting team call act(job), the caller too; False if none waits."""
    if load(team + OWNER) != _this_thread() or not _is_loaded(team):
        return False
    size = call(load(team + SIZE), ()) & _INT
    if size < 2 or size > threads or 2 * size < threads:
        return False
    if not _is_awake(team) or not exchange_if(team + BUSY, 0, 1):
        return False
    call(load(team + PARALLEL), (act, job, size, 0))
    store(team + BUSY, 0)
    return True


@register_jitable
def meet(team):
    """On every thread of a team: note the clock of a worker, to know later if it is awake."""
    me = _this_thread()
    if load(team + CLOCK) == 0 and me != load(team + OWNER):
        clock = stack_words(1)
        clock[0] = 0
        if _clock_of(me, address_of(clock)) == 0:
            store(team + CLOCK, clock[0])
