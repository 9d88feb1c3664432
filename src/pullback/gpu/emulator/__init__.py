"""Executes the PTX that Triton compiles, on the CPU: a development tool, no GPU needed.

`isa.decoded(text)` makes a table of instructions of a module; `launch.execute` runs it program by
program, warps in lock step between barriers. Every access is checked against the memory the launch
was given, for alignment and for races; bytes, sectors and instructions are counted. The interpreter
of Triton (`gpu/interpreter.py`) runs the source and sees none of this.
"""
