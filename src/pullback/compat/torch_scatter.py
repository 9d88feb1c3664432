"""The names of the package torch_scatter 2.1: scatter, segment_csr, segment_coo, gather, softmax …

    from pullback.compat import torch_scatter     in place of `import torch_scatter`
    pullback.compat.torch_scatter.install()       for code that imports it itself, as PyG does

Floating-point data goes to the segment functions of `pullback`, so results have the same bits in
every run and for any number of threads, and have second derivatives; integers and bools go to
PyTorch. NaN wins a minimum and a maximum, where the original leaves it out. An index out of range
is an `IndexOutOfRange`. Functions can be scripted (`torch.jit.script`).
"""

# mypy: disable-error-code="no-any-return"
# No `from __future__ import annotations`: torch.jit.script reads the types of these functions.
import sys
from types import ModuleType
from typing import Optional, Tuple

import torch
from torch import Tensor

from pullback.compat import torch_scatter_reduce as on_tensors

__version__ = "2.1.2"
__all__ = [
    "gather_coo",
    "gather_csr",
    "install",
    "scatter",
    "scatter_add",
    "scatter_log_softmax",
    "scatter_logsumexp",
    "scatter_max",
    "scatter_mean",
    "scatter_min",
    "scatter_mul",
    "scatter_softmax",
    "scatter_std",
    "scatter_sum",
    "segment_add_coo",
    "segment_add_csr",
    "segment_coo",
    "segment_csr",
    "segment_max_coo",
    "segment_max_csr",
    "segment_mean_coo",
    "segment_mean_csr",
    "segment_min_coo",
    "segment_min_csr",
    "segment_sum_coo",
    "segment_sum_csr",
]

# What scripted functions call: TorchScript knows ops, not Python. Eager calls go past them.
_SCATTER = "(Tensor src, Tensor index, int dim, Tensor? out, int? dim_size)"
_CSR = "(Tensor src, Tensor indptr, Tensor? out)"
_COO = "(Tensor src, Tensor index, Tensor? out, int? dim_size)"
_PAIR = "(Tensor, Tensor)"
_OPS = {
    **{f"scatter_{name}": f"{_SCATTER} -> Tensor" for name in ("sum", "mul", "mean")},
    **{f"scatter_{name}": f"{_SCATTER} -> {_PAIR}" for name in ("min", "max")},
    **{f"segment_{name}_csr": f"{_CSR} -> Tensor" for name in ("sum", "mean")},
    **{f"segment_{name}_csr": f"{_CSR} -> {_PAIR}" for name in ("min", "max")},
    **{f"segment_{name}_coo": f"{_COO} -> Tensor" for name in ("sum", "mean")},
    **{f"segment_{name}_coo": f"{_COO} -> {_PAIR}" for name in ("min", "max")},
    "gather_csr": f"{_CSR} -> Tensor",
    "gather_coo": "(Tensor src, Tensor index, Tensor? out) -> Tensor",
    "scatter_softmax": "(Tensor src, Tensor index, int dim, int? dim_size) -> Tensor",
    "scatter_log_softmax": "(Tensor src, Tensor index, int dim, int? dim_size) -> Tensor",
    "scatter_logsumexp": f"{_SCATTER} -> Tensor",
    "scatter_std": f"{_SCATTER[:-1]}, bool unbiased) -> Tensor",
}
_LIBRARY = torch.library.Library("pullback_scatter", "DEF")
for _name, _schema in _OPS.items():
    _LIBRARY.define(_name + _schema)
    _LIBRARY.impl(_name, getattr(on_tensors, _name), "CompositeImplicitAutograd")


# --- scatter ------------------------------------------------------------------------------------


def scatter_sum(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Optional[Tensor] = None,
    dim_size: Optional[int] = None,
) -> Tensor:
    """Sum of the elements of `src` that have the same index along `dim`."""
    if torch.jit.is_scripting():
        return torch.ops.pullback_scatter.scatter_sum(src, index, dim, out, dim_size)
    else:
        return on_tensors.scatter_sum(src, index, dim, out, dim_size)


def scatter_add(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Optional[Tensor] = None,
    dim_size: Optional[int] = None,
) -> Tensor:
    """`scatter_sum`."""
    return scatter_sum(src, index, dim, out, dim_size)


def scatter_mul(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Optional[Tensor] = None,
    dim_size: Optional[int] = None,
) -> Tensor:
    """Product of the elements that have the same index; 1 where there are none."""
    if torch.jit.is_scripting():
        return torch.ops.pullback_scatter.scatter_mul(src, index, dim, out, dim_size)
    else:
        return on_tensors.scatter_mul(src, index, dim, out, dim_size)


def scatter_mean(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Optional[Tensor] = None,
    dim_size: Optional[int] = None,
) -> Tensor:
    """Mean of the elements that have the same index; integers are rounded down."""
    if torch.jit.is_scripting():
        return torch.ops.pullback_scatter.scatter_mean(src, index, dim, out, dim_size)
    else:
        return on_tensors.scatter_mean(src, index, dim, out, dim_size)


