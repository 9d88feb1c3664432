"""Table lookups and bags of them as plain functions."""

from __future__ import annotations

from math import prod
from typing import Any, Literal

from pullback.contract.errors import InvalidProblem, Unsupported
from pullback.contract.kinds import EmbeddingKind, IndexPolicy
from pullback.contract.record import check_extent, check_flag, is_index
from pullback.ops.embedding.contract import (
    MODES,
    EmbeddingBackwardDescriptor,
    EmbeddingBackwardPlan,
    EmbeddingBagBackwardDescriptor,
    EmbeddingBagBackwardPlan,
    EmbeddingBagDescriptor,
    EmbeddingBagPlan,
    EmbeddingDescriptor,
    EmbeddingPlan,
)
from pullback.ops.embedding.sparse import SparseFunction
from pullback.ops.segment.index import SegmentIndex, index_tensors
from pullback.plan.function import Call, Function, Indices, Tensor, option
from pullback.tensor.view import TensorRef, check_writable

_KINDS = {EmbeddingKind(f"embedding_bag_{mode}"): mode for mode in MODES}


def _padding(op: str, padding: Any, extent: int) -> int | None:
    """None or a row of the table, counted from either end."""
    if padding is None:
        return None
    if not is_index(padding) or not -extent <= padding < extent:
        expected = f"None or in [{-extent}, {extent})"
        raise InvalidProblem(op, "padding_idx", expected, repr(padding))
    return int(padding) % extent


def _mode(op: str, mode: Any) -> str:
    name = _KINDS.get(mode, mode) if isinstance(mode, EmbeddingKind) else mode
    if name not in MODES:
        raise InvalidProblem(op, "mode", "one of 'sum', 'mean', 'max'", repr(mode))
    return str(name)


def _check_rank(op: str, argument: str, view: Any, rank: int) -> None:
    if len(view.shape) != rank:
        raise InvalidProblem(op, argument, f"of rank {rank}", f"shape {view.shape}")


def _ids(indices: Any) -> dict[str, TensorRef]:
    """The slots of indices of any shape, flat."""
    if isinstance(indices, SegmentIndex):
        return index_tensors("indices", indices)
    return {"indices": indices.folded((indices.size,))}


def _target(op: str, given: Tensor | None, shape: tuple[int, ...]) -> dict[str, TensorRef]:
    """The table that a gradient is added to, if one is given."""
    if given is None:
        return {}
    if given.shape != shape:
        raise InvalidProblem(op, "accumulate_into", f"of shape {shape}", f"shape {given.shape}")
    check_writable(given, op, "accumulate_into")
    return {"dweight": given}


def _check_sparse(op: str, sparse: Any, accumulate_into: Any) -> None:
    check_flag(op, "sparse", sparse)
    if sparse and accumulate_into is not None:
        raise InvalidProblem(op, "accumulate_into", "None with sparse=True", "an array")
    if sparse:
        raise Unsupported(op, "sparse", "False where indices are not at hand", "True")


def _admitted(op: str, call: Call, indices: Any) -> Call:
    if isinstance(indices, SegmentIndex):
        call.plan.record.admit(op, call.descriptor, indices)
    return call


@Function
def embedding(
    weight: Tensor,
    indices: Indices,
    *,
    padding_idx: int | None = None,
    out_of_range: Literal["error", "skip"] | IndexPolicy = "error",
) -> Call:
    """The rows of `weight` at `indices`: of shape indices.shape + (columns,)."""
    op = "embedding"
    _check_rank(op, "weight", weight, 2)
    rows, columns = weight.shape
    desc = EmbeddingDescriptor(
        num_embeddings=rows,
        embedding_dim=columns,
        num_indices=prod(indices.shape),
        element=weight.element,
        padding_idx=_padding(op, padding_idx, rows),
        policy=option(op, "out_of_range", out_of_range, IndexPolicy),
    )
    tensors = {"weight": weight, **_ids(indices)}
    shapes = {"out": (*indices.shape, columns)}
    return _admitted(op, Call(EmbeddingPlan, desc, tensors, ("out",), shapes), indices)


