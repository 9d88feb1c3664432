"""The scans as plain functions."""

from __future__ import annotations

from pullback.contract.kinds import ScanKind, TieRule
from pullback.contract.record import check_flag
from pullback.ops.scan.contract import (
    ScanBackwardDescriptor,
    ScanBackwardPlan,
    ScanDescriptor,
    ScanPlan,
)
from pullback.plan.function import Call, Function, Tensor, axis_of, option


def _forward(
    op: str,
    x: Tensor,
    axis: int,
    reverse: bool,
    ties: str | TieRule = "first",
    indices: bool = False,
) -> Call:
    kind = ScanKind(op)
    check_flag(op, "return_indices", indices)
    desc = ScanDescriptor(
        kind=kind,
        input_shape=x.shape,
        scan_axis=axis_of(op, axis, len(x.shape)),
        element=x.element,
        reverse=reverse,
        ties=option(op, "ties", ties, TieRule),
    )
    return Call(ScanPlan, desc, {"x": x}, ("y", "indices") if indices else ("y",))


def _backward(
    kind: ScanKind,
    dy: Tensor,
    x: Tensor | None,
    y: Tensor | None,
    axis: int,
    reverse: bool,
    ties: str | TieRule = "first",
) -> Call:
    op = f"{kind.value}_backward"
    desc = ScanBackwardDescriptor(
        kind=kind,
        input_shape=dy.shape,
        scan_axis=axis_of(op, axis, len(dy.shape)),
        element=dy.element,
        reverse=reverse,
        ties=option(op, "ties", ties, TieRule),
    )
    return Call(ScanBackwardPlan, desc, {"dy": dy, "x": x, "y": y}, ("dx",))


def _running(name: str, summary: str) -> Function:
    def body(x: Tensor, axis: int = -1, *, reverse: bool = False) -> Call:
        return _forward(name, x, axis, reverse)

    return Function(body, name, summary)


def _running_extremum(name: str, summary: str) -> Function:
    def body(
        x: Tensor,
        axis: int = -1,
        *,
        reverse: bool = False,
        return_indices: bool = False,
        ties: str | TieRule = "first",
    ) -> Call:
        return _forward(name, x, axis, reverse, ties, return_indices)

    return Function(body, name, summary)


def _gradient_from_output(kind: ScanKind, summary: str) -> Function:
    def body(
        dy: Tensor, x: Tensor, y: Tensor | None, axis: int = -1, *, reverse: bool = False
    ) -> Call:
        return _backward(kind, dy, x, y, axis, reverse)

    return Function(body, f"{kind.value}_backward", summary)


def _gradient_of_extremum(kind: ScanKind, summary: str) -> Function:
    def body(
        dy: Tensor,
        x: Tensor,
        axis: int = -1,
        *,
        reverse: bool = False,
        ties: str | TieRule = "first",
    ) -> Call:
        return _backward(kind, dy, x, None, axis, reverse, ties)

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
def cumsum_backward(dy: Tensor, axis: int = -1, *, reverse: bool = False) -> Call:
    """Gradient of `cumsum`: the running sum the other way."""
    return _backward(ScanKind.CUMSUM, dy, None, None, axis, reverse)


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
