"""Derivatives of gradients over ranks: parts are gathered, the plain function is differentiated as
often as asked for, and terms of all ranks are summed in their order.

An argument in parts is gathered, and its gradient is the sum over ranks of its part. One that all
ranks have alike has the sum over ranks as its gradient. A result that all ranks have alike gets the
same gradient on all of them, which then counts once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pullback.contract.errors import Unsupported
from pullback.distributed.forms import has_own_indices
from pullback.ops.axes import axes_of


class _Whole(torch.autograd.Function):  # type: ignore[misc]
    """All ranks' parts, one after the other."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, place: tuple[Any, int, list[int]]) -> Tensor:
        rank, axis, widths = ctx.place = place
        return rank.whole(part, axis, part.new_tensor(widths, dtype=torch.float64))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _Own.apply(gradient, ctx.place), None


class _Own(torch.autograd.Function):  # type: ignore[misc]
    """This rank's part of the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, place: tuple[Any, int, list[int]]) -> Tensor:
        rank, axis, widths = ctx.place = place
        total = _summed(rank, whole)
        return total.narrow(axis, sum(widths[: rank.rank]), widths[rank.rank]).contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _Whole.apply(gradient.contiguous(), ctx.place), None


class _Alike(torch.autograd.Function):  # type: ignore[misc]
    """What all ranks have; gradients are summed over them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rank: Any) -> Tensor:
        ctx.rank = rank
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _Total.apply(gradient, ctx.rank), None


class _Total(torch.autograd.Function):  # type: ignore[misc]
    """The sum over ranks, which all have."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rank: Any) -> Tensor:
        return _summed(rank, x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


class _Once(torch.autograd.Function):  # type: ignore[misc]
    """What all ranks have, on the first of them; zeros elsewhere."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rank: Any) -> Tensor:
        ctx.rank = rank
        return x.clone() if rank.rank == 0 else torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.rank.exchange(gradient.contiguous())[0], None


def _summed(rank: Any, x: Tensor) -> Tensor:
    wide = rank.exchange(rank.working(x).contiguous())
    total = wide[0]
    for part in wide[1:]:
        total = total + part
    return total.to(x.dtype)


def gradients(
    function: Any, rank: Any, names: list[str], others: dict[str, Any], given: Any, dy: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients of this rank's parts that can be differentiated again."""
    tensors = dict(zip(names, given, strict=False))
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    axes = axes_of(function, shapes, others)
    if axes is None or not axes.along or has_own_indices(function):
        expected = "parts along an axis, for second derivatives"
        raise Unsupported(function.name, "over", expected, "others")
    along = axes.along
    places = {n: axes.arguments[n].index(along) for n in names if along in axes.arguments[n]}
    width = shapes[next(iter(places))][next(iter(places.values()))]
    (found,) = rank.gather(rank.filled((), float(width), dy))
    widths = [int(n) for n in found]
    with torch.enable_grad():
        wanted = [t for t in given[: len(names)] if t.requires_grad]
        whole = {
            n: _Whole.apply(t, (rank, places[n], widths)) if n in places else _Alike.apply(t, rank)
            for n, t in tensors.items()
        }
        result = function(**{**others, **whole})
        result = result[0] if isinstance(result, tuple) else result
        if along in axes.result(0):
            at = axes.result(0).index(along)
            result = result.narrow(at, sum(widths[: rank.rank]), widths[rank.rank])
        else:
            dy = _Once.apply(dy, rank)
        terms = iter(torch.autograd.grad(result, wanted, dy, create_graph=True))
    return tuple(next(terms) if t.requires_grad else None for t in given[: len(names)])