@SparseFunction
def embedding_backward(
    dout: Tensor,
    indices: Indices,
    num_embeddings: int,
    *,
    padding_idx: int | None = None,
    scale_grad_by_freq: bool = False,
    accumulate_into: Tensor | None = None,
    sparse: bool = False,
    out_of_range: Literal["error", "skip"] | IndexPolicy = "error",
) -> Call:
    """Gradient of `embedding`: for each row the sum of `dout` over the positions that hold it.

    Added to `accumulate_into` where that is given. With `sparse`, (rows that received something,
    their gradients)."""
    op = "embedding_backward"
    _check_sparse(op, sparse, accumulate_into)
    if not dout.shape:
        raise InvalidProblem(op, "dout", "of rank 1 or more", "rank 0")
    *lead, columns = dout.shape
    rows = check_extent(op, "num_embeddings", num_embeddings, columns * dout.element.itemsize)
    count = prod(indices.shape)
    # A prepared index is flat, whatever the shape of the indices it was made from.
    flat = isinstance(indices, SegmentIndex) and prod(lead) == count
    if not flat and tuple(lead) != tuple(indices.shape):
        expected = f"of shape indices.shape + (columns,), {(*indices.shape, columns)}"
        raise InvalidProblem(op, "dout", expected, f"shape {dout.shape}")
    desc = EmbeddingBackwardDescriptor(
        num_embeddings=rows,
        embedding_dim=columns,
        num_indices=count,
        element=dout.element,
        padding_idx=_padding(op, padding_idx, rows),
        policy=option(op, "out_of_range", out_of_range, IndexPolicy),
        scale_grad_by_freq=scale_grad_by_freq,
        accumulate=accumulate_into is not None,
    )
    tensors = {"dout": dout.folded((count, columns)), **_ids(indices)}
    tensors.update(_target(op, accumulate_into, (rows, columns)))
    return _admitted(op, Call(EmbeddingBackwardPlan, desc, tensors, ("dweight",)), indices)


def _bags(op: str, indices: Any, offsets: Tensor | None, include_last_offset: Any) -> int:
    """How many bags there are: as offsets say or, without them, one for each row of indices."""
    check_flag(op, "include_last_offset", include_last_offset)
    if offsets is None:
        if include_last_offset:
            raise InvalidProblem(op, "include_last_offset", "False without offsets", "True")
        return int(indices.shape[0])
    _check_rank(op, "offsets", offsets, 1)
    count = offsets.shape[0] - int(include_last_offset)
    if count < 0:
        raise InvalidProblem(op, "offsets", "one more than there are bags", "no offsets")
    return count


def _check_bags(op: str, indices: Any, offsets: Any, columns: Tensor, rows: str) -> None:
    if offsets is None and len(indices.shape) == 1:
        raise InvalidProblem(op, "offsets", "given with indices of rank 1", "None")
    _check_rank(op, "indices", indices, 2 if offsets is None else 1)
    _check_rank(op, rows, columns, 2)


def _per_position(op: str, name: str, given: Tensor | None, indices: Any) -> dict[str, TensorRef]:
    """The slot of a tensor with a value for each index, flat."""
    if given is None:
        return {}
    if given.shape != tuple(indices.shape):
        expected = f"of the shape of indices, {tuple(indices.shape)}"
        raise InvalidProblem(op, name, expected, f"shape {given.shape}")
    return {name: given.folded((given.size,))}


@Function
def embedding_bag(
    weight: Tensor,
    indices: Indices,
    offsets: Indices | None = None,
    *,
    mode: Literal["sum", "mean", "max"] | EmbeddingKind = "mean",
    padding_idx: int | None = None,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    out_of_range: Literal["error", "skip"] | IndexPolicy = "error",
    return_indices: bool = False,
) -> Call:
    """Rows of `weight` reduced in bags, which begin at `offsets`; without them `indices` are 2-D,
    and each row of them is a bag. With `return_indices` (mode "max" only), (values, the row each
    value came from, -1 where a bag is empty)."""
    op = "embedding_bag"
    _check_bags(op, indices, offsets, weight, "weight")
    check_flag(op, "return_indices", return_indices)
    rows, columns = weight.shape
    desc = EmbeddingBagDescriptor(
        num_embeddings=rows,
        embedding_dim=columns,
        num_indices=prod(indices.shape),
        element=weight.element,
        padding_idx=_padding(op, padding_idx, rows),
        policy=option(op, "out_of_range", out_of_range, IndexPolicy),
        num_bags=_bags(op, indices, offsets, include_last_offset),
        mode=_mode(op, mode),
        include_last_offset=include_last_offset,
    )
    if return_indices and desc.mode != "max":
        raise InvalidProblem(op, "return_indices", "False unless mode is 'max'", "True")
    tensors = {
        "weight": weight,
        "offsets": offsets,
        **_ids(indices),
        **_per_position(op, "per_sample_weights", per_sample_weights, indices),
    }
    returns = ("out", "output_index") if return_indices else ("out",)
    return _admitted(op, Call(EmbeddingBagPlan, desc, tensors, returns), indices)


