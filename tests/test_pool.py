"""The thread pool: every item once, phases in order, and no trouble with threads, fork or exit."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import cfunc, types
from numba.extending import intrinsic

from pullback.contract.errors import InvalidProblem
from pullback.cpu import pool
from pullback.cpu.interrupt import INTERRUPTED  # noqa: F401 - for scripts

WORD = types.int64
KERNEL = types.void(types.CPointer(WORD), WORD, WORD)
STATUS, COUNTS, LENGTHS, ROW, WIDTH, NESTED, THREADS = range(7)  # words of the tests' block


@intrinsic
def words_at(typing_context: Any, address: Any) -> Any:
    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(WORD)(WORD), lower


@intrinsic
def call_execute(typing_context: Any, address: Any, program: Any, block: Any, threads: Any) -> Any:
    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        from llvmlite import ir

        word = ir.IntType(64)
        prototype = ir.FunctionType(word, [word] * 4).as_pointer()
        one = ir.Constant(word, 1)
        return builder.call(builder.inttoptr(args[0], prototype), [args[1], one, args[2], args[3]])

    return WORD(WORD, WORD, WORD, WORD), lower


@cfunc(KERNEL, cache=True)
def mark(block, low, high):
    """Count every item of the current row, and note the length of the chunk at its start."""
    start = block[ROW] * block[WIDTH]
    counts, lengths = words_at(block[COUNTS]), words_at(block[LENGTHS])
    lengths[start + low] += high - low
    for item in range(start + low, start + high):
        counts[item] += 1


@cfunc(KERNEL, cache=True)
def next_row(block, low, high):
    block[ROW] += 1


@cfunc(KERNEL, cache=True)
def fail_at_seven(block, low, high):
    if low <= 7 < high:
        block[STATUS] = 7


@cfunc(KERNEL, cache=True)
def fail_late(block, low, high):
    """Milliseconds of arithmetic, then a status."""
    value = 1.0
    for _ in range((high - low) * 10_000_000):
        value = value * 0.5 + 1.0
    block[STATUS] = np.int64(5 + value)


@cfunc(KERNEL, cache=True)
def report(block, low, high):
    """Run the program at NESTED, and note its status."""
    program = words_at(block[NESTED])
    block[ROW] = call_execute(program[0], program[1], program[2], block[THREADS])


@cfunc(KERNEL, cache=True)
def linger(block, low, high):
    """Some microseconds of arithmetic per item."""
    value = 1.0
    for _ in range((high - low) * 2000):
        value = value * 0.5 + 1.0
    block[THREADS] = np.int64(value)


@cfunc(KERNEL, cache=True)
def dawdle(block, low, high):
    """Odd items take milliseconds, then each is counted."""
    value, counts = 1.0, words_at(block[COUNTS])
    for item in range(low, high):
        for _ in range(item % 2 * 1_000_000):
            value = value * 0.5 + 1.0
        counts[item] += 1 if value > 0 else 0


this_thread = types.ExternalFunction("pthread_self", WORD())


@cfunc(KERNEL, cache=True)
def sign(block, low, high):
    """Some microseconds of arithmetic per item, then the name of the thread that did it."""
    value = 1.0
    for _ in range((high - low) * 2000):
        value = value * 0.5 + 1.0
    threads = words_at(block[COUNTS])
    for item in range(low, high):
        threads[item] = this_thread() if value > 0 else 0


@cfunc(types.void(types.CPointer(WORD)), cache=True)
def meet(pair):
    """Note the name of a thread beside that of its caller."""
    if this_thread() != pair[0]:
        pair[1] = this_thread()


@cfunc(KERNEL, cache=True)
def nest(block, low, high):
    """Every item runs the program at NESTED, whose block starts `item` blocks further on."""
    program = words_at(block[NESTED])
    for item in range(low, high):
        call_execute(program[0], program[1], program[2] + item * 64, block[THREADS])


class Sheet:
    """A block whose marks can be checked, and the program that makes them."""

    def __init__(self, phases: list[tuple[int, int]]) -> None:
        self.phases = phases
        self.width = max(count for count, _ in phases) + 1
        self.counts = np.zeros((len(phases), self.width), np.int64)
        self.lengths = np.zeros_like(self.counts)
        self.block = np.zeros(8, np.int64)
        self.block[COUNTS], self.block[LENGTHS] = self.counts.ctypes.data, self.lengths.ctypes.data
        self.block[WIDTH] = self.width
        steps = [step for c, g in phases for step in ((mark, c, g), (next_row, 1, 1))]
        self.program = np.array([[k.address, c, g, 0] for k, c, g in steps], np.int64)

    def run(self, threads: int) -> int:
        block, program = self.block.ctypes.data, self.program.ctypes.data
        return pool.run(program, len(self.program), block, threads)

    def check(self) -> None:
        for row, (count, grain) in enumerate(self.phases):
            assert (self.counts[row, :count] == 1).all()
            assert (self.counts[row, count:] == 0).all()
            starts = np.flatnonzero(self.lengths[row])
            if starts.size > 1 or count > grain == self.lengths[row, 0]:
                assert (starts == np.arange(0, count, grain)).all()


def random_sheet(rng: random.Random) -> Sheet:
    phases = rng.randint(1, 6)
    return Sheet([(rng.randint(0, 300), rng.randint(1, 60)) for _ in range(phases)])


def launch(kernel: Any, count: int, grain: int, block: np.ndarray, threads: int) -> int:
    program = np.array([kernel.address, count, grain, 0], np.int64)
    return pool.run(program.ctypes.data, 1, block.ctypes.data, threads)


def test_random_programs_cover_every_item_once() -> None:
    rng = random.Random(1)
    for _ in range(4000):
        sheet = random_sheet(rng)
        assert sheet.run(rng.choice((1, 2, 2, 2, 3, 5, 9))) == 0
        sheet.check()


def test_the_caller_waits_for_workers_that_take_longer() -> None:
    for _ in range(30):
        block, counts = np.zeros(8, np.int64), np.zeros(4, np.int64)
        block[COUNTS] = counts.ctypes.data
        assert launch(dawdle, 4, 1, block, 2) == 0
        assert (counts == 1).all()


@pytest.mark.parametrize("callers", [2, 8, 40])  # 40: more callers than job slots
def test_many_threads_at_once(callers: int) -> None:
    failures: list[BaseException] = []

    def call(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(1200 // callers):
                sheet = random_sheet(rng)
                assert sheet.run(rng.randint(1, 5)) == 0
                sheet.check()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not failures


def test_oversubscription() -> None:
    threads = 4 * (os.cpu_count() or 1) + 3
    sheet = Sheet([(5000, 7)] * 20)
    assert sheet.run(threads) == 0
    sheet.check()
    assert Sheet([(50, 1)]).run(100_000) == 0


def test_a_status_stops_the_program() -> None:
    block = np.zeros(8, np.int64)
    program = np.array([[fail_at_seven.address, 20, 3, 0], [next_row.address, 1, 1, 0]], np.int64)
    assert pool.run(program.ctypes.data, 2, block.ctypes.data, 2) == 7
    assert block[ROW] == 0
    assert pool.run(program.ctypes.data, 0, block.ctypes.data, 2) == 0


def test_native_code_may_call_and_nest() -> None:
    """A kernel that is itself split runs programs that are split."""
    pieces, width = 12, 40
    counts, lengths = np.zeros((2, pieces, width), np.int64)
    inner = np.zeros((pieces, 8), np.int64)
    for piece in range(pieces):
        inner[piece, COUNTS], inner[piece, LENGTHS] = counts[piece].ctypes.data, lengths.ctypes.data
    program = np.array([mark.address, width, 3, 0], np.int64)
    nested = np.array([pool.execute_address(), program.ctypes.data, inner.ctypes.data], np.int64)
    outer = np.zeros(8, np.int64)
    outer[NESTED], outer[THREADS] = nested.ctypes.data, 3
    for repeat in range(1, 201):
        assert launch(nest, pieces, 1, outer, 3) == 0
        assert (counts == repeat).all()


def test_execute_has_a_c_address() -> None:
    prototype = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)
    execute = prototype(pool.execute_address())
    sheet = Sheet([(100, 9)])
    assert execute(sheet.program.ctypes.data, 2, sheet.block.ctypes.data, 2) == 0
    sheet.check()


@pytest.mark.parametrize("threads", [1, 2])
def test_no_status_takes_the_place_of_an_interrupt(threads: int) -> None:
    """Nor that of a worker which reports one while the caller gives up."""
    python(f"""
        def interrupt(*_):
            raise ZeroDivisionError

        signal.signal(signal.SIGALRM, interrupt)
        inner, outer = np.zeros((2, 8), np.int64)
        program = np.array([fail_late.address, 1000, 1, 0], np.int64)
        addresses = pool.interruptible_address(), program.ctypes.data, inner.ctypes.data
        nested = np.array(addresses, np.int64)
        outer[NESTED], outer[THREADS] = nested.ctypes.data, {threads}
        run = ctypes.PYFUNCTYPE(None, *[ctypes.c_int64] * 3)(report.address)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            run(outer.ctypes.data, 0, 1)
        except ZeroDivisionError:
            assert outer[ROW] == INTERRUPTED and inner[STATUS] != 0
        else:
            raise AssertionError("not interrupted")
    """)


def test_no_processor_time_at_rest() -> None:
    launch(linger, 1000, 10, np.zeros(8, np.int64), 4)
    time.sleep(0.01)
    before = time.process_time()
    time.sleep(1)
    assert time.process_time() - before < 0.05


def test_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_threads", ctypes.c_int64(0))
    monkeypatch.delenv("PULLBACK_NUM_THREADS", raising=False)
    assert pool.get_num_threads() == len(os.sched_getaffinity(0))
    pool.set_num_threads(np.int64(3))
    assert pool.get_num_threads() == 3
    for bad in (0, -1, 1.0, True, "2", None):
        with pytest.raises(InvalidProblem, match="`n` must be a whole number of at least 1"):
            pool.set_num_threads(bad)  # type: ignore[arg-type]
    assert pool.get_num_threads() == 3
    monkeypatch.setattr(pool, "_threads", ctypes.c_int64(0))
    monkeypatch.setenv("PULLBACK_NUM_THREADS", " 5 ")
    assert pool.get_num_threads() == 5


@pytest.mark.parametrize("text", ["0", "-2", "two", "1.5", "²"])
def test_bad_environment(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(pool, "_threads", ctypes.c_int64(0))
    monkeypatch.setenv("PULLBACK_NUM_THREADS", text)
    with pytest.raises(InvalidProblem, match="PULLBACK_NUM_THREADS"):
        pool.get_num_threads()


def python(script: str, *, prelude: bool = True, **environment: str) -> str:
    """Run a script in a fresh interpreter; it must end well, and soon."""
    setup = "import sys, os, time, threading, signal\n"
    if prelude:
        setup += f"sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom test_pool import *\n"
    command = [sys.executable, "-W", "ignore", "-X", "faulthandler", "-c"]
    done = subprocess.run(
        [*command, setup + textwrap.dedent(script)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout
