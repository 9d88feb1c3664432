"""Where the words of scans begin: behind as many tensors as any of their plans has."""

from typing import Final

from pullback.cpu.block import TENSORS

MOST_TENSORS: Final = 8
# Where the words of cpu/extended begin, 0 in a program that has none.
EXTENSION: Final = TENSORS + MOST_TENSORS
FIRST_WORD: Final = EXTENSION + 1
