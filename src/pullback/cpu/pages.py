"""Pages of memory, taken from the system and given back by native code."""

from __future__ import annotations

import mmap
from typing import Final

from numba import types
from numba.extending import register_jitable

from pullback.cpu.atomics import INT

PAGE: Final = mmap.PAGESIZE
_HUGE: Final = 1 << 21  # from here on huge pages, which cost a tenth per byte to touch first
_CAN_MAP: Final = hasattr(mmap, "MAP_PRIVATE")  # not on Windows
_PROTECTION: Final = getattr(mmap, "PROT_READ", 0) | getattr(mmap, "PROT_WRITE", 0)
# Private to this process: a forked child must not write into them.
_FLAGS: Final = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
_ADVICE: Final = getattr(mmap, "MADV_HUGEPAGE", 0)

_int = types.int32
_mmap = types.ExternalFunction("mmap", INT(INT, INT, _int, _int, _int, INT))
_madvise = types.ExternalFunction("madvise", _int(INT, INT, _int))
_munmap = types.ExternalFunction("munmap", _int(INT, INT))


@register_jitable
def map_pages(size):
    """Pages nobody has used; 0 if there are none."""
    if not _CAN_MAP:
        return 0
    block = _mmap(0, size, _int(_PROTECTION), _int(_FLAGS), _int(-1), 0)
    if block == -1:
        return 0
    if size >= _HUGE and _ADVICE != 0:
        _madvise(block, size, _int(_ADVICE))  # a kernel built without them says no
    return block


@register_jitable
def unmap_pages(block, size):
    if _CAN_MAP:
        _munmap(block, size)
