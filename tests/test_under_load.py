"""Threads, forks, signals and limits, in whole processes: right results, or an error and a library
that works."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from pullback.contract.imports import uninterrupted
from pullback.cpu.cache import cache_folder
from test_pool import python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and forks of Linux")

# Who starts the tests in the background has Ctrl-C ignored.
HERE = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {str(Path(__file__).parent)!r})
"""


def run(script: str, **environment: str) -> str:
    return python(HERE + script, prelude=False, **environment)


def linked(folder: Path, but: str = "\0") -> Path:
    """The kernels compiled so far, but for some, as another cache."""
    folder.mkdir(mode=0o700, parents=True)
    for path in cache_folder().iterdir():
        if not path.name.startswith(but):
            try:
                os.link(path, folder / path.name)
            except OSError:  # another file system
                shutil.copy(path, folder / path.name)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """What all of these need, once."""
    from under_load import bits

    bits()


# --- threads and processes ------------------------------------------------------------------------

THREADS = """
import random, threading
import numpy as np
import pullback as pb
from under_load import *

known, failures = {name: bytes.fromhex(bits) for name, bits in KNOWN.items()}, []

def work(seed):
    try:
        check(seed, known)
    except BaseException as failure:
        failures.append(failure)

threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
for thread in threads:
    thread.start()
rng, children = random.Random(1), []
while any(thread.is_alive() for thread in threads):
    pb.set_num_threads(rng.choice((1, 2, 3, 7)))
    if len(children) < 4:
        child = os.fork()
        if child == 0:
            check(99, known, 10)
            os._exit(0)
        children.append(child)
    threads[0].join(0.05)
assert not failures, failures
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
"""


def test_threads_that_compile_with_forks_and_other_thread_counts(tmp_path: Path) -> None:
    """Eight threads of random calls, some kernels of which are not compiled yet, four forks in the
    middle, and a number of threads that changes all the time: always the same bits."""
    from under_load import bits

    cache = linked(tmp_path / "pullback" / cache_folder().name, but="cpu_index.c")
    known = {name: value.hex() for name, value in bits().items()}
    (tmp_path / "known.py").write_text(f"KNOWN = {known!r}")
    preamble = f"sys.path.insert(0, {str(tmp_path)!r})\nfrom known import KNOWN\n"
    run(preamble + THREADS, PULLBACK_CACHE_DIR=str(tmp_path))
    assert any(path.name.startswith("cpu_index.c") for path in cache.iterdir())


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_multiprocessing(method: str) -> None:
    run(f"""
import multiprocessing
from under_load import *

if __name__ == "__main__":
    known = bits()
    with multiprocessing.get_context({method!r}).Pool(2) as processes:
        assert processes.starmap(check, [(seed, known) for seed in range(4)]) == list(range(4))
""")


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers_of_a_data_loader(method: str, workers: int) -> None:
    pytest.importorskip("torch")
    run(f"""
import torch
from under_load import *

if __name__ == "__main__":
    Sums()[1]  # the parent has threads when it forks
    loader = torch.utils.data.DataLoader(
        Sums(), batch_size=4, num_workers={workers}, multiprocessing_context={method!r}
    )
    batches = torch.cat(list(loader))
    assert torch.equal(batches[:, -1, 0], 500.0 * torch.arange(24))
""")


@pytest.mark.parametrize("call", ["check(1, known)", "long_sum()"])
def test_interpreter_ends_while_threads_are_in_calls(call: str) -> None:
    """Short ones, and some that go on for longer than the interpreter."""
    run(f"""
import threading, time
from under_load import *

known = bits()
pb.set_num_threads(3)

def work():
    while True:
        {call}

for daemon in range(8):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
""")


# --- signals --------------------------------------------------------------------------------------

# Rows that are all the same element take no memory; `out` tells how far a call came.
INTERRUPT = """
import signal, threading
import numpy as np
import pullback as pb

pb.set_num_threads(THREADS)
out = np.full(1, -1, np.float32)

def rows(count):
    return np.broadcast_to(np.float32(1), (count,)), np.broadcast_to(np.int32(0), (count,))

def interrupted(call):
    out[:] = -1
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        call()
    except KeyboardInterrupt:
        assert out[0] == -1, "the call had ended before"
        assert pb.cumsum(np.ones(10, np.float32))[9] == 10
        return
    raise AssertionError("not interrupted")

def again(call, count):
    call()
    assert out[0] == count
    interrupted(call)

def function(count):
    x, ids = rows(count)
    return lambda: pb.segment_sum(x, ids, 1, indices_are_sorted=True, out=out)

def plan(count):
    x, ids = (array.reshape(shape) for array, shape in zip(rows(count), ((count, 1), (count,))))
    descriptor = pb.SegmentSumDescriptor(
        num_inputs=count, embedding_dim=1, num_segments=1, element=pb.ElementKind.F32
    )
    stream = pb.Stream.cpu()
    plan = pb.SegmentSumPlan.select(stream, descriptor)
    args = pb.SegmentSumArgs(input=x, segment_ids=ids, output=out.reshape(1, 1))
    workspace = pb.Workspace.allocate(plan)
    return lambda: plan.run(stream, workspace, args)

interrupted(function(4_000_000_000))
again(function(COUNT), COUNT)
again(plan(COUNT), COUNT)
"""


@pytest.mark.parametrize("threads", [1, 3])
def test_ctrl_c_ends_a_long_call_and_the_library_works_on(threads: int) -> None:
    """At its first call, at a repeated one, and in a plan."""
    run(INTERRUPT.replace("THREADS", str(threads)).replace("COUNT", str(1 << 29)))


