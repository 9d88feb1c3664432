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
    which of them are free, and the one along which the function works, if there is one. Axes that
    are `summed` would be free if no result were summed over them: those results of parts are the
    terms of a sum."""

    arguments: Mapping[str, Names]
    results: tuple[Names, ...]
    free: frozenset[str]
    along: str = ""
    summed: frozenset[str] = frozenset()

    def result(self, number: int) -> Names:
        return self.results[min(number, len(self.results) - 1)]


Rule = Callable[[Shapes, Mapping[str, Any]], Axes | None]


def notation(results: Sequence[str], free: str, along: str = "", **tensors: str) -> Rule:
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
        return Axes(arguments, named, frozenset(_named(free, counts)), along)

    return rule


def _named(pattern: str, counts: Mapping[str, int]) -> Names:
    """The axes of a pattern, those of a star numbered."""
    names: list[str] = []
    for axis in pattern.split():
        stem = axis.removesuffix("*")
        names += [axis] if stem == axis else [f"{stem}{i}" for i in range(counts.get(axis, 0))]
    return tuple(names)


def along_axis(op: str, results: Sequence[str] = ("",), beside: Sequence[str] = ()) -> Rule:
    """Tensors that broadcast to one shape, and an axis along which something happens. Results by
    the name of the tensor whose shape they have, or "" for the whole one. Tensors `beside` it have
    that shape without the axis, or with the pieces that "offsets" make of it in its place."""

    def rule(shapes: Shapes, options: Mapping[str, Any]) -> Axes | None:
        spread = {name: s for name, s in shapes.items() if name not in (*beside, BORDERS)}
        whole = _common(list(spread.values()))
        if not whole or any(len(s) > len(whole) for s in shapes.values()):
            return None
        names = _numbered(whole)
        at = axis_of(op, options["axis"], len(whole))
        rows = names[:at] + names[at + 1 :], whole[:at] + whole[at + 1 :]
        if BORDERS in shapes:
            (pieces,) = shapes[BORDERS]
            rows = (
                (*names[:at], "piece", *names[at + 1 :]),
                (*whole[:at], pieces - 1, *whole[at + 1 :]),
            )
        arguments = {name: _aligned(shape, names, whole) for name, shape in spread.items()}
        arguments |= {n: _aligned(shapes[n], *rows) for n in beside if n in shapes}
        arguments |= {BORDERS: ("border",)} if BORDERS in shapes else {}
        found = tuple(arguments.get(result, names) for result in results)
        given = [r for r, n in zip(found, results, strict=True) if not n or n in shapes]
        others = frozenset(names) - {names[at]}
        free = _in_all(given) & others
        return Axes(arguments, found, free, names[at], others - free)

    return rule


BORDERS = "offsets"


def elementwise(results: Sequence[str]) -> Rule:
    """Tensors that broadcast; results by the name of the tensor whose shape they have, or "" for
    the common shape. An axis that a result lacks, because it was summed over, is not free."""

    def rule(shapes: Shapes, options: Mapping[str, Any]) -> Axes | None:
        whole = _common(list(shapes.values()))
        common = _numbered(whole)
        arguments = {name: _aligned(shape, common, whole) for name, shape in shapes.items()}
        found = tuple(arguments.get(result, common) for result in results)
        free = _in_all(found) & frozenset(common)
        return Axes(arguments, found, free, summed=frozenset(common) - free)

    return rule


def _numbered(shape: Shape) -> Names:
    return tuple(f"b{axis}" for axis in range(len(shape)))


def _common(shapes: Sequence[Shape]) -> Shape:
    """The shape that these broadcast to."""
    rank = max(map(len, shapes))
    return tuple(
        next((s[a - rank] for s in shapes if len(s) >= rank - a and s[a - rank] != 1), 1)
        for a in range(rank)
    )


def _aligned(shape: Shape, names: Names, whole: Shape) -> Names:
    """Names of the axes of a tensor that broadcasts to a shape whose axes have names. Those along
    which it is stretched have names of their own."""
    pairs = zip(
        shape, names[len(names) - len(shape) :], whole[len(whole) - len(shape) :], strict=True
    )
    return tuple(
        name if n == extent else "one" + name.removeprefix("b") for n, name, extent in pairs
    )


def _in_all(tensors: Sequence[Names]) -> frozenset[str]:
    return frozenset.intersection(*map(frozenset, tensors))


def axes_of(function: Any, shapes: Shapes, options: Mapping[str, Any]) -> Axes | None:
    """The axes of a call; None where nothing is known of them."""
    rule = function.calculus.axes
    if rule is None and "axis" in function.parameters:
        rule = along_axis(function.name)
    return rule(shapes, options) if rule is not None and shapes else None
