"""Which ops of PyTorch can be served, by their names below `aten::`: each takes what the op takes,
and gives NotImplemented for a form that is left to PyTorch.

Each op here has a CPU kernel of its own in PyTorch, and was measured to gain: the scans along the
first axis, logcumsumexp, gradients of tables, sums and reductions over segments. Softmax has no
gain that is worth it. Kernels see NumPy arrays of the same memory: below autograd, where these run,
that is the short way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

import pullback

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
INDICES = frozenset({torch.int32, torch.int64})
SUM, MEAN = 0, 1  # modes of bags


def _plain(*tensors: Tensor) -> bool:
    """Floats in memory as they are, all of one dtype."""
    first = tensors[0].dtype
    return first in FLOATS and all(
        t.dtype == first and t.layout is torch.strided and not t.is_neg() for t in tensors
    )


def _array(tensor: Tensor) -> Any:
    if tensor.dtype is torch.bfloat16:
        return tensor.detach().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.detach().numpy()


def _tensor(array: Any) -> Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _scan(name: str) -> Any:
    def served(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
        if not _plain(self) or self.ndim == 0 or dtype not in (None, self.dtype):
            return NotImplemented
        out = torch.empty(self.shape, dtype=self.dtype)
        getattr(pullback, name)(_array(self), dim, out=_array(out))
        return out

    return served


def _extremum(name: str) -> Any:
    """The last of equal elements is the one."""

    def served(self: Tensor, values: Tensor, indices: Tensor, dim: int) -> Any:
        if not _plain(self, values) or self.ndim == 0:
            return NotImplemented
        out = _array(values), _array(indices)
        getattr(pullback, name)(_array(self), dim, return_indices=True, ties="last", out=out)
        return None

    return served


# --- tables -------------------------------------------------------------------------------------


def embedding_dense_backward(
    grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Any:
    """Indices that are no row of the table are passed over."""
    if not _plain(grad) or indices.dtype not in INDICES:
        return NotImplemented
    table = pullback.embedding_backward(
        _array(grad),
        _array(indices),
        num_weights,
        padding_idx=padding_idx if padding_idx >= 0 else None,
        scale_grad_by_freq=scale_grad_by_freq,
        out_of_range="skip",
    )
    return _tensor(table)


def _embedding_bag_dense_backward(
    grad: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Any:
    if not _plain(grad) or mode not in (SUM, MEAN) or scale_grad_by_freq:
        return NotImplemented
    if offset2bag.numel() != indices.numel() or offset2bag.dtype != indices.dtype:
        return NotImplemented
    weights = per_sample_weights
    if weights is not None and (mode == MEAN or weights.dtype != grad.dtype):
        return NotImplemented
    if mode == MEAN:
        grad = grad / bag_size.clamp(min=1).to(grad.dtype)[:, None]
    rows = indices if padding_idx < 0 else torch.where(indices == padding_idx, -1, indices)
    ids = _array(offset2bag), _array(rows)
    weights_ = None if weights is None else _array(weights)
    table = pullback.gather_segment_reduce(
        _array(grad), *ids, num_weights, weights=weights_, out_of_range="skip"
    )
    return _tensor(table)


def _embedding_bag_per_sample_weights_backward(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Any:
    if not _plain(grad, weight) or mode != SUM:
        return NotImplemented
    if offset2bag.numel() != indices.numel() or offset2bag.dtype != indices.dtype:
        return NotImplemented
    bags = offset2bag if padding_idx < 0 else torch.where(indices == padding_idx, -1, offset2bag)
    found = pullback.gather_segment_reduce_weights_backward(
        *map(_array, (grad, weight, indices, bags)), out_of_range="skip"
    )
    return _tensor(found)


# --- segments -----------------------------------------------------------------------------------


NARROW = 16  # elements of a slice: narrower ones PyTorch adds as fast


def _add_rows(self: Tensor, dim: int, ids: Tensor, source: Tensor) -> Any:
    if source.numel() < NARROW * ids.numel() or source.numel() < self.numel():
        return NotImplemented  # a few rows into many: PyTorch copies and touches only those
    sums = pullback.segment_sum(_array(source), _array(ids), self.shape[dim], axis=dim)
    return _tensor(sums).add_(self)


def scatter_add(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Any:
    """Where an index names whole slices: one id for each, expanded to the shape of src."""
    if not _plain(self, src) or self.ndim == 0 or index.dtype is not torch.int64:
        return NotImplemented
    if not -self.ndim <= dim < self.ndim:
        return NotImplemented
    dim %= self.ndim
    others = [axis for axis in range(self.ndim) if axis != dim]
    if index.shape != src.shape or any(index.stride(axis) for axis in others):
        return NotImplemented
    if any(self.shape[axis] != src.shape[axis] for axis in others):
        return NotImplemented
    ids = index[tuple(slice(None) if axis == dim else 0 for axis in range(self.ndim))]
    return _add_rows(self, dim, ids, src)


def index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Any:
    if not _plain(self, source) or self.ndim == 0 or index.ndim != 1 or alpha != 1:
        return NotImplemented
    if not -self.ndim <= dim < self.ndim:
        return NotImplemented
    dim %= self.ndim
    sides = [(*t.shape[:dim], *t.shape[dim + 1 :]) for t in (self, source)]
    if index.dtype not in INDICES or source.ndim != self.ndim or sides[0] != sides[1]:
        return NotImplemented
    return _add_rows(self, dim, index, source)


EMPTY = {"sum": 0.0, "mean": torch.nan, "max": -torch.inf, "min": torch.inf, "prod": 1.0}


def _borders(lengths: Tensor | None, offsets: Tensor | None) -> Tensor | None:
    """Of segments along the first axis; None for batches of them."""
    if offsets is not None:
        return offsets if offsets.ndim == 1 else None
    if lengths is None or lengths.ndim != 1:
        return None
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> Any:
    borders = _borders(lengths, offsets)
    served = reduce in EMPTY and axis == 0 and initial is None and indices is None
    if not _plain(data) or borders is None or not served:
        return NotImplemented
    given = {"offsets": _array(borders), "empty": EMPTY[reduce]}
    return _tensor(getattr(pullback, f"segment_{reduce}")(_array(data), **given))


# Each with the number of elements from which on it is served, and the positions of the arguments
# the largest of which is counted. Below, the Python between PyTorch and us, about 5 µs, outweighs
# what is gained.
SERVED: dict[str, tuple[Callable[..., Any], int, tuple[int, ...]]] = {
    "cumsum": (_scan("cumsum"), 1 << 17, (0,)),
    "cumprod": (_scan("cumprod"), 1 << 17, (0,)),
    "_logcumsumexp": (_scan("logcumsumexp"), 1 << 12, (0,)),
    "_cummax_helper": (_extremum("cummax"), 1 << 17, (0,)),
    "_cummin_helper": (_extremum("cummin"), 1 << 17, (0,)),
    "embedding_dense_backward": (embedding_dense_backward, 1 << 17, (0,)),
    "_embedding_bag_dense_backward": (_embedding_bag_dense_backward, 1 << 17, (0, 1)),
    "_embedding_bag_per_sample_weights_backward": (
        _embedding_bag_per_sample_weights_backward,
        1 << 17,
        (0, 1, 2),
    ),
    "scatter_add": (scatter_add, 1 << 19, (3,)),
    "index_add": (index_add, 1 << 19, (3,)),
    "segment_reduce": (segment_reduce, 1 << 16, (0,)),
}
