"""The native side of recycled outputs: shelves of memory, and arrays that stand on them.

A shelf keeps the idle blocks of one size. It is the context of a memory handler of NumPy's, whose
functions below are called when such an array dies. A shelf is a record of

    SIZE             of its blocks, in bytes
    NEWEST, OLDEST   of the idle ones by the time they came back, or 0
    NEXT             the shelf made before it, or 0
    POOL             the words all shelves share, see recycle.py

and a block, while it is idle, begins with its neighbours, OLDER and NEWER, and when it RETURNED.

An array that is resized beyond its block gets a grown one, which is on no shelf: in the page before
it are the one that GREW before, or 0, and how many bytes it has ROOM for. There are hardly any.

All of it runs with the interpreter's lock held, and calls nothing that would let go of it."""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from typing import Any, Final

import numpy as np
from numba import types
from numba.extending import register_jitable
from numpy.typing import NDArray

from pullback.cpu.atomics import INT
from pullback.cpu.headers import FLAGS, HANDLER, data_of, numpy_function
from pullback.cpu.interpreter import (
    Method,
    capsule_address,
    drop,
    fast_method,
    hold,
    new_capsule,
    no_memory,
)
from pullback.cpu.kernel import native
from pullback.cpu.pool import immortal
from pullback.cpu.recycle import (
    CLOCK,
    GROWN,
    IDLE_BLOCKS,
    IDLE_BYTES,
    LIMIT,
    SHELVES,
    USED_BLOCKS,
    USED_BYTES,
)
from pullback.cpu.words import address_of, at, call

SIZE, NEWEST, OLDEST, NEXT, POOL, _SHELF_WORDS = range(6)
OLDER, NEWER, RETURNED = range(3)
GREW, ROOM = range(2)

_PAGE: Final = mmap.PAGESIZE
_HUGE: Final = 1 << 21  # from here on huge pages, which cost a tenth per byte to touch first
_PROTECTION: Final = getattr(mmap, "PROT_READ", 0) | getattr(mmap, "PROT_WRITE", 0)
# Private to this process: a forked child must not write into them.
_FLAGS: Final = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
_ADVICE: Final = getattr(mmap, "MADV_HUGEPAGE", 0)

_int = types.int32
_map = types.ExternalFunction("mmap", INT(INT, INT, _int, _int, _int, INT))
_advise = types.ExternalFunction("madvise", _int(INT, INT, _int))
_unmap = types.ExternalFunction("munmap", _int(INT, INT))
_copy = types.ExternalFunction("memcpy", INT(INT, INT, INT))


@register_jitable
def _fresh_block(size):
    """Pages nobody has used; 0 if there are none."""
    block = _map(0, size, _int(_PROTECTION), _int(_FLAGS), _int(-1), 0)
    if block == -1:
        return 0
    if size >= _HUGE and _ADVICE != 0:
        _advise(block, size, _int(_ADVICE))  # a kernel built without them says no
    return block


@register_jitable
def _take_off(shelf, block):
    """An idle block leaves its shelf."""
    pool, older, newer = at(shelf[POOL]), at(block)[OLDER], at(block)[NEWER]
    if newer == 0:
        shelf[NEWEST] = older
    else:
        at(newer)[OLDER] = older
    if older == 0:
        shelf[OLDEST] = newer
    else:
        at(older)[NEWER] = newer
    pool[IDLE_BLOCKS] -= 1
    pool[IDLE_BYTES] -= shelf[SIZE]


@register_jitable
def _put_on(shelf, block):
    """A block becomes the newest of its shelf."""
    pool, words, before = at(shelf[POOL]), at(block), shelf[NEWEST]
    pool[CLOCK] += 1
    words[OLDER], words[NEWER], words[RETURNED] = before, 0, pool[CLOCK]
    if before == 0:
        shelf[OLDEST] = block
    else:
        at(before)[NEWER] = block
    shelf[NEWEST] = block
    pool[IDLE_BLOCKS] += 1
    pool[IDLE_BYTES] += shelf[SIZE]


