"""Gradient kernels people can trust: scans, segments, embeddings, simplex maps, lerp.

Importing this package imports NumPy and the contracts of the ops; kernels, Numba and the frameworks
are loaded when first used.
"""

from __future__ import annotations

import os
from typing import Any

from pullback import ops as _ops
from pullback.arrival import after_import as _after_import
from pullback.contract.element import ElementKind, IndexElementKind
from pullback.contract.errors import (
    BufferTooSmall,
    IndexOutOfRange,
    InvalidProblem,
    KernelFailure,
    MisalignedOperand,
    PullbackError,
    Unsupported,
    WorkspaceTooSmall,
)
from pullback.contract.guarantee import KernelSku, PlanPreference, PrecisionGuarantee
from pullback.contract.imports import check_interpreter, imported, resolve
from pullback.contract.kinds import (
    BackendKind,
    BinaryKind,
    EmbeddingKind,
    IndexPolicy,
    MathPrecision,
    OpCategory,
    Reproducibility,
    ScanKind,
    SegmentKind,
    SoftmaxKind,
    TieRule,
)
from pullback.contract.naming import explain_names
from pullback.cpu.buffer_pool import cache_info, empty_cache, set_cache_limit
from pullback.cpu.pool import get_num_threads, set_num_threads
from pullback.cpu.standin import install as _install_stand_ins
from pullback.plan.stream import Stream, Workspace
from pullback.tensor.view import TensorMut, TensorRef

__version__ = "0.2.0"

check_interpreter()
_install_stand_ins()  # before the first kernel module, if kernels were compiled ahead

_VOCABULARY = [
    "BackendKind",
    "BinaryKind",
    "BufferTooSmall",
    "ElementKind",
    "EmbeddingKind",
    "IndexElementKind",
    "IndexOutOfRange",
    "IndexPolicy",
    "InvalidProblem",
    "KernelFailure",
    "KernelSku",
    "MathPrecision",
    "MisalignedOperand",
    "OpCategory",
    "PlanPreference",
    "PrecisionGuarantee",
    "PullbackError",
    "Reproducibility",
    "ScanKind",
    "SegmentKind",
    "SoftmaxKind",
    "Stream",
    "TensorMut",
    "TensorRef",
    "TieRule",
    "Unsupported",
    "Workspace",
    "WorkspaceTooSmall",
    "cache_info",
    "empty_cache",
    "get_num_threads",
    "set_cache_limit",
    "set_num_threads",
    "warm",
]

# Imported when first used, as `pullback.patch` or by an import of their own.
_SUBMODULES = ("compat", "distributed", "patch", "plans", "torch")

# The same for names that need more than a family.
_LATE = {"warm": "pullback.bench.ahead:warm"}

# The folders of ops/ are the registry. Each is imported when the first of its names is used.
_PAGES = {
    folder.name: page
    for folder in sorted(os.scandir(_ops.__path__[0]), key=lambda folder: folder.name)
    if os.path.isfile(page := os.path.join(folder.path, "__init__.py"))
}
_FAMILIES = tuple(_PAGES)


def _register_with_jax() -> None:
    """Exported JAX programs may call kernels before anybody calls a function."""
    from pullback.frontends.jax_entry import register

    register()


_after_import("jax", _register_with_jax)


def _load(family: str) -> list[str]:
    """Import a family and make its public names, which are returned, attributes of this package."""
    module = imported(f"pullback.ops.{family}")
    names: list[str] = module.__all__
    values = {name: getattr(module, name) for name in names}
    for value in values.values():
        if isinstance(value, type):
            explain_names(value)
    globals().update({name: getattr(value, "wrapper", value) for name, value in values.items()})
    return names


def _spells(family: str, name: str) -> bool:
    """Whether the front page of a family has this name: then it is asked first, not all of them."""
    with open(_PAGES[family], encoding="utf-8") as page:
        return f'"{name}"' in page.read()


def __getattr__(name: str) -> Any:
    if name == "__all__":
        globals()[name] = [*_VOCABULARY, *(n for family in _FAMILIES for n in _load(family))]
        return globals()[name]
    if name in _SUBMODULES:
        return imported(f"pullback.{name}")
    if name in _LATE:
        globals()[name] = resolve(_LATE[name])
        return globals()[name]
    if not name.startswith("__"):
        for family in sorted(_FAMILIES, key=lambda family: not _spells(family, name)):
            _load(family)
            if name in globals():
                return globals()[name]
    raise AttributeError(f"module 'pullback' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))
