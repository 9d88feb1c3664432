"""What `kernel.py` offers, where a library has the kernels: the same names without Numba."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeVar

from pullback.contract.element import ElementKind
from pullback.contract.errors import Unsupported
from pullback.contract.imports import guard_forks
from pullback.cpu import library, standin

Result = TypeVar("Result")

guard_forks()


class Kernel:
    """A kernel of a library; `address` looks it up."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__doc__ = function.__doc__
        self.name = f"{function.__module__}.{function.__qualname__}"
        self._function = function
        self._addresses: dict[tuple[Any, Any], int] = {}

    def __repr__(self) -> str:
        return f"<kernel {self.name}>"

    def address(self, element: ElementKind, index: ElementKind = ElementKind.I64) -> int:
        """The C address of this kernel for tensors of `element` and indices of `index`."""
        known = self._addresses.get((element, index))
        if known is None:
            known = library.address(library.entry_name(self.name, element, index))
            if known is None:
                known = self._compiled(element, lambda kernel: int(kernel.address(element, index)))
            self._addresses[element, index] = known
        return known

    def assembly(self, element: ElementKind, index: ElementKind = ElementKind.I64) -> str:
        """The machine code, compiled anew."""
        return self._compiled(element, lambda kernel: str(kernel.assembly(element, index)))

    def _compiled(self, element: ElementKind, use: Callable[[Any], Result]) -> Result:
        """What `use` makes of the same kernel, compiled by Numba on this machine."""
        if find_spec("numba") is None:
            expected = "one of those compiled ahead (pip install 'pullback[jit]' compiles others)"
            got = f"{self.name} for {element.value}"
            raise Unsupported(self.name.rpartition(".")[2], "kernel", expected, got)
        return standin.with_original(self.name, use)


kernel = Kernel


def native(signature: Any) -> Callable[[Callable[..., Any]], Callable[[], int]]:
    """Decorator: a runtime function of the library, with a fixed C signature."""

    def wrap(function: Callable[..., Any]) -> Callable[[], int]:
        name = f"{function.__module__}.{function.__qualname__}"

        def address() -> int:
            found = library.address(name)
            if found is None:
                raise RuntimeError(f"{library.path()} lacks {name}: it was not built whole")
            return found

        return cache(address)

    return wrap


def source_hash() -> str:
    """Over all kernels: what foreign caches of compiled programs are keyed by."""
    return library.sources()


def __getattr__(name: str) -> Any:
    """Functions inside kernels: only Numba calls them."""
    if name.startswith("__"):
        raise AttributeError(name)
    return standin.Inert(f"pullback.cpu.kernel.{name}")
