"""Small functions compiled the way kernels are, once, with all they are made of linked in; and
processes for other processors."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from numba import njit, types

from pullback.cpu.kernel import POLICY, native_address

HERE = Path(__file__).parent
SSE = {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": "+sse4.2"}


def as_kernel(function: Callable) -> Callable[..., None]:
    """A function of 64-bit words (addresses, counts, steps) as a native one."""
    count = function.__code__.co_argcount
    signature = types.void(*[types.int64] * count)
    address = native_address(njit(**POLICY)(function), signature)
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * count)(address)


def in_new_process(code: str, where: Path = HERE, **env: str) -> str:
    """What the code prints, run where modules of a folder can be imported."""
    path = os.pathsep.join([str(where), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path} | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
