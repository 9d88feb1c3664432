"""The native side of the buffer pool: free lists of memory, and NumPy arrays over it.

A size class keeps the idle blocks of one size in a doubly linked list. It is the context of a NumPy
memory handler, whose functions below are called when such an array dies. Its words:

    SIZE             of its blocks, in bytes
    NEWEST, OLDEST   of the idle ones by the time they came back, or 0
    NEXT             the size class made before it, or 0
    POOL             the words all size classes share, see buffer_pool.py

An idle block begins with its neighbours in the list, OLDER and NEWER, and when it RETURNED.

An array that is resized beyond its block gets a grown one, which belongs to no class: the page
before it holds the one that GREW before, or 0, and its CAPACITY in bytes. This is rare.

All of it runs with the GIL held, and calls nothing that would release it."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, Final

import numpy as np
from numba import types
from numba.extending import register_jitable
from numpy.typing import NDArray

from pullback.cpu.atomics import INT
from pullback.cpu.buffer_pool import (
    CLASSES,
    CLOCK,
    GROWN,
    IDLE_BLOCKS,
    IDLE_BYTES,
    LIMIT,
    USED_BLOCKS,
    USED_BYTES,
)
from pullback.cpu.headers import data_of
from pullback.cpu.interpreter import drop, hold, no_memory
from pullback.cpu.kernel import native
from pullback.cpu.pages import PAGE, map_pages, unmap_pages
from pullback.cpu.pool import permanent_alloc
from pullback.cpu.words import address_of, at, call
from pullback.internals.cpython import Method, capsule_address, fast_method, new_capsule
from pullback.internals.numpy import FLAGS, HANDLER, numpy_function

SIZE, NEWEST, OLDEST, NEXT, POOL, _CLASS_WORDS = range(6)
OLDER, NEWER, RETURNED = range(3)
GREW, CAPACITY = range(2)

_copy = types.ExternalFunction("memcpy", INT(INT, INT, INT))


@register_jitable
def _unlink(size_class, block):
    """Remove an idle block from the list of its size class."""
    pool, older, newer = at(size_class[POOL]), at(block)[OLDER], at(block)[NEWER]
    if newer == 0:
        size_class[NEWEST] = older
    else:
        at(newer)[OLDER] = older
    if older == 0:
        size_class[OLDEST] = newer
    else:
        at(older)[NEWER] = newer
    pool[IDLE_BLOCKS] -= 1
    pool[IDLE_BYTES] -= size_class[SIZE]


@register_jitable
def _push(size_class, block):
    """Put a block in front of the list of its size class."""
    pool, words, before = at(size_class[POOL]), at(block), size_class[NEWEST]
    pool[CLOCK] += 1
    words[OLDER], words[NEWER], words[RETURNED] = before, 0, pool[CLOCK]
    if before == 0:
        size_class[OLDEST] = block
    else:
        at(before)[NEWER] = block
    size_class[NEWEST] = block
    pool[IDLE_BLOCKS] += 1
    pool[IDLE_BYTES] += size_class[SIZE]


@register_jitable
def _class_of_oldest(pool):
    """The size class with the block that was unused for longest; there is one."""
    found, since, size_class = 0, 0, pool[CLASSES]
    while size_class != 0:
        oldest = at(size_class)[OLDEST]
        if oldest != 0 and (found == 0 or at(oldest)[RETURNED] < since):
            found, since = size_class, at(oldest)[RETURNED]
        size_class = at(size_class)[NEXT]
    return at(found)


@register_jitable
def _shrink(pool, limit):
    """Free the blocks unused for longest until the rest fits the limit."""
    while pool[IDLE_BYTES] > limit:
        size_class = _class_of_oldest(pool)
        block = size_class[OLDEST]
        _unlink(size_class, block)
        unmap_pages(block, size_class[SIZE])


@register_jitable
def _mapped(pool, size):
    """Fresh pages, if need be in place of the idle ones; 0 if there is no memory."""
    block = map_pages(size)
    if block == 0:
        _shrink(pool, 0)
        block = map_pages(size)
    return block


@register_jitable
def _count_used(pool, blocks, size):
    pool[USED_BLOCKS] += blocks
    pool[USED_BYTES] += blocks * size


@register_jitable
def _take(size_class):
    """The block returned last: the likeliest to be in a cache. 0 if there is no memory."""
    pool, block = at(size_class[POOL]), size_class[NEWEST]
    if block != 0:
        _unlink(size_class, block)
    else:
        block = _mapped(pool, size_class[SIZE])
    if block != 0:
        _count_used(pool, 1, size_class[SIZE])
    return block


@register_jitable
def _give_back(size_class, block):
    pool = at(size_class[POOL])
    _count_used(pool, -1, size_class[SIZE])
    if size_class[SIZE] > pool[LIMIT]:
        unmap_pages(block, size_class[SIZE])
    else:
        _push(size_class, block)
        _shrink(pool, pool[LIMIT])


# --- grown blocks ---------------------------------------------------------------------------------


@register_jitable
def _growth(block):
    """What is written before a grown block."""
    return at(block - PAGE)


@register_jitable
def _has_grown(pool, block):
    grown = pool[GROWN]
    while grown != 0 and grown != block:
        grown = _growth(grown)[GREW]
    return grown != 0


@register_jitable
def _grown(pool, size):
    """A block for an array that has outgrown its size class; 0 if there is no memory."""
    capacity = -(-size // PAGE) * PAGE
    pages = _mapped(pool, PAGE + capacity)
    if pages == 0:
        return 0
    block = pages + PAGE
    _growth(block)[GREW], _growth(block)[CAPACITY] = pool[GROWN], capacity
    pool[GROWN] = block
    _count_used(pool, 1, capacity)
    return block


@register_jitable
def _unmap_grown(pool, block):
    after, capacity = _growth(block)[GREW], _growth(block)[CAPACITY]
    if pool[GROWN] == block:
        pool[GROWN] = after
    else:
        before = pool[GROWN]
        while _growth(before)[GREW] != block:
            before = _growth(before)[GREW]
        _growth(before)[GREW] = after
    _count_used(pool, -1, capacity)
    unmap_pages(block - PAGE, PAGE + capacity)


@register_jitable
def _capacity(size_class, block):
    return _growth(block)[CAPACITY] if _has_grown(at(size_class[POOL]), block) else size_class[SIZE]


@register_jitable
def _free(size_class, block):
    if _has_grown(at(size_class[POOL]), block):
        _unmap_grown(at(size_class[POOL]), block)
    else:
        _give_back(size_class, block)


# --- what NumPy calls -----------------------------------------------------------------------------


@native(INT(INT, INT, INT))
def _free_of_numpy(context, block, nbytes):
    """The array is dead, and so is every view of it."""
    _free(at(context), block)
    return 0


@native(INT(INT, INT, INT))
def _refuse(context, count, nbytes):
    """NumPy never takes memory here itself."""
    return 0


@native(INT(INT, INT, INT))
def _resize(context, block, nbytes):
    """An array that still fits stays in its block; 0 if there is no memory."""
    size_class = at(context)
    capacity = _capacity(size_class, block)
    if nbytes <= capacity:
        return block
    larger = _grown(at(size_class[POOL]), nbytes)
    if larger != 0:
        _copy(larger, block, capacity)
        _free(size_class, block)
    return larger


# --- arrays ---------------------------------------------------------------------------------------

# Words of a record to allocate arrays by: addresses of PyArray_Empty and PyArray_NewFromDescr; the
# type; the memory handler of a size class and the class, or 0; dtype, rank and extents.
_EMPTY, _OVER, _TYPE, _HANDLER, _CLASS, _DTYPE, _RANK, _EXTENTS = range(8)

_OWNED, _PLAIN = 0x0004, 0x0501  # flags: owner of its memory; contiguous, aligned and writable


@register_jitable
def _array_over_block(size_class, record, extents):
    """An array over a block that it owns; 0 with an error set."""
    block = _take(size_class)
    if block == 0:
        drop(record[_DTYPE])
        return no_memory()
    kind = (record[_TYPE], record[_DTYPE], record[_RANK], extents)
    array = call(record[_OVER], (*kind, 0, block, _PLAIN, 0))
    if array == 0:
        _give_back(size_class, block)
    else:
        hold(record[_HANDLER])
        at(array)[HANDLER] = record[_HANDLER]
        at(array)[FLAGS] |= _OWNED
    return array


@register_jitable
def allocate(record):
    """A new, uninitialised array; 0 with an error set."""
    extents = address_of(record) + 8 * _EXTENTS
    hold(record[_DTYPE])  # which is taken over
    if record[_CLASS] != 0:
        size_class = at(record[_CLASS])
        if size_class[SIZE] <= at(size_class[POOL])[LIMIT]:
            return _array_over_block(size_class, record, extents)
    return call(record[_EMPTY], (record[_RANK], extents, record[_DTYPE], 0))


@native(INT(INT, INT, INT))
def _allocate(record, passed, count):
    """`self` is an array: the record."""
    return allocate(at(data_of(record)))


@native(INT(INT, INT))
def _add_class(pool, size_class):
    at(size_class)[NEXT] = at(pool)[CLASSES]
    at(pool)[CLASSES] = size_class
    return 0


@native(INT(INT, INT))
def _trim(pool, limit):
    _shrink(at(pool), limit)
    return 0


# --- as Python sees it ----------------------------------------------------------------------------

_with_lock = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


@cache
def allocate_method() -> Method:
    """One for all makers; its `self` is a record."""
    return fast_method(b"allocate", _allocate())


def trim(pool: int, limit: int) -> None:
    """Free the blocks unused for longest until the rest fits the limit."""
    _with_lock(_trim())(pool, limit)


class _Handler(ctypes.Structure):
    """As NumPy's C interface has it, version 1."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_int64),
        ("functions", ctypes.c_int64 * 4),
    )


