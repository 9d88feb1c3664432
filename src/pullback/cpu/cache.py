"""How kernels are compiled, and the disk cache that finds them again.

Numba's own cache watches only the file of the function it caches, so an edit in a shared file goes
unnoticed. Ours files a kernel under a hash of its module and of all that module imports from this
package, directly or not, in a folder named by a hash of Python, Numba and the compile policy.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numba
from llvmlite import ir
from llvmlite.binding import parse_assembly
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator

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
_IMPORT = re.compile(r"^[ \t]*(?:from|import) (pullback[\w.]*)" + _NAMES, re.MULTILINE)


@cache
def _policy_hash() -> str:
    about = f"{numba.__version__} {sys.version} {sorted(POLICY.items())} "
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
    for module in sorted(modules):
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
    homes = [os.environ.get("PULLBACK_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME"), "~/.cache"]
    candidates = [Path(home).expanduser() / "pullback" for home in homes if home]
    candidates.append(Path(tempfile.gettempdir()) / f"pullback-{os.getuid()}")
    for candidate in candidates:
        folder = candidate / _policy_hash()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    return Path(tempfile.mkdtemp(prefix="pullback-"))


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
    _impl_class = _CacheImpl

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Without Numba's tables of all it can compile, which take longer to fill than a kernel to
        load: machine code needs none, and whoever compiles fills them."""
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)
