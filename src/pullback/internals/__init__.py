"""What is used of other libraries beyond their documented API: a module for each library.

Every name is looked for when its module is imported. Where it is gone, a fallback serves that is
slower and right; what has none is an ImportError that says so. `MISSING` lists what was not found
of PyTorch and JAX; what is used of CPython, NumPy and Numba is left out as a whole where a probe
fails, and with PULLBACK_SAFE=1.
"""
