"""What is used of CPython beyond its documented API, and how it is told of native functions."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, Final

# Where objects hold what: `locked` looks whether this is an interpreter that keeps them so.
FLOAT: Final = object.__basicsize__ // 8  # the word of a float object that holds its bits


class Method(ctypes.Structure):
    """How the interpreter is told of a C function. It may look at it for ever."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )

    def of(self, owner: Any) -> Callable[..., Any]:
        """The function with `owner` as its `self`."""
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.argtypes = ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
        make.restype = ctypes.py_object
        method: Callable[..., Any] = make(ctypes.addressof(self), owner, None)
        return method


_FASTCALL: Final = 0x80


def locked() -> bool:
    """Whether a global lock protects objects, laid out as on 64-bit little-endian CPython."""
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    return bool(gil and sys.implementation.name == "cpython" and sys.byteorder == "little")


def fast_method(name: bytes, address: int) -> Method:
    """A C function `PyObject *f(PyObject *self, PyObject *const *passed, Py_ssize_t count)`.

    Kept alive here, not by a cache of the caller: threads that fill one at once replace theirs."""
    method = Method(name, address, _FASTCALL, None)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(method))
    return method


def new_capsule(address: int, name: int) -> Any:
    """A capsule that holds this; its name is at an address, and stays there."""
    make = ctypes.pythonapi.PyCapsule_New
    make.argtypes, make.restype = (ctypes.c_void_p,) * 3, ctypes.py_object
    return make(address, name, None)


def capsule_address(capsule: Any, name: bytes | None) -> int:
    """What a capsule holds."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.argtypes, get.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    return int(get(capsule, name))
