"""How native code recognises an array or a tensor by its layout, and finds its memory.

An *operand* is the expected layout of one argument of a launch: OPERAND_WORDS words that hold the
type, dtype, shape and strides it was validated with. `locate` compares the header of an object with
them and returns the address of its data, or MISMATCH. Comparing the same facts from Python takes
several times as long as a small kernel.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
from numba.extending import register_jitable

from pullback.cpu.block import MISMATCH
from pullback.cpu.headers import (
    CPU,
    DESCRIBERS,
    TENSOR_AT,
    TENSOR_BEGIN,
    TENSOR_DEVICE,
    TENSOR_KIND_AND_RANK,
    TENSOR_SHAPE,
    TENSOR_STRIDES,
    TENSOR_WORDS,
    is_inside_storage,
    type_of,
)
from pullback.cpu.interpreter import clear_error
from pullback.cpu.words import address_of, at, call, stack_words
from pullback.internals.numpy import (
    ARRAY_BASE,
    ARRAY_DATA,
    ARRAY_DTYPE,
    ARRAY_EXTENTS,
    ARRAY_RANK,
    ARRAY_STRIDES,
    FLAGS,
    HALF,
    IS_WRITABLE,
    OBJECT_TYPE,
    headers_are_known,
)
from pullback.tensor.adapters import OWNERS
from pullback.tensor.layout import reach

# Words of an operand. Kinds: the word passed is an address; it is ignored and stands for no memory;
# it must be the object named and stands for no memory; it is a NumPy array; it is a tensor, which a
# function of its library describes.
KIND, OBJECT, DTYPE, WRITABLE, RANK, OFFSET, OWNERS_AT, REACH, EXTENTS = range(9)
DESCRIBE, STORAGE_AT = WRITABLE, OWNERS_AT  # of a tensor, whose storage must have REACH bytes
ADDRESS, IGNORED, EXACT, ARRAY, TENSOR = range(5)
MAX_RANK: Final = 8
STRIDES: Final = EXTENTS + MAX_RANK
OPERAND_WORDS: Final = STRIDES + MAX_RANK

UNUSED = object()  # in place of an argument that a plan does not read


@register_jitable
def _has_layout(operand, extents, strides):
    for axis in range(operand[RANK]):
        if extents[axis] != operand[EXTENTS + axis] or strides[axis] != operand[STRIDES + axis]:
            return False
    return True


@register_jitable
def _locate_tensor(operand, word):
    if type_of(word) != operand[OBJECT]:
        return MISMATCH
    tensor = stack_words(TENSOR_WORDS)
    if call(operand[DESCRIBE], (word, address_of(tensor))) & HALF != 0:  # it has no memory
        clear_error()
        return MISMATCH
    if tensor[TENSOR_DEVICE] != CPU or tensor[TENSOR_KIND_AND_RANK] != operand[DTYPE]:
        return MISMATCH
    if not _has_layout(operand, at(tensor[TENSOR_SHAPE]), at(tensor[TENSOR_STRIDES])):
        return MISMATCH
    place = tensor[TENSOR_AT] + tensor[TENSOR_BEGIN]
    if not is_inside_storage(at(operand[STORAGE_AT]), word, place, operand[REACH]):
        return MISMATCH
    return place + operand[OFFSET]


@register_jitable
def _is_known(kind, kinds):
    number = 0
    while kinds[number] != 0:
        if kinds[number] == kind:
            return True
        number += 1
    return False


@register_jitable
def _is_inside_owner(array, operand):
    """Whether the types of an array's owners guarantee that it stays inside their memory. Others
    are checked by Python."""
    owner, safe = array[ARRAY_BASE], at(operand[OWNERS_AT])
    if owner == 0:
        return True
    if type_of(owner) == operand[OBJECT]:  # an array, which may be a view in turn
        owner = at(owner)[ARRAY_BASE]
        if owner == 0:
            return True
    return _is_known(type_of(owner), safe)


@register_jitable
def locate(operand, word):
    """The address a word stands for, or MISMATCH. The caller holds the GIL."""
    kind = operand[KIND]
    if kind == ADDRESS:
        return word
    if kind == TENSOR:
        return _locate_tensor(operand, word)
    if kind != ARRAY:
        return 0 if kind == IGNORED or word == operand[OBJECT] else MISMATCH
    array = at(word)
    if array[OBJECT_TYPE] != operand[OBJECT] or array[ARRAY_DTYPE] != operand[DTYPE]:
        return MISMATCH
    rank = array[ARRAY_RANK] & HALF
    if rank != operand[RANK] or array[FLAGS] & IS_WRITABLE != operand[WRITABLE]:
        return MISMATCH
    if not _is_inside_owner(array, operand):
        return MISMATCH
    if not _has_layout(operand, at(array[ARRAY_EXTENTS]), at(array[ARRAY_STRIDES])):
        return MISMATCH
    return array[ARRAY_DATA] + operand[OFFSET]


# --- operands, as Python fills them ---------------------------------------------------------------


def operand(kind: int, *facts: int) -> list[int]:
    return [kind, *facts] + [0] * (OPERAND_WORDS - 1 - len(facts))


def operand_of(value: Any, offset: int = 0) -> list[int] | None:
    """The operand that matches arrays laid out like this one, whose data begins `offset` bytes
    before the memory the kernel sees; for None and for an address, exactly that value. None for
    objects that only Python can read."""
    if value is UNUSED:
        return operand(IGNORED)
    if value is None:
        return operand(EXACT, id(None))
    if type(value) is int:
        return operand(ADDRESS, value)
    if type(value) in DESCRIBERS:
        return _tensor_operand(value, offset)
    if type(value) is not np.ndarray or value.ndim > MAX_RANK or not headers_are_known():
        return None
    writable, pad = IS_WRITABLE * value.flags.writeable, [0] * (MAX_RANK - value.ndim)
    facts = (id(np.ndarray), id(value.dtype), writable, value.ndim, offset)
    safe = ctypes.addressof(OWNERS)
    return operand(ARRAY, *facts, safe, 0, *value.shape, *pad, *value.strides)


def _tensor_operand(tensor: Any, offset: int) -> list[int] | None:
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
    return operand(TENSOR, *facts, *shape, *pad, *strides)
