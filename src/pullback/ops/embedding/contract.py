r"""Embeddings and bags of them: what they compute, what they need, what they promise.

A position is kept if its index is in range and not `padding_idx`; others read as zeros and receive
nothing. With v = indices[n], and bag b the positions from offsets[b] to the next offset (without
offsets, all bags have the same number of positions):

    embedding   out[n] = weight[v]                  dweight[v] = Σ dout[n], in ascending order of n
    bag sum     out[b] = Σ weight[v] · p[n]         dweight[v] = Σ dout[b] · p[n],
                                                    dp[n] = Σ_d dout[b, d] · weight[v, d]
    bag mean    out[b] = Σ weight[v] / kept         dweight[v] = Σ dout[b] / kept
    bag max     out[b] = max weight[v]              dweight[output_index[b, d], d] += dout[b, d]

p are the per-sample weights, 1 if there are none. An empty bag is 0, and its output_index -1. NaN
wins a maximum; among equals the first position of the bag does. `scale_grad_by_freq` divides a
row's gradient by the number of kept positions that hold it. A gradient is one sum per row, added to
what is there in one rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.errors import IndexOutOfRange, InvalidProblem, Unsupported
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import (
    BackendKind,
    EmbeddingKind,
    IndexPolicy,
    OpCategory,
    Reproducibility,
)
from pullback.contract.record import (
    INDEX,
    Failure,
    PlanRecord,
    Role,
    Slot,
    check_element,
    check_extent,
    check_flag,
    check_option,
    is_index,
    resolve,
)
from pullback.ops.segment.index import admit_index, index_slots
from pullback.plan.plan import Plan

MODES = ("sum", "mean", "max")


@dataclass(frozen=True, kw_only=True)
class EmbeddingDescriptor:
    """A table of `num_embeddings` rows, looked up `num_indices` times."""

    num_embeddings: int
    embedding_dim: int
    num_indices: int
    element: ElementKind
    padding_idx: int | None = None
    policy: IndexPolicy = IndexPolicy.SKIP


@dataclass(frozen=True, kw_only=True)
class EmbeddingBackwardDescriptor(EmbeddingDescriptor):
    """The gradient of a table. `accumulate=False` overwrites it instead. `sparse`: of the rows that
    received something, in ascending order; `rows` holds their numbers and, at its end, how many
    there are."""

    scale_grad_by_freq: bool = False
    accumulate: bool = True
    sparse: bool = False


@dataclass(frozen=True, kw_only=True)
class EmbeddingBagDescriptor(EmbeddingDescriptor):
    """Lookups reduced in `num_bags` bags by `mode`: "sum", "mean" or "max"."""

    num_bags: int
    mode: str
    include_last_offset: bool = False


@dataclass(frozen=True, kw_only=True)
class EmbeddingBagBackwardDescriptor(EmbeddingBagDescriptor):
    """The gradients of a table and of the weights of samples; see `EmbeddingBackwardDescriptor`."""

    scale_grad_by_freq: bool = False
    accumulate: bool = True
    sparse: bool = False


@dataclass(kw_only=True, slots=True)
class EmbeddingArgs:
    """`indices` may be a prepared `SegmentIndex`."""

    weight: Any
    indices: Any
    out: Any


@dataclass(kw_only=True, slots=True)
class EmbeddingBackwardArgs:
    """`dweight` is added to, unless the descriptor says otherwise."""

    dout: Any
    indices: Any
    dweight: Any
    rows: Any = None


@dataclass(kw_only=True, slots=True)
class EmbeddingBagArgs:
    """`per_sample_weights` goes with sums; `output_index` is written by maxima. Without `offsets`
    all bags have the same number of indices."""

    weight: Any
    indices: Any
    out: Any
    offsets: Any = None
    per_sample_weights: Any = None
    output_index: Any = None


@dataclass(kw_only=True, slots=True)
class EmbeddingBagBackwardArgs:
    """Either gradient may be left out. Maxima need the forward's `output_index`; the gradient of
    the weights of samples needs the table."""

    dout: Any
    indices: Any
    offsets: Any = None
    dweight: Any = None
    per_sample_weights: Any = None
    output_index: Any = None
    weight: Any = None
    d_per_sample_weights: Any = None
    rows: Any = None


# --- validation ---------------------------------------------------------------------------------


def _validate(op: str, desc: Any) -> None:
    check_element(op, desc.element)
    for name in ("num_embeddings", "embedding_dim", "num_indices"):
        check_extent(op, name, getattr(desc, name))
    padding = desc.padding_idx
    if padding is not None and not (is_index(padding) and 0 <= padding < desc.num_embeddings):
        expected = f"None or in [0, {desc.num_embeddings})"
        raise InvalidProblem(op, "padding_idx", expected, repr(padding))
    check_option(op, "policy", desc.policy, IndexPolicy)
    for name in ("scale_grad_by_freq", "accumulate", "sparse"):
        check_flag(op, name, getattr(desc, name, False))
    if getattr(desc, "sparse", False):
        if desc.accumulate:
            raise InvalidProblem(op, "accumulate", "False with sparse=True", "True")
        if getattr(desc, "mode", "sum") == "max":
            raise Unsupported(op, "sparse", "False where the mode is 'max'", "True")


def _validate_bag(op: str, desc: Any) -> None:
    _validate(op, desc)
    check_extent(op, "num_bags", desc.num_bags)
    check_flag(op, "include_last_offset", desc.include_last_offset)
    if desc.mode not in MODES:
        raise InvalidProblem(op, "mode", "one of 'sum', 'mean', 'max'", repr(desc.mode))


def _guarantee(desc: Any) -> PrecisionGuarantee:
    return guarantee(desc.element.accumulator, Reproducibility.ANY_MACHINE)


FAILURES = {
    1: Failure(
        IndexOutOfRange,
        "indices",
        lambda desc: f"in [0, {desc.num_embeddings})",
        "{value} at position {position}",
    ),
    3: Failure(
        InvalidProblem,
        "offsets",
        lambda desc: f"from 0 on, never decreasing, at most {desc.num_indices}",
        "{value} at position {position}",
    ),
    4: Failure(
        IndexOutOfRange,
        "output_index",
        lambda desc: f"-1 or in [0, {desc.num_embeddings})",
        "{value} at position {position}",
    ),
}


def check_winners(op: str, desc: Any, winners: Any) -> None:
    """What kernels check where out-of-range indices are an error; -1 stands for an empty bag."""
    if desc.policy is IndexPolicy.ERROR:
        flat = winners.reshape(-1)
        for position in ((flat < -1) | (flat >= desc.num_embeddings)).nonzero()[0][:1]:
            raise FAILURES[4].raised(op, desc, int(position), int(flat[position]))


def bag_length(desc: Any) -> int:
    """How many indices each bag has, where all have the same number."""
    return int(desc.num_indices // max(desc.num_bags, 1))


def _admit(op: str, desc: Any, index: Any) -> None:
    strict = desc.policy is IndexPolicy.ERROR
    extent = ("num_embeddings", desc.num_embeddings)
    admit_index(op, desc, FAILURES, index, extent, strict, ascending=False)


def check_bags(
    op: str, desc: Any, offsets: Any, weights: Any, table: Any = None, gradient: Any = None
) -> None:
    """Only bags of equal length need no offsets. Weights of samples belong to sums, and their
    gradient needs the table."""
    if offsets is None and desc.num_bags * bag_length(desc) != desc.num_indices:
        got = f"None, with {desc.num_indices} indices in {desc.num_bags} bags"
        raise InvalidProblem(op, "offsets", "given where bags differ in length", got)
    if offsets is None and desc.include_last_offset:
        raise InvalidProblem(op, "offsets", "given with include_last_offset", "None")
    for name, given in (("per_sample_weights", weights), ("d_per_sample_weights", gradient)):
        if given is not None and desc.mode != "sum":
            raise InvalidProblem(
                op, name, "None where the mode is not 'sum'", f"mode {desc.mode!r}"
            )
    if gradient is not None and table is None:
        raise InvalidProblem(op, "weight", "given for the gradient of the weights", "None")


# --- tensors ------------------------------------------------------------------------------------


def _table(desc: Any) -> tuple[int, ...]:
    return desc.num_embeddings, desc.embedding_dim


def row_capacity(desc: Any) -> int:
    """How many rows can receive something."""
    return int(min(desc.num_indices, desc.num_embeddings))


def _received(desc: Any) -> tuple[int, ...]:
    return (row_capacity(desc), desc.embedding_dim) if desc.sparse else _table(desc)


def _looked_up(desc: Any) -> tuple[int, ...]:
    return desc.num_indices, desc.embedding_dim


def _bags(desc: Any) -> tuple[int, ...]:
    return desc.num_bags, desc.embedding_dim


def _positions(desc: Any) -> tuple[int, ...]:
    return (desc.num_indices,)


def _never(_: Any) -> bool:
    return False


def _is_max(desc: Any) -> bool:
    return bool(desc.mode == "max")


_IDS, *_PARTS = index_slots(
    "indices", lambda desc: desc.num_indices, lambda desc: desc.num_embeddings
)
_OFFSETS = Slot(
    "offsets",
    lambda desc: (desc.num_bags + desc.include_last_offset,),
    holds=INDEX,
    needed=_never,
)
_WEIGHTS = Slot("per_sample_weights", _positions, needed=_never)
_WINNER = (ElementKind.I64,)
_ROWS = Slot(
    "rows",
    lambda desc: (row_capacity(desc) + 1,),
    Role.OUT,
    holds=(ElementKind.I64,),
    needed=lambda desc: bool(desc.sparse),
    used=lambda desc: bool(desc.sparse),
)


def _record(
    name: str, descriptor: type, slots: tuple[Slot, ...], kinds: dict[str | None, EmbeddingKind]
) -> PlanRecord:
    backward, bag = name.endswith("Backward"), "Bag" in name
    op = "embedding" + "_bag" * bag + "_backward" * backward
    check = _validate_bag if bag else _validate
    return PlanRecord(
        name=name,
        category=OpCategory.EMBEDDING,
        direction="backward" if backward else "forward",
        descriptor=descriptor,
        slots=slots,
        kind=lambda desc: kinds[getattr(desc, "mode", None)],
        op=lambda _: op,
        validate=lambda desc: check(op, desc),
        guarantee=_guarantee,
        backends={
            BackendKind.NUMBA: f"pullback.ops.embedding.cpu:{op}",
            BackendKind.TRITON: f"pullback.ops.embedding.gpu:{op}",
        },
        reference=lambda desc, **arrays: resolve(f"pullback.ops.embedding.reference:{op}")(
            desc, **arrays
        ),
        aux=ElementKind.I64,
        workspace=lambda desc: resolve(f"pullback.ops.embedding.cpu:{op}_workspace")(desc),
        failures=FAILURES,
        admit=_admit,
    )


class EmbeddingPlan(Plan[EmbeddingDescriptor, EmbeddingArgs]):
    """Rows of a table, by index."""

    record = _record(
        "Embedding",
        EmbeddingDescriptor,
        (Slot("weight", _table), _IDS, Slot("out", _looked_up, Role.OUT), *_PARTS),
        {None: EmbeddingKind.EMBEDDING},
    )


class EmbeddingBackwardPlan(Plan[EmbeddingBackwardDescriptor, EmbeddingBackwardArgs]):
    """The gradient of the table: for each row the sum over the positions that hold it."""

    record = _record(
        "EmbeddingBackward",
        EmbeddingBackwardDescriptor,
        (
            Slot("dout", _looked_up),
            _IDS,
            Slot("dweight", _received, Role.ACCUMULATE),
            *_PARTS,
            _ROWS,
        ),
        {None: EmbeddingKind.EMBEDDING_BACKWARD},
    )


class EmbeddingBagPlan(Plan[EmbeddingBagDescriptor, EmbeddingBagArgs]):
    """Rows of a table, by index, reduced in bags."""

    record = _record(
        "EmbeddingBag",
        EmbeddingBagDescriptor,
        (
            Slot("weight", _table),
            _IDS,
            Slot("out", _bags, Role.OUT),
            *_PARTS,
            _OFFSETS,
            _WEIGHTS,
            Slot("output_index", _bags, Role.OUT, holds=_WINNER, needed=_never, used=_is_max),
        ),
        {mode: EmbeddingKind(f"embedding_bag_{mode}") for mode in MODES},
    )


class EmbeddingBagBackwardPlan(Plan[EmbeddingBagBackwardDescriptor, EmbeddingBagBackwardArgs]):
    """The gradients of the table and of the weights of samples."""

    record = _record(
        "EmbeddingBagBackward",
        EmbeddingBagBackwardDescriptor,
        (
            Slot("dout", _bags),
            _IDS,
            Slot("dweight", _received, Role.ACCUMULATE, needed=_never),
            *_PARTS,
            _OFFSETS,
            _WEIGHTS,
            Slot(
                "output_index",
                _bags,
                holds=_WINNER,
                used=_is_max,
                why_needed="the forward's output_index",
            ),
            Slot("weight", _table, needed=_never),
            Slot("d_per_sample_weights", _positions, Role.OUT, needed=_never),
            _ROWS,
        ),
        {mode: EmbeddingKind(f"embedding_bag_{mode}_backward") for mode in MODES},
    )
