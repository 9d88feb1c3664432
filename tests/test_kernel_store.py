"""The folder of compiled kernels is code: whose it is, what damage does, what it may take."""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from numba import njit, types

from pullback.contract.errors import InvalidProblem
from pullback.cpu import cache, store
from pullback.cpu.kernel import native_address

NAME = "one-0123456789abcdef" + store.SUFFIX


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return store.private_folder([str(tmp_path)], "version")


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def refused(tmp_path: Path) -> Path:
    """The folder that is used where one in `tmp_path` is not safe; told with one warning."""
    with pytest.warns(RuntimeWarning, match="does not use the kernel cache") as told:
        found = store.private_folder([str(tmp_path)], "version")
    assert len(told) == 1
    assert not found.is_relative_to(tmp_path)
    assert mode_of(found) == mode_of(found.parent) == 0o700
    shutil.rmtree(found.parent)
    return found


# --- folders ------------------------------------------------------------------------------------


def test_folder_and_files_are_private_whatever_the_umask(tmp_path: Path, open_umask: None) -> None:
    folder = store.private_folder([str(tmp_path / "home" / ".cache")], "version")
    store.save(folder, NAME, b"code")
    assert folder == tmp_path / "home" / ".cache" / "pullback" / "version"
    assert mode_of(folder) == mode_of(folder.parent) == mode_of(folder.parent.parent) == 0o700
    assert mode_of(folder / NAME) == 0o600
    assert store.load(folder, NAME) == b"code"


def test_readable_folder_of_an_earlier_version_is_shut(folder: Path, tmp_path: Path) -> None:
    for part in (folder, folder.parent):
        part.chmod(0o755)
    assert store.private_folder([str(tmp_path)], "version") == folder
    assert mode_of(folder) == mode_of(folder.parent) == 0o700


@pytest.mark.parametrize("level", ["pullback", "pullback/version"])
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
def test_folder_that_others_may_write_is_refused(tmp_path: Path, level: str, mode: int) -> None:
    store.private_folder([str(tmp_path)], "version")
    (tmp_path / level).chmod(mode)
    refused(tmp_path)


@pytest.mark.parametrize("level", ["pullback", "pullback/version"])
def test_link_and_file_in_place_of_the_folder_are_refused(tmp_path: Path, level: str) -> None:
    place, elsewhere = tmp_path / level, tmp_path / "elsewhere"
    place.parent.mkdir(mode=0o700, exist_ok=True)
    elsewhere.mkdir(mode=0o700)
    place.symlink_to(elsewhere)
    refused(tmp_path)
    assert not list(elsewhere.iterdir())
    place.unlink()
    place.write_bytes(b"")
    refused(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")
def test_folder_of_another_user_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(folder, NAME, b"code")
    someone = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: someone)
    with pytest.warns(RuntimeWarning, match=f"belongs to user {someone - 1}"):
        found = store.private_folder([str(tmp_path)], "version")
    assert not found.is_relative_to(tmp_path)
    assert store.load(folder, NAME) is None  # nor its files


@pytest.mark.parametrize("home", ["/proc/none/.cache", "/dev/null/.cache", None])
def test_missing_home_leaves_a_temporary_folder_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    monkeypatch.setattr(store.tempfile, "tempdir", str(tmp_path))
    found = store.private_folder([home], "version")
    assert found.is_relative_to(tmp_path)
    assert mode_of(found) == mode_of(found.parent) == 0o700
    assert store.private_folder([home], "version") == found
    # Its name can be known: what somebody else has put there does not count.
    found.parent.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="others may write"):
        assert store.private_folder([home], "version") != found


