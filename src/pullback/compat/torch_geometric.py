"""The functions of PyTorch Geometric that its layers aggregate with: `scatter` and `softmax`.

    pullback.compat.torch_geometric.install()     before or after PyG is imported

PyG asks torch_scatter for tensors on a GPU; on the CPU it composes `scatter_add_`,
`scatter_reduce_` and their gradients, with torch_scatter installed too. `install` puts the two
functions here in their place, in every module of PyG, and lets PyG find
`pullback.compat.torch_scatter`; `uninstall` undoes that. Values and gradients follow PyG: equal
maxima share the gradient, an empty group is 0. A softmax over nothing but -inf is 0, not NaN.
Integers, tensors of other devices, scripted, traced, compiled and exported calls go to PyG's own.
"""

# mypy: disable-error-code="no-any-return"
# No `from __future__ import annotations`: torch.jit.script reads the types of these functions.
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Optional

import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric.utils import _scatter, _segment, _softmax

import pullback
from pullback.compat import torch_scatter

__all__ = ["install", "scatter", "softmax", "uninstall"]

_theirs_scatter, _theirs_softmax = _scatter.scatter, _softmax.softmax
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_PLAIN = frozenset({Tensor, torch.nn.Parameter})
# PyTorch shares the gradient of equal extrema evenly.
_REDUCED: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("sum", "add"), pullback.segment_sum),
    "mean": pullback.segment_mean,
    "mul": pullback.segment_prod,
    **dict.fromkeys(("min", "amin"), partial(pullback.segment_min, ties="split")),
    **dict.fromkeys(("max", "amax"), partial(pullback.segment_max, ties="split")),
}


def scatter(
    src: Tensor, index: Tensor, dim: int = 0, dim_size: Optional[int] = None, reduce: str = "sum"
) -> Tensor:
    """`torch_geometric.utils.scatter`."""
    if torch.jit.is_scripting():
        return _theirs_scatter(src, index, dim, dim_size, reduce)
    elif reduce in _REDUCED and _is_served(src, index, dim):
        size = _count(index) if dim_size is None else dim_size
        return _REDUCED[reduce](src, index, size, axis=dim)
    else:
        return _theirs_scatter(src, index, dim, dim_size, reduce)


def softmax(
    src: Tensor,
    index: Optional[Tensor] = None,
    ptr: Optional[Tensor] = None,
    num_nodes: Optional[int] = None,
    dim: int = 0,
) -> Tensor:
    """`torch_geometric.utils.softmax`."""
    if torch.jit.is_scripting():
        return _theirs_softmax(src, index, ptr, num_nodes, dim)
    elif ptr is None and index is not None and _is_served(src, index, dim):
        size = _count(index) if num_nodes is None else num_nodes
        return pullback.segment_softmax(src, index, size, axis=dim)
    else:
        return _theirs_softmax(src, index, ptr, num_nodes, dim)


def _count(index: Tensor) -> int:
    return int(index.max()) + 1 if index.numel() else 0


def _is_recorded() -> bool:
    """Whether a graph is made of this call, for which PyG's own ops are known to every tool."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or torch.onnx.is_in_onnx_export()


def _is_served(src: Any, index: Any, dim: int) -> bool:
    if _is_recorded() or type(src) not in _PLAIN or type(index) is not Tensor:
        return False
    if src.dtype not in _FLOATS or index.dtype is not torch.int64 or index.ndim != 1:
        return False
    if not -src.ndim <= dim < src.ndim or src.size(dim) != index.size(0):
        return False
    return src.device.type == "cpu" and src.layout is torch.strided


_REPLACED: dict[str, tuple[Any, Any]] = {
    "scatter": (_theirs_scatter, scatter),
    "softmax": (_theirs_softmax, softmax),
}
_before: dict[Any, Any] = {}  # what these modules knew of torch_scatter


def _replace(old: int, new: int) -> None:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "torch_geometric":
            for attribute, pair in _REPLACED.items():
                if vars(module).get(attribute) is pair[old]:
                    setattr(module, attribute, pair[new])


def install() -> None:
    """Have PyG aggregate by the functions of this module; a second call does nothing."""
    torch_scatter.install()
    modules: tuple[Any, ...] = (torch_geometric.typing, _scatter, _segment)
    for module in modules:
        _before.setdefault(module, module.torch_scatter)
        module.torch_scatter = torch_scatter
    torch_geometric.typing.WITH_TORCH_SCATTER = True
    _replace(0, 1)


def uninstall() -> None:
    """Give PyG its own functions back, and the torch_scatter that it had found, if any."""
    _replace(1, 0)
    for module, known in _before.items():
        module.torch_scatter = known
    torch_geometric.typing.WITH_TORCH_SCATTER = torch_geometric.typing.torch_scatter is not object
    _before.clear()
