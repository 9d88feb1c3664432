r"""Scans: what they compute, what they need, what they promise.

Inclusive, along one axis; `reverse` walks it from the far end, and in a backward it is the
forward's flag. In the order of the scan, for an axis of n elements:

    cumsum        y[j] = x[0] + … + x[j]
                  dx[j] = dy[j] + … + dy[n-1]
    cumprod       y[j] = x[0] · … · x[j]
                  dx[j] = y[j-1]·R[j],  R[j] = dy[j] + x[j+1]·R[j+1]
    cummax        y[j] = max(x[0], …, x[j]); cummin is its mirror image
                  dx[k] = Σ dy[j] over the j whose extremum is x[k]
    logcumsumexp  y[j] = log(e^x[0] + … + e^x[j])
                  dx[j] = e^(x[j]-y[j])·S[j],  S[j] = dy[j] + e^(y[j]-y[j+1])·S[j+1]

`exclusive` gives what was scanned before each element, `initial` is scanned before the first, and
`offsets` are borders at which the scan starts anew (contract/extension). A `stateful` plan starts
from the state that another run has left, and leaves its own (contract/state).

No backward divides, and all are linear. NaN wins an extremum and stays; NaNs tie with each other,
as do zeros of either sign, and the value written is the winner's own bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from pullback.contract import state as carried
from pullback.contract.element import ElementKind
from pullback.contract.errors import Unsupported
from pullback.contract.extension import (
    D_INITIAL,
    FAILURES,
    INITIAL_VALUE,
    OFFSETS,
    TOTAL,
    Extension,
    Staged,
    arena,
    check_extension,
)
from pullback.contract.guarantee import PrecisionGuarantee, guarantee
from pullback.contract.kinds import (
    BackendKind,
    OpCategory,
    Reproducibility,
    ScanKind,
    TieRule,
)
from pullback.contract.record import (
    PlanRecord,
    Role,
    Slot,
    check_axis,
    check_element,
    check_flag,
    check_option,
    check_shape,
)
from pullback.ops.scan import oracle
from pullback.ops.scan.recomputed import Kept, of_blocks
from pullback.ops.scan_oracle import in_sequence, last_of
from pullback.plan.plan import Plan

EXTREMA = (ScanKind.CUMMAX, ScanKind.CUMMIN)
NEEDS_X = (ScanKind.CUMPROD, *EXTREMA, ScanKind.LOG_CUMSUM_EXP)
NEEDS_Y = (ScanKind.CUMPROD, ScanKind.LOG_CUMSUM_EXP)


@dataclass(frozen=True, kw_only=True)
class ScanDescriptor:
    """A forward scan. `ties` decides which of equal extrema cummax and cummin report. An initial
    value has `initial_shape`, which broadcasts to the input's without the axis, or, where offsets
    are given, with `num_pieces` in place of the axis; there is one offset more than pieces. A
    `stateful` plan takes a state and leaves one; without `results` that is all it does."""

    kind: ScanKind
    input_shape: tuple[int, ...]
    scan_axis: int
    element: ElementKind
    reverse: bool = False
    ties: TieRule = TieRule.FIRST
    exclusive: bool = False
    initial_shape: tuple[int, ...] | None = None
    num_pieces: int | None = None
    stateful: bool = False
    results: bool = True


@dataclass(frozen=True, kw_only=True)
class ScanBackwardDescriptor(ScanDescriptor):
    """The backward of a scan; all fields are the forward's."""


@dataclass(kw_only=True, slots=True)
class ScanArgs:
    """`indices`, optional: for cummax and cummin, the position of each running extremum. `state`,
    float64 without the axis, is what a stateful scan starts from, None at the beginning;
    `final_state` is written, and may be the same memory. `positions`, optional, makes indices count
    in the whole sequence, and is brought up to date (contract/state)."""

    x: Any
    y: Any = None
    indices: Any = None
    initial: Any = None
    offsets: Any = None
    state: Any = None
    final_state: Any = None
    positions: Any = None


@dataclass(kw_only=True, slots=True)
class ScanBackwardArgs:
    """cumsum needs neither `x` nor `y`; cummax and cummin need `x`; cumprod and logcumsumexp need
    both, but in f16 and bf16 the saved `y` is too coarse: it is recomputed from `x` and ignored.
    `d_initial` is written where the descriptor has an initial value."""

    dy: Any
    dx: Any
    x: Any = None
    y: Any = None
    initial: Any = None
    offsets: Any = None
    d_initial: Any = None


def _op(desc: ScanDescriptor) -> str:
    return desc.kind.value


def _op_backward(desc: ScanDescriptor) -> str:
    return f"{desc.kind.value}_backward"


