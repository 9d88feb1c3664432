"""Switches read from the environment when the library is imported."""

from __future__ import annotations

import os
from typing import Final


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").strip() not in ("", "0")


# Every shortcut that reads what NumPy, PyTorch, CPython or Numba do not document is left out: call
# caches, pooled outputs, OpenMP threads, linking of kernels. Results have the same bits.
SAFE: Final = _is_set("PULLBACK_SAFE")

# Whether spinning OpenMP threads may run our chunks, see cpu/openmp.py.
OPENMP: Final = not SAFE and os.environ.get("PULLBACK_OPENMP", "").strip() != "0"

# Whether a first call that compiles for longer than a second says so on stderr.
NOTICE: Final = os.environ.get("PULLBACK_NOTICE", "").strip() != "0"
