"""Words of the structures that XLA passes to a handler, as its c_api.h lays them out."""

from __future__ import annotations

import ctypes
from typing import Final

EXTENSION, API, ARGS, RESULTS, ATTRIBUTES = 1, 2, 7, 12, 17  # of a frame; the last three: size
DATA: Final = 3  # of a buffer
METADATA: Final = 3  # of an extension that asks for it
VERSION, TRAITS = 3, 4  # of metadata
INTERFACE: Final = 1 << 32  # 0.1


def word(address: int, position: int) -> int:
    return ctypes.c_int64.from_address(address + 8 * position).value


def asks_for_version(frame: int) -> bool:
    """Whether XLA, before anything runs, asks which version of its interface this is."""
    extension = word(frame, EXTENSION)
    return bool(extension) and word(extension, 1) & 0xFFFFFFFF == 1


def answer_query(frame: int) -> None:
    metadata = word(word(frame, EXTENSION), METADATA)
    ctypes.c_int64.from_address(metadata + 8 * VERSION).value = INTERFACE
    ctypes.c_int64.from_address(metadata + 8 * TRAITS).value = 0
