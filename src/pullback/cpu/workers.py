"""The native half of the thread pool: the program runner and the loop of a worker.

A *job* is one phase that is being split. The calling thread takes one of 32 job slots, fills it,
admits workers and works itself; idle workers enter while it admits any, then claim chunks from the
same counter. Once the counter runs out the caller admits no more and waits only for those inside,
so it never depends on a worker that has not come yet, and nothing can deadlock: not with more
callers than workers, not when a kernel runs a program of its own. All of it is in memory that is
never freed, so a worker that comes late is just not admitted. The state starts as zeros; a forked
child returns to that.
"""

from __future__ import annotations

from typing import Final

from numba import types
from numba.extending import register_jitable

from pullback.cpu.atomics import (
    INT,
    call_kernel,
    exchange_if,
    fetch_add,
    fetch_and,
    fetch_or,
    load,
    lowest_bit,
    pause,
    store,
)
from pullback.cpu.environment import exact_arithmetic, restore_arithmetic
from pullback.cpu.interrupt import (
    INTERRUPTED,
    WATCH_WORDS,
    is_interrupted,
    start_watch,
    was_interrupted,
)
from pullback.cpu.kernel import native
from pullback.cpu.openmp import DONOR_BYTES, register_worker, run_on_openmp
from pullback.cpu.threads import (
    block_signals,
    keep_off_this_core,
    new_lock,
    restore_signals,
    scratch,
    sleep_on,
    start_thread,
    this_thread,
    wake_on,
)
from pullback.cpu.words import address_of, stack_words, symbol

SYMBOL: Final = "pullback_pool"
SLOTS: Final = 32
MAX_WORKERS: Final = 512

# Byte offsets. Words written by different threads stand 128 bytes apart: two cache lines, because
# the prefetcher of most x86 cores moves lines in pairs.
ENTRY: Final = 0  # address of `work`; 0: no worker may start
SPINNERS_MAX: Final = 8  # more idle workers than this go to sleep at once
STARTED: Final = 16
GROWING: Final = 24
OPENMP_ENTRY: Final = 32  # address of `openmp_entry`
MAIN: Final = 40  # the interpreter's main thread, which looks for signals
PORTABLE: Final = 48  # whether threads and locks are CPython's, see threads.py
EPOCH: Final = 128  # counts opened jobs; idle workers watch it
OPEN: Final = 136  # bit per slot: a job that may still admit workers
IDLE: Final = 256  # workers awake and without a job
ASLEEP: Final = 384  # bit per worker, several words
TAKEN: Final = 512  # bit per slot: owned by a caller
CPUS: Final = 640  # the cores this process may use, as a cpu_set_t
JOBS: Final = 768

# A job:
ADMISSION: Final = 0  # workers it still admits in the high half, workers inside in the low half
NEXT: Final = 128  # the next chunk nobody has claimed
KERNEL: Final = 256
COUNT: Final = 264
GRAIN: Final = 272
BLOCK: Final = 280
WATCH: Final = 288  # of the main thread if that is the caller, see interrupt.py; else 0
LOCK: Final = 296  # the caller sleeps on it, see threads.py; 0: on ADMISSION
JOB_BYTES: Final = 384

# A worker:
WORKERS: Final = JOBS + SLOTS * JOB_BYTES
WAKE_FLAG: Final = 0  # raised by the caller that wakes this worker; the worker sleeps on it
THREAD: Final = 8  # its pthread_t; 0 if it is portable
EXCLUDED_CORE: Final = 16  # 1 + the core it keeps off
WORKER_LOCK: Final = 24  # it sleeps on it; 0: on WAKE_FLAG
WORKER_BYTES: Final = 64
OPENMP: Final = WORKERS + MAX_WORKERS * WORKER_BYTES
STATE_BYTES: Final = OPENMP + DONOR_BYTES

_ONE_WORKER: Final = 1 << 32
_WAITING: Final = 1 << 31  # the caller sleeps, the last one out wakes it
_INSIDE: Final = _WAITING - 1
_LOW_HALF: Final = _ONE_WORKER - 1

# Rounds of `pause` (25 ns on Zen 3, 50 on Skylake) before sleeping: long enough to bridge the
# Python code between two calls and about what waking up costs, short enough to go unnoticed.
_SPINS: Final = 2000

# A thread that works alone looks for signals about so often in a phase.
_PIECES: Final = 128


@register_jitable
def _is_main_thread():
    return load(symbol(SYMBOL) + MAIN) == this_thread()


