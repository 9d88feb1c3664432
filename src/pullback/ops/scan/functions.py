"""The scans as plain functions."""

from __future__ import annotations

from pullback.contract.kinds import ScanKind, TieRule
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


@Function
def cumsum(x: Tensor, axis: int = -1, *, reverse: bool = False) -> Call:
    """Running sum along an axis."""
    return _forward("cumsum", x, axis, reverse)


@Function
def cumsum_backward(dy: Tensor, axis: int = -1, *, reverse: bool = False) -> Call:
    """Gradient of `cumsum`: the running sum the other way."""
    return _backward(ScanKind.CUMSUM, dy, None, None, axis, reverse)


@Function
def cumprod(x: Tensor, axis: int = -1, *, reverse: bool = False) -> Call:
    """Running product along an axis."""
    return _forward("cumprod", x, axis, reverse)


@Function
def cumprod_backward(
    dy: Tensor, x: Tensor, y: Tensor | None, axis: int = -1, *, reverse: bool = False
) -> Call:
    """Gradient of `cumprod`, exact with any number of zeros; `y` may be None in f16 and bf16."""
    return _backward(ScanKind.CUMPROD, dy, x, y, axis, reverse)


@Function
def cummax(
    x: Tensor,
    axis: int = -1,
    *,
    reverse: bool = False,
    return_indices: bool = False,
    ties: str | TieRule = "first",
) -> Call:
    """Running maximum along an axis; with `return_indices`, (values, positions)."""
    return _forward("cummax", x, axis, reverse, ties, return_indices)


@Function
def cummax_backward(
    dy: Tensor,
    x: Tensor,
    axis: int = -1,
    *,
    reverse: bool = False,
    ties: str | TieRule = "first",
) -> Call:
    """Gradient of `cummax`: each output's gradient goes to the element it came from."""
    return _backward(ScanKind.CUMMAX, dy, x, None, axis, reverse, ties)


@Function
def cummin(
    x: Tensor,
    axis: int = -1,
    *,
    reverse: bool = False,
    return_indices: bool = False,
    ties: str | TieRule = "first",
) -> Call:
    """Running minimum along an axis; with `return_indices`, (values, positions)."""
    return _forward("cummin", x, axis, reverse, ties, return_indices)


@Function
def cummin_backward(
    dy: Tensor,
    x: Tensor,
    axis: int = -1,
    *,
    reverse: bool = False,
    ties: str | TieRule = "first",
) -> Call:
    """Gradient of `cummin`: each output's gradient goes to the element it came from."""
    return _backward(ScanKind.CUMMIN, dy, x, None, axis, reverse, ties)


@Function
def logcumsumexp(x: Tensor, axis: int = -1, *, reverse: bool = False) -> Call:
    """Running log-sum-exp along an axis."""
    return _forward("logcumsumexp", x, axis, reverse)


@Function
def logcumsumexp_backward(
    dy: Tensor, x: Tensor, y: Tensor | None, axis: int = -1, *, reverse: bool = False
) -> Call:
    """Gradient of `logcumsumexp`, in decay form; `y` may be None in f16 and bf16."""
    return _backward(ScanKind.LOG_CUMSUM_EXP, dy, x, y, axis, reverse)