def _validate(desc: ScanDescriptor, op: str) -> None:
    check_option("scan", "kind", desc.kind, ScanKind)
    check_element(op, desc.element)
    check_shape(op, "input_shape", desc.input_shape)
    check_axis(op, "scan_axis", desc.scan_axis, len(desc.input_shape))
    check_flag(op, "reverse", desc.reverse)
    check_option(op, "ties", desc.ties, TieRule)
    if desc.ties is TieRule.SPLIT:
        raise Unsupported(op, "ties", "FIRST or LAST", "SPLIT")
    check_extension(op, desc)


def _validate_forward(desc: ScanDescriptor) -> None:
    op = getattr(desc.kind, "value", "scan")
    _validate(desc, op)
    carried.check_stateful(op, desc)


def _validate_backward(desc: ScanDescriptor) -> None:
    op = f"{getattr(desc.kind, 'value', 'scan')}_backward"
    _validate(desc, op)
    carried.check_stateful(op, desc, backward=True)


def _shape(desc: ScanDescriptor) -> tuple[int, ...]:
    return desc.input_shape


def keeps_y(desc: ScanDescriptor) -> bool:
    """Whether the backward reads the saved y: not where its element is too coarse to save."""
    return desc.kind in NEEDS_Y and desc.element.accumulator is not ElementKind.F32


def _guarantee(desc: ScanDescriptor) -> PrecisionGuarantee:
    accumulator = ACCUMULATORS[desc.kind](desc.element)
    math = _wide(desc.element)
    if desc.kind is ScanKind.LOG_CUMSUM_EXP and desc.element is ElementKind.F32:
        math = ElementKind.F32  # exponentials and logarithms; their sums are f64
    return guarantee(accumulator, Reproducibility.ANY_MACHINE, math=math)


def _wide(element: ElementKind) -> ElementKind:
    return element.accumulator


def _f64(_: ElementKind) -> ElementKind:
    return ElementKind.F64


# Products leave the range of f32 long before their neighbours do: they are carried in f64.
ACCUMULATORS = {
    ScanKind.CUMSUM: _wide,
    ScanKind.CUMPROD: _f64,
    ScanKind.CUMMAX: _wide,
    ScanKind.CUMMIN: _wide,
    ScanKind.LOG_CUMSUM_EXP: _wide,
}


# What is written for a result that nothing was scanned for.
IDENTITY = {
    ScanKind.CUMSUM: 0.0,
    ScanKind.CUMPROD: 1.0,
    ScanKind.CUMMAX: -inf,
    ScanKind.CUMMIN: inf,
    ScanKind.LOG_CUMSUM_EXP: -inf,
}


def staged(desc: ScanDescriptor) -> tuple[Staged, ...]:
    """The tensors of an extended scan."""
    identity = IDENTITY[desc.kind]
    return (
        Staged("x"),
        Staged("y", results=True, written=True, end=identity, over="x"),
        Staged("indices", results=True, written=True, index=True),
    )


def staged_backward(desc: ScanDescriptor) -> tuple[Staged, ...]:
    return (
        Staged("dy", results=True, first=-0.0),
        Staged("dx", written=True, gives=True, over="dy"),
        Staged("x"),
        Staged("y", results=True),
    )


def extension_of(desc: ScanDescriptor, backward: bool = False) -> Extension:
    """What the kernels of a scan know of its extension themselves. Exclusive extrema are staged:
    with ties and positions they would be sixty kernels more. Those of pieces are, too: their
    positions are about the whole line."""
    if backward:
        own = desc.kind is ScanKind.CUMSUM or (desc.kind is ScanKind.CUMPROD and keeps_y(desc))
    else:
        own = desc.kind not in EXTREMA or not (desc.exclusive or desc.num_pieces is not None)
    return Extension.of(desc, own)


def carries(desc: ScanDescriptor) -> bool:
    """Whether the kernels of a scan take a state and leave one themselves."""
    return desc.kind in (ScanKind.CUMSUM, ScanKind.CUMPROD)


def kept(desc: ScanDescriptor) -> Kept | None:
    """What a backward keeps in the workspace: where the records of extrema are; where y is not
    given, products before each block."""
    if desc.kind in EXTREMA:
        return of_blocks(desc.element.itemsize, 1)
    if desc.kind not in NEEDS_Y or keeps_y(desc):
        return None
    return of_blocks(desc.element.itemsize, 8)


def _workspace(desc: ScanDescriptor) -> int:
    extension, tensors = extension_of(desc), staged(desc)
    used = tensors if desc.kind in EXTREMA else tensors[:2]
    if desc.stateful:
        return carried.state_bytes(desc, used, carries(desc))
    return arena(extension, used, desc.element.itemsize)[TOTAL]


