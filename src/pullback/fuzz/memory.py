"""Memory with a page on each side that may not be touched, filled with poison.

An element read or written outside of a buffer at the end (or the beginning) of such memory is a
crash; one written into the poison beside it is a change that is seen afterwards.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections import defaultdict
from typing import Any

import numpy as np
import numpy.typing as npt

PAGE = mmap.PAGESIZE
_NOTHING = 0  # PROT_NONE
_FILLED = 1 << 18  # bytes of an arena that are poisoned as a whole; of larger ones the ends
_KEPT = 1 << 26  # bytes of arenas that wait for the next case

Bytes = npt.NDArray[np.uint8]


def _protect(address: int) -> bool:
    """Forbid any access to a page; False where the system has no way to."""
    if sys.platform == "win32":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), _NOTHING) == 0)


class Arena:
    """Whole pages of memory between two forbidden ones."""

    def __init__(self, pages: int) -> None:
        self._mapping = mmap.mmap(-1, (pages + 2) * PAGE)
        whole = np.frombuffer(self._mapping, np.uint8)
        self.data: Bytes = whole[PAGE : (pages + 1) * PAGE]
        first = whole.ctypes.data
        self.guarded = all(map(_protect, (first, first + (pages + 1) * PAGE)))


class Memory:
    """Arenas for the buffers of a case; those of earlier cases are used again."""

    def __init__(self) -> None:
        self._free: dict[int, list[Arena]] = defaultdict(list)
        self._taken: list[tuple[int, Arena]] = []
        self._kept = 0

    def take(self, nbytes: int, poison: int) -> Bytes:
        """Poisoned bytes, at least so many, that begin and end at forbidden pages."""
        pages = 1
        while pages * PAGE < nbytes:
            pages *= 2
        free = self._free[pages]
        if free:
            self._kept -= pages * PAGE
        arena = free.pop() if free else Arena(pages)
        self._taken.append((pages, arena))
        data = arena.data
        if data.size <= _FILLED:
            data[:] = poison
        else:
            # A buffer lies at one end or the other, so that what is poisoned is beside or in it.
            rest = min(data.size - nbytes + PAGE, data.size)
            data[:rest] = poison
            data[data.size - rest :] = poison
        return data

    def give_back(self) -> None:
        """End of a case: nobody holds a view of its arenas any more."""
        for pages, arena in self._taken:
            if self._kept + pages * PAGE <= _KEPT:
                self._free[pages].append(arena)
                self._kept += pages * PAGE
        self._taken.clear()


def poisoned(dtype: Any, poison: int) -> Any:
    """An element whose bytes are all poison."""
    return np.frombuffer(bytes([poison]) * np.dtype(dtype).itemsize, dtype)[0]
