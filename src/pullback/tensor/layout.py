"""Strides and what follows from them: reach, overlap, and the few loops a kernel has to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Strides = tuple[int, ...]

# Beyond this many elements an overlap that no quick argument decides is taken for one.
_ENUMERABLE = 1 << 16


def contiguous_strides(shape: Sequence[int]) -> Strides:
    """Element strides of a C-contiguous array."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape all of them broadcast to; ValueError if there is none. Unlike NumPy's it only
    compares extents, so that they may be symbols of a tracer."""
    common: list[int] = []
    for axis in range(-max(map(len, shapes)), 0):
        extents = [s[axis] for s in shapes if len(s) >= -axis and s[axis] != 1]
        if any(extent != extents[0] for extent in extents[1:]):
            raise ValueError("shapes do not broadcast")
        common.append(extents[0] if extents else 1)
    return tuple(common)


def reach(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Offsets, in elements, of the lowest element and of one past the highest."""
    if 0 in shape:
        return 0, 0
    spans = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    return sum(min(span, 0) for span in spans), sum(max(span, 0) for span in spans) + 1


def _offsets(shape: Shape, strides: Strides) -> set[int]:
    steps = [range(0, n * s, s) if s else [0] * n for n, s in zip(shape, strides, strict=True)]
    return {sum(index) for index in product(*steps)}


def overlaps_itself(shape: Shape, strides: Strides) -> bool:
    """Whether two different indices reach the same element."""
    if 0 in shape:
        return False
    axes = sorted((abs(s), n) for n, s in zip(shape, strides, strict=True) if n > 1)
    # Each stride steps over everything the smaller ones can reach: the usual layouts.
    filled = 1
    for stride, extent in axes:
        if stride < filled:
            break
        filled = stride * (extent - 1) + filled
    else:
        return False
    if any(stride == 0 for stride, _ in axes) or prod(shape) > _ENUMERABLE:
        return True
    return len(_offsets(shape, strides)) < prod(shape)


def share_an_element(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays have an element in common: exact where it is cheap, else the safe side."""
    try:
        return bool(np.shares_memory(first, second, max_work=1 << 16))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


@dataclass(frozen=True, slots=True)
class Loops:
    """Several tensors of one shape, walked together: extents outermost first, and for each
    tensor its element strides. Axes of extent one are gone, neighbours are merged where every
    tensor allows it, and the axes are ordered by the strides of the first tensor of those that are
    broadcast along the fewest axes."""

    extents: Shape
    strides: tuple[Strides, ...]

    @property
    def count(self) -> int:
        return prod(self.extents)


def merge(shape: Shape, strides: Sequence[Strides], *, ordered: bool = False) -> Loops:
    """The fewest loops that visit every element of tensors of one shape; `ordered`: in the order
    of the shape, for loops whose position counts."""
    axes = [
        (extent, tuple(s[axis] for s in strides))
        for axis, extent in enumerate(shape)
        if extent != 1
    ]
    if not ordered:
        zeros = [sum(steps[t] == 0 for _, steps in axes) for t in range(len(strides))]
        leading = sorted(range(len(strides)), key=zeros.__getitem__)
        axes.sort(key=lambda axis: [-abs(axis[1][t]) for t in leading])
    merged: list[tuple[int, tuple[int, ...]]] = axes[:1]
    for (_, _), (extent, steps) in pairwise(axes):
        outer_extent, outer_steps = merged[-1]
        if all(outer == extent * step for outer, step in zip(outer_steps, steps, strict=True)):
            merged[-1] = (outer_extent * extent, steps)
        else:
            merged.append((extent, steps))
    extents = tuple(extent for extent, _ in merged)
    per_tensor = tuple(tuple(steps[t] for _, steps in merged) for t in range(len(strides)))
    return Loops(extents, per_tensor)


@dataclass(frozen=True, slots=True)
class AxisLoops:
    """Tensors walked along one axis: its extent and strides, and the loops over all the rest.

    `columns` says that the innermost of those loops is contiguous in every tensor while the axis
    is not: then vectors lie across it instead of along the axis. Tensors beside those that are
    walked come last, and have no say in it."""

    extent: int
    steps: tuple[int, ...]
    rest: Loops
    columns: bool


def along_axis(
    shape: Shape,
    axis: int,
    strides: Sequence[Strides],
    beside: Sequence[Strides] = (),
    alike: Sequence[int] = (),
) -> AxisLoops:
    """Split tensors of one shape into an axis and the rest. Rank 0 is a row of one, of which those
    `beside` may have several pieces. Tensors `alike` may be broadcast along columns."""
    walked, every = len(strides), [*strides, *beside]
    if not shape:
        steps = (1,) * walked + tuple(s[0] if s else 0 for s in beside)
        return AxisLoops(1, steps, merge((), [()] * len(every)), False)
    rest_shape = shape[:axis] + shape[axis + 1 :]
    rest = merge(rest_shape, [s[:axis] + s[axis + 1 :] for s in every])
    steps = tuple(s[axis] for s in every)
    unit_inside = bool(rest.extents) and all(
        s[-1] == 1 or (s[-1] == 0 and t in alike) for t, s in enumerate(rest.strides[:walked])
    )
    # A row of one element has no direction; across the columns it is one long vector.
    along = shape[axis] > 1 and all(abs(step) == 1 for step in steps[:walked])
    return AxisLoops(shape[axis], steps, rest, unit_inside and not along)
