"""The extents at which kernels change their ways, read from the constants of their modules."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

import pullback.cpu
import pullback.ops

MOST = 1 << 21
_SIZES = (1, 2, 4, 8)  # of elements: many limits are in bytes


@cache
def kernel_modules() -> tuple[str, ...]:
    """Modules that hold kernels or what they share."""
    found = [f"pullback.cpu.{m.name}" for m in pkgutil.iter_modules(pullback.cpu.__path__)]
    for family in pkgutil.iter_modules(pullback.ops.__path__):
        if family.ispkg:
            folder = import_module(f"pullback.ops.{family.name}").__path__
            names = (m.name for m in pkgutil.iter_modules(folder))
            found += [f"pullback.ops.{family.name}.{n}" for n in names if n.startswith("cpu")]
    return tuple(found)


def _integers(value: Any) -> Iterator[int]:
    if type(value) is int:
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _integers(part)


@cache
def thresholds() -> tuple[int, ...]:
    """Every integer constant of theirs that may be an extent, or bytes of one; ascending."""
    found: set[int] = set()
    for name in kernel_modules():
        for label, value in vars(import_module(name)).items():
            if label.isupper() or label.strip("_").isupper():
                for number in _integers(value):
                    sizes = _SIZES if number >= 1024 else (1,)
                    found.update(number // size for size in sizes)
    return tuple(sorted(n for n in found if 2 <= n <= MOST))
