"""Modules over the functions; those with a counterpart in `torch.nn` load its state dict.

Rows at `padding_idx` read as zeros, whatever is stored there: that makes the gradient the adjoint.
"""

# No `from __future__ import annotations`: torch.fx pickles types, and fails at strings.
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor

import pullback
from pullback.contract.errors import InvalidProblem, Unsupported
from pullback.contract.kinds import IndexPolicy, TieRule
from pullback.tensor.adapters import overrides


class _WithGradient(torch.autograd.Function):  # type: ignore[misc]
    """A value with a gradient of its own kind: for options that belong to the gradient alone.
    `gradient` is called with the gradient of the value and `tensors`, by name, and so is what
    `others` has for one of them that needs a gradient too."""

    @staticmethod
    def forward(
        ctx: Any,
        gradient: Callable[..., Any],
        others: dict[str, Callable[..., Tensor]],
        names: tuple[str, ...],
        weight: Tensor,
        value: Tensor,
        *tensors: Tensor | None,
    ) -> Tensor:
        ctx.about = gradient, others, names, weight.shape
        ctx.save_for_backward(*tensors)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        gradient, others, names, shape = ctx.about
        tensors = dict(zip(names, ctx.saved_tensors, strict=True))
        wanted, _, *needs = ctx.needs_input_grad[3:]
        found = gradient(dout, **tensors) if wanted else None
        if isinstance(found, tuple):
            rows, values = found
            # Rows are in range and ascending: nobody has to check, or to warn that nobody did.
            kept = {"is_coalesced": True, "check_invariants": False}
            found = torch.sparse_coo_tensor(rows[None], values, shape, **kept)
        rest = [
            others[name](dout, **tensors) if need and name in others else None
            for name, need in zip(names, needs, strict=True)
        ]
        return None, None, None, found, None, *rest


_USUAL = frozenset((Tensor, torch.nn.Parameter, type(None)))


