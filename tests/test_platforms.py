"""Other systems, as far as they can be had here: their names, without what they do not have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compiled import HERE, in_new_process

# Everything but this library is imported before: NumPy and Numba are those of this system. Native
# code refers to functions of the system by name; what it refers to is noted, and those of Windows
# are stood in for.
DISGUISE = """
import builtins, ctypes, mmap, os, platform, signal, sys, tempfile, time
import numpy as np, ml_dtypes, numba, llvmlite.binding, rich, torch, typer
tempfile.gettempdir()
for module, names in ((os, {gone!r}), (mmap, {unmapped!r}), (signal, {unmasked!r})):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.platform, machine = {system!r}, {machine!r}
platform.machine = lambda: machine
opened = builtins.open
def open(file, *rest, **options):
    if str(file).startswith('/proc'):
        raise FileNotFoundError(2, 'No such file or directory', str(file))
    return opened(file, *rest, **options)
builtins.open = open
clock = ctypes.CFUNCTYPE(ctypes.c_int64)(lambda: time.monotonic_ns() // 1_000_000)
if sys.platform == 'win32':
    numba.core.registry.cpu_target.target_context.codegen()
    add, find = llvmlite.binding.add_symbol, llvmlite.binding.address_of_symbol
    add('SwitchToThread', find('sched_yield'))
    add('GetTickCount64', ctypes.cast(clock, ctypes.c_void_p).value)
"""

CALLS = """
import pullback as pb
from pullback.aot import elf
from pullback.cpu import cache, library, pool, workers
needed, reduced = set(), cache._CacheImpl.reduce
def reduce(self, data):
    found = reduced(self, data)
    needed.update(name for name, here in elf.symbols(found[0][2][0], elf.SYMTAB) if not here)
    return found
cache._CacheImpl.reduce = reduce
x = np.arange(3 << 16, dtype=np.float32).reshape(3, -1) % 7
pb.set_num_threads(4)
for _ in range(3):
    assert np.array_equal(pb.cumsum(x), x.cumsum(1, dtype=np.float32))
from pullback.cli.doctor import findings
assert library.targets() == ()
assert findings()['workers'] == 'asleep on condition variables of CPython'
assert ctypes.c_int64.from_address(pool._native.state + workers.STARTED).value == 3
print(*sorted(n for n in needed if not n.startswith(('Py', '_Py', 'numba_', 'pullback_'))))
"""

LINUX_ALONE = ("sched_getaffinity", "sched_getcpu", "posix_fadvise")
POSIX = (
    *("geteuid", "getuid", "getgid", "fchmod", "register_at_fork", "fork", "uname", "sysconf"),
    *("getloadavg", "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK"),
)
HUGE = ("MADV_HUGEPAGE",)
MAPS = (*HUGE, "MAP_PRIVATE", "MAP_ANONYMOUS", "PROT_READ", "PROT_WRITE")
MASKS = ("pthread_sigmask", "SIG_BLOCK", "SIG_SETMASK", "SIGBUS", "SIGTRAP")

C = {"memcpy", "memmove", "memset"}
MACOS = C | {"clock_gettime", "mmap", "munmap", "pthread_sigmask", "sched_yield"}
WINDOWS = C | {"GetTickCount64", "SwitchToThread"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of its own: what is compiled in disguise is not for this system."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize(
    ("system", "machine", "has", "gone"),
    [
        ("darwin", "x86_64", MACOS, (LINUX_ALONE, HUGE, ())),
        ("win32", "AMD64", WINDOWS, ((*LINUX_ALONE, *POSIX), MAPS, MASKS)),
    ],
)
def test_imports_and_runs_on_threads_with_what_there_is_on(
    system: str, machine: str, has: set[str], gone: tuple[tuple[str, ...], ...], cache: Path
) -> None:
    names = dict(zip(("gone", "unmapped", "unmasked"), gone, strict=True))
    disguise = DISGUISE.format(system=system, machine=machine, **names)
    where = {"PULLBACK_CACHE_DIR": str(cache / system), "PULLBACK_NOTICE": "0"}
    needed = set(in_new_process(disguise + CALLS, **where).split())
    assert needed <= has
    assert {"darwin": "sched_yield", "win32": "SwitchToThread"}[system] in needed


def test_a_free_threaded_python_is_refused_in_one_sentence() -> None:
    code = """
import sys
sys.abiflags = 't'
try:
    import pullback
except ImportError as error:
    print(error)
"""
    assert in_new_process(code) == (
        "pullback needs a Python with the global interpreter lock, this is a free-threaded "
        "build: use python3.14, not python3.14t"
    )


def test_the_portable_pool_passes_the_tests_of_the_pool() -> None:
    """Threads and locks of CPython, which stand in for Linux's wait queue elsewhere."""
    names = "random or longer or many_threads or oversub or nest or no_processor or fork or signal"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, HERE / "test_pool.py", HERE / "test_pool_processes.py", "-k", names],
        env={**os.environ, "PULLBACK_FUTEX": "0"},
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
