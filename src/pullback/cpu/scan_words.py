"""What the contracts of scans know of their kernels."""

from typing import Final

from pullback.cpu.block import TENSORS

# Words of scans begin behind as many tensors as any of their plans has.
MOST_TENSORS: Final = 8
# Where the words of cpu/extended begin, 0 in a program that has none.
EXTENSION: Final = TENSORS + MOST_TENSORS
FIRST_WORD: Final = EXTENSION + 1


def block_steps(itemsize: int) -> int:
    """Steps of a block: part of the bits (cpu/columns)."""
    return 8 if itemsize == 2 else 4