def _workspace_backward(desc: ScanDescriptor) -> int:
    extension, inner = extension_of(desc, True), 0
    if own := kept(desc):
        inner = own.nbytes(Extension.of(desc))
    if extension.is_plain:
        return inner
    return arena(extension, staged_backward(desc), desc.element.itemsize, inner)[TOTAL]


def _options(desc: ScanDescriptor, initial: Any, offsets: Any) -> dict[str, Any]:
    return {
        "axis": desc.scan_axis,
        "reverse": desc.reverse,
        "exclusive": desc.exclusive,
        "initial": initial,
        "offsets": offsets,
    }


def _reference(
    desc: ScanDescriptor,
    x: Any,
    initial: Any = None,
    offsets: Any = None,
    state: Any = None,
    positions: Any = None,
    **_: Any,
) -> dict[str, Any]:
    options = _options(desc, initial if state is None else state, offsets)
    scan, found = getattr(oracle, desc.kind.value), {}
    if desc.stateful:
        whole = scan(x, **{**options, "exclusive": False})
        found["final_state"] = last_of(whole, desc, state, IDENTITY[desc.kind])
    if desc.kind not in EXTREMA:
        return {"y": scan(x, **options), **found}
    options.update(ties=desc.ties.value, return_indices=True)
    values, indices = scan(x, **options)
    if positions is not None:
        _, inclusive = scan(x, **{**options, "exclusive": False})
        none = IDENTITY[desc.kind]
        indices, found["positions"] = in_sequence(desc, positions, state, none, indices, inclusive)
    return {"y": values, "indices": indices, **found}


def _reference_backward(
    desc: ScanDescriptor,
    dy: Any,
    x: Any = None,
    y: Any = None,
    initial: Any = None,
    offsets: Any = None,
    **_: Any,
) -> dict[str, Any]:
    options = _options(desc, initial, offsets)
    saved = [array for array, kinds in ((x, NEEDS_X), (y, NEEDS_Y)) if desc.kind in kinds]
    if desc.kind in EXTREMA:
        options["ties"] = desc.ties.value
    found = getattr(oracle, _op_backward(desc))(dy, *saved, **options)
    return (
        dict(zip(("dx", "d_initial"), found, strict=True)) if initial is not None else {"dx": found}
    )


class ScanPlan(Plan[ScanDescriptor, ScanArgs]):
    """Forward scans along one axis."""

    record = PlanRecord(
        name="Scan",
        category=OpCategory.SCAN,
        direction="forward",
        descriptor=ScanDescriptor,
        slots=(
            Slot("x", _shape),
            Slot("y", _shape, Role.OUT, used=carried.gives_results, in_place_of=("x",)),
            Slot(
                "indices",
                _shape,
                Role.OUT,
                holds=(ElementKind.I64,),
                needed=lambda _: False,
                used=lambda desc: desc.kind in EXTREMA and desc.results,
            ),
            INITIAL_VALUE,
            OFFSETS,
            carried.STATE,
            carried.FINAL_STATE,
            carried.positions(lambda desc: desc.kind in EXTREMA),
        ),
        kind=lambda desc: desc.kind,
        op=_op,
        validate=_validate_forward,
        guarantee=_guarantee,
        backends={
            BackendKind.NUMBA: "pullback.ops.scan.cpu:forward",
            BackendKind.TRITON: "pullback.ops.scan.gpu:forward",
        },
        workspace=_workspace,
        failures=FAILURES,
        reference=_reference,
    )


class ScanBackwardPlan(Plan[ScanBackwardDescriptor, ScanBackwardArgs]):
    """Backward scans along one axis: in linear time, never dividing by an input."""

    record = PlanRecord(
        name="ScanBackward",
        category=OpCategory.SCAN,
        direction="backward",
        descriptor=ScanBackwardDescriptor,
        slots=(
            Slot("dy", _shape),
            Slot("dx", _shape, Role.OUT, in_place_of=("dy", "x", "y")),
            Slot(
                "x",
                _shape,
                needed=lambda _: True,
                used=lambda desc: desc.kind in NEEDS_X,
                why_needed="the saved forward input",
            ),
            Slot(
                "y",
                _shape,
                needed=lambda _: True,
                used=keeps_y,
                why_needed="the saved forward output",
            ),
            INITIAL_VALUE,
            OFFSETS,
            D_INITIAL,
        ),
        kind=lambda desc: desc.kind,
        op=_op_backward,
        validate=_validate_backward,
        guarantee=_guarantee,
        backends={
            BackendKind.NUMBA: "pullback.ops.scan.cpu:backward",
            BackendKind.TRITON: "pullback.ops.scan.gpu:backward",
        },
        workspace=_workspace_backward,
        failures=FAILURES,
        reference=_reference_backward,
    )
