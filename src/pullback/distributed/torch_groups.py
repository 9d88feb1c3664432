"""PyTorch's process groups: one rank's part of a call, and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from pullback import distributed
from pullback.contract.errors import InvalidProblem, Unsupported
from pullback.distributed.calls import Gradient, check_exact, form_of, recorded
from pullback.distributed.forms import composed
from pullback.distributed.torch_agreement import agree, together
from pullback.distributed.torch_twice import gradients as twice
from pullback.internals.torch import all_gather_tensor, all_to_all_single
from pullback.ops.sharding import INF, Spread, namespace


def _sum(x: Tensor, axis: int, keepdims: bool) -> Tensor:
    return torch.sum(x, axis, keepdim=keepdims)


def _add_along_axis(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    return torch.zeros_like(x).scatter_add(axis, indices, x)


def _arange(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, device=like.device, dtype=like.dtype)


def _unique(x: Tensor) -> tuple[Tensor, Tensor]:
    found, places = torch.unique(x, return_inverse=True)
    return found, places.to(x.dtype)


TORCH = namespace(
    torch,
    amax=torch.amax,
    concatenate=torch.cat,
    moveaxis=torch.movedim,
    sum=_sum,
    take=torch.take,
    arange=_arange,
    unique=_unique,
    add_along_axis=_add_along_axis,
    take_along_axis=torch.take_along_dim,
    argmax=torch.argmax,
    argsort=lambda x: torch.argsort(x, stable=True),
)


class TorchRank(Spread):
    """One rank of a process group. `widths` are the extents of all ranks' parts, and `alike` the
    arguments that are no parts, if known."""

    xp = TORCH

    def __init__(
        self,
        group: Any,
        widths: Sequence[int] | None = None,
        alike: frozenset[str] | None = None,
    ) -> None:
        self.group, self.widths, self.alike = group, widths, alike
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def exchange(self, flat: Tensor) -> Tensor:
        return all_gather_tensor(flat[None].contiguous(), 0, self.group)

    def select(self, rank: int, after: bool, new: Tensor, old: Tensor) -> Tensor:
        return new if (rank < self.rank if after else rank > self.rank) else old

    def own(self, gathered: Tensor) -> Tensor:
        return gathered[self.rank]

    def hide_own(self, gathered: Tensor) -> Tensor:
        at = torch.arange(self.size, device=gathered.device) == self.rank
        return torch.where(at.view(-1, *(1,) * (gathered.dim() - 1)), -INF, gathered)

    def enough(self, test: Tensor, yes: Callable[[], Tensor], no: Callable[[], Tensor]) -> Tensor:
        if torch.compiler.is_compiling():
            return no()  # what is right for any data
        return yes() if bool(test) else no()

    def gather_uneven(self, x: Tensor, widths: Tensor) -> Tensor:
        missing = max(self.counts(widths)) - x.shape[-1]
        padding = x.new_full((*x.shape[:-1], missing), -INF if x.is_floating_point() else 0)
        return self.exchange(torch.cat([x, padding], -1))

    def route(self, x: Tensor, sends: list[int], receives: list[int]) -> Tensor:
        return all_to_all_single(x.contiguous(), receives, sends, self.group)

    def by_owner(
        self, flat: Tensor, borders: list[int]
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        inside = (flat >= 0) & (flat < borders[-1])
        edges = torch.tensor(borders[1:], device=flat.device, dtype=flat.dtype)
        owner = torch.where(inside, torch.bucketize(flat, edges, right=True), self.size)
        counts = torch.bincount(owner, minlength=self.size + 1)
        order = torch.argsort(owner, stable=True)[: int(inside.sum())]
        at = int(torch.argmin(inside.to(torch.int8))) if not bool(inside.all()) else -1
        value = flat[at] if at >= 0 else flat.new_zeros(())
        return order, list(counts[: self.size]), [flat.new_full((), at), value]

    def swapped(self, x: Tensor) -> Tensor:
        return all_to_all_single(x.contiguous(), None, None, self.group)

    def joined_ranks(self, x: Tensor) -> Tensor:
        return self.exchange(x)

    def scattered(self, rows: Tensor, order: Tensor, count: int) -> Tensor:
        return rows.new_zeros((count, *rows.shape[1:])).index_copy(0, order, rows)

    def distinct(self, values: Tensor, bound: int) -> tuple[Tensor, Tensor]:
        found, places = torch.unique(values, return_inverse=True)
        return found, places

    def counts(self, widths: Tensor) -> list[int]:
        return list(self.widths or map(int, widths.tolist()))

    def wide(self, x: Tensor) -> Tensor:
        return x.to(torch.float64)

    def working(self, x: Tensor) -> Tensor:
        return x.to(torch.float32 if self.is_half(x) else torch.float64)

    def like(self, x: Tensor, model: Tensor) -> Tensor:
        return x.to(model.dtype)

    def is_half(self, x: Tensor) -> bool:
        return x.dtype in (torch.float16, torch.bfloat16)

    def is_wide(self, x: Tensor) -> bool:
        return bool(x.dtype == torch.float64)

    def filled(self, shape: tuple[int, ...], value: float, like: Tensor) -> Tensor:
        return torch.full(shape, value, dtype=torch.float64, device=like.device)

    def largest_of(self, x: Tensor, count: int) -> Tensor:
        padding = x.new_full((*x.shape[:-1], max(count - x.shape[-1], 0)), -INF)
        return torch.cat([x, padding], -1).topk(count).values  # NaN first

    def is_integer(self, x: Tensor) -> bool:
        return not x.is_floating_point()

    def steps(self, count: int, like: Tensor | None) -> Tensor:
        device = None if like is None else like.device
        return torch.arange(count, dtype=torch.float64, device=device)

    @property
    def extent(self) -> int:
        return sum(self.widths or ())

    def begin(self, width: int) -> int:
        known = self.widths
        return self.rank * width if known is None else sum(known[: self.rank])

    def check_classes(self, op: str, target: Tensor, hits: Tensor, widths: Tensor) -> None:
        if not torch.compiler.is_compiling():
            super().check_classes(op, target, hits, widths)

    def is_even(self, widths: Tensor) -> bool:
        return self.widths is not None or super().is_even(widths)

    def as_index(self, x: Tensor) -> Tensor:
        return x.to(torch.int64)


def group_of(op: str, over: Any) -> Any:
    """The process group that `over` names."""
    if isinstance(over, DeviceMesh):
        if over.ndim != 1:
            expected = 'a DeviceMesh of one dimension (mesh["name"]) or a process group'
            raise InvalidProblem(op, "over", expected, f"one of {over.ndim}")
        return over.get_group()
    if isinstance(over, dist.ProcessGroup):
        return over
    expected = "a DeviceMesh of one dimension or a process group"
    raise InvalidProblem(op, "over", expected, f"a {type(over).__name__}")


def call(function: Any, arguments: dict[str, Any], over: Any, exact: bool, by: str) -> Any:
    """One rank's part of a call; differentiable."""
    rank = TorchRank(group_of(function.name, over))
    rank.by = by
    if exact:
        check_exact(function, by, routes=True)
    agree(rank.group, function, arguments)
    rule = composed().get(function.name)
    if rule is not None:
        table = arguments[function.parameters[0]]
        return together(rank, lambda: rule(TORCH, _Lookup(over, rank), arguments), table)
    tensors = [name for name in function.tensors if isinstance(arguments[name], Tensor)]
    others = {n: value for n, value in arguments.items() if n not in tensors}
    results = _Spread.apply(
        (function, rank, exact, tensors, others), *(arguments[name] for name in tensors)
    )
    return results[0] if len(results) == 1 else results


