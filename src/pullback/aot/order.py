"""The order of functions in a library: next to code that is like it.

A wheel is compressed by deflate, which finds repetitions within 32 KB alone; a kernel takes 20.
Kernels of one walk or of one dtype repeat each other. In this order all of them for AVX2 take
5.0 MB, by name 5.2, and in no order 5.8.
"""

from __future__ import annotations

WINDOW = 1 << 15  # bytes that deflate looks back
PIECE, ONE_IN = 12, 32  # bytes that are compared, and the share of places they are taken from


def by_likeness(codes: dict[str, bytes]) -> list[str]:
    """The names of all codes, each followed by that whose begin has most in common with its end."""
    begins = {name: _pieces(code[:WINDOW]) for name, code in sorted(codes.items())}
    found: list[str] = []
    end: set[bytes] = set()
    while begins:
        name = max(begins, key=lambda n: len(end & begins[n]) / (len(begins[n]) + 1))
        del begins[name]
        found.append(name)
        end = _pieces(codes[name][-WINDOW:])
    return found


def _pieces(code: bytes) -> set[bytes]:
    """Some of the pieces of this code, wherever they are in it: which ones, their bytes decide."""
    return {
        code[i : i + PIECE]
        for i in range(len(code) - PIECE)
        if (code[i] * 31 + code[i + 1]) % ONE_IN == 0
    }
