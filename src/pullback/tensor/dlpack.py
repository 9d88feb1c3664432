"""Arrays of any library through DLPack, zero copy.

NumPy does the work, but for two things: it knows no bfloat16 of DLPack, and it calls memory
read-only that the older protocol lends, by which only what may be written is lent."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from pullback.contract.errors import BufferTooSmall, Unsupported

_OLD, _VERSIONED = b"dltensor", b"dltensor_versioned"
_UNSIGNED, _BFLOAT = 1, 4  # codes of a DLPack dtype

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


class _Tensor(ctypes.Structure):
    """DLTensor, as far as its shape."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    )


# Where the tensor begins in what a capsule of either name points to.
_OFFSETS = {_OLD: 0, _VERSIONED: 32}


class _Lent:
    """A capsule on its way to NumPy."""

    def __init__(self, capsule: Any, device: Any) -> None:
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> Any:
        return self.device


class _Writable:
    """The memory of an array that NumPy took for read-only, and the array, which keeps it alive."""

    def __init__(self, array: Any) -> None:
        interface = array.__array_interface__
        self.array = array
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


_GPUS = {2: "cuda", 10: "rocm", 13: "cuda"}  # DLPack's devices; the last is managed memory


def from_dlpack(array: Any) -> Any:
    """The memory that `array` exports, as a NumPy array."""
    device = getattr(array, "__dlpack_device__", None)
    if device is not None and (kind := device()[0]) in _GPUS:
        expected = "on the cpu, or a torch tensor (torch.from_dlpack shares the memory of this one)"
        got = f"a {type(array).__name__} on {_GPUS[kind]}"
        raise Unsupported("DLPack", "array", expected, got)
    try:
        capsule = _exported(array)
        name = _VERSIONED if _is_valid(capsule, _VERSIONED) else _OLD
        tensor = _Tensor.from_address((_pointer(capsule, name) or 0) + _OFFSETS[name])
        brain = (tensor.code, tensor.bits, tensor.lanes) == (_BFLOAT, 16, 1)
        if brain:
            tensor.code = _UNSIGNED
        if tensor.data is None:
            _check_empty(tensor)
        seen = np.from_dlpack(_Lent(capsule, tuple(tensor.device)))
    except (BufferError, RuntimeError, ValueError) as error:
        got = f"a {type(array).__name__} ({error})"
        raise Unsupported("DLPack", "array", "memory of the CPU to look at", got) from None
    if name == _OLD:
        seen = np.asarray(_Writable(seen))
    return seen.view(ml_dtypes.bfloat16) if brain else seen


def _check_empty(tensor: _Tensor) -> None:
    """Without an address there may be no elements either. (NumPy would find them a place.)"""
    size = prod(tensor.shape[: tensor.ndim]) * tensor.bits * tensor.lanes // 8
    if size > 0:
        raise BufferTooSmall("DLPack", "array", size, 0)


def _exported(array: Any) -> Any:
    try:
        return array.__dlpack__(max_version=(1, 0))
    except TypeError:  # an exporter from before there were versions
        return array.__dlpack__()