def scatter_min(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Optional[Tensor] = None,
    dim_size: Optional[int] = None,
) -> Tuple[Tensor, Tensor]:
    """(minima, their positions along `dim`); 0 and src.size(dim) where there are none."""
    if torch.jit.is_scripting():
        return torch.ops.pullback_scatter.scatter_min(src, index, dim, out, dim_size)
    else:
        return on_tensors.scatter_min(src, index, dim, out, dim_size)


def scatter_max(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Optional[Tensor] = None,
    dim_size: Optional[int] = None,
) -> Tuple[Tensor, Tensor]:
    """(maxima, their positions along `dim`); 0 and src.size(dim) where there are none."""
    if torch.jit.is_scripting():
        return torch.ops.pullback_scatter.scatter_max(src, index, dim, out, dim_size)
    else:
        return on_tensors.scatter_max(src, index, dim, out, dim_size)


def scatter(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Optional[Tensor] = None,
    dim_size: Optional[int] = None,
    reduce: str = "sum",
) -> Tensor:
    """One of the reductions above by its name: "sum" (or "add"), "mul", "mean", "min" or "max"."""
    if reduce == "sum" or reduce == "add":
        return scatter_sum(src, index, dim, out, dim_size)
    if reduce == "mul":
        return scatter_mul(src, index, dim, out, dim_size)
    elif reduce == "mean":
        return scatter_mean(src, index, dim, out, dim_size)
    elif reduce == "min":
        return scatter_min(src, index, dim, out, dim_size)[0]
    elif reduce == "max":
        return scatter_max(src, index, dim, out, dim_size)[0]
    else:
        raise ValueError("reduce must be one of sum, add, mul, mean, min, max")


# --- segments between pointers ------------------------------------------------------------------


def segment_sum_csr(src: Tensor, indptr: Tensor, out: Optional[Tensor] = None) -> Tensor:
    """Sum of `src` from each pointer to the next, along the last dimension of `indptr`."""
    if torch.jit.is_scripting():
        return torch.ops.pullback_scatter.segment_sum_csr(src, indptr, out)
    else:
        return on_tensors.segment_sum_csr(src, indptr, out)


def segment_add_csr(src: Tensor, indptr: Tensor, out: Optional[Tensor] = None) -> Tensor:
    """`segment_sum_csr`."""
    return segment_sum_csr(src, indptr, out)


def segment_mean_csr(src: Tensor, indptr: Tensor, out: Optional[Tensor] = None) -> Tensor:
    """The mean of each segment, 0 where it is empty."""
    if torch.jit.is_scripting():
        return torch.ops.pullback_scatter.segment_mean_csr(src, indptr, out)
    else:
        return on_tensors.segment_mean_csr(src, indptr, out)


def segment_min_csr(
    src: Tensor, indptr: Tensor, out: Optional[Tensor] = None
) -> Tuple[Tensor, Tensor]:
    """(minima, positions) of each segment."""
    if torch.jit.is_scripting():
        return torch.ops.pullback_scatter.segment_min_csr(src, indptr, out)
    else:
        return on_tensors.segment_min_csr(src, indptr, out)


def segment_max_csr(
    src: Tensor, indptr: Tensor, out: Optional[Tensor] = None
) -> Tuple[Tensor, Tensor]:
    """(maxima, positions) of each segment."""
    if torch.jit.is_scripting():
        return torch.ops.pullback_scatter.segment_max_csr(src, indptr, out)
    else:
        return on_tensors.segment_max_csr(src, indptr, out)


def segment_csr(
    src: Tensor, indptr: Tensor, out: Optional[Tensor] = None, reduce: str = "sum"
) -> Tensor:
    """One of the reductions above by its name."""
    if reduce == "sum" or reduce == "add":
        return segment_sum_csr(src, indptr, out)
    elif reduce == "mean":
        return segment_mean_csr(src, indptr, out)
    elif reduce == "min":
        return segment_min_csr(src, indptr, out)[0]
    elif reduce == "max":
        return segment_max_csr(src, indptr, out)[0]
    else:
        raise ValueError("reduce must be one of sum, add, mean, min, max")


def gather_csr(src: Tensor, indptr: Tensor, out: Optional[Tensor] = None) -> Tensor:
    """Each element of `src` repeated from its pointer to the next."""
    if torch.jit.is_scripting():
        return torch.ops.pullback_scatter.gather_csr(src, indptr, out)
    else:
        return on_tensors.gather_csr(src, indptr, out)


# --- segments of sorted indices -----------------------------------------------------------------


def segment_sum_coo(
    src: Tensor, index: Tensor, out: Optional[Tensor] = None, dim_size: Optional[int] = None
) -> Tensor:
    """`scatter_sum` along the last dimension of a sorted index."""
    if torch.jit.is_scripting():
        return torch.ops.pullback_scatter.segment_sum_coo(src, index, out, dim_size)
    else:
        return on_tensors.segment_sum_coo(src, index, out, dim_size)