@register_jitable
def _run_chunks(job, watch):
    """Work until no chunk is left. Who has a watch looks for signals before it claims one: a chunk
    that is claimed is done, for another may wait for its carry."""
    kernel, block = load(job + KERNEL), load(job + BLOCK)
    count, grain = load(job + COUNT), load(job + GRAIN)
    while True:
        if watch != 0 and is_interrupted(watch):
            store(job + NEXT, count)
            return
        low = fetch_add(job + NEXT, 1) * grain
        if low >= count:
            return
        call_kernel(kernel, block, low, min(low + grain, count))


@register_jitable
def _enter(job):
    """Enter a job if it still admits workers."""
    while True:
        admission = load(job + ADMISSION)
        if admission < _ONE_WORKER:
            return False
        if exchange_if(job + ADMISSION, admission, admission - _ONE_WORKER + 1):
            return True


@register_jitable
def _help(pool):
    """Work on every open job that admits workers; True if there was one."""
    helped = False
    candidates = load(pool + OPEN)
    while candidates != 0:
        job = pool + JOBS + lowest_bit(candidates) * JOB_BYTES
        candidates &= candidates - 1
        if _enter(job):
            fetch_add(pool + IDLE, -1)
            _run_chunks(job, 0)
            # Idle before out: the caller's next phase then counts on this worker, not on a wake.
            fetch_add(pool + IDLE, 1)
            admission = fetch_add(job + ADMISSION, -1)
            if admission & _WAITING != 0 and admission & _INSIDE == 1:
                wake_on(load(job + LOCK), job + ADMISSION)
            helped = True
    return helped


@register_jitable
def _sleep(pool, index, epoch):
    """Sleep until a caller picks this worker."""
    worker = pool + WORKERS + index * WORKER_BYTES
    called, lock = worker + WAKE_FLAG, load(worker + WORKER_LOCK)
    group, bit = pool + ASLEEP + index // 64 * 8, 1 << index % 64
    store(called, 0)
    fetch_or(group, bit)
    # A caller raises the epoch before it looks for sleepers: if this one was overlooked, it sees
    # the new epoch here. If it was picked in between, the call is on its way.
    if load(pool + EPOCH) != epoch and fetch_and(group, ~bit) & bit != 0:
        return
    while load(called) == 0:
        sleep_on(lock, called, 0)


@native(types.void(INT))
def work(index):
    """The loop of a worker thread. It never ends: the process takes it along when it exits."""
    exact_arithmetic()
    pool = symbol(SYMBOL)
    fetch_add(pool + IDLE, 1)
    while True:
        epoch = load(pool + EPOCH)
        if _help(pool):
            continue
        if load(pool + IDLE) <= load(pool + SPINNERS_MAX):
            for _ in range(_SPINS):
                if load(pool + EPOCH) != epoch:
                    break
                pause()
        if load(pool + EPOCH) == epoch:
            fetch_add(pool + IDLE, -1)
            _sleep(pool, index, epoch)
            fetch_add(pool + IDLE, 1)


