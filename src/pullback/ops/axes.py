"""Which axes of a call are free: a part of them can be computed by itself, from the same part of
the arguments. Other devices may hold the other parts (docs/jax.md).

A rule takes the shapes of the tensor arguments by name, and the other arguments; it names the axes
of tensors and results, equal names for equal positions. Axes that are summed over, scanned, or
looked up by index are not free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pullback.plan.function import axis_of

Shape = tuple[int, ...]
Names = tuple[str, ...]
Shapes = Mapping[str, Shape]


@dataclass(frozen=True, slots=True)
class Axes:
    """Names of the axes of each tensor argument and of the results (of further ones: as the last),
    and which of them are free."""

    arguments: Mapping[str, Names]
    results: tuple[Names, ...]
    free: frozenset[str]

    def result(self, number: int) -> Names:
        return self.results[min(number, len(self.results) - 1)]


Rule = Callable[[Shapes, Mapping[str, Any]], Axes | None]


def notation(results: Sequence[str], free: str, **tensors: str) -> Rule:
    """A rule that is the same for all calls. A pattern has a name for each axis; "d*" is any number
    of axes."""

    def rule(shapes: Shapes, options: Mapping[str, Any]) -> Axes | None:
        counts: dict[str, int] = {}
        for name, shape in shapes.items():
            stars = [axis for axis in tensors[name].split() if axis.endswith("*")]
            for star in stars:
                counts[star] = len(shape) - len(tensors[name].split()) + 1
        arguments = {name: _named(tensors[name], counts) for name in shapes}
        named = tuple(_named(pattern, counts) for pattern in results)
        if any(len(arguments[name]) != len(shape) for name, shape in shapes.items()):
            return None
        return Axes(arguments, named, frozenset(_named(free, counts)))

    return rule


def _named(pattern: str, counts: Mapping[str, int]) -> Names:
    """The axes of a pattern, those of a star numbered."""
    names: list[str] = []
    for axis in pattern.split():
        stem = axis.removesuffix("*")
        names += [axis] if stem == axis else [f"{stem}{i}" for i in range(counts.get(axis, 0))]
    return tuple(names)


def along_axis(op: str) -> Rule:
    """Tensors and results of one shape, and an axis along which something happens."""

    def rule(shapes: Shapes, options: Mapping[str, Any]) -> Axes | None:
        first, *others = shapes.values()
        if any(shape != first for shape in others) or not first:
            return None
        names = tuple(f"b{number}" for number in range(len(first)))
        taken = names[axis_of(op, options["axis"], len(first))]
        return Axes(dict.fromkeys(shapes, names), (names,), frozenset(names) - {taken})

    return rule


def elementwise(results: Sequence[str]) -> Rule:
    """Tensors that broadcast; results by the name of the tensor whose shape they have, or "" for
    the common shape. An axis along which one is stretched, and perhaps summed, is not free."""

    def rule(shapes: Shapes, options: Mapping[str, Any]) -> Axes | None:
        rank = max(map(len, shapes.values()))
        extents = [
            max(s[a - rank] for s in shapes.values() if len(s) >= rank - a) for a in range(rank)
        ]
        whole = {
            f"b{axis}"
            for axis, extent in enumerate(extents)
            if any(len(s) < rank - axis or s[axis - rank] != extent for s in shapes.values())
        }

        def names(shape: Shape) -> Names:
            axes = range(rank - len(shape), rank)
            kept = zip(axes, shape, strict=True)
            return tuple(f"b{a}" if n == extents[a] else f"one{a}" for a, n in kept)

        common = tuple(f"b{axis}" for axis in range(rank))
        found = tuple(names(shapes[r]) if r in shapes else common for r in results)
        arguments = {name: names(shape) for name, shape in shapes.items()}
        return Axes(arguments, found, frozenset(common) - whole)

    return rule


def axes_of(function: Any, shapes: Shapes, options: Mapping[str, Any]) -> Axes | None:
    """The axes of a call; None where nothing is known of them."""
    rule = function.calculus.axes
    if rule is None and "axis" in function.parameters:
        rule = along_axis(function.name)
    return rule(shapes, options) if rule is not None and shapes else None
