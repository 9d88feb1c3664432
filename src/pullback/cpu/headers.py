"""The headers of arrays and tensors, as native code reads them.

None of this is documented for readers outside NumPy and PyTorch: `headers_are_known` looks whether
arrays are laid out as is written here, and front ends find out where a storage is."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from numba.extending import register_jitable

from pullback.contract.settings import SAFE
from pullback.cpu.atomics import INT
from pullback.cpu.interpreter import (
    as_integer,
    capsule_address,
    fast_method,
    from_integer,
)
from pullback.cpu.kernel import native
from pullback.cpu.words import address_of, at, call, stack_words
from pullback.tensor.adapters import numpy_address

# Words of an array's header, as NumPy's C interface has kept them since 1.7; `headers_are_known`
# looks whether this interpreter does. Rank and flags are half words.
_HEAD: Final = object.__basicsize__ // 8
OBJECT_TYPE: Final = _HEAD - 1
ARRAY_DATA, ARRAY_RANK, ARRAY_EXTENTS, ARRAY_STRIDES = range(_HEAD, _HEAD + 4)
ARRAY_BASE, ARRAY_DTYPE, FLAGS = range(_HEAD + 4, _HEAD + 7)
HANDLER: Final = FLAGS + 3  # what frees its memory, since 1.22
HALF: Final = 0xFFFFFFFF
IS_WRITABLE: Final = 0x0400

# Words of DLPack's description of a tensor, and a device in it. Its dtype stands above its rank.
TENSOR_AT, TENSOR_DEVICE, TENSOR_KIND_AND_RANK, TENSOR_SHAPE = range(4)
TENSOR_STRIDES, TENSOR_BEGIN, TENSOR_WORDS = range(4, 7)
CPU: Final = 1


@register_jitable
def type_of(word):
    """The type of an object, as its identity."""
    return at(word)[OBJECT_TYPE]


@register_jitable
def data_of(word):
    """Where an array's memory begins."""
    return at(word)[ARRAY_DATA]


# Where the storage of a tensor is found, which DLPack does not tell of: the word of the object that
# holds its tensor, of that the storage, of that its memory and how many bytes there are.
BODY, STORAGE, MEMORY, SIZE = range(4)


@register_jitable
def is_inside_storage(words, word, place, reach):
    """Whether the storage of a tensor holds so many bytes from a place on. A storage may be resized
    under the tensors that were made of it."""
    storage = at(at(at(word)[words[BODY]])[words[STORAGE]])
    begin = place - storage[words[MEMORY]]
    return reach == 0 or (begin >= 0 and begin + reach <= storage[words[SIZE]])


@native(INT(INT, INT, INT))
def _address_in_storage(table, passed, count):
    """`self` is an array: None, the function that describes a tensor, where its storage is. The
    address of the first argument, a tensor; 0 if its storage has fewer bytes than the second."""
    words, given = at(data_of(table)), at(passed)
    if given[0] == words[0]:
        return from_integer(0)
    tensor, storage = stack_words(TENSOR_WORDS), at(address_of(words) + 16)
    if call(words[1], (given[0], address_of(tensor))) & HALF != 0:
        return 0  # with the error set
    place = tensor[TENSOR_AT] + tensor[TENSOR_BEGIN]
    if not is_inside_storage(storage, given[0], place, as_integer(given[1])):
        return from_integer(0)
    return from_integer(place)


# --- as Python sees them -------------------------------------------------------------------------


# `PyObject *PyDataMem_GetHandler()`, by its place in the table of NumPy's C interface.
_GET_HANDLER: Final = 305


def numpy_function(place: int) -> int:
    """The address of a function of NumPy's C interface."""
    table = capsule_address(np._core.multiarray._ARRAY_API, None)  # type: ignore[attr-defined]
    return ctypes.c_int64.from_address(table + 8 * place).value


@cache
def headers_are_known() -> bool:
    """Whether arrays of this NumPy are laid out as above and the GIL protects them; no with
    PULLBACK_SAFE=1."""
    if SAFE:
        return False
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
            words[OBJECT_TYPE] != id(np.ndarray)
            or words[ARRAY_DATA] != array.ctypes.data
            or words[ARRAY_RANK] & HALF != array.ndim
            or words[ARRAY_BASE] != (0 if array.base is None else id(array.base))
            or words[ARRAY_DTYPE] != id(array.dtype)
            or words[FLAGS] & IS_WRITABLE != IS_WRITABLE * array.flags.writeable
            or words[HANDLER] != (id(handler) if array.flags.owndata else 0)
            or tuple(numbers.from_address(words[ARRAY_EXTENTS])) != array.shape
            or tuple(numbers.from_address(words[ARRAY_STRIDES])) != array.strides
        ):
            return False
    return True


class Describer:
    """How native code sees the tensors of a library: the address of DLPack's
    `int dltensor_from_py_object_no_sync(PyObject *tensor, DLTensor *description)`, and the words by
    which their storage is found."""

    __slots__ = ("_words", "address_in_storage", "describe", "storage")

    def __init__(self, describe: int, storage: Sequence[int]) -> None:
        self._words = np.array((id(None), describe, *storage), np.int64)
        self.describe, self.storage = describe, numpy_address(self._words) + 16
        # Of a tensor and the bytes it must have: its address, or 0 if its storage is shorter.
        method = fast_method(b"address_in_storage", _address_in_storage())
        self.address_in_storage: Callable[[Any, int], int] = method.of(self._words)


# By the types of tensors, for ever: slots point into them.
DESCRIBERS: dict[type, Describer] = {}
