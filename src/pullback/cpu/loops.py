"""How a kernel finds its way through tensors: the layout words, and offsets computed from them.

Words of an axis walk, from the slot they start at: extent, rank of the other loops, their extents,
then for each tensor where the walk starts, its step along the axis, and its strides along the
other loops. A walk against the axis starts at its far end and has negative steps, so that kernels
know only one direction.
"""

from __future__ import annotations

from numba.extending import register_jitable

from pullback.tensor.layout import AxisLoops


def axis_words(loops: AxisLoops, reverse: bool = False) -> tuple[int, ...]:
    """The layout words of tensors walked along one axis, forwards or against it."""
    rest, far = loops.rest, max(loops.extent - 1, 0)
    words = [loops.extent, len(rest.extents), *rest.extents]
    for step, strides in zip(loops.steps, rest.strides, strict=True):
        words += [far * step, -step, *strides] if reverse else [0, step, *strides]
    return tuple(words)


@register_jitable
def extent(w):
    """Elements along the axis."""
    return w[0]


@register_jitable
def step(w, tensor):
    """Element stride of a tensor along the walk."""
    rank = w[1]
    return w[3 + rank + tensor * (rank + 2)]


@register_jitable
def between(w, tensor):
    """Element stride of a tensor from row to row: along the innermost of the other loops."""
    rank = w[1]
    return w[3 + rank + tensor * (rank + 2) + rank] if rank > 0 else 0


@register_jitable
def offset(w, tensor, row):
    """Where row number `row` of a tensor starts in the order of the walk, in elements."""
    rank = w[1]
    base = 2 + rank + tensor * (rank + 2)
    total = w[base]
    for axis in range(rank - 1, 0, -1):
        outer = row // w[2 + axis]
        total += (row - outer * w[2 + axis]) * w[base + 2 + axis]
        row = outer
    if rank > 0:
        total += row * w[base + 2]
    return total
