"""The native side of a launch: know the arrays again, check where they are, fill a block, run it.

What a launch depends on is laid out once, as the words of a record:

    PROGRAM, PHASES      what to run
    EXECUTE              address of the thread pool's `execute`
    SHORT                whether it takes no longer than to let other Python threads run meanwhile
    SLOTS, LENGTH, ALIGNED, PAIRS   how many there are of
      slots: SLOT_WORDS each; what a slot is passed is an address, nothing, or the identity of an
             array, whose header is compared with the one the launch was laid out for
      words of the block, the first of which are replaced by addresses
      (word of the block, low bits that must be zero)
      (word, first byte, end, other word, first byte, end, whether they may be one and the same):
      memory that must be apart

To look at the same headers and addresses from Python takes several times a small kernel."""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from numba import types
from numba.extending import register_jitable

from pullback.cpu.atomics import INT
from pullback.cpu.block import DETAIL, STRANGE, TENSORS, UNSURE, WORKSPACE
from pullback.cpu.interpreter import capsule_address, clear_error, lock, unlock
from pullback.cpu.kernel import cached, native_address
from pullback.cpu.pool import execute_address
from pullback.cpu.words import address_of, at, call, stack_words
from pullback.tensor.adapters import OWNERS

PROGRAM, PHASES, EXECUTE, SHORT, SLOTS, LENGTH, ALIGNED, PAIRS, HEAD = range(9)

SHORT_BYTES: Final = 1 << 14  # of all tensors, at the most

# Words of a slot. Kinds: the word passed is an address; whatever it is stands for nothing; it must
# be the object named and stands for nothing; it is an array of NumPy's; it is a tensor, which a
# function of its library describes.
KIND, OBJECT, DTYPE, WRITABLE, RANK, OFFSET, OWNERS_AT, EXTENTS = range(8)
DESCRIBE = WRITABLE  # of a tensor
ADDRESS, IGNORED, EXACT, ARRAY, TENSOR = range(5)
MAX_RANK: Final = 8
STRIDES: Final = EXTENTS + MAX_RANK
SLOT_WORDS: Final = STRIDES + MAX_RANK

# Words of an array's header, as NumPy's C interface has kept them since 1.7; `headers_are_known`
# looks whether this interpreter does. Rank and flags are half words.
_HEAD: Final = object.__basicsize__ // 8
_TYPE: Final = _HEAD - 1
_DATA, _RANK, _EXTENTS, _STRIDES, _BASE, _DTYPE, FLAGS = range(_HEAD, _HEAD + 7)
HANDLER: Final = FLAGS + 3  # what frees its memory, since 1.22
_HALF: Final = 0xFFFFFFFF
_WRITABLE: Final = 0x0400

# Words of DLPack's description of a tensor, and a device in it. Its dtype stands above its rank.
_AT, _DEVICE, _KIND_AND_RANK, _SHAPE, _STEPS, _BEGIN, _DESCRIPTION = range(7)
_CPU: Final = 1


@register_jitable
def type_of(word):
    """The type of an object, as its identity."""
    return at(word)[_TYPE]


@register_jitable
def data_of(word):
    """Where an array's memory begins."""
    return at(word)[_DATA]


@register_jitable
def _are_laid_out(slot, extents, strides):
    for axis in range(slot[RANK]):
        if extents[axis] != slot[EXTENTS + axis] or strides[axis] != slot[STRIDES + axis]:
            return False
    return True


@register_jitable
def _locate_tensor(slot, word):
    if type_of(word) != slot[OBJECT]:
        return STRANGE
    tensor = stack_words(_DESCRIPTION)
    if call(slot[DESCRIBE], (word, address_of(tensor))) & _HALF != 0:  # it has no memory
        clear_error()
        return STRANGE
    if tensor[_DEVICE] != _CPU or tensor[_KIND_AND_RANK] != slot[DTYPE]:
        return STRANGE
    if not _are_laid_out(slot, at(tensor[_SHAPE]), at(tensor[_STEPS])):
        return STRANGE
    return tensor[_AT] + tensor[_BEGIN] + slot[OFFSET]


@register_jitable
def _is_known(kind, kinds):
    number = 0
    while kinds[number] != 0:
        if kinds[number] == kind:
            return True
        number += 1
    return False


@register_jitable
def _is_inside_owner(array, slot):
    """Whether somebody has checked that an array keeps to the memory of its owner, and that to its
    own, by their types; Python looks at the others."""
    owner, safe = array[_BASE], at(slot[OWNERS_AT])
    if owner == 0:
        return True
    if type_of(owner) == slot[OBJECT]:  # an array, which may be a view in turn
        owner = at(owner)[_BASE]
        if owner == 0:
            return True
    return _is_known(type_of(owner), safe)


