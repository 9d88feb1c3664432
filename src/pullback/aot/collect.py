"""Which kernels there are: those that any layout of any plan asks for, and the runtime.

Plans are laid out as `pullback warm` does, but nothing is compiled: the kernels of launches are
noted.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from pullback.bench import inventory
from pullback.bench.ahead import Step
from pullback.contract.element import ElementKind
from pullback.cpu import kernel as kernel_module
from pullback.cpu.kernel import Kernel
from pullback.cpu.library import entry_name
from pullback.cpu.native_launch import NativeLaunch

Entry = tuple[Any, Any]  # a function and its signature
Request = tuple[Kernel, ElementKind, ElementKind]


def names(steps: Iterable[Step]) -> list[str]:
    """The entries of a library for these steps: first what every call goes through."""
    return [*_runtime(), *requests(steps)]


@cache
def _runtime() -> dict[str, Entry]:
    """The functions with a fixed signature."""
    found: dict[str, Entry] = {}
    for path in sorted(Path(kernel_module.__file__).parent.glob("*.py")):
        if path.stem not in ("precompiled", "__init__"):
            found.update(_natives(import_module(f"pullback.cpu.{path.stem}")))
    return dict(sorted(found.items()))


def _natives(module: Any) -> Iterator[tuple[str, Entry]]:
    """The functions of a module that `kernel.native` has decorated."""
    for value in vars(module).values():
        inner: Any = getattr(value, "__wrapped__", None)
        if getattr(inner, "__qualname__", "").startswith(kernel_module.native.__qualname__ + "."):
            held = inspect.getclosurevars(inner).nonlocals
            function = held["function"]
            if function.__module__ == module.__name__:
                name = f"{function.__module__}.{function.__qualname__}"
                yield name, (function, held["signature"])


def requests(steps: Iterable[Step]) -> dict[str, Request]:
    """The kernels of these steps, by the names of their entries."""
    found: dict[str, Request] = {}

    def note(program: Any, element: ElementKind, *_: Any) -> None:
        for phase in program.phases:
            kinds = phase.element or element, phase.index or program.index
            found[entry_name(phase.kernel.name, *kinds)] = phase.kernel, *kinds

    launch: Any = NativeLaunch
    before, launch.of = launch.of, note
    try:
        for step in steps:
            error = inventory.compile_ahead(*step) if step.plan != inventory.CALLS else ""
            if error:
                raise RuntimeError(error)
    finally:
        launch.of = before
    return dict(sorted(found.items()))


def entry(name: str) -> Entry:
    """What the name of an entry stands for, in any process: of a kernel for its dtypes, or of a
    function of the runtime."""
    if " " not in name:
        return _runtime()[name]
    kernel, element, index = name.split()
    module, _, attribute = kernel.rpartition(".")
    found: Kernel = getattr(import_module(module), attribute)
    return found._function, found.signature(ElementKind(element), ElementKind(index))