@register_jitable
def _stalest(pool):
    """The shelf with the block that was unused for longest; there is one."""
    found, since, shelf = 0, 0, pool[SHELVES]
    while shelf != 0:
        oldest = at(shelf)[OLDEST]
        if oldest != 0 and (found == 0 or at(oldest)[RETURNED] < since):
            found, since = shelf, at(oldest)[RETURNED]
        shelf = at(shelf)[NEXT]
    return at(found)


@register_jitable
def _shrink(pool, limit):
    """Free the blocks unused for longest until the rest fits the limit."""
    while pool[IDLE_BYTES] > limit:
        shelf = _stalest(pool)
        block = shelf[OLDEST]
        _take_off(shelf, block)
        _unmap(block, shelf[SIZE])


@register_jitable
def _mapped(pool, size):
    """Fresh pages, if need be in place of the idle ones; 0 if there is no memory."""
    block = _fresh_block(size)
    if block == 0:
        _shrink(pool, 0)
        block = _fresh_block(size)
    return block


@register_jitable
def _count_used(pool, blocks, size):
    pool[USED_BLOCKS] += blocks
    pool[USED_BYTES] += blocks * size


@register_jitable
def _taken(shelf):
    """The block returned last: the likeliest to be in a cache. 0 if there is no memory."""
    pool, block = at(shelf[POOL]), shelf[NEWEST]
    if block != 0:
        _take_off(shelf, block)
    else:
        block = _mapped(pool, shelf[SIZE])
    if block != 0:
        _count_used(pool, 1, shelf[SIZE])
    return block


@register_jitable
def _given_back(shelf, block):
    pool = at(shelf[POOL])
    _count_used(pool, -1, shelf[SIZE])
    if shelf[SIZE] > pool[LIMIT]:
        _unmap(block, shelf[SIZE])
    else:
        _put_on(shelf, block)
        _shrink(pool, pool[LIMIT])


# --- grown blocks ---------------------------------------------------------------------------------


@register_jitable
def _growth(block):
    """What is written before a grown block."""
    return at(block - _PAGE)


@register_jitable
def _has_grown(pool, block):
    grown = pool[GROWN]
    while grown != 0 and grown != block:
        grown = _growth(grown)[GREW]
    return grown != 0


