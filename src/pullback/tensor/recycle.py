"""Output arrays whose memory is used again.

Writing into fresh pages costs as much as a kernel. So the memory of a large output goes back to a
pool when the last view of it dies, and the next output of that size takes it from there.

An array handed out stands on a *lease*: a plain ndarray over the block, the base NumPy gives to
every view, memoryview or foreign tensor of it. A weak reference watches the lease. It has to be
an ndarray: the cycle collector does not track those, so they die by their reference count alone.
For a tracked object the collector calls weak references back *before* it runs the `__del__`
methods that may still read the memory, or save a view of it.

There is no lock, because a finaliser may run in any thread at any moment, also in the middle of
the functions below. Blocks move by atomic `deque` operations, and the bytes held are counted
afresh each time. For the same reason a fork needs no care.
"""

from __future__ import annotations

import itertools
import mmap
import operator
import os
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from math import inf, prod
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pullback.contract.errors import InvalidProblem

_SMALLEST: Final = 1 << 20  # below this (measured), the C library has warm memory at hand sooner
_HUGE: Final = 1 << 21  # from here on huge pages, which cost a tenth per byte to touch first
_DEFAULT_LIMIT: Final = 1 << 30


class CacheInfo(NamedTuple):
    """What the pool holds ready, what it has handed out, and how much it may hold."""

    idle_blocks: int
    idle_bytes: int
    used_blocks: int
    used_bytes: int
    limit: int


class _Block:
    """Memory of one size class; `home` is where it waits between two leases."""

    __slots__ = ("home", "memory", "returned", "size")

    def __init__(self, size: int, home: deque[_Block]) -> None:
        self.size, self.home, self.memory, self.returned = size, home, _map(size), 0


class _Claim(weakref.ref[NDArray[Any]]):
    """Watches the lease of a block."""

    __slots__ = ("block",)
    block: _Block


_homes: dict[int, deque[_Block]] = {}
_claims: dict[int, _Claim] = {}  # a weak reference reports only while it lives itself
_clock = itertools.count(1)
_limit: int | None = None
_fresh: Final = np.empty


def empty(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An uninitialised C-contiguous array; a large one may be memory used before.

    Fastest with a tuple and an `np.dtype`. Recycled arrays start at a page border.
    """
    try:
        size = prod(shape) * dtype.itemsize  # type: ignore[arg-type, union-attr]
    except (TypeError, AttributeError):
        model = np.broadcast_to(_fresh((), dtype), shape)
        return empty(model.shape, model.dtype)
    if size < _SMALLEST:
        return _fresh(shape, dtype)
    return _recycled(shape, dtype, size)  # type: ignore[arg-type]


def maker(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[], NDArray[Any]]:
    """`empty` for many arrays of one kind."""
    size = prod(shape) * dtype.itemsize
    if size < _SMALLEST:
        return partial(_fresh, shape, dtype)
    return partial(_recycled, shape, dtype, size)


def is_from_numpy(make: Callable[[], Any]) -> bool:
    """Whether a maker is but NumPy's `empty`, so that others may call that in its place."""
    return isinstance(make, partial) and make.func is _fresh


def empty_cache() -> None:
    """Free all memory that no array uses at the moment."""
    for home in _homes.copy().values():
        home.clear()


def set_cache_limit(nbytes: int) -> None:
    """Keep at most so many unused bytes. Larger arrays are not recycled; 0 turns all off."""
    global _limit
    if isinstance(nbytes, bool) or not hasattr(nbytes, "__index__") or operator.index(nbytes) < 0:
        expected = "a whole number of bytes, not negative"
        raise InvalidProblem("set_cache_limit", "nbytes", expected, repr(nbytes))
    _limit = operator.index(nbytes)
    _trim(_limit)


def cache_info() -> CacheInfo:
    """The state of the pool; exact while no other thread allocates or frees."""
    idle = [(size, len(home)) for size, home in _homes.copy().items()]
    used = [claim.block.size for claim in _claims.copy().values()]
    return CacheInfo(
        idle_blocks=sum(count for _, count in idle),
        idle_bytes=sum(size * count for size, count in idle),
        used_blocks=len(used),
        used_bytes=sum(used),
        limit=_capacity(),
    )


def _recycled(shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> NDArray[Any]:
    block = None if dtype.hasobject or size > _capacity() else _take(_size_class(size))
    if block is None:
        return _fresh(shape, dtype)
    lease = np.ndarray(size, np.uint8, block.memory)
    claim = _Claim(lease, _give_back)
    claim.block = block
    _claims[id(claim)] = claim
    return np.ndarray(shape, dtype, lease)


@lru_cache
def _size_class(size: int) -> int:
    """Round up to an eighth of a power of two: at most 12.5 % more than asked for."""
    step = 1 << (size.bit_length() - 4)
    return -(-size // step) * step


def _take(size: int) -> _Block | None:
    """A block of this size class that nobody uses, or None if there is no memory for it."""
    home = _homes.get(size)
    if home is None:
        home = _homes.setdefault(size, deque())
    try:
        return home.pop()  # the one returned last: the likeliest to be in a cache
    except IndexError:
        pass
    try:
        return _Block(size, home)
    except OSError:
        empty_cache()
        return None


def _give_back(claim: weakref.ref[NDArray[Any]]) -> None:
    """The lease is dead, and so is every view of its block."""
    block: _Block = claim.block  # type: ignore[attr-defined]
    _claims.pop(id(claim), None)
    capacity = _capacity()
    if block.size <= capacity:
        block.returned = next(_clock)
        block.home.append(block)
        _trim(capacity)


def _trim(limit: int) -> None:
    """Free the blocks unused for longest until the rest fits the limit."""
    while _idle_bytes() > limit:
        with suppress(IndexError):  # another thread may have emptied it
            min(_homes.copy().values(), key=_oldest).popleft()


def _idle_bytes() -> int:
    held = 0
    for size, home in tuple(_homes.items()):
        held += size * len(home)
    return held


def _oldest(home: deque[_Block]) -> float:
    """When the block at the head of this queue came back."""
    try:
        return home[0].returned
    except IndexError:
        return inf


def _map(size: int) -> mmap.mmap:
    """Fresh pages, private to this process: a forked child must not write into them."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _capacity() -> int:
    """The limit in force: the one set, else what the environment says, else 1 GiB."""
    global _limit
    if _limit is None:
        _limit = _default_limit()
    return _limit


def _default_limit() -> int:
    if os.environ.get("PULLBACK_POOL", "").strip() == "0":
        return 0
    text = os.environ.get("PULLBACK_POOL_BYTES", "").strip()
    if not text:
        return _DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit()):
        raise InvalidProblem("empty", "PULLBACK_POOL_BYTES", "a whole number", repr(text))
    return int(text)
