"""DTensor in, DTensor out: what the registered ops do with the parts of their arguments.

DTensor asks here instead of its own tables (`torch.library.register_torch_dispatch`), below
autograd, so gradients come by the same way: they are calls of registered ops. Axes that are free
stay sharded; an axis that a function works along goes to its distributed form; all else is
gathered first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from pullback.contract.element import describe
from pullback.contract.errors import Unsupported
from pullback.distributed.forms import forms
from pullback.distributed.notation import Layout, layout
from pullback.distributed.torch_groups import TorchRank
from pullback.frontends.torch_library import REGISTERED, Op, dispatch


def register() -> None:
    """Have DTensor ask here."""
    for overload, op in REGISTERED.items():
        if not op.extents:
            torch.library.register_torch_dispatch(overload, DTensor, _call)


def _call(_: Any, overload: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    op = REGISTERED[overload]
    given = dict(zip(op.names, args, strict=False), **(kwargs or {}))
    arguments = op.arguments((), given)
    tensors = {n: t for n in op.function.tensors if isinstance(t := arguments[n], Tensor)}
    mesh = _mesh(op, tensors)
    options = {n: v for n, v in arguments.items() if n not in tensors}
    held = {name: list(map(_axis, t.placements)) for name, t in tensors.items()}
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    form = forms().get(op.function.name) if arguments.get("offsets") is None else None
    placed = layout(op.function, shapes, options, held, works_along=form is not None)
    if placed.along and form is not None:
        found = form(_rank(mesh, placed), op.function, {**arguments, **_parts(tensors, placed)})
        if found is not None:
            several = tuple(_whole(mesh, placed, i, r) for i, r in enumerate(found[0]))
            return several if len(several) > 1 else several[0]
        placed = layout(op.function, shapes, options, held)
    parts = _parts(tensors, placed)
    results = overload(**{**given, **parts})
    several = results if isinstance(results, tuple) else (results,)
    several = _summed(op, arguments, parts, several, mesh, placed)
    found = tuple(_whole(mesh, placed, i, r) for i, r in enumerate(several))
    return found if isinstance(results, tuple) else found[0]


def _summed(
    op: Op,
    arguments: dict[str, Any],
    parts: dict[str, Tensor],
    results: tuple[Tensor, ...],
    mesh: Any,
    placed: Layout,
) -> tuple[Tensor, ...]:
    """Results with the sums over ranks done: of terms computed a step wider, in the order of ranks,
    rounded once."""
    sums = [placed.summed(i, result.dim()) for i, result in enumerate(results)]
    if not any(sums):
        return results
    wide = {n: _wider(t) if t.is_floating_point() else t for n, t in parts.items()}
    terms = dispatch(op.function, (), {**arguments, **wide}, None)
    several = terms if isinstance(terms, tuple) else (terms,)
    found = list(results)
    for i, dimensions in enumerate(sums):
        total = several[i]
        for dimension in dimensions:
            rank = TorchRank(mesh.get_group(dimension))
            total = sum(rank.exchange(total).unbind(0))
        found[i] = total.to(results[i].dtype) if dimensions else results[i]
    return tuple(found)


def _wider(x: Tensor) -> Tensor:
    return x.to(torch.float32 if x.element_size() == 2 else torch.float64)


def _rank(mesh: Any, placed: Layout) -> TorchRank:
    """This rank among those that hold the parts of the axis; DTensor cuts them as torch.chunk."""
    (dimension,) = placed.along
    size, extent = mesh.size(dimension), placed.extent(placed.axes.along)
    chunk = -(-extent // size)
    widths = [max(min(chunk, extent - rank * chunk), 0) for rank in range(size)]
    alike = (n for n, names in placed.axes.arguments.items() if placed.axes.along not in names)
    return TorchRank(mesh.get_group(dimension), widths, frozenset(alike))


def _parts(tensors: dict[str, Tensor], placed: Layout) -> dict[str, Tensor]:
    return {name: _part(t, _placements(placed.argument(name))) for name, t in tensors.items()}


def _mesh(op: Op, tensors: dict[str, Tensor]) -> Any:
    """The mesh that all are on."""
    first = next(t for t in tensors.values() if isinstance(t, DTensor))
    for name, tensor in tensors.items():
        if not isinstance(tensor, DTensor):
            expected = "a DTensor, as the others (torch.distributed.tensor.distribute_tensor)"
            raise Unsupported(op.function.name, name, expected, describe(tensor))
        if tensor.device_mesh != first.device_mesh:
            expected = f"on {first.device_mesh}, as the others"
            raise Unsupported(op.function.name, name, expected, f"one on {tensor.device_mesh}")
    return first.device_mesh


def _axis(placement: Placement) -> int | None:
    """What a dimension of the mesh holds. Subclasses of Shard order parts in other ways."""
    return placement.dim if type(placement) is Shard else None


def _placements(places: Sequence[int | None]) -> list[Placement]:
    return [Replicate() if axis is None else Shard(axis) for axis in places]


def _part(tensor: DTensor, placements: list[Placement]) -> Tensor:
    """What this rank has of a tensor that is placed so; other placements are changed first."""
    if list(tensor.placements) != placements:
        tensor = tensor.redistribute(placements=placements)
    return tensor.to_local()


def _whole(mesh: Any, placed: Layout, number: int, local: Tensor) -> DTensor:
    shape = placed.shape(number, tuple(local.shape))
    stride = torch.empty(shape, device="meta").stride()
    placements = _placements(placed.result(number, local.dim()))
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride
    )
