"""How kernels are compiled, and the disk cache that finds them again.

Numba's own cache watches only the file of the function it caches, so an edit in a shared file goes
unnoticed. Ours files a kernel under a hash of its module and of all that module imports from this
package, directly or not, in a folder named by a hash of Python, Numba and the compile policy. What
the folder is and which of its files are trusted stands in store.py.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import llvmlite
import numba
from llvmlite import ir
from llvmlite.binding import parse_assembly
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator
from numba.core.serialize import dumps

from pullback.cpu import store

# No fastmath: association is what the kernel's source says, on every machine.
POLICY: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "boundscheck": False,
    "no_cpython_wrapper": True,
    "_nrt": False,
}

_ROOT = Path(__file__).resolve().parent.parent
_NAMES = r"(?: import ([^\n(]*(?:\([^)]*\))?))?"
_WORD = re.compile(r"\w+")
# Modules that kernels import and that have no part in their code: an edit there compiles nothing.
_ASIDE = frozenset(
    (
        "pullback.contract.errors",
        "pullback.contract.imports",
        "pullback.cpu.notice",
        "pullback.cpu.program",
        "pullback.cpu.store",
    )
)
_IMPORT = re.compile(r"^[ \t]*(?:from|import) (pullback[\w.]*)" + _NAMES, re.MULTILINE)


@cache
def _policy_hash() -> str:
    about = f"{numba.__version__} {llvmlite.__version__} {sys.version} {sorted(POLICY.items())} "
    return _digest(about + os.environ.get("PULLBACK_SOFT_F16", ""), [])


@cache
def _sources() -> dict[str, Path]:
    """The modules of this package, by name."""
    home, found = str(_ROOT.parent), {}
    for folder, _, names in os.walk(_ROOT):
        package = folder[len(home) + 1 :].replace(os.sep, ".")
        modules = (name for name in names if name.endswith(".py"))
        found.update({f"{package}.{name[:-3]}": Path(folder, name) for name in modules})
    return found


@cache
def _read(module: str) -> bytes:
    return _sources()[module].read_bytes()


@cache
def imports(module: str) -> frozenset[str]:
    """The modules of this package that one imports. A package may be asked for modules."""
    found: set[str] = set()
    for name, names in _IMPORT.findall(_read(module).decode()):
        found.add(name)
        found.update(f"{name}.{part}" for part in _WORD.findall(names))
    return frozenset(found & _sources().keys())


@cache
def module_hash(module: str) -> str:
    """Over the source of a module and of all it imports."""
    found = [module]
    for name in found:  # which grows meanwhile
        found += imports(name) - set(found)
    return _digest(_policy_hash(), found)


def _digest(text: str, modules: Iterable[str]) -> str:
    digest = hashlib.sha256(text.encode())
    for module in sorted(set(modules) - _ASIDE):
        digest.update(_read(module))
    return digest.hexdigest()[:16]


@cache
def source_hash() -> str:
    """Over all kernels: what foreign caches of compiled programs are keyed by."""
    own = re.compile(r"pullback\.(cpu\.\w+|ops\.\w+\.cpu\w*|contract\.element)")
    return _digest(_policy_hash(), filter(own.fullmatch, _sources()))


@cache
def cache_folder() -> Path:
    """Where compiled kernels live: PULLBACK_CACHE_DIR, else the user's cache, else a temporary
    folder when neither can be written (a read-only home)."""
    store.limit()  # a sentence now, not after a kernel has been compiled
    homes = [os.environ.get("PULLBACK_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME"), "~/.cache"]
    return store.private_folder(homes, _policy_hash())


class _Locator(_CacheLocator):
    def __init__(self, py_func: Any, py_file: str) -> None:
        self._stamp = module_hash(py_func.__module__)
        self._name = f"{self._stamp} {py_func.__module__}:{py_func.__code__.co_firstlineno}"

    def get_cache_path(self) -> str:
        return str(cache_folder())

    def get_source_stamp(self) -> str:
        return self._stamp

    def get_disambiguator(self) -> str:
        return hashlib.sha256(self._name.encode()).hexdigest()[:10]

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _Locator:
        return cls(py_func, py_file)


class _CacheImpl(CompileResultCacheImpl):
    _locator_classes: ClassVar[list[type]] = [_Locator]

    def reduce(self, data: Any) -> Any:
        """Without the bitcode, by which others would link the kernel: to read it takes as long as
        all the rest. What stays of it is which symbols there are."""
        (name, kind, (machine_code, _)), *rest = super().reduce(data)
        return (name, kind, (machine_code, symbols_of(data.library._final_module))), *rest


def symbols_of(module: Any) -> bytes:
    """The bitcode of a module that defines the same symbols, all as nothing."""
    bare, byte = ir.Module(), ir.IntType(8)
    for function in module.functions:
        if not function.is_declaration:
            same = ir.Function(bare, ir.FunctionType(ir.VoidType(), ()), function.name)
            ir.IRBuilder(same.append_basic_block()).ret_void()
    for variable in module.global_variables:
        if not variable.is_declaration:
            ir.GlobalVariable(bare, byte, variable.name).initializer = byte(0)
    return bytes(parse_assembly(str(bare)).as_bitcode())


class KernelCache(FunctionCache):
    """One file for each function, signature and machine, the hash of all of which is its name."""

    _impl_class = _CacheImpl

    def _file_name(self, sig: Any, codegen: Any) -> str:
        key = hashlib.sha256(repr(self._index_key(sig, codegen)).encode()).hexdigest()
        return f"{self._impl.filename_base}-{key[:16]}{store.SUFFIX}"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Without Numba's tables of all it can compile, which take longer to fill than a kernel to
        load: machine code needs none, and whoever compiles fills them."""
        kept = store.load(cache_folder(), self._file_name(sig, target_context.codegen()))
        return None if kept is None else self._impl.rebuild(target_context, pickle.loads(kept))

    def save_overload(self, sig: Any, data: Any) -> None:
        if self._impl.check_cachable(data):
            kept = dumps(self._impl.reduce(data))
            store.save(cache_folder(), self._file_name(sig, data.codegen), kept)