class _Lookup:
    """Rows of a table that is in parts by rows."""

    def __init__(self, over: Any, rank: TorchRank) -> None:
        self.over, self.rank = over, rank

    def __call__(self, table: Tensor, indices: Tensor, **options: Any) -> Tensor:
        return distributed.embedding(table, indices, over=self.over, **options)

    def rows(self, table: Tensor) -> int:
        (heights,) = self.rank.gather(self.rank.filled((), float(table.shape[0]), table))
        return int(heights.sum())


class _Spread(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, about: tuple[Any, ...], *given: Tensor) -> Any:
        function, rank, exact, names, others = about
        arguments = {**others, **dict(zip(names, given, strict=True))}
        extra = recorded(function, arguments)
        results, kept = form_of(function, exact, rank.by)(rank, function, {**arguments, **extra})
        ctx.about = about
        ctx.save_for_backward(*given, results[1] if extra else results[0], *kept)
        results = results[:1] if extra else results
        ctx.mark_non_differentiable(*results[1:])
        return results

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
        function, rank, exact, names, others = ctx.about
        saved = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient is to be differentiated
            if rank.by != "rows":
                raise Unsupported(function.name, "by", "'rows' for second derivatives", rank.by)
            if exact:  # terms are summed over ranks
                raise Unsupported(function.name, "exact", "False for second derivatives", "True")
            return None, *twice(function, rank, names, others, saved, gradient)
        arguments = {**others, **dict(zip(names, saved, strict=False))}
        how = Gradient(function)
        given = how.arguments(gradient.contiguous(), saved[len(names)], arguments)
        given["kept"] = saved[len(names) + 1 :]
        results, _kept = form_of(how.function, exact, rank.by)(rank, how.function, given)
        found = dict(zip(how.names(arguments), results, strict=False))
        return None, *(found.get(name) for name in names)
