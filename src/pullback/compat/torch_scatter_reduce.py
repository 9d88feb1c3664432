"""What the functions of `compat.torch_scatter` do to tensors.

An index that differs along `dim` only is a list of segment ids. Any other index is one of single
elements: they are numbered row by row, so that each row of an index has segments of its own.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

import pullback

Pair = tuple[Tensor, Tensor]


def broadcast(src: Tensor, other: Tensor, dim: int) -> Tensor:
    """An index as it lies along a tensor: one dimension at `dim`, several from the first on."""
    dim = dim + other.dim() if dim < 0 else dim
    if src.dim() == 1:
        src = src.reshape((1,) * dim + tuple(src.shape))
    src = src.reshape(tuple(src.shape) + (1,) * (other.dim() - src.dim()))
    return src.expand(other.shape)


def _size(index: Tensor, dim: int, out: Tensor | None, dim_size: int | None) -> int:
    """How many segments there are."""
    if out is not None:
        return int(out.size(dim))
    if dim_size is not None:
        return dim_size
    return int(index.max()) + 1 if index.numel() else 0


def _ids(index: Tensor, dim: int) -> Tensor | None:
    """An index that is the same along all other dimensions, as a list; else None."""
    for axis in range(index.dim()):
        if axis != dim and index.size(axis) != 1 and index.stride(axis) != 0:
            return None
    for axis in range(index.dim()):
        if axis != dim and not index.size(axis):
            return None
    where = tuple(slice(None) if axis == dim else 0 for axis in range(index.dim()))
    return index[where]


class _Groups:
    """Elements of `src` by their index along `dim`."""

    def __init__(
        self, src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None
    ) -> None:
        self.dim = dim + src.dim() if dim < 0 else dim
        self.index = broadcast(index, src, self.dim)
        self.src, self.out = src, out
        self.count = src.size(self.dim)
        self.size = _size(index, self.dim, out, dim_size)
        self.shape = (*src.shape[: self.dim], self.size, *src.shape[self.dim + 1 :])
        self.ids = _ids(self.index, self.dim)

    def call(self, function: Callable[..., Any], per_row: bool = False, **options: Any) -> Any:
        """A segment function on these elements; `per_row`: its result has the shape of `src`."""
        if self.ids is not None:
            return function(self.src, self.ids, self.size, axis=self.dim, **options)
        rows = self.src.movedim(self.dim, -1)
        index = self.index.movedim(self.dim, -1)
        lead = rows.shape[:-1]
        first = torch.arange(prod(lead), device=index.device).reshape(*lead, 1) * self.size
        ids = (index + first).reshape(-1)
        found = function(rows.reshape(-1), ids, prod(lead) * self.size, **options)
        count = self.count if per_row else self.size

        def back(flat: Tensor) -> Tensor:
            return flat.reshape(*lead, count).movedim(-1, self.dim)

        if not isinstance(found, tuple):
            return back(found)
        values, places = found
        places = torch.where(places < 0, -1, places % max(self.count, 1))
        return back(values), back(places)

    def counts(self) -> Tensor:
        """How many elements each place of the result has, at least 1, in a shape that broadcasts
        with it."""
        one = self.src.new_ones((), dtype=torch.int64)
        if self.ids is not None:
            held = torch.bincount(self.ids, minlength=self.size)
            shape = [1] * self.src.dim()
            shape[self.dim] = self.size
            return held.reshape(shape).clamp(min=1)
        held = torch.zeros(self.shape, dtype=torch.int64, device=self.src.device)
        return held.scatter_add_(self.dim, self.index, one.expand(self.src.shape)).clamp(min=1)


def _scattered(groups: _Groups, kind: str, start: Tensor) -> Tensor:
    """Data that is not floating-point, by PyTorch, added to `start`."""
    narrow = start.to(torch.uint8) if start.dtype is torch.bool else start
    src = groups.src.to(narrow.dtype)
    if kind == "sum" and start.dtype is not torch.bool:
        return narrow.scatter_add(groups.dim, groups.index, src)
    name = {"sum": "amax", "prod": "prod", "min": "amin", "max": "amax"}[kind]
    return narrow.scatter_reduce(groups.dim, groups.index, src, name).to(start.dtype)


def _is_exact(src: Tensor) -> bool:
    return not src.is_floating_point()


def _written(out: Tensor | None, found: Tensor) -> Tensor:
    return found if out is None else out.copy_(found)


# --- scatter ------------------------------------------------------------------------------------


def scatter_sum(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> Tensor:
    groups = _Groups(src, index, dim, out, dim_size)
    if _is_exact(src):
        start = src.new_zeros(groups.shape) if out is None else out
        return _written(out, _scattered(groups, "sum", start))
    found = groups.call(pullback.segment_sum)
    return found if out is None else out.add_(found)


def scatter_mul(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> Tensor:
    groups = _Groups(src, index, dim, out, dim_size)
    if _is_exact(src):
        start = src.new_ones(groups.shape) if out is None else out
        return _written(out, _scattered(groups, "prod", start))
    found = groups.call(pullback.segment_prod)
    return found if out is None else out.mul_(found)


def scatter_mean(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> Tensor:
    if src.is_floating_point() and out is None:
        return _Groups(src, index, dim, out, dim_size).call(pullback.segment_mean)
    total = scatter_sum(src, index, dim, out, dim_size)
    counts = _Groups(src, index, dim, total, None).counts()
    if total.is_floating_point():
        return total.div_(counts)
    return total.div_(counts.to(total.dtype), rounding_mode="floor")


def _extremum(kind: str, groups: _Groups) -> Pair:
    """The extrema of elements that are there, and their positions; -1 where there are none."""
    src = groups.src
    if src.is_floating_point():
        function = pullback.segment_max if kind == "max" else pullback.segment_min
        values, places = groups.call(function, return_indices=True)
        return values, places
    wide = src.to(torch.int64) if src.dtype is torch.bool else src
    info = torch.iinfo(wide.dtype)
    worst = info.min if kind == "max" else info.max
    start = torch.full(groups.shape, worst, dtype=wide.dtype, device=src.device)
    name = "amax" if kind == "max" else "amin"
    best = start.scatter_reduce(groups.dim, groups.index, wide, name)
    shape = [1] * src.dim()
    shape[groups.dim] = groups.count
    at = torch.arange(groups.count, device=src.device).reshape(shape).expand(src.shape)
    at = torch.where(wide == best.gather(groups.dim, groups.index), at, groups.count)
    none = torch.full(groups.shape, groups.count, device=src.device)
    places = none.scatter_reduce(groups.dim, groups.index, at, "amin")
    return best.to(src.dtype), torch.where(places == groups.count, -1, places)


def _scatter_extremum(
    kind: str, src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None
) -> Pair:
    groups = _Groups(src, index, dim, out, dim_size)
    values, places = _extremum(kind, groups)
    none = places < 0
    if out is None:
        return values.masked_fill(none, 0), places.masked_fill(none, groups.count)
    better = values > out if kind == "max" else values < out
    better = ~none & (better | (values != values))
    out.copy_(torch.where(better, values, out))
    return out, places.masked_fill(~better, groups.count)


def scatter_min(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> Pair:
    return _scatter_extremum("min", src, index, dim, out, dim_size)


def scatter_max(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> Pair:
    return _scatter_extremum("max", src, index, dim, out, dim_size)


# --- segments -----------------------------------------------------------------------------------


def _along(index: Tensor, src: Tensor) -> Tensor:
    """An index whose last dimension is the one that is reduced, over those before it."""
    dim = index.dim() - 1
    return index.expand(*src.shape[:dim], index.size(dim))


def _index_of(indptr: Tensor, count: int) -> Tensor:
    """The segment of each position; one more than there are for positions in none."""
    at = torch.arange(count, device=indptr.device).expand(*indptr.shape[:-1], count)
    return torch.searchsorted(indptr.contiguous(), at.contiguous(), right=True) - 1


def _segment_csr(kind: str, src: Tensor, indptr: Tensor, out: Tensor | None) -> Any:
    dim = indptr.dim() - 1
    size = max(indptr.size(dim) - 1, 0)
    if indptr.numel() == 0 or src.numel() == 0:
        shape = (*src.shape[:dim], size, *src.shape[dim + 1 :])
        found = src.new_zeros(shape) + 0 * src.sum()
        places = torch.full(shape, src.size(dim), device=src.device)
        found = _written(out, found)
        return found if kind in ("sum", "mean") else (found, places)
    shared = indptr[(0,) * dim]
    plain = dim == 0 or all(indptr.size(k) == 1 or indptr.stride(k) == 0 for k in range(dim))
    if (
        plain
        and src.is_floating_point()
        and int(shared[0]) == 0
        and int(shared[-1]) == src.size(dim)
    ):
        options = {"offsets": shared, "axis": dim}
        if kind in ("sum", "mean"):
            function = pullback.segment_sum if kind == "sum" else pullback.segment_mean
            return _written(out, function(src, **options))
        function = pullback.segment_max if kind == "max" else pullback.segment_min
        values, places = function(src, return_indices=True, **options)
        none = places < 0
        values, places = values.masked_fill(none, 0), places.masked_fill(none, src.size(dim))
        return _written(out, values), places
    index = _index_of(_along(indptr, src), src.size(dim))
    # Positions before the first pointer and after the last belong to a segment that is left out.
    index = torch.where(index < 0, size, index)
    reduce = {"sum": scatter_sum, "mean": scatter_mean, "min": scatter_min, "max": scatter_max}[
        kind
    ]
    found = reduce(src, broadcast(index, src, dim), dim, None, size + 1)
    if kind in ("sum", "mean"):
        return _written(out, found.narrow(dim, 0, size))
    values, places = (part.narrow(dim, 0, size) for part in found)
    return _written(out, values), places


def segment_sum_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    return _segment_csr("sum", src, indptr, out)


def segment_mean_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    return _segment_csr("mean", src, indptr, out)


def segment_min_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Pair:
    return _segment_csr("min", src, indptr, out)


def segment_max_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Pair:
    return _segment_csr("max", src, indptr, out)


def gather_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    dim = indptr.dim() - 1
    if indptr.numel() == 0:
        return _written(out, src.narrow(dim, 0, 0) if src.size(dim) else src.clone())
    count = int(indptr.flatten()[-1])
    index = _index_of(_along(indptr, src), count)
    return gather_coo(src, index, out)


def _coo(function: Any, src: Tensor, index: Tensor, out: Any, dim_size: Any) -> Any:
    dim = index.dim() - 1
    return function(src, broadcast(_along(index, src), src, dim), dim, out, dim_size)


def segment_sum_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    return _coo(scatter_sum, src, index, out, dim_size)


def segment_mean_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    return _coo(scatter_mean, src, index, out, dim_size)


def segment_min_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> Pair:
    return _coo(scatter_min, src, index, out, dim_size)


def segment_max_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> Pair:
    return _coo(scatter_max, src, index, out, dim_size)


def gather_coo(src: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    dim = index.dim() - 1
    index = _along(index, src)
    ids = _ids(index, dim)
    if ids is not None:
        return _written(out, src.index_select(dim, ids))
    shape = (*index.shape, *src.shape[dim + 1 :])
    wide = index.reshape(*index.shape, *(1,) * (src.dim() - index.dim())).expand(shape)
    return _written(out, src.gather(dim, wide))


# --- composites ---------------------------------------------------------------------------------


def _floats(op: str, src: Tensor) -> None:
    if not src.is_floating_point():
        raise ValueError(f"`{op}` can only be computed over tensors of floating-point data")


def scatter_softmax(
    src: Tensor, index: Tensor, dim: int = -1, dim_size: int | None = None
) -> Tensor:
    _floats("scatter_softmax", src)
    groups = _Groups(src, index, dim, None, dim_size)
    return groups.call(pullback.segment_softmax, per_row=True)


def scatter_log_softmax(
    src: Tensor, index: Tensor, dim: int = -1, dim_size: int | None = None
) -> Tensor:
    _floats("scatter_log_softmax", src)
    groups = _Groups(src, index, dim, None, dim_size)
    return groups.call(pullback.segment_log_softmax, per_row=True)


def scatter_logsumexp(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> Tensor:
    _floats("scatter_logsumexp", src)
    found: Tensor = _Groups(src, index, dim, out, dim_size).call(pullback.segment_logsumexp)
    if out is None:
        return torch.where(found == -torch.inf, 0.0, found)
    joined = torch.logaddexp(out, found)
    return out.copy_(torch.where(joined.isfinite(), joined, out))


def scatter_std(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    unbiased: bool = True,
) -> Tensor:
    groups = _Groups(src, index, dim, out, dim_size)
    if out is None:
        found: Tensor = groups.call(pullback.segment_std, ddof=int(unbiased))
        return found
    counts = groups.counts()
    squares = groups.call(pullback.segment_var) * counts
    return (out.add_(squares) / (counts - int(unbiased)).clamp(min=1)).sqrt()
