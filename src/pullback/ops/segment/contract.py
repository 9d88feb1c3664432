r"""Segment reductions: what they compute, what they need, what they promise.

Rows with the same id form a segment; rows whose id is out of range are skipped, or an error. For
segment s with kept rows n, in ascending order, and c of them:

    sum    out[s] = Σ x[n]             dx[n] = dout[s]
    mean   out[s] = Σ x[n] / c         dx[n] = dout[s] / c
    max    out[s] = max x[n]           dx[n] = dout[s] where x[n] is the extremum, else 0
    min    the mirror image of max
    prod   out[s] = Π x[n]             dx[n] = dout[s] · Π x[m] over the other rows m

A segment without rows is `empty`: 0, and 1 for prod, unless a value is given. NaN wins an extremum;
NaNs tie with each other, as do zeros of either sign; the value written is that of the first
extremum. Among equals the gradient goes to the FIRST, the LAST, or to all of them in equal shares.
No backward divides by an input, and all are linear.

The twenty plans differ in three ways only, so one table makes them: the reduction, the direction,
and whether ids must be sorted. The unsorted ones sort stably first: the bits are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.errors import InvalidProblem
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import (
    BackendKind,
    IndexPolicy,
    OpCategory,
    Reproducibility,
    SegmentKind,
    TieRule,
)
from pullback.contract.record import (
    PlanRecord,
    Role,
    Slot,
    check_element,
    check_extent,
    check_flag,
    check_option,
    is_number,
    resolve,
)
from pullback.ops.segment import oracle
from pullback.ops.segment.grouping import (
    FAILURES,
    IDS,
    PARTS,
    admit,
    checked_ids,
    rows_of,
    segments_of,
)
from pullback.plan.plan import Plan


@dataclass(frozen=True, kw_only=True)
class SegmentDescriptor:
    """`num_inputs` rows of `embedding_dim` columns, reduced to `num_segments` rows. `borders`:
    `segment_ids` holds where each segment begins and the last one ends, not an id for each row."""

    num_inputs: int
    embedding_dim: int
    num_segments: int
    element: ElementKind
    policy: IndexPolicy = IndexPolicy.SKIP
    borders: bool = False


@dataclass(frozen=True, kw_only=True)
class ForwardDescriptor(SegmentDescriptor):
    """`empty` is what a segment without rows gets, in place of the reduction's own value."""

    empty: float | None = None


@dataclass(frozen=True, kw_only=True)
class TiedDescriptor(SegmentDescriptor):
    """`ties` says which of equal extrema receive the gradient."""

    ties: TieRule = TieRule.FIRST


@dataclass(frozen=True, kw_only=True)
class ExtremumDescriptor(ForwardDescriptor):
    """`ties` says which of equal extrema `indices` reports; of all of them (SPLIT), the first."""

    ties: TieRule = TieRule.FIRST


@dataclass(kw_only=True, slots=True)
class SegmentArgs:
    """`segment_ids` may be a prepared `SegmentIndex`."""

    input: Any
    segment_ids: Any
    output: Any


@dataclass(kw_only=True, slots=True)
class ExtremumArgs(SegmentArgs):
    """`indices`, optional: the position of each extremum, -1 where a segment has no rows."""

    indices: Any = None


@dataclass(kw_only=True, slots=True)
class SegmentBackwardArgs:
    """Max, min and prod need the forward's `input`; sum and mean ignore it."""

    d_output: Any
    segment_ids: Any
    d_input: Any
    input: Any = None


@dataclass(frozen=True, slots=True)
class Traits:
    """A kind, taken apart."""

    kind: SegmentKind
    reduction: str
    backward: bool
    ascending: bool

    @staticmethod
    def of(kind: SegmentKind) -> Traits:
        words = kind.name.lower().split("_")
        backward, ascending = words[-1] == "backward", words[0] != "unsorted"
        reduction = words[0] if ascending else words[1]
        return Traits(kind, reduction, backward, ascending)

    @property
    def name(self) -> str:
        """As in the plan's name: UnsortedSegmentMaxBackward."""
        return "".join(word.capitalize() for word in self.kind.value.split("_"))

    @property
    def oracle(self) -> str:
        return f"segment_{self.reduction}" + "_backward" * self.backward

    @property
    def needs_input(self) -> bool:
        return self.backward and self.reduction in ("max", "min", "prod")

    @property
    def is_extremum(self) -> bool:
        return self.reduction in ("max", "min")

    @property
    def has_ties(self) -> bool:
        return self.backward and self.is_extremum


NEUTRAL = {"sum": 0.0, "mean": 0.0, "max": 0.0, "min": 0.0, "prod": 1.0}


