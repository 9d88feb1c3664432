"""As much of ELF as it takes to read the symbols of libraries and objects."""

from __future__ import annotations

import struct
from collections.abc import Iterator

SYMTAB, DYNSYM = 2, 11


def symbols(data: bytes, table_kind: int) -> Iterator[tuple[str, bool]]:
    """Names in the tables of one kind of a 64-bit little-endian file, and whether it defines them:
    DYNSYM of libraries, SYMTAB of objects."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + size * i) for i in range(count)]
    for _, kind, _, _, start, length, link, _, _, step in sections:
        if kind != table_kind:
            continue
        names = sections[link][4]
        for place in range(start + step, start + length, step):  # the first stands for none
            name, _, _, section = struct.unpack_from("<IBBH", data, place)
            end = data.index(0, names + name)
            yield data[names + name : end].decode(), section != 0