def _one_node(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """To torch.fx, whose proxies have neither rank nor values, a call is one node of the graph."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> Tensor:
        for value in args:
            if type(value) not in _USUAL and overrides(value):
                return torch.overrides.handle_torch_function(call, [value], *args, **options)
        return function(*args, **options)

    return call


class _Unscripted:
    """A module that torch.jit.script cannot compile says so in a sentence."""

    def __prepare_scriptable__(self) -> Any:
        name = type(self).__name__
        expected = "traced (torch.jit.trace) or exported (torch.export)"
        raise Unsupported(name, "module", expected, "torch.jit.script")


def _renormalise(weight: Tensor, indices: Tensor, max_norm: float | None, norm_type: float) -> None:
    """Scale the rows that are about to be looked up down to `max_norm`, in place, as PyTorch does:
    a padding row too, and without a gradient. Nothing is changed where an index is out of range:
    the lookup says so."""
    if max_norm is None or not indices.numel():
        return
    if not torch.compiler.is_compiling():
        low, high = torch.aminmax(indices)
        if low < 0 or high >= weight.shape[0]:
            return
    with torch.no_grad():
        torch.embedding_renorm_(weight.detach(), indices.contiguous(), max_norm, norm_type)


class Embedding(_Unscripted, torch.nn.Embedding):  # type: ignore[misc]
    """`torch.nn.Embedding` with a deterministic gradient, summed in order and rounded once."""

    def forward(self, input: Tensor) -> Tensor:
        return embedding(
            self.weight,
            input,
            num_embeddings=self.num_embeddings,
            padding_idx=self.padding_idx,
            scale_grad_by_freq=self.scale_grad_by_freq,
            sparse=self.sparse,
            max_norm=self.max_norm,
            norm_type=self.norm_type,
        )


@_one_node
def embedding(
    weight: Tensor,
    input: Tensor,
    *,
    num_embeddings: int,
    padding_idx: int | None,
    scale_grad_by_freq: bool,
    sparse: bool,
    max_norm: float | None = None,
    norm_type: float = 2.0,
) -> Tensor:
    """What the module `Embedding` does."""
    _renormalise(weight, input, max_norm, norm_type)
    if not scale_grad_by_freq and not sparse:
        return pullback.embedding(weight, input, padding_idx=padding_idx)
    gradient = partial(
        pullback.embedding_backward,
        num_embeddings=num_embeddings,
        padding_idx=padding_idx,
        scale_grad_by_freq=scale_grad_by_freq,
        sparse=sparse,
    )
    value = pullback.embedding(weight.detach(), input, padding_idx=padding_idx)
    return _WithGradient.apply(gradient, {}, ("indices",), weight, value, input)


class EmbeddingBag(_Unscripted, torch.nn.EmbeddingBag):  # type: ignore[misc]
    """`torch.nn.EmbeddingBag` with a deterministic gradient, summed in order and rounded once."""

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        return embedding_bag(
            self.weight,
            input,
            offsets,
            per_sample_weights,
            num_embeddings=self.num_embeddings,
            mode=self.mode,
            padding_idx=self.padding_idx,
            include_last_offset=self.include_last_offset,
            scale_grad_by_freq=self.scale_grad_by_freq,
            sparse=self.sparse,
            max_norm=self.max_norm,
            norm_type=self.norm_type,
        )


@_one_node
def embedding_bag(
    weight: Tensor,
    input: Tensor,
    offsets: Tensor | None,
    per_sample_weights: Tensor | None,
    *,
    num_embeddings: int,
    mode: str,
    padding_idx: int | None,
    include_last_offset: bool,
    scale_grad_by_freq: bool,
    sparse: bool,
    max_norm: float | None = None,
    norm_type: float = 2.0,
) -> Tensor:
    """What the module `EmbeddingBag` does: a matrix of indices is a bag per row."""
    if (offsets is None) != (input.dim() == 2):
        got = f"input of rank {input.dim()}, offsets {'missing' if offsets is None else 'given'}"
        raise InvalidProblem(
            "EmbeddingBag", "offsets", "given with a vector, left out with a matrix", got
        )
    _renormalise(weight, input, max_norm, norm_type)
    tensors: dict[str, Any] = {
        "indices": input,
        "offsets": offsets,
        "per_sample_weights": per_sample_weights,
    }
    lookup: dict[str, Any] = {
        "padding_idx": padding_idx,
        "include_last_offset": include_last_offset and offsets is not None,
    }
    bags = {"mode": mode, **lookup}
    if not scale_grad_by_freq and not sparse:
        return pullback.embedding_bag(weight, **tensors, **bags)
    table = weight.detach()
    several = mode == "max"
    value = pullback.embedding_bag(table, return_indices=several, **_constant(tensors), **bags)
    if several:
        value, tensors["output_index"] = value
    gradient = partial(
        _gradient_of_table,
        num_embeddings=num_embeddings,
        scale_grad_by_freq=scale_grad_by_freq,
        sparse=sparse,
        **bags,
    )
    weighted = per_sample_weights is not None and per_sample_weights.requires_grad
    others = {"per_sample_weights": partial(_gradient_of_weights, **lookup)} if weighted else {}
    if weighted:
        tensors["weight"] = table
    names = tuple(tensors)
    return _WithGradient.apply(gradient, others, names, weight, value, *tensors.values())


def _constant(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: None if given is None else given.detach() for name, given in tensors.items()}


def _gradient_of_table(dout: Tensor, weight: Tensor | None = None, **given: Any) -> Any:
    return pullback.embedding_bag_backward(dout, **given)


def _gradient_of_weights(
    dout: Tensor,
    *,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor | None,
    per_sample_weights: Tensor,
    **lookup: Any,
) -> Tensor:
    return pullback.embedding_bag_per_sample_weights_backward(
        dout, weight, indices, offsets, **lookup
    )


class Sparsemax(torch.nn.Module):  # type: ignore[misc]
    """The Euclidean projection onto the simplex along `dim`."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return pullback.sparsemax(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Entmax15(torch.nn.Module):  # type: ignore[misc]
    """The 1.5-entmax map along `dim`: between softmax and sparsemax."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return pullback.entmax15(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class SegmentPool(_Unscripted, torch.nn.Module):  # type: ignore[misc]
    """Rows pooled by segment: `reduce` is "sum", "mean", "max", "min" or "prod"."""

    def __init__(
        self,
        reduce: str = "sum",
        *,
        indices_are_sorted: bool = False,
        empty: float | None = None,
        ties: str | TieRule = "first",
        out_of_range: str | IndexPolicy = "error",
    ) -> None:
        super().__init__()
        if reduce not in ("sum", "mean", "max", "min", "prod"):
            expected = "'sum', 'mean', 'max', 'min' or 'prod'"
            raise InvalidProblem("SegmentPool", "reduce", expected, repr(reduce))
        self.reduce = reduce
        self.options = {
            "indices_are_sorted": indices_are_sorted,
            "empty": empty,
            "ties": ties,
            "out_of_range": out_of_range,
        }

    def forward(self, x: Tensor, segment_ids: Any, num_segments: int | None = None) -> Tensor:
        pool = getattr(pullback, f"segment_{self.reduce}")
        return pool(x, segment_ids, num_segments, **self.options)

    def extra_repr(self) -> str:
        return f"reduce={self.reduce!r}"