@register_jitable
def locate(slot, word):
    """The address a word stands for, or STRANGE. Needs the interpreter's lock."""
    kind = slot[KIND]
    if kind == ADDRESS:
        return word
    if kind == TENSOR:
        return _locate_tensor(slot, word)
    if kind != ARRAY:
        return 0 if kind == IGNORED or word == slot[OBJECT] else STRANGE
    array = at(word)
    if array[_TYPE] != slot[OBJECT] or array[_DTYPE] != slot[DTYPE]:
        return STRANGE
    rank = array[_RANK] & _HALF
    if rank != slot[RANK] or array[FLAGS] & _WRITABLE != slot[WRITABLE]:
        return STRANGE
    if not _is_inside_owner(array, slot):
        return STRANGE
    if not _are_laid_out(slot, at(array[_EXTENTS]), at(array[_STRIDES])):
        return STRANGE
    return array[_DATA] + slot[OFFSET]


@register_jitable
def _are_apart(block, aligned, pairs, rules):
    """Whether there is memory, aligned, and nothing that is written is near another tensor."""
    for _ in range(aligned):
        place = block[rules[0]]
        if place & rules[1] != 0 or place == 0:  # freed by its library
            return False
        rules = at(address_of(rules) + 16)
    for _ in range(pairs):
        distance = block[rules[3]] - block[rules[0]]
        near = distance + rules[4] < rules[2] and rules[1] < distance + rules[5]
        if near and (distance != 0 or rules[6] == 0):
            return False
        rules = at(address_of(rules) + 56)
    return True


@register_jitable
def slot_at(address, position):
    """What the launch of a record knows of a slot."""
    return at(address + 8 * (HEAD + SLOT_WORDS * position))


@register_jitable
def launch_at(address, workspace, threads, sure, places):
    """Run the launch of a record on tensors at these addresses: status, and what it is about."""
    record = at(address)
    slots, length = record[SLOTS], record[LENGTH]
    template = slot_at(address, slots)  # behind the last of them
    block = stack_words(length)
    for word in range(length):
        block[word] = template[word]
    for position in range(slots):
        block[TENSORS + position] = places[position]
    block[WORKSPACE] = workspace
    rules = at(address_of(template) + 8 * length)
    if sure == 0 and not _are_apart(block, record[ALIGNED], record[PAIRS], rules):
        return UNSURE, 0, 0
    status = call(record[EXECUTE], (record[PROGRAM], record[PHASES], address_of(block), threads))
    return status, block[DETAIL], block[DETAIL + 1]


@register_jitable
def launch_with_lock(address, workspace, threads, places):
    """The same for callers that hold the interpreter's lock; the status."""
    if at(address)[SHORT] != 0:
        return launch_at(address, workspace, threads, 0, places)[0]
    held = unlock()
    status = launch_at(address, workspace, threads, 0, places)[0]
    lock(held)
    return status


def launch_few(record, workspace, threads, sure, a, b, c, d):
    places = stack_words(4)
    places[0], places[1], places[2], places[3] = a, b, c, d
    return launch_at(record, workspace, threads, sure, places)


def launch_many(record, workspace, threads, sure, a, b, c, d, e, f, g, h, i, j):
    places = stack_words(10)
    places[0], places[1], places[2], places[3], places[4] = a, b, c, d, e
    places[5], places[6], places[7], places[8], places[9] = f, g, h, i, j
    return launch_at(record, workspace, threads, sure, places)


FEW, MANY = 4, 10


@cache
def entry(slots: int) -> tuple[Callable[..., tuple[int, int, int]], int]:
    """The native function for launches of so many slots, and how many addresses it takes."""
    function, takes = (launch_few, FEW) if slots <= FEW else (launch_many, MANY)
    if slots > MANY:
        raise ValueError(f"a plan has at most {MANY} slots, not {slots}")
    dispatcher = cached(function, no_cpython_wrapper=False)
    signature = types.UniTuple(INT, 3)(*[INT] * (4 + takes))
    native_address(dispatcher, signature)
    # Not the dispatcher, which would look at the types of the arguments at every call.
    return dispatcher.get_compile_result(signature).entry_point, takes


# --- the record, as Python fills it ---------------------------------------------------------------


# `PyObject *PyDataMem_GetHandler()`, by its place in the table of NumPy's C interface.
_GET_HANDLER: Final = 305


def numpy_function(place: int) -> int:
    """The address of a function of NumPy's C interface."""
    table = capsule_address(np._core.multiarray._ARRAY_API, None)  # type: ignore[attr-defined]
    return ctypes.c_int64.from_address(table + 8 * place).value


