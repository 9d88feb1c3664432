"""A kernel as LLVM bitcode: all it is made of linked in, nothing optimised yet.

Numba types and lowers a function once; what follows (optimisation, machine code) is done for each
target from the same bitcode, so that their results have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from numba import njit, types

from pullback.contract.imports import IMPORTS
from pullback.cpu.cache import POLICY
from pullback.internals.numba import codegen, linked_into


class Captured(NamedTuple):
    """Bitcode, and whether the function returns a word or nothing."""

    bitcode: bytes
    returns: bool

    @classmethod
    def of(cls, bitcode: bytes, signature: Any) -> Captured:
        return cls(bitcode, signature.return_type != types.void)


def is_portable(captured: Captured) -> bool:
    """Whether it asks for no instruction of one machine."""
    functions = (f.name for f in llvm.parse_bitcode(captured.bitcode).functions)
    return not any(name.startswith(("llvm.x86.", "llvm.aarch64.")) for name in functions)


class _Done(Exception):
    pass


def capture(function: Callable[..., Any], signature: Any) -> Captured:
    """Type, lower and link a function, and stop where Numba would optimise."""
    found: list[bytes] = []

    def stop(library: Any) -> None:
        found.append(bytes(library._final_module.as_bitcode()))
        raise _Done

    dispatcher = njit(**POLICY)(function)
    with IMPORTS, linked_into(function.__qualname__):
        codegen()._library_class._optimize_final_module = stop
        with suppress(_Done):
            dispatcher.compile(signature)
    (bitcode,) = found
    return Captured.of(bitcode, signature)
