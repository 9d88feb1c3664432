"""Kernels compiled ahead of time: a folder of shared libraries that `cpu/library.py` loads.

python -m pullback.aot FOLDER                    every kernel, for this kind of machine
python -m pullback.aot FOLDER scan --dtype f32   a share of them
"""