def test_home_that_cannot_be_written_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write everywhere, so the answer of the system is given here."""
    allowed = os.access
    closed = tmp_path / "home" / "pullback"
    monkeypatch.setattr(store.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(
        store.os, "access", lambda path, mode: closed not in path.parents and allowed(path, mode)
    )
    assert store.private_folder([str(tmp_path / "home")], "version").parent.parent == tmp_path


def test_systems_without_owners_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_HAS_OWNERS", False)
    monkeypatch.delattr(os, "geteuid", raising=False)
    monkeypatch.setattr(store.tempfile, "tempdir", str(tmp_path))
    for home in (str(tmp_path), "/proc/none"):
        folder = store.private_folder([home], "version")
        store.save(folder, NAME, b"code")
        assert store.load(folder, NAME) == b"code"


# --- files --------------------------------------------------------------------------------------


def test_files_that_others_may_write_do_not_count(folder: Path) -> None:
    store.save(folder, NAME, b"code")
    for mode in (0o666, 0o620, 0o602):
        (folder / NAME).chmod(mode)
        assert store.load(folder, NAME) is None
    store.save(folder, NAME, b"new code")
    assert mode_of(folder / NAME) == 0o600
    assert store.load(folder, NAME) == b"new code"


def test_whole_file_under_another_name_does_not_count(folder: Path) -> None:
    store.save(folder, NAME, b"code")
    shutil.copy(folder / NAME, folder / ("two" + store.SUFFIX))
    assert store.load(folder, "two" + store.SUFFIX) is None


def _link(path: Path) -> None:
    path.rename(path.parent / "elsewhere")
    path.symlink_to(path.parent / "elsewhere")


def _folder(path: Path) -> None:
    path.unlink()
    (path / "within").mkdir(parents=True)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "absent": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "head only": lambda path: os.truncate(path, len(store.MAGIC) + 3),
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "random": lambda path: path.write_bytes(random.Random(1).randbytes(500)),
    "one bit": _flip,
    "folder": _folder,
    "link": _link,
    "pipe": _pipe,
}


def answer(value):
    return value + 42


answer.__module__ = "pullback.cpu.block"  # kernels are filed under modules of the package
SIGNATURE = types.int64(types.int64)


def compiled(counts: list[int]) -> int:
    """Answer of the function, compiled or loaded as in a process that starts now; counts what was
    compiled."""
    dispatcher = njit(**{**cache.POLICY, "no_cpython_wrapper": False})(answer)
    dispatcher._cache = cache.KernelCache(answer)
    save = dispatcher._cache.save_overload
    dispatcher._cache.save_overload = lambda *args: (counts.append(1), save(*args))
    native_address(dispatcher, SIGNATURE)
    return int(dispatcher(0))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_kernel_is_compiled_again_and_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(cache, "cache_folder", lambda: folder)
    counts: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled(counts) == 42
        (file,) = folder.iterdir()
        assert compiled(counts) == 42
        assert len(counts) == 1
        DAMAGES[damage](file)
        assert compiled(counts) == 42
        assert len(counts) == 2
        assert file.is_file()
        assert not file.is_symlink()
        assert compiled(counts) == 42
        assert len(counts) == 2


def test_nothing_is_unpickled_before_its_checksum_is_right(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "cache_folder", lambda: folder)
    compiled([])
    (file,) = folder.iterdir()
    _flip(file)
    monkeypatch.setattr(cache.pickle, "loads", lambda data: pytest.fail("unpickled"))
    compiled([])


def test_full_disk_costs_the_caching_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(cache, "cache_folder", lambda: folder)
    store._warn_unsaved.cache_clear()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        try:
            assert compiled([]) == compiled([]) == 42
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [str(w.message).startswith("pullback cannot keep compiled") for w in told] == [True]
    assert not list(folder.iterdir())
    assert compiled([]) == 42
    assert len(list(folder.iterdir())) == 1


SCRIPT = """
import os, sys
sys.path.insert(0, sys.argv[1])
import test_kernel_store as here

def start():
    child = os.fork()
    if child:
        return child
    counts = []
    os._exit(len(counts) if here.compiled(counts) == 42 else 99)

def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

print(*map(ended, [start() for _ in range(6)]), ended(start()))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_six_processes_with_an_empty_cache(tmp_path: Path) -> None:
    """All compile or load, and leave one file that the next process loads."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(Path(__file__).parent)],
        env={**os.environ, "PULLBACK_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    *first, last = map(int, done.stdout.split())
    assert len(first) == 6
    assert any(first)  # at least one of them compiled
    assert last == 0
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


# --- the limit ----------------------------------------------------------------------------------


def test_kernels_used_longest_ago_go_first(folder: Path) -> None:
    old = folder.parent / "older version"
    old.mkdir()
    (old / "kernel.py311.1.nbc").write_bytes(b"0" * 1000)
    (folder / "notes.txt").write_bytes(b"0" * 5000)
    names = [f"{i}{store.SUFFIX}" for i in range(5)]
    for age, name in enumerate(names):
        store.save(folder, name, b"0" * 1000)
        os.utime(folder / name, (0, time.time() - 1e6 * (10 - age)))
    os.utime(old / "kernel.py311.1.nbc", (0, 0))
    assert store.load(folder, names[0])  # is a use
    left = store.prune(folder.parent, 3500, folder)
    assert left == 3 * (1000 + len(store.MAGIC) + 32)
    found = sorted(path.name for path in folder.iterdir())
    assert found == sorted([names[0], names[3], names[4], "notes.txt"])
    assert not old.exists()


def test_what_broken_writers_left_goes(folder: Path) -> None:
    new, old = (folder / f"x{store.SUFFIX}.{i}{store.SUFFIX}.tmp" for i in range(2))
    for path in (new, old):
        path.write_bytes(b"0")
    os.utime(old, (0, time.time() - 7200))
    store.prune(folder.parent, 1000, folder)
    assert new.exists()
    assert not old.exists()


def test_saving_keeps_to_the_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.LIMIT_VARIABLE, "4000")
    monkeypatch.setattr(store, "_SAVES_PER_PRUNE", 1)
    for number in range(9):
        store.save(folder, f"{number}{store.SUFFIX}", b"0" * 1000)
    assert 1000 < sum(path.stat().st_size for path in folder.iterdir()) <= 4000
    count, size = store.summary(folder)
    assert (count, size) == (3, 3 * (1000 + len(store.MAGIC) + 32))


def test_limit_is_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(store.LIMIT_VARIABLE, raising=False)
    assert store.limit() == store.DEFAULT_LIMIT
    monkeypatch.setenv(store.LIMIT_VARIABLE, "1GB")
    with pytest.raises(InvalidProblem, match=r"PULLBACK_CACHE_DIR_BYTES.* bytes, got '1GB'"):
        store.limit()


def test_editing_the_store_compiles_no_kernel() -> None:
    assert "pullback.cpu.store" in cache.imports("pullback.cpu.cache")
    assert cache._digest("", ["pullback.cpu.store"]) == cache._digest("", [])
    assert cache._digest("", ["pullback.cpu.cache"]) != cache._digest("", [])
