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
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numba
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
_IMPORT = re.compile(r"^\s*(?:from|import) (pullback[\w.]*)" + _NAMES, re.MULTILINE)


@cache
def _policy_hash() -> str:
    about = f"{numba.__version__} {sys.version} {sorted(POLICY.items())} "
    return _digest(about + os.environ.get("PULLBACK_SOFT_F16", ""), [])


@cache
def _imports(source: Path) -> frozenset[Path]:
    """The modules of this package that a source imports. A package may be asked for modules."""
    found: set[Path] = set()
    for module, names in _IMPORT.findall(source.read_text()):
        place = _ROOT.parent.joinpath(*module.split("."))
        candidates = [place, *(place / name for name in re.findall(r"\w+", names))]
        found.update(path for c in candidates if (path := c.with_suffix(".py")).is_file())
    return frozenset(found)


@cache
def _module_hash(module: str) -> str:
    """Over the source of a module and of all it imports."""
    found = [_ROOT.parent.joinpath(*module.split(".")).with_suffix(".py")]
    for source in found:  # which grows meanwhile
        found += _imports(source) - set(found)
    return _digest(_policy_hash(), sorted(found))


def _digest(text: str, sources: list[Path]) -> str:
    digest = hashlib.sha256(text.encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


@cache
def source_hash() -> str:
    """Over all kernels: what foreign caches of compiled programs are keyed by."""
    sources = [*_ROOT.glob("cpu/*.py"), *_ROOT.glob("ops/*/cpu*.py")]
    return _digest(_policy_hash(), [*sorted(sources), _ROOT / "contract" / "element.py"])


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
        self._stamp = _module_hash(py_func.__module__)
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


class KernelCache(FunctionCache):
    _impl_class = _CacheImpl

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Without Numba's tables of all it can compile, which take longer to fill than a kernel to
        load: machine code needs none, and whoever compiles fills them."""
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)
