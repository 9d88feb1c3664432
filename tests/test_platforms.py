"""Other systems, as far as Python shows them: their names, and without what they do not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from compiled import in_new_process

# Everything but this library is imported before: NumPy and Numba are those of this system.
DISGUISE = """
import builtins, os, platform, sys, tempfile
import numpy as np, ml_dtypes, numba, llvmlite.binding, rich, torch, typer
tempfile.gettempdir()
for name in {gone!r}:
    if hasattr(os, name):
        delattr(os, name)
sys.platform, machine = {system!r}, {machine!r}
platform.machine = lambda: machine
opened = builtins.open
def open(file, *rest, **options):
    if str(file).startswith('/proc'):
        raise FileNotFoundError(2, 'No such file or directory', str(file))
    return opened(file, *rest, **options)
builtins.open = open
"""

CALLS = """
import pullback as pb
x = np.arange(3 << 16, dtype=np.float32).reshape(3, -1) % 7
pb.set_num_threads(4)
assert np.array_equal(pb.cumsum(x), x.cumsum(1, dtype=np.float32))
assert np.array_equal(pb.cumsum(x), x.cumsum(1, dtype=np.float32))
from pullback.cli.doctor import findings
from pullback.cpu import library
assert library.targets() == ()
print(sum(line.startswith('Calls run on one thread here') for line in findings()['advice']))
"""

LINUX_ALONE = ("sched_getaffinity", "sched_getcpu", "posix_fadvise")
POSIX = (
    *("geteuid", "getuid", "getgid", "fchmod", "register_at_fork", "fork", "uname", "sysconf"),
    *("getloadavg", "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK"),
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of its own: what is compiled in disguise is not for this system."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize(
    ("system", "machine", "gone"),
    [("darwin", "x86_64", LINUX_ALONE), ("win32", "AMD64", (*LINUX_ALONE, *POSIX))],
)
def test_imports_and_runs_as_on(
    system: str, machine: str, gone: tuple[str, ...], cache: Path
) -> None:
    disguise = DISGUISE.format(system=system, machine=machine, gone=gone)
    where = {"PULLBACK_CACHE_DIR": str(cache), "PULLBACK_NOTICE": "0"}
    assert in_new_process(disguise + CALLS, **where) == "1"
