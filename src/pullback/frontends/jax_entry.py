"""The custom call of exported JAX programs: XLA knows it once JAX and pullback are imported.

A program that `jax.export` wrote may run in a process in which no function of ours was called. Its
calls go to `TARGET`, two callbacks in Python that import neither Numba nor a kernel until the first
program with such a call is loaded; from then on they pass frames on to the native handler
(jax_target). Programs compiled in the process itself call that handler without a detour.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, Final

from pullback.contract.imports import resolve
from pullback.cpu.xla_frame import answer_query, asks_for_version

TARGET: Final = "pullback"
_HANDLER = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


@cache
def _native() -> tuple[Any, Any]:
    """The callback that prepares kernels, and the native handler."""
    _, instantiate, execute = resolve("pullback.frontends.jax_target:handlers")()
    return instantiate, _HANDLER(execute)


def _instantiate(frame: int) -> int:
    return 0 if asks_for_version(frame) else int(_native()[0](frame))


def _execute(frame: int) -> int:
    if asks_for_version(frame):
        answer_query(frame)
        return 0
    return int(_native()[1](frame))


_STAGES: Final = {"instantiate": _HANDLER(_instantiate), "execute": _HANDLER(_execute)}


@cache
def register() -> None:
    """Tell XLA of the target, once."""
    from jax import ffi

    capsules = {
        name: ffi.pycapsule(ctypes.cast(stage, ctypes.c_void_p)) for name, stage in _STAGES.items()
    }
    ffi.register_ffi_target(TARGET, capsules, platform="cpu", api_version=1)
