"""Functions of the interpreter that native code calls, with the interpreter's lock held, but for
`lock` itself."""

from typing import Final

from numba import types

from pullback.cpu.atomics import INT

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