@cache
def headers_are_known() -> bool:
    """Whether arrays of this NumPy are laid out as above, and only we look at them meanwhile."""
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    if sys.implementation.name != "cpython" or sys.byteorder != "little" or not locked:
        return False
    if np.ndarray.__basicsize__ <= 8 * HANDLER:
        return False
    handler = ctypes.PYFUNCTYPE(ctypes.py_object)(numpy_function(_GET_HANDLER))()
    base = np.zeros((3, 5), np.float32)
    for array in (base, base[1:, ::2].T, np.frombuffer(b"12345678", np.int32)):
        words = (ctypes.c_int64 * (HANDLER + 1)).from_address(id(array))
        numbers = ctypes.c_int64 * array.ndim
        if (
            words[_TYPE] != id(np.ndarray)
            or words[_DATA] != array.ctypes.data
            or words[_RANK] & _HALF != array.ndim
            or words[_BASE] != (0 if array.base is None else id(array.base))
            or words[_DTYPE] != id(array.dtype)
            or words[FLAGS] & _WRITABLE != _WRITABLE * array.flags.writeable
            or words[HANDLER] != (id(handler) if array.flags.owndata else 0)
            or tuple(numbers.from_address(words[_EXTENTS])) != array.shape
            or tuple(numbers.from_address(words[_STRIDES])) != array.strides
        ):
            return False
    return True


def slot_words(kind: int, *facts: int) -> list[int]:
    return [kind, *facts] + [0] * (SLOT_WORDS - 1 - len(facts))


def slot_of(value: Any, offset: int = 0) -> list[int] | None:
    """A slot that is passed an array like this one, `offset` bytes before the memory it stands for;
    None again, if this is None; or this very address. None for what only Python knows."""
    if value is None:
        return slot_words(EXACT, id(None))
    if type(value) is int:
        return slot_words(ADDRESS, value)
    if type(value) in DESCRIBERS:
        return _tensor_slot(value, offset)
    if type(value) is not np.ndarray or value.ndim > MAX_RANK or not headers_are_known():
        return None
    writable, pad = _WRITABLE * value.flags.writeable, [0] * (MAX_RANK - value.ndim)
    facts = (id(np.ndarray), id(value.dtype), writable, value.ndim, offset)
    safe = ctypes.addressof(OWNERS)
    return slot_words(ARRAY, *facts, safe, *value.shape, *pad, *value.strides)


# Types of tensors, and the address of the function that describes one: DLPack's
# `int dltensor_from_py_object_no_sync(PyObject *tensor, DLTensor *description)`.
DESCRIBERS: dict[type, int] = {}


def _tensor_slot(tensor: Any, offset: int) -> list[int] | None:
    """What `slot_of` says of a tensor."""
    describe = DESCRIBERS[type(tensor)]
    words = (ctypes.c_int64 * _DESCRIPTION)()
    ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(describe)(tensor, words)
    rank = words[_KIND_AND_RANK] & _HALF
    if words[_DEVICE] != _CPU or rank > MAX_RANK or not headers_are_known():
        return None
    numbers = ctypes.c_int64 * rank
    facts = (id(type(tensor)), words[_KIND_AND_RANK], describe, rank, offset, 0)
    pad = [0] * (MAX_RANK - rank)
    shape, strides = (
        list(numbers.from_address(words[i])) if rank else [] for i in (_SHAPE, _STEPS)
    )
    return slot_words(TENSOR, *facts, *shape, *pad, *strides)


class Door:
    """A launch as native code knows it: a function of workspace, threads, sure, addresses."""

    __slots__ = ("_entry", "_kept", "_record", "_spare", "address")

    def __init__(
        self,
        program: tuple[int, int],
        slots: Sequence[Sequence[int]],
        block: Sequence[int],
        aligned: Sequence[tuple[int, int]],
        pairs: Sequence[tuple[int, ...]],
        short: bool,
        kept: Any,
    ) -> None:
        counts = (len(slots), len(block), len(aligned), len(pairs))
        head = (*program, execute_address(), int(short), *counts)
        parts = head, *slots, block, *aligned, *pairs
        words = tuple(itertools.chain.from_iterable(parts))
        self._record = (ctypes.c_int64 * len(words))(*words)
        self.address, self._kept = ctypes.addressof(self._record), kept  # what words point to
        self._entry, takes = entry(len(slots))
        self._spare = (0,) * (takes - len(slots))

    def __call__(
        self, workspace: int, threads: int, sure: int, places: Iterable[int]
    ) -> tuple[int, int, int]:
        return self._entry(self.address, workspace, threads, sure, *places, *self._spare)
