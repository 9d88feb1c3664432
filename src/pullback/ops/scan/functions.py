"""The scans as plain functions."""

from __future__ import annotations

from typing import Any, Literal

from pullback.contract.kinds import ScanKind, TieRule
from pullback.contract.record import check_flag
from pullback.ops.scan.contract import (
    ScanBackwardDescriptor,
    ScanBackwardPlan,
    ScanDescriptor,
    ScanPlan,
)
from pullback.plan.function import (
    AndInitial,
    Call,
    Function,
    Indices,
    Number,
    Tensor,
    axis_of,
    option,
    pieces_of,
)


def _forward(
    op: str,
    x: Tensor,
    axis: int,
    ties: Literal["first", "last"] | TieRule = "first",
    indices: bool = False,
    *,
    initial: Any,
    offsets: Any,
    **options: bool,
) -> Call:
    check_flag(op, "return_indices", indices)
    desc = ScanDescriptor(
        kind=ScanKind(op),
        input_shape=x.shape,
        scan_axis=axis_of(op, axis, len(x.shape)),
        element=x.element,
        ties=option(op, "ties", ties, TieRule),
        initial_shape=None if initial is None else initial.shape,
        num_pieces=pieces_of(op, offsets),
        **options,
    )
    tensors = {"x": x, "initial": initial, "offsets": offsets}
    return Call(ScanPlan, desc, tensors, ("y", "indices") if indices else ("y",))


def _backward(
    kind: ScanKind,
    dy: Tensor,
    x: Tensor | None,
    y: Tensor | None,
    axis: int,
    ties: Literal["first", "last"] | TieRule = "first",
    *,
    initial: Any,
    offsets: Any,
    **options: bool,
) -> Call:
    op = f"{kind.value}_backward"
    desc = ScanBackwardDescriptor(
        kind=kind,
        input_shape=dy.shape,
        scan_axis=axis_of(op, axis, len(dy.shape)),
        element=dy.element,
        ties=option(op, "ties", ties, TieRule),
        initial_shape=None if initial is None else initial.shape,
        num_pieces=pieces_of(op, offsets),
        **options,
    )
    tensors = {"dy": dy, "x": x, "y": y, "initial": initial, "offsets": offsets}
    returns = ("dx",) if initial is None else ("dx", "d_initial")
    return Call(ScanBackwardPlan, desc, tensors, returns)


def _running(name: str, summary: str) -> Function:
    def body(
        x: Tensor,
        axis: int = -1,
        *,
        reverse: bool = False,
        exclusive: bool = False,
        initial: Tensor | Number | None = None,
        offsets: Indices | None = None,
    ) -> Call:
        return _forward(
            name,
            x,
            axis,
            reverse=reverse,
            exclusive=exclusive,
            initial=initial,
            offsets=offsets,
        )

    return Function(body, name, summary)


def _running_extremum(name: str, summary: str) -> Function:
    def body(
        x: Tensor,
        axis: int = -1,
        *,
        reverse: bool = False,
        return_indices: bool = False,
        ties: Literal["first", "last"] | TieRule = "first",
        exclusive: bool = False,
        initial: Tensor | Number | None = None,
        offsets: Indices | None = None,
    ) -> Call:
        return _forward(
            name,
            x,
            axis,
            ties,
            return_indices,
            reverse=reverse,
            exclusive=exclusive,
            initial=initial,
            offsets=offsets,
        )

    return Function(body, name, summary)


def _gradient_from_output(kind: ScanKind, summary: str) -> Function:
    def body(
        dy: Tensor,
        x: Tensor,
        y: Tensor | None,
        axis: int = -1,
        *,
        reverse: bool = False,
        exclusive: bool = False,
        initial: Tensor | Number | None = None,
        offsets: Indices | None = None,
    ) -> AndInitial:
        return _backward(
            kind,
            dy,
            x,
            y,
            axis,
            reverse=reverse,
            exclusive=exclusive,
            initial=initial,
            offsets=offsets,
        )

    return Function(body, f"{kind.value}_backward", summary)


def _gradient_of_extremum(kind: ScanKind, summary: str) -> Function:
    def body(
        dy: Tensor,
        x: Tensor,
        axis: int = -1,
        *,
        reverse: bool = False,
        ties: Literal["first", "last"] | TieRule = "first",
        exclusive: bool = False,
        initial: Tensor | Number | None = None,
        offsets: Indices | None = None,
    ) -> AndInitial:
        return _backward(
            kind,
            dy,
            x,
            None,
            axis,
            ties,
            reverse=reverse,
            exclusive=exclusive,
            initial=initial,
            offsets=offsets,
        )

    return Function(body, f"{kind.value}_backward", summary)


cumsum = _running("cumsum", "Running sum along an axis.")
cumprod = _running("cumprod", "Running product along an axis.")
logcumsumexp = _running("logcumsumexp", "Running log-sum-exp along an axis.")
cummax = _running_extremum(
    "cummax", "Running maximum along an axis; with `return_indices`, (values, positions)."
)
cummin = _running_extremum(
    "cummin", "Running minimum along an axis; with `return_indices`, (values, positions)."
)


@Function
def cumsum_backward(
    dy: Tensor,
    axis: int = -1,
    *,
    reverse: bool = False,
    exclusive: bool = False,
    initial: Tensor | Number | None = None,
    offsets: Indices | None = None,
) -> AndInitial:
    """Gradient of `cumsum`: the running sum the other way."""
    return _backward(
        ScanKind.CUMSUM,
        dy,
        None,
        None,
        axis,
        reverse=reverse,
        exclusive=exclusive,
        initial=initial,
        offsets=offsets,
    )


cumprod_backward = _gradient_from_output(
    ScanKind.CUMPROD,
    "Gradient of `cumprod`, exact with any number of zeros; `y` may be None in f16 and bf16.",
)
logcumsumexp_backward = _gradient_from_output(
    ScanKind.LOG_CUMSUM_EXP,
    "Gradient of `logcumsumexp`, in decay form; `y` may be None in f16 and bf16.",
)
cummax_backward = _gradient_of_extremum(
    ScanKind.CUMMAX,
    "Gradient of `cummax`: each output's gradient goes to the element it came from.",
)
cummin_backward = _gradient_of_extremum(
    ScanKind.CUMMIN,
    "Gradient of `cummin`: each output's gradient goes to the element it came from.",
)