_NAME: Final = b"mem_handler"  # of every capsule that holds one


def new_size_class(pool: int, size: int) -> Any:
    """A new size class for blocks of `size` bytes: its memory handler. The last array may outlive
    the module, so none of it is ever freed."""
    size_class = permanent_alloc(8 * _CLASS_WORDS)
    (ctypes.c_int64 * _CLASS_WORDS).from_address(size_class)[:] = [size, 0, 0, 0, pool]
    name, place = permanent_alloc(len(_NAME) + 1), permanent_alloc(ctypes.sizeof(_Handler))
    ctypes.memmove(name, _NAME, len(_NAME))
    handler = _Handler.from_address(place)
    handler.name, handler.version, handler.context = b"pullback", 1, size_class
    handler.functions[:] = [_refuse(), _refuse(), _resize(), _free_of_numpy()]
    _with_lock(_add_class())(pool, size_class)
    return new_capsule(place, name)


class _Record(np.ndarray[Any, Any]):
    """Words, and what they point to."""

    kept: Any


def record_of(shape: tuple[int, ...], dtype: np.dtype[Any], handler: Any) -> NDArray[Any]:
    """The words to make such arrays by."""
    size_class, told = 0, 0
    if handler is not None:
        size_class, told = (
            _Handler.from_address(capsule_address(handler, _NAME)).context,
            id(handler),
        )
    words = (*_functions(), id(np.ndarray), told, size_class, id(dtype), len(shape), *shape)
    record = np.array(words, np.int64).view(_Record)
    record.kept = dtype, handler
    return record


@cache
def _functions() -> tuple[int, int]:
    """By their places in the table of NumPy's C interface: `PyObject *PyArray_Empty(int rank,
    npy_intp *extents, PyArray_Descr *dtype, int fortran)` and `PyObject *PyArray_NewFromDescr(
    PyTypeObject *type, PyArray_Descr *dtype, int rank, npy_intp *extents, npy_intp *strides,
    void *memory, int flags, PyObject *like)`, which take over a reference to the dtype."""
    return numpy_function(184), numpy_function(94)
