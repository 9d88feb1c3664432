"""The pool of pooled outputs. Its law: no block is handed out while any view of it lives."""

from __future__ import annotations

import gc
import mmap
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pullback.contract.errors import InvalidProblem
from pullback.cpu import buffer_pool
from pullback.cpu.buffer_pool import OutputAllocator, cache_info, empty_cache, set_cache_limit

F4 = np.dtype(np.float32)
MEGA = 1 << 20


@pytest.fixture(autouse=True)
def own_pool() -> Iterator[None]:
    """Every test starts with an empty pool and the default limit."""
    before = buffer_pool._pool[buffer_pool.LIMIT]
    buffer_pool._pool[buffer_pool.LIMIT] = 1 << 30
    if cache_info().used_blocks:
        gc.collect()
    empty_cache()
    yield
    buffer_pool._pool[buffer_pool.LIMIT] = before
    empty_cache()


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return OutputAllocator(shape, np.dtype(dtype))()


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


# --- what an array looks like ---------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 5), (7,), (4, 8), (256, 257), (3, 1000, 111)])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i8", "?", "V3"])
def test_an_ordinary_array(shape: tuple[int, ...], dtype: str) -> None:
    array = empty(shape, np.dtype(dtype))
    assert type(array) is np.ndarray
    assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.flags.aligned
    assert array.flags.owndata
    assert array.base is None
    pooled = array.nbytes >= buffer_pool._SMALLEST
    assert cache_info().used_blocks == pooled
    assert not pooled or address(array) % mmap.PAGESIZE == 0


@pytest.mark.parametrize("seed", range(3))
def test_it_may_be_resized(seed: int) -> None:
    """Several arrays, each resized many times: it does what an ordinary array does."""
    rng = random.Random(seed)
    arrays = [empty((1000, 1000), F4) for _ in range(4)]
    twins = [np.empty((1000, 1000), F4) for _ in arrays]
    for step in range(40):
        which, rows = rng.randrange(len(arrays)), rng.randrange(1, 5000)
        array, twin = arrays[which], twins[which]
        place, kept = address(array), rows <= len(array) or rows <= 1000
        array[:] = twin[:] = step
        array.resize((rows, 1000), refcheck=False)
        twin.resize((rows, 1000), refcheck=False)
        assert array.flags.owndata
        assert address(array) % mmap.PAGESIZE == 0
        assert not kept or address(array) == place
        assert (array == twin).all()
    assert cache_info().used_blocks == 4
    assert cache_info().used_bytes >= sum(array.nbytes for array in arrays)
    del array
    arrays.clear()
    assert cache_info()[2:4] == (0, 0)
    assert cache_info().idle_bytes <= 4 * 4 * MEGA, "grown blocks are not kept"


def test_no_memory_to_grow() -> None:
    array = empty((1000, 1000), F4)
    array[:] = 3
    with pytest.raises(MemoryError):
        array.resize((1 << 50, 1), refcheck=False)
    assert (array == 3).all()
    del array
    assert cache_info().used_blocks == 0


def test_other_arrays_are_not_touched() -> None:
    """NumPy is told where to take memory for this one array, and for no other."""
    handler = np._core.multiarray.get_handler_name
    array, plain = empty((1000, 1000), F4), np.empty((1000, 1000), F4)
    assert (handler(array), handler(plain)) == ("pullback", handler())
    assert handler(array.copy()) == handler(array + 1) == handler()


# --- when a block comes back ----------------------------------------------------------------


def test_memory_is_used_again() -> None:
    first = empty((1000, 1000), F4)
    place = address(first)
    assert cache_info().used_bytes == cache_info().idle_bytes + 4 * MEGA
    del first
    assert cache_info().idle_blocks == 1
    assert address(empty((999, 1000), F4)) == place, "the same size class"
    assert address(empty((500, 500), np.dtype("f8"))) != place


def by_dlpack(array: np.ndarray) -> Any:
    return np.from_dlpack(array)


def by_torch(array: np.ndarray) -> Any:
    return pytest.importorskip("torch").from_numpy(array)[5:].T


def by_torch_dlpack(array: np.ndarray) -> Any:
    return pytest.importorskip("torch").from_dlpack(array).view(-1)