@register_jitable
def _grown(pool, size):
    """A block for an array that no shelf has room for; 0 if there is no memory."""
    room = -(-size // _PAGE) * _PAGE
    pages = _mapped(pool, _PAGE + room)
    if pages == 0:
        return 0
    block = pages + _PAGE
    _growth(block)[GREW], _growth(block)[ROOM] = pool[GROWN], room
    pool[GROWN] = block
    _count_used(pool, 1, room)
    return block


@register_jitable
def _unmap_grown(pool, block):
    after, room = _growth(block)[GREW], _growth(block)[ROOM]
    if pool[GROWN] == block:
        pool[GROWN] = after
    else:
        before = pool[GROWN]
        while _growth(before)[GREW] != block:
            before = _growth(before)[GREW]
        _growth(before)[GREW] = after
    _count_used(pool, -1, room)
    _unmap(block - _PAGE, _PAGE + room)


@register_jitable
def _room(shelf, block):
    return _growth(block)[ROOM] if _has_grown(at(shelf[POOL]), block) else shelf[SIZE]


@register_jitable
def _let_go(shelf, block):
    if _has_grown(at(shelf[POOL]), block):
        _unmap_grown(at(shelf[POOL]), block)
    else:
        _given_back(shelf, block)


# --- what NumPy calls -----------------------------------------------------------------------------


@native(INT(INT, INT, INT))
def _give(context, block, nbytes):
    """The array is dead, and so is every view of it."""
    _let_go(at(context), block)
    return 0


@native(INT(INT, INT, INT))
def _refuse(context, count, nbytes):
    """NumPy never takes memory here itself."""
    return 0


@native(INT(INT, INT, INT))
def _resize(context, block, nbytes):
    """Within its block an array stays where it is; 0 if there is no memory."""
    shelf = at(context)
    room = _room(shelf, block)
    if nbytes <= room:
        return block
    larger = _grown(at(shelf[POOL]), nbytes)
    if larger != 0:
        _copy(larger, block, room)
        _let_go(shelf, block)
    return larger


# --- arrays ---------------------------------------------------------------------------------------

# Words of a record to make arrays by: addresses of NumPy's makers of arrays that take memory and of
# arrays over memory; the type; the handler of a shelf and the shelf, or 0; what an array is like.
_EMPTY, _OVER, _TYPE, _HANDLER, _SHELF, _DTYPE, _RANK, _EXTENTS = range(8)

_OWNED, _PLAIN = 0x0004, 0x0501  # flags: owner of its memory; contiguous, aligned and writable


@register_jitable
def _stands_on(shelf, record, extents):
    """An array over a block that it owns; 0 with an error set."""
    block = _taken(shelf)
    if block == 0:
        drop(record[_DTYPE])
        return no_memory()
    likeness = (record[_TYPE], record[_DTYPE], record[_RANK], extents)
    array = call(record[_OVER], (*likeness, 0, block, _PLAIN, 0))
    if array == 0:
        _given_back(shelf, block)
    else:
        hold(record[_HANDLER])
        at(array)[HANDLER] = record[_HANDLER]
        at(array)[FLAGS] |= _OWNED
    return array


@register_jitable
def made(record):
    """An array; 0 with an error set."""
    extents = address_of(record) + 8 * _EXTENTS
    hold(record[_DTYPE])  # which is taken over
    if record[_SHELF] != 0:
        shelf = at(record[_SHELF])
        if shelf[SIZE] <= at(shelf[POOL])[LIMIT]:
            return _stands_on(shelf, record, extents)
    return call(record[_EMPTY], (record[_RANK], extents, record[_DTYPE], 0))


@native(INT(INT, INT, INT))
def _make(record, passed, count):
    """`self` is an array: the record."""
    return made(at(data_of(record)))


@native(INT(INT, INT))
def _open(pool, shelf):
    at(shelf)[NEXT] = at(pool)[SHELVES]
    at(pool)[SHELVES] = shelf
    return 0


@native(INT(INT, INT))
def _trim(pool, limit):
    _shrink(at(pool), limit)
    return 0


# --- as Python sees it ----------------------------------------------------------------------------

_with_lock = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


@cache
def make_method() -> Method:
    """One for all makers; its `self` is a record."""
    return fast_method(b"make", _make())


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


def open_shelf(pool: int, size: int) -> Any:
    """A new shelf for blocks of `size` bytes: its handler. The last array may outlive the module,
    so none of it is ever freed."""
    shelf = immortal(8 * _SHELF_WORDS)
    (ctypes.c_int64 * _SHELF_WORDS).from_address(shelf)[:] = [size, 0, 0, 0, pool]
    name, place = immortal(len(_NAME) + 1), immortal(ctypes.sizeof(_Handler))
    ctypes.memmove(name, _NAME, len(_NAME))
    handler = _Handler.from_address(place)
    handler.name, handler.version, handler.context = b"pullback", 1, shelf
    handler.functions[:] = [_refuse(), _refuse(), _resize(), _give()]
    _with_lock(_open())(pool, shelf)
    return new_capsule(place, name)


class _Record(np.ndarray[Any, Any]):
    """Words, and what they point to."""

    kept: Any


def record_of(shape: tuple[int, ...], dtype: np.dtype[Any], handler: Any) -> NDArray[Any]:
    """The words to make such arrays by."""
    shelf, told = 0, 0
    if handler is not None:
        shelf, told = _Handler.from_address(capsule_address(handler, _NAME)).context, id(handler)
    words = (*_functions(), id(np.ndarray), told, shelf, id(dtype), len(shape), *shape)
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