def segment_add_coo(
    src: Tensor, index: Tensor, out: Optional[Tensor] = None, dim_size: Optional[int] = None
) -> Tensor:
    """`segment_sum_coo`."""
    return segment_sum_coo(src, index, out, dim_size)


def segment_mean_coo(
    src: Tensor, index: Tensor, out: Optional[Tensor] = None, dim_size: Optional[int] = None
) -> Tensor:
    """`scatter_mean` along the last dimension of a sorted index."""
    if torch.jit.is_scripting():
        return torch.ops.pullback_scatter.segment_mean_coo(src, index, out, dim_size)
    else:
        return on_tensors.segment_mean_coo(src, index, out, dim_size)


def segment_min_coo(
    src: Tensor, index: Tensor, out: Optional[Tensor] = None, dim_size: Optional[int] = None
) -> Tuple[Tensor, Tensor]:
    """`scatter_min` along the last dimension of a sorted index."""
    if torch.jit.is_scripting():
        return torch.ops.pullback_scatter.segment_min_coo(src, index, out, dim_size)
    else:
        return on_tensors.segment_min_coo(src, index, out, dim_size)


def segment_max_coo(
    src: Tensor, index: Tensor, out: Optional[Tensor] = None, dim_size: Optional[int] = None
) -> Tuple[Tensor, Tensor]:
    """`scatter_max` along the last dimension of a sorted index."""
    if torch.jit.is_scripting():
        return torch.ops.pullback_scatter.segment_max_coo(src, index, out, dim_size)
    else:
        return on_tensors.segment_max_coo(src, index, out, dim_size)


def segment_coo(
    src: Tensor,
    index: Tensor,
    out: Optional[Tensor] = None,
    dim_size: Optional[int] = None,
    reduce: str = "sum",
) -> Tensor:
    """One of the reductions above by its name."""
    if reduce == "sum" or reduce == "add":
        return segment_sum_coo(src, index, out, dim_size)
    elif reduce == "mean":
        return segment_mean_coo(src, index, out, dim_size)
    elif reduce == "min":
        return segment_min_coo(src, index, out, dim_size)[0]
    elif reduce == "max":
        return segment_max_coo(src, index, out, dim_size)[0]
    else:
        raise ValueError("reduce must be one of sum, add, mean, min, max")


def gather_coo(src: Tensor, index: Tensor, out: Optional[Tensor] = None) -> Tensor:
    """The elements of `src` at a sorted index."""
    if torch.jit.is_scripting():
        return torch.ops.pullback_scatter.gather_coo(src, index, out)
    else:
        return on_tensors.gather_coo(src, index, out)


# --- composites ---------------------------------------------------------------------------------


def scatter_softmax(
    src: Tensor, index: Tensor, dim: int = -1, dim_size: Optional[int] = None
) -> Tensor:
    """Softmax over the elements that have the same index."""
    if torch.jit.is_scripting():
        return torch.ops.pullback_scatter.scatter_softmax(src, index, dim, dim_size)
    else:
        return on_tensors.scatter_softmax(src, index, dim, dim_size)


def scatter_log_softmax(
    src: Tensor, index: Tensor, dim: int = -1, eps: float = 1e-12, dim_size: Optional[int] = None
) -> Tensor:
    """Its logarithm. Nothing has to be kept away from 0, so `eps` changes nothing."""
    if torch.jit.is_scripting():
        return torch.ops.pullback_scatter.scatter_log_softmax(src, index, dim, dim_size)
    else:
        return on_tensors.scatter_log_softmax(src, index, dim, dim_size)


def scatter_logsumexp(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Optional[Tensor] = None,
    dim_size: Optional[int] = None,
    eps: float = 1e-12,
) -> Tensor:
    """Logarithm of the sum of exponentials, 0 where there are none; `eps` changes nothing."""
    if torch.jit.is_scripting():
        return torch.ops.pullback_scatter.scatter_logsumexp(src, index, dim, out, dim_size)
    else:
        return on_tensors.scatter_logsumexp(src, index, dim, out, dim_size)


def scatter_std(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Optional[Tensor] = None,
    dim_size: Optional[int] = None,
    unbiased: bool = True,
) -> Tensor:
    """Standard deviation of the elements that have the same index."""
    if torch.jit.is_scripting():
        return torch.ops.pullback_scatter.scatter_std(src, index, dim, out, dim_size, unbiased)
    else:
        return on_tensors.scatter_std(src, index, dim, out, dim_size, unbiased)


def install() -> None:
    """Have `import torch_scatter`, and its modules, find this one, in this process. Before PyG is
    imported: it looks for the package once."""
    module: ModuleType = sys.modules[__name__]
    for name in ("", ".segment_csr", ".segment_coo", ".composite", ".utils"):
        sys.modules[f"torch_scatter{name}"] = module


broadcast = on_tensors.broadcast  # `torch_scatter.utils` has it
