"""What all Triton kernels share: tiles, launch tables, programs, the interpreter, target checks."""
