"""How an array lies in memory: order of axes, steps, gaps, and which forbidden page it touches."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

import numpy as np

from pullback.fuzz.memory import Bytes, Memory
from pullback.ops.draw import Draw

POISONS = (0xFF, 0x00, 0x7F)  # NaN or -1; zero, which looks like data; huge
PLACES = ("end", "start", "inside")


@dataclass(frozen=True, slots=True)
class Layout:
    """`order` lists axes from the outermost in memory to the innermost. Along an axis elements are
    `steps` apart (negative: backwards; 0: all are one element), with `gaps` more at its end."""

    order: tuple[int, ...]
    steps: tuple[int, ...]
    gaps: tuple[int, ...]
    place: str = "end"
    poison: int = 0xFF

    @staticmethod
    def plain(rank: int) -> Layout:
        return Layout(tuple(range(rank)), (1,) * rank, (0,) * rank)

    @staticmethod
    def from_json(found: dict[str, Any]) -> Layout:
        parts: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}
        return Layout(**parts)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def is_plain(self) -> bool:
        rank = len(self.order)
        return (self.order, self.steps, self.gaps) == (tuple(range(rank)), (1,) * rank, (0,) * rank)

    def forwards(self) -> Layout:
        """Without negative steps, which some libraries have not."""
        return replace(self, steps=tuple(map(abs, self.steps)))

    def apart(self) -> Layout:
        """Without broadcast axes: for memory that is written."""
        return replace(self, steps=tuple(step or 1 for step in self.steps))

    def strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """In elements."""
        strides, filled = [0] * len(shape), 1
        for axis in reversed(self.order):
            step = self.steps[axis]
            strides[axis] = filled * step
            if step:
                filled *= max(shape[axis], 1) * abs(step) + self.gaps[axis]
        return tuple(strides)


def fits(layout: Layout, shape: tuple[int, ...], most: int = 1 << 23) -> bool:
    """Whether an array of this shape laid out so takes no more than `most` elements of memory."""
    if len(layout.order) != len(shape):
        return False
    reach = sum((n - 1) * abs(s) for n, s in zip(shape, layout.strides(shape), strict=True) if n)
    return reach < most


def place(memory: Memory, shape: tuple[int, ...], dtype: Any, layout: Layout) -> tuple[Bytes, Any]:
    """Poisoned memory, and the array in it; nothing is written into the array."""
    size, strides = np.dtype(dtype).itemsize, layout.strides(shape)
    if prod(shape) == 0:
        span = first = 0
    else:
        ends = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
        first = -sum(end for end in ends if end < 0)
        span = first + sum(end for end in ends if end > 0) + 1
    buffer = span * size
    # Inside, the buffer begins where no vector does.
    data = memory.take(buffer + 3 * size if layout.place == "inside" else buffer, layout.poison)
    start = {"end": data.size - buffer, "start": 0, "inside": 3 * size}[layout.place]
    flat = data[start : start + buffer].view(dtype)
    strides_in_bytes = tuple(s * size for s in strides)
    view = np.lib.stride_tricks.as_strided(flat[first:], shape, strides_in_bytes)
    return data, view


def put(memory: Memory, values: Any, layout: Layout) -> tuple[Bytes, Any]:
    """The same with the values in it."""
    data, view = place(memory, values.shape, values.dtype, layout)
    if view.size:
        # Where an axis is broadcast its elements are one, and writing one of them writes all.
        once = tuple(slice(None) if step else slice(0, 1) for step in layout.steps)
        view[once] = values[once]
    return data, view


def draw_layout(draw: Draw, label: str, rank: int, written: bool) -> Layout:
    """Contiguous, permuted, sliced, backwards, with gaps, broadcast (unless it is written)."""
    order, steps, gaps = list(range(rank)), [1] * rank, [0] * rank
    if draw.chance(f"{label}.permuted", 0.4):
        order = draw.source(f"{label}.order").permutation(rank).tolist()
    if draw.chance(f"{label}.stepped", 0.5):
        steps = [
            draw.pick(f"{label}.step.{i}", (1, -1, 2, -2, 3), (5, 2, 2, 1, 1)) for i in range(rank)
        ]
    if not written and draw.chance(f"{label}.broadcast", 0.06):
        steps = [0 if draw.chance(f"{label}.zero.{i}", 0.4) else s for i, s in enumerate(steps)]
    if draw.chance(f"{label}.gaps", 0.4):
        gaps = [draw.pick(f"{label}.gap.{i}", (0, 1, 2, 5), (3, 2, 1, 1)) for i in range(rank)]
    return Layout(
        tuple(order),
        tuple(steps),
        tuple(gaps),
        draw.pick(f"{label}.place", PLACES, (3, 2, 1)),
        draw.pick(f"{label}.poison", POISONS, (4, 1, 1)),
    )
