"""Gradient kernels people can trust: scans, segments, embeddings, simplex maps, lerp.

Importing this package imports NumPy and the contracts of the ops; kernels, Numba and the frameworks
are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from pullback import ops as _ops
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
from pullback.cpu.pool import get_num_threads, set_num_threads
from pullback.cpu.recycle import cache_info, empty_cache, set_cache_limit
from pullback.plan.stream import Stream, Workspace
from pullback.tensor.view import TensorMut, TensorRef

__version__ = "0.1.0"

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
]

# The folders of ops/ are the registry. They are imported when the first of their names is used.
_FAMILIES = tuple(sorted(module.name for module in iter_modules(_ops.__path__) if module.ispkg))


def _load() -> dict[str, Any]:
    """Import every family and make its public names attributes of this package."""
    for family in _FAMILIES:
        module = import_module(f"pullback.ops.{family}")
        names = {name: getattr(module, name) for name in module.__all__}
        globals().update({name: getattr(value, "face", value) for name, value in names.items()})
    globals()["__all__"] = [
        *_VOCABULARY,
        *(n for f in _FAMILIES for n in import_module(f"pullback.ops.{f}").__all__),
    ]
    return globals()


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__all__":
        raise AttributeError(name)
    public = _load()
    if name in public:
        return public[name]
    raise AttributeError(f"module 'pullback' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_load()["__all__"])