class Interface:
    def __init__(self, array: np.ndarray) -> None:
        self.__array_interface__ = array.__array_interface__
        self.array = array


VIEWS: dict[str, Callable[[np.ndarray], Any]] = {
    "slice": lambda a: a[500:501, ::7],
    "view of a view of a view": lambda a: a[3:].reshape(-1, 10)[5:].T.view(np.int32),
    "memoryview": lambda a: memoryview(a)[3:],
    "cast memoryview": lambda a: memoryview(a).cast("B")[100:],
    "frombuffer": lambda a: np.frombuffer(a, np.uint8, offset=64),
    "the base": lambda a: a[2:].base,
    "a view of the base": lambda a: a[2:].base[100:],
    "subclass": lambda a: a.view(np.matrix),
    "diagonal": lambda a: np.diagonal(a),
    "broadcast": lambda a: np.broadcast_to(a[0], (3, 1000)),
    "strided": lambda a: np.lib.stride_tricks.as_strided(a, (5,), (8,)),
    "iterator": lambda a: a.flat,
    "array interface": lambda a: np.asarray(Interface(a)),
    "ctypes": lambda a: a.ctypes.data_as(__import__("ctypes").c_void_p),
    "numpy dlpack": by_dlpack,
    "torch": by_torch,
    "torch dlpack": by_torch_dlpack,
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_any_view_keeps_the_block(name: str) -> None:
    array = empty((1000, 1000), F4)
    array[:] = 7
    place = address(array)
    view = VIEWS[name](array)
    del array
    gc.collect(1)  # both are young
    assert cache_info().used_blocks == 1
    other = empty((1000, 1000), F4)
    assert address(other) != place
    del view, other
    assert cache_info().used_blocks == 0
    assert cache_info().idle_blocks == 2


def test_a_finaliser_in_a_cycle_may_still_read_and_save_a_view() -> None:
    """The cycle collector must not return a block that a `__del__` of the same cycle can see."""
    saved: list[np.ndarray] = []

    class Owner:
        def __init__(self, array: np.ndarray) -> None:
            self.array, self.me = array, self

        def __del__(self) -> None:
            other = empty(self.array.shape, F4)
            other[:] = -1
            assert (self.array == 5).all()
            saved.append(self.array[3:])

    array = empty((600, 600), F4)
    array[:] = 5
    Owner(array)
    del array
    gc.collect()
    assert (saved[0] == 5).all()
    assert cache_info().used_blocks == 1
    saved.clear()
    assert cache_info().used_blocks == 0


SHAPES = [(130, 130), (140, 130), (256, 256), (300, 500), (700, 700)]


def live_and_let_die(seed: int, steps: int, failures: list[BaseException]) -> None:
    """Allocate, stamp, look away, check and drop at random; some die in the cycle collector."""
    rng = random.Random(seed)
    alive: list[tuple[np.ndarray, int]] = []
    try:
        for step in range(steps):
            stamp = seed * steps + step
            array = empty(rng.choice(SHAPES), np.dtype(np.int64))
            array[:] = stamp
            kind = rng.randrange(4)
            if kind == 0:
                array = array[rng.randrange(100) :, ::3]
            elif kind == 1:
                array = np.asarray(memoryview(array))
            alive.append((array, stamp))
            if rng.random() < 0.1:
                cycle: list[Any] = [array[1:]]
                cycle.append(cycle)
            while len(alive) > rng.randrange(1, 12):
                old, stamp = alive.pop(rng.randrange(len(alive)))
                assert (old == stamp).all()
                del old
            del array
            if rng.random() < 0.01:
                empty_cache()
        assert all((array == stamp).all() for array, stamp in alive)
    except BaseException as failure:
        failures.append(failure)


@pytest.mark.parametrize("threads", [1, 6])
def test_the_law(threads: int) -> None:
    set_cache_limit(8 * MEGA)
    failures: list[BaseException] = []
    threads = [
        threading.Thread(target=live_and_let_die, args=(seed, 1500 // threads, failures))
        for seed in range(threads)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    gc.collect()
    assert cache_info().used_blocks == 0
    assert cache_info().idle_bytes <= 8 * MEGA


def test_an_array_may_die_in_another_thread() -> None:
    box = [empty((1000, 1000), F4)]
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert cache_info().idle_blocks == 1


# --- how much is held -----------------------------------------------------------------------


def test_the_limit_drops_what_was_unused_for_longest() -> None:
    set_cache_limit(5 * MEGA)
    one, two, three = empty((MEGA,), "u1"), empty((2 * MEGA,), "u1"), empty((3 * MEGA,), "u1")
    kept = address(two), address(three)
    del one, two, three
    assert cache_info() == (2, 5 * MEGA, 0, 0, 5 * MEGA)
    assert (address(empty((2 * MEGA,), "u1")), address(empty((3 * MEGA,), "u1"))) == kept
    large = empty((6 * MEGA,), "u1")
    del large
    assert cache_info().idle_bytes == 5 * MEGA, "too large to keep, and not at the others' expense"
    set_cache_limit(4 * MEGA)
    assert cache_info().idle_bytes == 3 * MEGA
    empty_cache()
    assert cache_info()[:2] == (0, 0)


def test_limit_zero_means_off() -> None:
    array = empty((1000, 1000), F4)
    set_cache_limit(0)
    del array
    assert cache_info().idle_blocks == 0
    array = empty((1000, 1000), F4)
    assert cache_info().used_blocks == 0
    del array


@pytest.mark.parametrize("bad", [-1, 1.5, True, "1", None])
def test_bad_limits(bad: Any) -> None:
    with pytest.raises(InvalidProblem, match="`nbytes` must be a whole number"):
        set_cache_limit(bad)


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer_pool._pool[buffer_pool.LIMIT] = -1
    monkeypatch.setenv("PULLBACK_POOL_BYTES", "12345678")
    assert cache_info().limit == 12345678
    buffer_pool._pool[buffer_pool.LIMIT] = -1
    monkeypatch.setenv("PULLBACK_POOL", "0")
    assert cache_info().limit == 0
    array = empty((1000, 1000), F4)
    assert cache_info().used_blocks == 0
    del array
    monkeypatch.delenv("PULLBACK_POOL")
    buffer_pool._pool[buffer_pool.LIMIT] = -1
    monkeypatch.setenv("PULLBACK_POOL_BYTES", "1G")
    with pytest.raises(InvalidProblem, match="PULLBACK_POOL_BYTES"):
        empty((1000, 1000), F4)


# --- processes ------------------------------------------------------------------------------


def python(script: str) -> None:
    """Run a script in a fresh interpreter; it must end well and say nothing."""
    setup = "import gc, os, sys\nimport numpy as np\nfrom pullback.cpu.buffer_pool import *\n"
    setup += "empty = lambda shape, dtype: OutputAllocator(shape, np.dtype(dtype))()\n"
    command = [sys.executable, "-W", "ignore", "-c", setup + textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_no_memory_for_a_block() -> None:
    """The pool gives up what it holds; if that is not enough, there is an error."""
    python("""
        import resource
        OutputAllocator((1 << 27,), np.dtype("u1"))()
        have = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (have + (1 << 26), have + (1 << 26)))
        array = empty((3 << 26,), "u1")
        assert cache_info()[:4] == (0, 0, 1, 3 << 26)
        try:
            empty((1 << 28,), "u1")
        except MemoryError:
            pass
        else:
            raise AssertionError
        assert cache_info()[:4] == (0, 0, 1, 3 << 26)
    """)


def test_fork() -> None:
    """Parent and child each own their copy of used and idle blocks."""
    python("""
        idle, used = empty((1000, 1000), np.dtype("f4")), empty((1000, 1000), np.dtype("f4"))
        used[:] = 1
        del idle
        child = os.fork()
        if child == 0:
            reused = empty((1000, 1000), np.dtype("f4"))
            reused[:], used[:] = 2, 2
            os._exit(0 if cache_info().used_blocks == 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert (used == 1).all()
        assert cache_info().idle_blocks == cache_info().used_blocks == 1
    """)


def test_exit_with_arrays_alive() -> None:
    python("""
        arrays = [empty((300, 300), np.dtype("f4")) for _ in range(20)]
        sys.modules["keep"] = arrays[5:]
        loop = [arrays]
        loop.append(loop)
        del arrays[::2]
    """)
