"""What is used of NumPy beyond its documented API: headers of arrays, and its table of C functions.

`headers_are_known` looks whether arrays of this NumPy are laid out as is written here. Where they
are not, nothing native reads them: calls go through Python, to the same kernels."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

import numpy as np

from pullback.contract.settings import SAFE
from pullback.internals.cpython import capsule_address, locked

_TABLE: Final = np._core.multiarray._ARRAY_API  # type: ignore[attr-defined]
CAPSULE: Final = type(_TABLE)  # may own the memory of an array

# Words of an array's header, as NumPy's C interface has kept them since 1.7; `headers_are_known`
# looks whether this interpreter does. Rank and flags are half words.
_HEAD: Final = object.__basicsize__ // 8
OBJECT_TYPE: Final = _HEAD - 1
ARRAY_DATA, ARRAY_RANK, ARRAY_EXTENTS, ARRAY_STRIDES = range(_HEAD, _HEAD + 4)
ARRAY_BASE, ARRAY_DTYPE, FLAGS = range(_HEAD + 4, _HEAD + 7)
HANDLER: Final = FLAGS + 3  # what frees its memory, since 1.22
HALF: Final = 0xFFFFFFFF
IS_WRITABLE: Final = 0x0400


# `PyObject *PyDataMem_GetHandler()`, by its place in the table of NumPy's C interface.
_GET_HANDLER: Final = 305


def numpy_function(place: int) -> int:
    """The address of a function of NumPy's C interface."""
    table = capsule_address(_TABLE, None)
    return ctypes.c_int64.from_address(table + 8 * place).value


@cache
def headers_are_known() -> bool:
    """Whether arrays of this NumPy are laid out as above and the GIL protects them; no with
    PULLBACK_SAFE=1."""
    if SAFE:
        return False
    if not locked() or np.ndarray.__basicsize__ <= 8 * HANDLER:
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