def test_handlers_that_return_let_a_long_call_go_on() -> None:
    """Also if they call the library themselves."""
    run("""
import signal
import numpy as np
import pullback as pb

seen, x = [], np.ones(100, np.float32)
signal.signal(signal.SIGALRM, lambda *_: seen.append(pb.cumsum(x)[99]))
count = 1 << 28
rows, ids = np.broadcast_to(np.float32(1), (count,)), np.broadcast_to(np.int32(0), (count,))
pb.cumsum(x)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
out = pb.segment_sum(rows, ids, 1, indices_are_sorted=True)
signal.setitimer(signal.ITIMER_REAL, 0)
assert out[0] == count and seen and set(seen) == {100.0}
""")


# Where the first call is when a signal comes.
MODULES = [
    "pullback.ops.scan.functions",
    "numba.core.typing.templates",
    "pullback.cpu.native_launch",
    "pullback.ops.scan.cpu_cumsum",
]
FIRST_CALL = """
import signal
import numpy as np
import pullback as pb

x, seen = np.ones(100, np.float32), []

class Signal:
    def find_spec(self, name, path, target=None):
        if name == MODULE:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Signal())
"""


@pytest.mark.parametrize("module", MODULES)
def test_ctrl_c_in_the_imports_of_the_first_call(module: str) -> None:
    """Leaves no package half imported: the next call works."""
    run(
        FIRST_CALL.replace("MODULE", repr(module))
        + """
try:
    pb.cumsum(x)
except KeyboardInterrupt:
    seen.append(1)
assert seen and pb.cumsum(x)[99] == pb.cumsum(x)[99] == 100
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""
    )


@pytest.mark.parametrize("module", MODULES)
def test_handlers_in_the_imports_of_the_first_call(module: str) -> None:
    """May call the library: they wait until the import is over."""
    run(
        FIRST_CALL.replace("MODULE", repr(module))
        + """
signal.signal(signal.SIGINT, lambda *_: seen.append(pb.cumsum(x)[99]))
assert pb.cumsum(x)[99] == 100 and seen == [100]
"""
    )


ANY_TIME = """
import signal
import numpy as np
import pullback as pb

x = np.ones((40, 30), np.float32)
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, SECONDS)
try:
    pb.cumsum(x)
    pb.softmax(x)
except KeyboardInterrupt:
    pass
signal.setitimer(signal.ITIMER_REAL, 0)
assert pb.cumsum(x)[0, 29] == 30 and abs(pb.softmax(x)[0, 0] * 30 - 1) < 1e-6
"""


@pytest.mark.parametrize("seconds", ["0.05", "0.2", "0.4", "0.6"])
def test_ctrl_c_at_any_time_of_the_first_call(seconds: str) -> None:
    """Also while kernels are loaded or compiled."""
    run(ANY_TIME.replace("SECONDS", seconds))


def test_handlers_are_held_off_without_a_call_of_python_for_each_signal() -> None:
    """Every new layout does so: `signal.getsignal` looked up names for a fifth of its time."""
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: calls.append(event) if event == "call" else None)
    try:
        with uninterrupted():
            pass
    finally:
        sys.setprofile(None)
    assert len(calls) < 16


# --- limits ---------------------------------------------------------------------------------------

LIMITS = {
    "one core": "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})",
    "no threads": """
import ctypes
from llvmlite.binding import add_symbol
from numba.core.registry import cpu_target
cpu_target.target_context.codegen()
fail = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(lambda *_: 11)
add_symbol("pthread_create", ctypes.cast(fail, ctypes.c_void_p).value)
""",
}


@pytest.mark.parametrize("limit", LIMITS)
def test_same_bits_with(limit: str) -> None:
    from under_load import bits

    said = run(f"""
{LIMITS[limit]}
import hashlib
import pullback as pb
from under_load import *

before, first = len(os.listdir("/proc/self/task")), bits()
if {limit!r} == "one core":
    assert pb.get_num_threads() == 1
pb.set_num_threads(5)
assert bits() == first == bits()
assert len(os.listdir("/proc/self/task")) == before + (4 if {limit!r} == "one core" else 0)
print(hashlib.sha256(b"".join(first.values())).hexdigest())
""")
    import hashlib

    assert said.strip() == hashlib.sha256(b"".join(bits().values())).hexdigest()


def test_no_memory_is_an_error_and_nothing_is_lost() -> None:
    run("""
import resource
import numpy as np
import pullback as pb
from under_load import *

known, x = bits(), np.ones(1 << 25, np.float32)
pb.set_num_threads(2)
want, ready = pb.cumsum(x)[-1], pb.cache_info()
pb.empty_cache()
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
most = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 25), most[1]))
for call in (lambda: pb.cumsum(x), lambda: pb.cumprod(x), lambda: pb.softmax(x)):
    for _ in range(3):
        try:
            call()
        except MemoryError:
            continue
        raise AssertionError("there was memory")
check(1, known)
resource.setrlimit(resource.RLIMIT_AS, most)
assert pb.cumsum(x)[-1] == want
check(2, known)
""")


@pytest.mark.parametrize("home", ["/proc/none", "/dev/null"])
def test_home_that_is_missing_or_cannot_be_written(tmp_path: Path, home: str) -> None:
    """Kernels are found in the temporary folder, or compiled into it."""
    folder = linked(tmp_path / f"pullback-{os.geteuid()}" / cache_folder().name)
    for part in (folder, folder.parent):
        part.chmod(0o700)
    environment: dict[str, Any] = {"HOME": home, "TMPDIR": str(tmp_path)}
    for name in ("PULLBACK_CACHE_DIR", "XDG_CACHE_HOME"):
        environment[name] = ""
    said = run(
        "from under_load import bits; bits(); from pullback.cpu.cache import cache_folder\n"
        "print(cache_folder())",
        **environment,
    )
    assert said.strip() == str(folder)
