"""The buffer pool: output arrays whose memory is reused.

Writing into fresh pages costs as much as a kernel. So the memory of a large output goes back to a
pool when it dies, and the next output of that size takes it from there.

NumPy lets a memory handler free the memory of an array: buffer_pool_native.py has one for each size
class. An array allocated here owns its memory like any other: a view, memoryview or foreign tensor
keeps the array alive, and with it the block. (An array whose `.base` gives the block back would do
with documented API alone: it takes 0.96 µs to make and free, this one 0.16.)
Gain (buffer pool): cumprod 4096x4096 f32 without out 1.95.

What the size classes share are the words of `_pool`. Whoever reads or writes more than one of them
holds the GIL throughout, as NumPy does when arrays are made and die. So nothing special happens at
a fork: the child has its own copy of all of it.
"""

from __future__ import annotations

import ctypes
import mmap
import operator
import os
import sys
from collections.abc import Callable
from functools import cache, lru_cache, partial
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pullback.contract.errors import InvalidProblem
from pullback.contract.settings import SAFE
from pullback.cpu.pool import permanent_alloc

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SMALLEST: Final = 1 << 17  # smaller ones the C library keeps; larger ones it may give back at once
_DEFAULT_LIMIT: Final = 1 << 30

# Words all size classes share: bytes they may hold, -1 until somebody asks; how often a block came
# back; the size class made last, and the grown block; what is idle, and what arrays have.
LIMIT, CLOCK, CLASSES, GROWN, IDLE_BLOCKS, IDLE_BYTES, USED_BLOCKS, USED_BYTES = range(8)
POOL_WORDS: Final = 8
_UNKNOWN: Final = -1
_pool: Final = (ctypes.c_int64 * POOL_WORDS).from_address(permanent_alloc(8 * POOL_WORDS))
_pool[LIMIT] = _UNKNOWN


class CacheInfo(NamedTuple):
    """What the pool holds ready, what it has handed out, and how much it may hold."""

    idle_blocks: int
    idle_bytes: int
    used_blocks: int
    used_bytes: int
    limit: int


class OutputAllocator:
    """Allocates uninitialised C-contiguous arrays of one kind; large ones reuse memory of the pool
    and start at a page border. Native code allocates by the words at `address`."""

    __slots__ = ("_allocate", "_record", "address", "dtype", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        from pullback.cpu import buffer_pool_native

        self.shape, self.dtype = shape, dtype
        handler = _handler(prod(shape) * dtype.itemsize)
        self._record = buffer_pool_native.record_of(shape, dtype, handler)
        self.address: int = self._record.ctypes.data
        if SAFE:
            self._allocate: Callable[[], Any] = partial(np.empty, shape, dtype)
        else:
            self._allocate = buffer_pool_native.allocate_method().of(self._record)

    def __call__(self) -> NDArray[Any]:
        array: NDArray[Any] = self._allocate()
        return array


def empty_cache() -> None:
    """Free all memory that no array uses at the moment."""
    _trim(0)


def set_cache_limit(nbytes: int) -> None:
    """Keep at most so many unused bytes. Larger arrays are not recycled; 0 turns all off."""
    if isinstance(nbytes, bool) or not hasattr(nbytes, "__index__") or operator.index(nbytes) < 0:
        expected = "a whole number of bytes, not negative"
        raise InvalidProblem("set_cache_limit", "nbytes", expected, repr(nbytes))
    _pool[LIMIT] = min(operator.index(nbytes), sys.maxsize)
    _trim(_pool[LIMIT])


def cache_info() -> CacheInfo:
    """The state of the pool; exact while no other thread allocates or frees."""
    counts = IDLE_BLOCKS, IDLE_BYTES, USED_BLOCKS, USED_BYTES
    return CacheInfo._make([*(_pool[count] for count in counts), _capacity()])


def _trim(limit: int) -> None:
    """Free the blocks unused for longest until the rest fits the limit."""
    if _pool[IDLE_BYTES] > limit:
        from pullback.cpu import buffer_pool_native

        buffer_pool_native.trim(ctypes.addressof(_pool), limit)


@cache
def _can_recycle() -> bool:
    """Whether there are pages to map, arrays to put over them, and one lock for all who do."""
    from pullback.internals.numpy import headers_are_known

    return hasattr(mmap, "MAP_PRIVATE") and headers_are_known()


def _handler(size: int) -> Any:
    """The memory handler for arrays of so many bytes; None for NumPy's own."""
    _capacity()  # from here on native code reads it
    return _class_handler(_size_class(size)) if size >= _SMALLEST and _can_recycle() else None


@cache
def _class_handler(size: int) -> Any:
    """The handler of a size class. (Should two threads make one, both work.)"""
    from pullback.cpu import buffer_pool_native

    return buffer_pool_native.new_size_class(ctypes.addressof(_pool), size)


@lru_cache
def _size_class(size: int) -> int:
    """Round up to an eighth of a power of two: at most 12.5 % more than asked for."""
    step = 1 << (size.bit_length() - 4)
    return -(-size // step) * step


def _capacity() -> int:
    """The limit in force: the one set, else what the environment says, else 1 GiB."""
    if _pool[LIMIT] == _UNKNOWN:
        _pool[LIMIT] = _default_limit()
    return _pool[LIMIT]


def _default_limit() -> int:
    if os.environ.get("PULLBACK_POOL", "").strip() == "0":
        return 0
    text = os.environ.get("PULLBACK_POOL_BYTES", "").strip()
    if not text:
        return _DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit()):
        raise InvalidProblem("cache_info", "PULLBACK_POOL_BYTES", "a whole number", repr(text))
    return min(int(text), sys.maxsize)