@SparseFunction
def embedding_bag_backward(
    dout: Tensor,
    indices: Indices,
    offsets: Indices | None = None,
    num_embeddings: int | None = None,
    *,
    mode: Literal["sum", "mean", "max"] | EmbeddingKind = "mean",
    padding_idx: int | None = None,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    output_index: Indices | None = None,
    scale_grad_by_freq: bool = False,
    accumulate_into: Tensor | None = None,
    sparse: bool = False,
    out_of_range: Literal["error", "skip"] | IndexPolicy = "error",
) -> Call:
    """Gradient of `embedding_bag` with respect to the table of `num_embeddings` rows; mode "max"
    needs the forward's `output_index`. `accumulate_into` and `sparse` as in
    `embedding_backward`."""
    op = "embedding_bag_backward"
    _check_sparse(op, sparse, accumulate_into)
    _check_bags(op, indices, offsets, dout, "dout")
    columns = dout.shape[1]
    rows = check_extent(op, "num_embeddings", num_embeddings, columns * dout.element.itemsize)
    desc = EmbeddingBagBackwardDescriptor(
        num_embeddings=rows,
        embedding_dim=columns,
        num_indices=prod(indices.shape),
        element=dout.element,
        padding_idx=_padding(op, padding_idx, rows),
        policy=option(op, "out_of_range", out_of_range, IndexPolicy),
        num_bags=_bags(op, indices, offsets, include_last_offset),
        mode=_mode(op, mode),
        include_last_offset=include_last_offset,
        scale_grad_by_freq=scale_grad_by_freq,
        accumulate=accumulate_into is not None,
    )
    tensors = {
        "dout": dout,
        "offsets": offsets,
        "output_index": output_index,
        **_ids(indices),
        **_per_position(op, "per_sample_weights", per_sample_weights, indices),
        **_target(op, accumulate_into, (rows, columns)),
    }
    return _admitted(op, Call(EmbeddingBagBackwardPlan, desc, tensors, ("dweight",)), indices)


@Function
def embedding_bag_per_sample_weights_backward(
    dout: Tensor,
    weight: Tensor,
    indices: Indices,
    offsets: Indices | None = None,
    *,
    padding_idx: int | None = None,
    include_last_offset: bool = False,
    out_of_range: Literal["error", "skip"] | IndexPolicy = "error",
) -> Call:
    """Gradient of `embedding_bag` (mode "sum") with respect to the weights of samples: one number
    for each index, 0 where it is skipped or in no bag."""
    op = "embedding_bag_per_sample_weights_backward"
    _check_bags(op, indices, offsets, weight, "weight")
    rows, columns = weight.shape
    desc = EmbeddingBagBackwardDescriptor(
        num_embeddings=rows,
        embedding_dim=columns,
        num_indices=prod(indices.shape),
        element=weight.element,
        padding_idx=_padding(op, padding_idx, rows),
        policy=option(op, "out_of_range", out_of_range, IndexPolicy),
        num_bags=_bags(op, indices, offsets, include_last_offset),
        mode="sum",
        include_last_offset=include_last_offset,
    )
    tensors = {"dout": dout, "weight": weight, "offsets": offsets, **_ids(indices)}
    name = "d_per_sample_weights"
    shapes = {name: tuple(indices.shape)}
    return _admitted(op, Call(EmbeddingBagBackwardPlan, desc, tensors, (name,), shapes), indices)
