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
from pullback.plan.stream import Stream, Workspace
from pullback.tensor.recycle import cache_info, empty_cache, set_cache_limit
from pullback.tensor.view import TensorMut, TensorRef

__version__ = "0.1.0"

# Every family's public names: the folders of ops/ are the registry.
_FAMILIES = tuple(sorted(module.name for module in iter_modules(_ops.__path__) if module.ispkg))
_PUBLIC: dict[str, Any] = {}
for _family in _FAMILIES:
    _module = import_module(f"pullback.ops.{_family}")
    _PUBLIC.update({name: getattr(_module, name) for name in getattr(_module, "__all__", ())})
globals().update(_PUBLIC)

__all__ = [
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
    *_PUBLIC,
]
