"""Random calls of every function, each compared with the definition and with itself in other forms.

A case is a pure function of (seed, number). It runs in a child process, on memory that ends at
pages which may not be touched; a failing one is made smaller and printed as a short script.
"""
