"""What is used of Triton beyond its documented API: compilation for a GPU that is not there, and
the cache of what was compiled. Launches on a GPU need none of it. Without a GPU, tests run kernels
in Triton's interpreter, which `gpu/interpreter.py` mends."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import triton


def _required(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"pullback: triton {triton.__version__} has no {module}.{name}; tried with 3.7 to 3.9"
        ) from error


ASTSource: Any = _required("triton.compiler", "ASTSource")
GPUTarget: Any = _required("triton.backends.compiler", "GPUTarget")
OutOfResources: Any = _required("triton.runtime.errors", "OutOfResources")
create_function_from_signature: Any = _required(
    "triton.runtime.jit", "create_function_from_signature"
)
get_cache_manager: Any = _required("triton.runtime.cache", "get_cache_manager")
get_ptxas: Any = _required("triton.backends.nvidia.compiler", "get_ptxas")
ir: Any = _required("triton._C.libtriton", "ir")
make_backend: Any = _required("triton.compiler", "make_backend")
sm_arch_from_capability: Any = _required(
    "triton.backends.nvidia.compiler", "sm_arch_from_capability"
)
