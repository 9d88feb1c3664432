"""Kernel modules without Numba.

A kernel module defines kernels, which only Numba can compile, beside programs, which say when they
run. Where a library has the kernels compiled (library.py), the modules of this package are imported
with stand-ins for `numba` and `llvmlite`: their types, decorators and IR are then names that nobody
asks about, and `pullback.cpu.kernel` is `pullback.cpu.precompiled`. Nothing else in the process
sees a stand-in.

A kernel that the library lacks is taken from a second import of its module and of what that needs,
with Numba itself, which leaves the modules in use as they are.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any, Final, TypeVar

from pullback.contract.imports import IMPORTS, uninterrupted
from pullback.cpu import library

Result = TypeVar("Result")

_STANDS_FOR: Final = ("numba", "llvmlite")
_KERNEL, _PRECOMPILED = "pullback.cpu.kernel", "pullback.cpu.precompiled"


class Inert:
    """Whatever is asked of it is another one; a class made of it is a plain class."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<stand-in for {self._name}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = _undecorated if name == "register_jitable" else Inert(f"{self._name}.{name}")
        self.__dict__[name] = found
        return found

    def __call__(self, *args: Any, **options: Any) -> Any:
        return Inert(f"{self._name}(...)")

    def __getitem__(self, key: Any) -> Any:
        return Inert(f"{self._name}[...]")

    def __or__(self, other: Any) -> Any:
        return Inert(f"{self._name} | ...")

    __ror__ = __or__

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (_Base,)


class _Base:
    """Of classes that are made of a stand-in: takes what the class it stands for may take."""

    def __init__(self, *args: Any, **options: Any) -> None: ...


def _undecorated(function: Any = None, **options: Any) -> Any:
    """Functions that kernels share are Python functions, too."""
    return _undecorated if function is None else function


_INERT: Final = {name: Inert(name) for name in _STANDS_FOR}


def _import(
    name: str,
    scope: Any = None,
    local: Any = None,
    names: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    """`__import__` as the modules of this package see it."""
    root, _, rest = name.partition(".")
    if root not in _INERT or level:
        name = _PRECOMPILED if name == _KERNEL else name
        return builtins.__import__(name, scope, local, names or (), level)
    found = _INERT[root]
    for part in rest.split(".") if rest and names else ():
        found = getattr(found, part)
    return found


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)


class _Finder:
    """Finds our modules as Python does, and loads them with stand-ins."""

    own = False  # whether modules are being imported with Numba itself

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self.own or not name.startswith("pullback.") or library.path() is None:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


_finder: Final = _Finder()


def install() -> None:
    """From now on; before the first kernel module is imported."""
    if library.folder() is not None and _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


# --- with Numba itself ---------------------------------------------------------------------------

# Modules of `cpu` that no kernel is made of: the runtime, which is in every library, and its state.
SHARED: Final = frozenset(
    (
        *("block", "buffer_pool", "buffer_pool_native", "call_cache", "call_match", "call_record"),
        *("dispatch_guard", "environment", "extended_program", "headers", "interpreter"),
        *("interrupt", "library", "native_launch", "notice", "openmp", "operands", "pages"),
        "pool",
        *("precompiled", "scan_program", "standin", "store", "threads", "workers"),
        *("xla", "xla_frame"),
    )
)

_originals: dict[str, ModuleType] = {}


def _has_kernels(name: str) -> bool:
    """Whether this may be a module that kernels are made of."""
    parts = name.split(".")
    if name == "pullback.internals.numba":
        return True
    if parts[:2] == ["pullback", "ops"]:
        return len(parts) == 4 and parts[3].startswith("cpu")
    return parts[:2] == ["pullback", "cpu"] and len(parts) == 3 and parts[2] not in SHARED


def _put(modules: dict[str, ModuleType]) -> dict[str, ModuleType]:
    """Have imports find these kernel modules and no others; those that were there."""
    before = {name: module for name, module in sys.modules.items() if _has_kernels(name)}
    for name in before.keys() | modules.keys():
        package, _, last = name.rpartition(".")
        sys.modules.pop(name, None)
        vars(sys.modules[package]).pop(last, None)
        if name in modules:
            sys.modules[name] = modules[name]
            setattr(sys.modules[package], last, modules[name])
    return before


def with_original(name: str, use: Callable[[Any], Result]) -> Result:
    """What `use` makes of the kernel "module.name", imported with Numba. Meanwhile imports find
    such modules only: what Numba loads from disk refers to them by name."""
    module, _, attribute = name.rpartition(".")
    with IMPORTS, uninterrupted():
        before, _finder.own = _put(_originals), True
        try:
            return use(getattr(import_module(module), attribute))
        finally:
            _finder.own = False
            _originals.update(_put(before))
