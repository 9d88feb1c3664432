"""How the axes of a call are spread over a mesh, from the one line that names them (ops/axes.py).

The same line gives JAX its Shardy rules (frontends/jax_partition.py) and PyTorch its placements:
a dimension of a mesh holds one named axis, of all tensors that have it, or nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from pullback.ops.axes import Axes, Names, axes_of

Shape = tuple[int, ...]
# Of each tensor which of its axes a dimension of the mesh holds; None if it holds none of them.
Held = Mapping[str, Sequence[int | None]]


@dataclass(frozen=True, slots=True)
class Layout:
    """The axes of a call, and which of them each dimension of the mesh holds ("" for none)."""

    axes: Axes
    shapes: Mapping[str, Shape]
    chosen: tuple[str, ...]

    def argument(self, name: str) -> list[int | None]:
        """By dimension of the mesh, the axis of an argument that is to be sharded there."""
        return self._places(self.axes.arguments.get(name, ()))

    def result(self, number: int, rank: int) -> list[int | None]:
        """The same of a result."""
        names = self.axes.result(number)
        return self._places(names if len(names) == rank else ())

    def shape(self, number: int, local: Shape) -> Shape:
        """The whole shape of a result, from that of a part."""
        names = self.axes.result(number)
        if len(names) != len(local):
            return local
        pairs = zip(names, local, strict=True)
        return tuple(self.extent(name) if name in self.chosen else n for name, n in pairs)

    def extent(self, axis: str) -> int:
        """The whole extent of an axis."""
        pairs = ((self.axes.arguments.get(n, ()), s) for n, s in self.shapes.items())
        return next(s[names.index(axis)] for names, s in pairs if axis in names)

    def summed(self, number: int, rank: int) -> list[int]:
        """Dimensions of the mesh over which parts of a result are the terms of a sum."""
        names = self.axes.result(number)
        if len(names) != rank:
            return []
        chosen = enumerate(self.chosen)
        return [i for i, axis in chosen if axis in self.axes.summed and axis not in names]

    @property
    def along(self) -> list[int]:
        """Dimensions of the mesh that hold the axis along which the function works."""
        return [i for i, name in enumerate(self.chosen) if name and name == self.axes.along]

    def _places(self, names: Names) -> list[int | None]:
        return [names.index(name) if name in names else None for name in self.chosen]


def layout(
    function: Any,
    shapes: Mapping[str, Shape],
    options: Mapping[str, Any],
    held: Held,
    works_along: bool = False,
) -> Layout:
    """Which axes stay where they are: on each dimension of the mesh the free axis (or one that is
    summed over) that the largest tensor has there. With `works_along`, also the axis that the
    function works along, on one dimension at most. Everything else is for the caller to gather."""
    axes = axes_of(function, shapes, options) or Axes({}, ((),), frozenset())
    largest_first = sorted(held, key=lambda name: -prod(shapes[name]))
    chosen: list[str] = []
    for dimension in range(max(map(len, held.values()))):
        candidates = [_name(axes, name, held[name][dimension]) for name in largest_first]
        kept = {*axes.free, *axes.summed}
        if works_along and axes.along and axes.along not in chosen:
            kept.add(axes.along)
        chosen.append(next((c for c in candidates if c in kept), ""))
    return Layout(axes, shapes, tuple(chosen))


def _name(axes: Axes, tensor: str, axis: int | None) -> str:
    names = axes.arguments.get(tensor, ())
    return names[axis] if axis is not None and axis < len(names) else ""
