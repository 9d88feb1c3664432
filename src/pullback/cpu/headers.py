"""The headers of arrays and tensors, as native code reads them. How arrays are laid out stands in
`internals/numpy.py`; front ends find out where the storage of a tensor is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numba.extending import register_jitable

from pullback.cpu.atomics import INT
from pullback.cpu.interpreter import as_integer, from_integer
from pullback.cpu.kernel import native
from pullback.cpu.words import address_of, at, call, stack_words
from pullback.internals.cpython import fast_method
from pullback.internals.numpy import ARRAY_DATA, HALF, OBJECT_TYPE
from pullback.tensor.adapters import numpy_address

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
