"""Kernels that are put together from functions: each has a name in the module it is made for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import Kernel


def _template(task, lo, hi):
    body(task, lo, hi)  # noqa: F821


def named(body: Callable[..., Any], name: str, module: str) -> Kernel:
    """Found on disk by its name and the hash of its module, as any kernel is. It is an attribute of
    its module too: a program that JAX exported finds its kernels by name."""
    scope = {"body": inlined(body), "__name__": module}
    function = FunctionType(_template.__code__, scope, name)
    function.__module__, function.__qualname__ = module, name
    made = Kernel(function)
    setattr(sys.modules[module], name, made)
    return made
