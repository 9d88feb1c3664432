"""What all Triton kernels share: tiles, launch tables, programs, the interpreter, target checks.

`check()` waits for the GPUs and raises what their checks of indices found."""

from pullback.gpu.errors import check

__all__ = ["check"]
