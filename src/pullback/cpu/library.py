"""Kernels that were compiled ahead of time: a folder of shared libraries (made by pullback.aot).

The folder holds a library of all kernels, further ones with those that gain from a better
processor, and `kernels.json`, which lists the entries. It is used if it was made of exactly these
sources; PULLBACK_LIBRARY names another folder, or with 0 none. Nothing here imports Numba or
llvmlite. What is loaded is run: the folder is trusted as the Python files of the package are, which
lie beside it.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from pullback.contract.element import ElementKind

VARIABLE: Final = "PULLBACK_LIBRARY"
MANIFEST: Final = "kernels.json"
_PACKAGE: Final = Path(__file__).resolve().parent.parent
_INCLUDED: Final = _PACKAGE / "_kernels"  # of a wheel
_COMPILED: Final = ("contract", "cpu", "ops", "tensor")  # packages whose sources are in kernels
# Words before the fields of an object: native code that reads objects was compiled for this many.
# A Python without a global lock has more.
_HEAD_WORDS: Final = 2

# What the second x86-64 level above the first asks for, and the third, as Linux names it.
_V3: Final = frozenset(("avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"))
_V4: Final = frozenset(("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"))


def folder() -> Path | None:
    """Where compiled kernels may be, whether or not they can be used."""
    named = os.environ.get(VARIABLE, "").strip()
    if named == "0":
        return None
    place = Path(named) if named else _INCLUDED
    return place if (place / MANIFEST).is_file() else None


def entry_name(kernel: str, element: ElementKind, index: ElementKind) -> str:
    """What the manifest calls a kernel for tensors of `element` and indices of `index`."""
    return f"{kernel} {element.value} {index.value}"


@cache
def sources() -> str:
    """Over all files that kernels are compiled from."""
    digest = hashlib.sha256()
    for package in _COMPILED:
        for path in sorted((_PACKAGE / package).rglob("*.py")):
            digest.update(path.relative_to(_PACKAGE).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def write_manifest(place: Path, symbols: dict[str, str]) -> None:
    """List the entries of a library, each with the symbol of its code."""
    text = json.dumps({"sources": sources(), "entries": symbols}, indent=0)
    (place / MANIFEST).write_text(text + "\n", encoding="utf-8")


@cache
def _manifest() -> dict[str, Any]:
    place = folder()
    assert place is not None
    found: dict[str, Any] = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
    return found


@cache
def refusal() -> str:
    """Why kernels are compiled on demand; empty if they come from a library."""
    place = folder()
    if place is None:
        return "no library of kernels is installed"
    if object.__basicsize__ != 8 * _HEAD_WORDS:
        return "this Python has no global lock, for which kernels are not compiled ahead"
    if _is_told_otherwise():
        return "the environment asks for other machine code than that of the library"
    if _manifest()["sources"] != sources():
        return f"the library in {place} was made of other sources"
    if not any((place / f"{target}.so").is_file() for target in targets()):
        return f"the library in {place} has nothing for this processor"
    return ""


def _is_told_otherwise() -> bool:
    """Whether the environment asks for code that only a compiler here can make."""
    asked = ("PULLBACK_SOFT_F16", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_DISABLE_JIT")
    return any(os.environ.get(name) for name in asked)


@cache
def targets() -> tuple[str, ...]:
    """What this processor can run, the best first."""
    if sys.platform != "linux" or sys.byteorder != "little":
        return ()
    machine = platform.machine()
    if machine == "aarch64":
        return ("aarch64",)
    flags = _flags() if machine == "x86_64" else frozenset()
    if not flags >= _V3:
        return ()
    return ("x86-64-v4", "x86-64-v3") if flags >= _V4 else ("x86-64-v3",)


def _flags() -> frozenset[str]:
    """What the processor has; nothing where nobody says so."""
    path = "/proc/cpuinfo"
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("flags"):
                return frozenset(line.partition(":")[2].split())
    return frozenset()


@cache
def paths() -> tuple[Path, ...]:
    """The libraries in use, the one of the best processor first: kernels that it does not have are
    taken from the next. None where kernels are compiled on demand."""
    place = folder()
    if place is None or refusal():
        return ()
    there = (place / f"{target}.so" for target in targets())
    return tuple(library for library in there if library.is_file())


def path() -> Path | None:
    """The library that has all kernels and the runtime; None if kernels are compiled on demand."""
    return paths()[-1] if paths() else None


@cache
def _loaded() -> list[ctypes.CDLL]:
    return [ctypes.CDLL(str(path)) for path in paths()]


@cache
def _symbols() -> dict[str, str]:
    found: dict[str, str] = _manifest()["entries"] if path() else {}
    return found


def entries() -> list[str]:
    """What the library in use has."""
    return list(_symbols())


def address(entry: str) -> int | None:
    """The C address of an entry; None if the library does not have it."""
    symbol = _symbols().get(entry)
    return None if symbol is None else address_of(symbol)


def address_of(symbol: str) -> int:
    """The address of a symbol of the libraries in use."""
    *better, last = _loaded()
    for library in better:
        with suppress(ValueError):
            return ctypes.addressof(ctypes.c_char.in_dll(library, symbol))
    return ctypes.addressof(ctypes.c_char.in_dll(last, symbol))
