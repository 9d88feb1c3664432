"""What native code asks of the interpreter, and how the interpreter is told of native code.

All of these are called with the interpreter's lock held, but for `lock` itself."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

from numba import types

from pullback.cpu.atomics import INT

FLOAT: Final = object.__basicsize__ // 8  # the word of a float object that holds its bits
EQ: Final = 2

call_object = types.ExternalFunction("PyObject_CallNoArgs", INT(INT))
call_with = types.ExternalFunction("PyObject_CallOneArg", INT(INT, INT))
call_with_all = types.ExternalFunction("PyObject_Vectorcall", INT(INT, INT, INT, INT))
attribute = types.ExternalFunction("PyObject_GetAttr", INT(INT, INT))
as_integer = types.ExternalFunction("PyLong_AsLongLong", INT(INT))
from_integer = types.ExternalFunction("PyLong_FromLongLong", INT(INT))
clear_error = types.ExternalFunction("PyErr_Clear", types.void())
no_memory = types.ExternalFunction("PyErr_NoMemory", INT())
hold = types.ExternalFunction("Py_IncRef", types.void(INT))
drop = types.ExternalFunction("Py_DecRef", types.void(INT))
compare = types.ExternalFunction("PyObject_RichCompareBool", types.int32(INT, INT, types.int32))
tuple_size = types.ExternalFunction("PyTuple_Size", INT(INT))
tuple_item = types.ExternalFunction("PyTuple_GetItem", INT(INT, INT))
new_tuple = types.ExternalFunction("PyTuple_New", INT(INT))
set_item = types.ExternalFunction("PyTuple_SetItem", types.int32(INT, INT, INT))
unlock = types.ExternalFunction("PyEval_SaveThread", INT())
lock = types.ExternalFunction("PyEval_RestoreThread", types.void(INT))


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
        return make(ctypes.addressof(self), owner, None)


_FASTCALL: Final = 0x80


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
