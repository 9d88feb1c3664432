"""Small functions compiled the way kernels are: once, with all they are made of linked in."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from numba import njit, types

from pullback.cpu.kernel import POLICY, native_address


def as_kernel(function: Callable) -> Callable[..., None]:
    """A function of 64-bit words (addresses, counts, steps) as a native one."""
    count = function.__code__.co_argcount
    signature = types.void(*[types.int64] * count)
    address = native_address(njit(**POLICY)(function), signature)
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * count)(address)
