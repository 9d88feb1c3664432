"""What a GPU plan runs: steps over tensors and scratch, with everything but addresses decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.guarantee import PrecisionGuarantee

# Every run of scratch starts at a boundary the compiler may count on.
ALIGNMENT = 16

# Fewer programs than this leave a large GPU idle: rows are then cut into chunks.
ENOUGH_PROGRAMS = 512


@dataclass(frozen=True, slots=True)
class Operand:
    """The tensor in slot `position` of the plan, as a kernel argument."""

    position: int
    element: ElementKind
    offset: int = 0  # in elements


def operands(*views: Any) -> tuple[Operand | None, ...]:
    """The tensors of a plan in slot order; None where one is not given."""
    return tuple(None if view is None else Operand(i, view.element) for i, view in enumerate(views))


@dataclass(frozen=True, slots=True)
class Scratch:
    """Elements in the workspace, as a kernel argument."""

    offset: int  # in bytes
    element: ElementKind
    count: int


@dataclass(slots=True)
class Arena:
    """Hands out scratch, one run of elements after another; `nbytes` is what it took so far."""

    nbytes: int = 0

    def take(self, element: ElementKind, count: int) -> Scratch:
        taken = Scratch(self.nbytes, element, count)
        self.nbytes += -(-count * element.itemsize // ALIGNMENT) * ALIGNMENT
        return taken


@dataclass(frozen=True, slots=True)
class Step:
    """One launch of a kernel over a one-dimensional grid.

    `arguments` are the kernel's, by name: numbers, tuples of numbers, constants, None, operands
    and scratch. `traffic` is the bytes it has to move: what a roofline divides by."""

    kernel: Any
    grid: int
    arguments: Mapping[str, Any]
    warps: int = 4
    traffic: int = 0


@dataclass(frozen=True, slots=True)
class Sort:
    """The framework's stable sort of scratch `keys`, giving the order and the sorted keys."""

    keys: Scratch
    sorted: Scratch
    order: Scratch
    traffic: int = 0


@dataclass(frozen=True, slots=True)
class GpuProgram:
    """Steps in order. `status`: three words of scratch that a check writes, read at the end."""

    steps: tuple[Step | Sort, ...]
    status: Scratch | None = None

    @property
    def traffic(self) -> int:
        return sum(step.traffic for step in self.steps)


EMPTY = GpuProgram(())


def _nothing(_: Any) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Layout:
    """A plan's entry on the GPU: lays programs out, and says what they promise and borrow."""

    lay_out: Callable[..., GpuProgram]
    guarantee: Callable[[Any], PrecisionGuarantee]
    workspace: Callable[[Any], int] = _nothing
    samples: Sequence[Any] = ()  # of `sketch.Sample`

    def __call__(self, desc: Any, *views: Any) -> GpuProgram:
        return self.lay_out(desc, *views)


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program holds at a time: `rows` rows of `block` elements, on `warps` warps."""

    rows: int
    block: int
    warps: int


class Steps:
    """A launch table: the tile for an extent is that of the first limit it does not pass."""

    def __init__(self, *entries: tuple[int | None, Tile]) -> None:
        self.entries = entries

    def __getitem__(self, extent: int) -> Tile:
        return next(tile for limit, tile in self.entries if limit is None or extent <= limit)


def ceil_div(count: int, size: int) -> int:
    return -(-count // size)


def power_of_two(count: int, least: int = 1) -> int:
    """The smallest power of two that holds `count`."""
    return max(least, 1 << max(count - 1, 0).bit_length())
