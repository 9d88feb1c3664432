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
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from numba import types
from numba.extending import register_jitable

from pullback.cpu.atomics import INT
from pullback.cpu.block import DETAIL, STRANGE, TENSORS, UNSURE, WORKSPACE
from pullback.cpu.headers import (
    ARRAY_BASE,
    ARRAY_DATA,
    ARRAY_DTYPE,
    ARRAY_EXTENTS,
    ARRAY_RANK,
    ARRAY_STRIDES,
    CPU,
    DESCRIBERS,
    FLAGS,
    HALF,
    IS_WRITABLE,
    OBJECT_TYPE,
    TENSOR_AT,
    TENSOR_BEGIN,
    TENSOR_DEVICE,
    TENSOR_KIND_AND_RANK,
    TENSOR_SHAPE,
    TENSOR_STRIDES,
    TENSOR_WORDS,
    headers_are_known,
    is_inside_storage,
    type_of,
)
from pullback.cpu.interpreter import clear_error, lock, unlock
from pullback.cpu.interrupt import raise_if_interrupted
from pullback.cpu.kernel import cached, native_address
from pullback.cpu.pool import interruptible_address
from pullback.cpu.words import address_of, at, call, stack_words
from pullback.tensor.adapters import OWNERS
from pullback.tensor.layout import reach

PROGRAM, PHASES, EXECUTE, SHORT, SLOTS, LENGTH, ALIGNED, PAIRS, HEAD = range(9)

SHORT_BYTES: Final = 1 << 14  # of all tensors, at the most

# Words of a slot. Kinds: the word passed is an address; whatever it is stands for nothing; it must
# be the object named and stands for nothing; it is an array of NumPy's; it is a tensor, which a
# function of its library describes.
KIND, OBJECT, DTYPE, WRITABLE, RANK, OFFSET, OWNERS_AT, REACH, EXTENTS = range(9)
DESCRIBE, STORAGE_AT = WRITABLE, OWNERS_AT  # of a tensor, which has a REACH: bytes it must have
ADDRESS, IGNORED, EXACT, ARRAY, TENSOR = range(5)
MAX_RANK: Final = 8
STRIDES: Final = EXTENTS + MAX_RANK
SLOT_WORDS: Final = STRIDES + MAX_RANK


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
    tensor = stack_words(TENSOR_WORDS)
    if call(slot[DESCRIBE], (word, address_of(tensor))) & HALF != 0:  # it has no memory
        clear_error()
        return STRANGE
    if tensor[TENSOR_DEVICE] != CPU or tensor[TENSOR_KIND_AND_RANK] != slot[DTYPE]:
        return STRANGE
    if not _are_laid_out(slot, at(tensor[TENSOR_SHAPE]), at(tensor[TENSOR_STRIDES])):
        return STRANGE
    place = tensor[TENSOR_AT] + tensor[TENSOR_BEGIN]
    if not is_inside_storage(at(slot[STORAGE_AT]), word, place, slot[REACH]):
        return STRANGE
    return place + slot[OFFSET]


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
    owner, safe = array[ARRAY_BASE], at(slot[OWNERS_AT])
    if owner == 0:
        return True
    if type_of(owner) == slot[OBJECT]:  # an array, which may be a view in turn
        owner = at(owner)[ARRAY_BASE]
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
    if array[OBJECT_TYPE] != slot[OBJECT] or array[ARRAY_DTYPE] != slot[DTYPE]:
        return STRANGE
    rank = array[ARRAY_RANK] & HALF
    if rank != slot[RANK] or array[FLAGS] & IS_WRITABLE != slot[WRITABLE]:
        return STRANGE
    if not _is_inside_owner(array, slot):
        return STRANGE
    if not _are_laid_out(slot, at(array[ARRAY_EXTENTS]), at(array[ARRAY_STRIDES])):
        return STRANGE
    return array[ARRAY_DATA] + slot[OFFSET]


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
    """The same for callers that hold the interpreter's lock; the status, with an error set if that
    is INTERRUPTED."""
    if at(address)[SHORT] != 0:
        return launch_at(address, workspace, threads, 0, places)[0]
    held = unlock()
    status = launch_at(address, workspace, threads, 0, places)[0]
    lock(held)
    return status


def launch_few(record, workspace, threads, sure, a, b, c, d):
    places = stack_words(4)
    places[0], places[1], places[2], places[3] = a, b, c, d
    result = launch_at(record, workspace, threads, sure, places)
    raise_if_interrupted(result[0])
    return result


def launch_many(record, workspace, threads, sure, a, b, c, d, e, f, g, h, i, j):
    places = stack_words(10)
    places[0], places[1], places[2], places[3], places[4] = a, b, c, d, e
    places[5], places[6], places[7], places[8], places[9] = f, g, h, i, j
    result = launch_at(record, workspace, threads, sure, places)
    raise_if_interrupted(result[0])
    return result


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
    writable, pad = IS_WRITABLE * value.flags.writeable, [0] * (MAX_RANK - value.ndim)
    facts = (id(np.ndarray), id(value.dtype), writable, value.ndim, offset)
    safe = ctypes.addressof(OWNERS)
    return slot_words(ARRAY, *facts, safe, 0, *value.shape, *pad, *value.strides)


def _tensor_slot(tensor: Any, offset: int) -> list[int] | None:
    """What `slot_of` says of a tensor."""
    describer = DESCRIBERS[type(tensor)]
    words = (ctypes.c_int64 * TENSOR_WORDS)()
    describe = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
    describe(describer.describe)(tensor, words)
    rank = words[TENSOR_KIND_AND_RANK] & HALF
    if words[TENSOR_DEVICE] != CPU or rank > MAX_RANK or not headers_are_known():
        return None
    numbers = ctypes.c_int64 * rank
    pad = [0] * (MAX_RANK - rank)
    shape, strides = (
        list(numbers.from_address(words[i])) if rank else [] for i in (TENSOR_SHAPE, TENSOR_STRIDES)
    )
    kind = (id(type(tensor)), words[TENSOR_KIND_AND_RANK], describer.describe, rank)
    facts = (*kind, offset, describer.storage, reach(shape, strides)[1] * tensor.itemsize)
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
        head = (*program, interruptible_address(), int(short), *counts)
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