def _validate(traits: Traits, desc: Any) -> None:
    op = traits.kind.value
    check_element(op, desc.element)
    for name in ("num_inputs", "embedding_dim", "num_segments"):
        check_extent(op, name, getattr(desc, name))
    check_option(op, "policy", desc.policy, IndexPolicy)
    check_flag(op, "borders", desc.borders)
    if traits.is_extremum:
        check_option(op, "ties", desc.ties, TieRule)
    empty = None if traits.backward else desc.empty
    if empty is not None and not is_number(empty):
        raise InvalidProblem(op, "empty", "a number or None", repr(empty))


def _guarantee(traits: Traits, desc: SegmentDescriptor) -> PrecisionGuarantee:
    # Products leave the range of f32 long before their neighbours do: they are carried in f64.
    wide = ElementKind.F64 if traits.reduction == "prod" else desc.element.accumulator
    return guarantee(wide, Reproducibility.ANY_MACHINE)


def _slots(traits: Traits) -> tuple[Slot, ...]:
    if not traits.backward:
        positions = Slot(
            "indices",
            segments_of,
            Role.OUT,
            holds=(ElementKind.I64,),
            needed=lambda _: False,
        )
        own = (positions,) if traits.is_extremum else ()
        return Slot("input", rows_of), IDS, Slot("output", segments_of, Role.OUT), *PARTS, *own
    saved = Slot(
        "input",
        rows_of,
        used=lambda _: traits.needs_input,
        why_needed="the forward's input",
    )
    return (
        Slot("d_output", segments_of),
        IDS,
        Slot("d_input", rows_of, Role.OUT),
        *PARTS,
        saved,
    )


def _reference(traits: Traits, desc: Any, segment_ids: Any, **arrays: Any) -> dict[str, Any]:
    segment_ids = checked_ids(traits.kind.value, desc, segment_ids, traits.ascending)
    if not traits.backward:
        forward, known = getattr(oracle, traits.oracle), {"empty": desc.empty}
        given = arrays["input"], segment_ids, desc.num_segments
        if traits.is_extremum:
            found = forward(*given, **known, ties=desc.ties.value, return_indices=True)
            return dict(zip(("output", "indices"), found, strict=True))
        return {"output": forward(*given, **known)}
    saved = (arrays["input"],) if traits.needs_input else ()
    options = {"ties": desc.ties.value} if traits.has_ties else {}
    found = getattr(oracle, traits.oracle)(arrays["d_output"], *saved, segment_ids, **options)
    return {"d_input": found}


def _record(traits: Traits, descriptor: type) -> PlanRecord:
    return PlanRecord(
        name=traits.name,
        category=OpCategory.SEGMENT,
        direction="backward" if traits.backward else "forward",
        descriptor=descriptor,
        slots=_slots(traits),
        kind=lambda _: traits.kind,
        op=lambda _: traits.kind.value,
        validate=lambda desc: _validate(traits, desc),
        guarantee=lambda desc: _guarantee(traits, desc),
        backends={
            BackendKind.NUMBA: f"pullback.ops.segment.cpu:{traits.kind.value}",
            BackendKind.TRITON: f"pullback.ops.segment.gpu:{traits.kind.value}",
        },
        reference=lambda desc, **arrays: _reference(traits, desc, **arrays),
        aux=ElementKind.I64,
        workspace=lambda desc: resolve("pullback.ops.segment.cpu:workspace")(traits, desc),
        failures=FAILURES,
        admit=lambda op, desc, index: admit(op, desc, index, traits.ascending),
    )


def _triple(kind: SegmentKind) -> dict[str, type]:
    """`XDescriptor`, `XArgs` and `XPlan` of one kind."""
    traits = Traits.of(kind)
    shape: type
    args: type
    if traits.backward:
        shape, args = TiedDescriptor if traits.has_ties else SegmentDescriptor, SegmentBackwardArgs
    elif traits.is_extremum:
        shape, args = ExtremumDescriptor, ExtremumArgs
    else:
        shape, args = ForwardDescriptor, SegmentArgs
    bases = {"Descriptor": shape, "Args": args}
    made: dict[str, type] = {}
    for part, base in bases.items():
        own = {"__doc__": base.__doc__, "__module__": __name__, "__slots__": ()}
        made[traits.name + part] = type(traits.name + part, (base,), own)
    plan = type(
        f"{traits.name}Plan",
        (Plan,),
        {
            "__doc__": f"`{traits.oracle}` over "
            + ("sorted" if traits.ascending else "any")
            + " ids.",
            "__module__": __name__,
            "record": _record(traits, made[f"{traits.name}Descriptor"]),
        },
    )
    return {**made, plan.__name__: plan}


TRIPLES: dict[str, type] = {
    name: made for kind in SegmentKind for name, made in _triple(kind).items()
}
globals().update(TRIPLES)


def plan_of(reduction: str, backward: bool, ascending: bool) -> type[Plan[Any, Any]]:
    """The plan class of one of the twenty kinds."""
    name = "UNSORTED_" * (not ascending) + reduction.upper() + "_BACKWARD" * backward
    return TRIPLES[f"{Traits.of(SegmentKind[name]).name}Plan"]
