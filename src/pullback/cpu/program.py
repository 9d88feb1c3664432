"""What a CPU plan runs: phases over one block of words, laid out before addresses are known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pullback.contract.element import ElementKind
from pullback.cpu.block import DETAIL, STATUS, TENSORS, WORKSPACE
from pullback.cpu.kernel import Kernel

__all__ = ["DETAIL", "STATUS", "TENSORS", "WORKSPACE", "Phase", "Program"]

# A chunk should take some ten microseconds: below that, waking a thread costs more than it gives.
BYTES_PER_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Phase:
    """A kernel over `count` items, cut into chunks of `grain`; compiled for the program's element
    and index type, or for its own."""

    kernel: Kernel
    count: int
    grain: int
    element: ElementKind | None = None
    index: ElementKind | None = None

    @property
    def extent(self) -> tuple[int, int, int]:
        """What follows the address of the kernel in the words of a program."""
        return self.count, self.grain, 0


@dataclass(frozen=True, slots=True)
class Callee(Phase):
    """A kernel that one of a later phase calls: it has no items, and its address is written to
    word `into` of the block."""

    into: int = 0

    @property
    def extent(self) -> tuple[int, int, int]:
        return 0, 1, self.into


@dataclass(frozen=True, slots=True)
class Program:
    phases: tuple[Phase, ...]
    words: tuple[int, ...]
    index: ElementKind = ElementKind.I64
    axis: int = 0  # of a scan: the word of the block where those of the axis walk begin
    together: Kernel | None = None  # of a scan: takes short pieces of a line together


def grain_for(bytes_per_item: int, at_least: int = BYTES_PER_CHUNK) -> int:
    """How many items make a chunk worth a thread."""
    return max(1, -(-at_least // max(bytes_per_item, 1)))


def bits_of(value: float) -> int:
    """A float64 as the word a kernel reads with `real`."""
    return int(np.float64(value).view(np.int64))


def encode(phases: Sequence[Phase], element: ElementKind, index: ElementKind) -> Iterable[int]:
    """The words of a program as the thread pool reads them: four per phase."""
    for phase in phases:
        address = phase.kernel.address(phase.element or element, phase.index or index)
        yield from (address, *phase.extent)


# Outputs larger than the caches gain from non-temporal stores; smaller ones are read again soon.
# Gain (non-temporal stores): softmax backward 4096x1024 f32 2.18.
STREAM_BYTES = 1 << 24


def streams(nbytes: int) -> bool:
    """Whether an output of this many bytes is worth writing past the caches."""
    return nbytes >= STREAM_BYTES
