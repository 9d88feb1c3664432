"""The linear recurrence in Numba: one element after the other along the axis, sixteen rows at once.

The rows of a vector are neighbours in the innermost of the other loops. They lie side by side in
memory or they do not; either way their carries do not wait for each other."""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from pullback.cpu.kernel import kernel, pointer, words
from pullback.cpu.loops import axis_words, extent, offset, step
from pullback.cpu.memory import filled_wide, get_first_wide, put_first
from pullback.cpu.program import TENSORS, Phase, Program, grain_for
from pullback.cpu.vector import fma
from pullback.tensor.layout import along_axis

LANES = 16
FORWARD, BACKWARD = TENSORS + 3, TENSORS + 5  # where the layout words start


@register_jitable
def breadth(w):
    """Rows in the innermost of the other loops."""
    return w[1 + w[1]] if w[1] > 0 else 1


@register_jitable
def apart(w, tensor):
    """Element stride from one row of that loop to the next."""
    rank = w[1]
    return w[3 + 2 * rank + tensor * (rank + 2)] if rank > 0 else 0


@register_jitable
def bundle(w, item):
    """First row of bundle number `item`, and how many rows it holds."""
    bundles = (breadth(w) + LANES - 1) // LANES
    outer = item // bundles
    start = (item - outer * bundles) * LANES
    return outer * breadth(w) + start, min(LANES, breadth(w) - start)


@kernel
def forward_rows(task, lo, hi):
    a, b, h = pointer(task, TENSORS), pointer(task, TENSORS + 1), pointer(task, TENSORS + 2)
    w = words(task, FORWARD)
    none = filled_wide(a, 0.0, LANES)
    for item in range(lo, hi):
        row, count = bundle(w, item)
        i, j, k = offset(w, 0, row), offset(w, 1, row), offset(w, 2, row)
        carry = none
        for n in range(extent(w)):
            term = get_first_wide(b, j + n * step(w, 1), apart(w, 1), count, none)
            if n:
                factor = get_first_wide(a, i + n * step(w, 0), apart(w, 0), count, none)
                term = fma(factor, carry, term)
            carry = term
            put_first(h, k + n * step(w, 2), apart(w, 2), count, carry)


@kernel
def backward_rows(task, lo, hi):
    """Walks against the scan, so that what comes before in it comes next here."""
    dh, a, h = pointer(task, TENSORS), pointer(task, TENSORS + 1), pointer(task, TENSORS + 2)
    da, db = pointer(task, TENSORS + 3), pointer(task, TENSORS + 4)
    w = words(task, BACKWARD)
    none = filled_wide(a, 0.0, LANES)
    last = extent(w) - 1
    for item in range(lo, hi):
        row, count = bundle(w, item)
        i, j, k = offset(w, 0, row), offset(w, 1, row), offset(w, 2, row)
        p, q = offset(w, 3, row), offset(w, 4, row)
        later, factor = none, none
        for n in range(extent(w)):
            g = get_first_wide(dh, i + n * step(w, 0), apart(w, 0), count, none)
            if n:
                g = fma(factor, later, g)
            factor = get_first_wide(a, j + n * step(w, 1), apart(w, 1), count, none)
            gradient = none
            if n < last:
                before = get_first_wide(h, k + (n + 1) * step(w, 2), apart(w, 2), count, none)
                gradient = g * before
            put_first(da, p + n * step(w, 3), apart(w, 3), count, gradient)
            put_first(db, q + n * step(w, 4), apart(w, 4), count, g)
            later = g


def _program(kernel: Any, desc: Any, reverse: bool, views: tuple[Any, ...]) -> Program:
    loops = along_axis(desc.input_shape, desc.scan_axis, [view.strides for view in views])
    inner = loops.rest.extents[-1] if loops.rest.extents else 1
    bundles = loops.rest.count // max(inner, 1) * -(-inner // LANES) if loops.extent else 0
    cost = loops.extent * desc.element.itemsize * len(views) * min(inner, LANES)
    return Program((Phase(kernel, bundles, grain_for(cost)),), axis_words(loops, reverse))


def forward(desc: Any, a: Any, b: Any, h: Any) -> Program:
    return _program(forward_rows, desc, desc.reverse, (a, b, h))


def backward(desc: Any, dh: Any, a: Any, h: Any, da: Any, db: Any) -> Program:
    return _program(backward_rows, desc, not desc.reverse, (dh, a, h, da, db))