@register_jitable
def _wake_some(pool, missing):
    """Wake sleeping workers, always the first ones, so that the same caches stay warm."""
    for group in range((load(pool + STARTED) + 63) // 64):
        asleep = load(pool + ASLEEP + group * 8)
        while asleep != 0 and missing > 0:
            index = lowest_bit(asleep)
            bit = 1 << index
            asleep &= ~bit
            if fetch_and(pool + ASLEEP + group * 8, ~bit) & bit != 0:
                worker = pool + WORKERS + (group * 64 + index) * WORKER_BYTES
                keep_off_this_core(load(worker + THREAD), worker + EXCLUDED_CORE, pool + CPUS)
                store(worker + WAKE_FLAG, 1)
                wake_on(load(worker + WORKER_LOCK), worker + WAKE_FLAG)
                missing -= 1


@register_jitable
def _grow(pool, workers):
    """Start the missing workers. Another caller may be at it; then this one does not wait."""
    if load(pool + ENTRY) == 0 or not exchange_if(pool + GROWING, 0, 1):
        return
    mask, portable = scratch(), load(pool + PORTABLE) != 0
    block_signals(mask)
    while load(pool + STARTED) < min(workers, MAX_WORKERS):
        index = load(pool + STARTED)
        worker = pool + WORKERS + index * WORKER_BYTES
        if portable and load(worker + WORKER_LOCK) == 0:
            store(worker + WORKER_LOCK, new_lock())
        if not start_thread(load(pool + ENTRY), index, worker + THREAD, portable):
            store(pool + ENTRY, 0)  # a limit of the system: it would be in the way at every call
            break
        keep_off_this_core(load(worker + THREAD), worker + EXCLUDED_CORE, pool + CPUS)
        store(pool + STARTED, index + 1)
    restore_signals(mask)
    store(pool + GROWING, 0)


@register_jitable
def _take_slot(pool):
    """Index of a job slot that is now ours, or SLOTS."""
    while True:
        taken = load(pool + TAKEN)
        slot = lowest_bit(~taken)
        if slot >= SLOTS or exchange_if(pool + TAKEN, taken, taken | (1 << slot)):
            return slot


@register_jitable
def _close(job):
    """Admit no more workers and wait until those inside are out."""
    fetch_and(job + ADMISSION, _LOW_HALF)
    for _ in range(_SPINS):
        if load(job + ADMISSION) == 0:
            return
        pause()
    admission = fetch_or(job + ADMISSION, _WAITING) | _WAITING
    while admission & _INSIDE != 0:
        sleep_on(load(job + LOCK), job + ADMISSION, admission)
        admission = load(job + ADMISSION)


@native(types.void(INT))
def openmp_entry(job):
    """What each OpenMP thread does for a job."""
    register_worker(symbol(SYMBOL) + OPENMP)
    before = exact_arithmetic()
    _run_chunks(job, load(job + WATCH) if _is_main_thread() else 0)
    restore_arithmetic(before)


@register_jitable
def _describe(job, kernel, count, grain, block, watch):
    store(job + KERNEL, kernel)
    store(job + COUNT, count)
    store(job + GRAIN, grain)
    store(job + BLOCK, block)
    store(job + WATCH, watch)
    store(job + NEXT, 0)


@register_jitable
def _do_alone(kernel, count, grain, block, watch):
    """One phase by the calling thread: in one piece, or in some that end where chunks do."""
    piece = count
    if watch != 0 and 0 < grain < count:
        piece = max(count // (_PIECES * grain), 1) * grain
    low = 0
    while low < count:
        if low > 0 and is_interrupted(watch):
            return
        call_kernel(kernel, block, low, min(low + piece, count))
        low += piece


@register_jitable
def _split(pool, kernel, count, grain, block, threads, watch):
    """One phase, shared with spinning OpenMP threads or with at most `threads - 1` workers."""
    job = scratch()
    _describe(job, kernel, count, grain, block, watch)
    if run_on_openmp(pool + OPENMP, threads, load(pool + OPENMP_ENTRY), job):
        return
    if load(pool + STARTED) < threads - 1:
        _grow(pool, threads - 1)
    slot = _take_slot(pool) if load(pool + STARTED) > 0 else SLOTS
    if slot >= SLOTS:
        _do_alone(kernel, count, grain, block, watch)
        return
    job = pool + JOBS + slot * JOB_BYTES
    if load(pool + PORTABLE) != 0 and load(job + LOCK) == 0:
        store(job + LOCK, new_lock())
    _describe(job, kernel, count, grain, block, watch)
    wanted = min(threads - 1, (count - 1) // grain, MAX_WORKERS)
    store(job + ADMISSION, wanted * _ONE_WORKER)
    fetch_or(pool + OPEN, 1 << slot)
    fetch_add(pool + EPOCH, 1)
    missing = wanted - load(pool + IDLE)
    if missing > 0:
        _wake_some(pool, missing)
    _run_chunks(job, watch)
    fetch_and(pool + OPEN, ~(1 << slot))
    _close(job)
    fetch_and(pool + TAKEN, ~(1 << slot))


@register_jitable
def _run(program, phases, block, threads, watch):
    """Run the phases in order; the first status that is not zero ends the program."""
    before = exact_arithmetic()
    phase, status = 0, 0
    while phase < phases and status == 0:
        record = program + phase * 32
        kernel, count, grain = load(record), load(record + 8), load(record + 16)
        if load(record + 24) != 0:
            store(block + 8 * load(record + 24), kernel)
        if count > 0:
            if threads <= 1 or count <= grain or grain < 1:
                _do_alone(kernel, count, grain, block, watch)
            else:
                _split(symbol(SYMBOL), kernel, count, grain, block, threads, watch)
        # Whatever a kernel has found meanwhile: there is an error set, to be raised.
        status = INTERRUPTED if was_interrupted(watch) else load(block)
        phase += 1
    restore_arithmetic(before)
    return status


@native(INT(INT, INT, INT, INT))
def execute_uninterrupted(program, phases, block, threads):
    """For threads the interpreter knows nothing of."""
    return _run(program, phases, block, threads, 0)


@native(INT(INT, INT, INT, INT))
def execute(program, phases, block, threads):
    """For threads of the interpreter: the main one looks for signals. The status is INTERRUPTED
    if a handler has raised, with the error set."""
    watch = stack_words(WATCH_WORDS)
    start_watch(watch)
    return _run(program, phases, block, threads, address_of(watch) if _is_main_thread() else 0)
