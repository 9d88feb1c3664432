"""The linear recurrence in Numba: one element after the other along the axis, sixteen rows at once.

The rows of a vector are neighbours in the innermost of the other loops; their carries do not wait
for each other. Where they lie side by side in every tensor, vectors are read and written in place.
Elsewhere tiles are turned on the stack."""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, words
from pullback.cpu.loops import axis_words, extent, offset, step
from pullback.cpu.memory import filled_wide, get_wide, on_stack, put
from pullback.cpu.program import TENSORS, Phase, Program, grain_for
from pullback.cpu.vector import fma
from pullback.ops.recurrence.cpu_turn import LANES, TILE, turn_in, turn_out
from pullback.tensor.layout import along_axis

TILE_ELEMENTS = TILE * LANES
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


@register_jitable
def walk_of(p, w, tensor, row):
    """Where a tensor is walked: pointer, start, step along the axis, step from row to row."""
    return p, offset(w, tensor, row), step(w, tensor), apart(w, tensor)


@register_jitable
def side_by_side(w, tensors):
    """Whether the rows of a bundle lie side by side in all tensors."""
    elsewhere = 0
    for tensor in range(tensors):
        elsewhere += abs(apart(w, tensor) - 1)
    return elsewhere == 0


# --- forward: h[n] = a[n]·h[n-1] + b[n] ----------------------------------------------------------


@inlined
def forward_steps(a, b, h, carry, begins, count):
    """`count` elements of sixteen rows, whose lanes lie side by side: (pointer, start, step)."""
    for n in range(count):
        term = get_wide(b[0], b[1] + n * b[2], 1, LANES)
        if n > 0 or not begins:
            term = fma(get_wide(a[0], a[1] + n * a[2], 1, LANES), carry, term)
        carry = term
        put(h[0], h[1] + n * h[2], 1, carry, False)
    return carry


@kernel
def forward_rows(task, lo, hi):
    a, b, h = pointer(task, TENSORS), pointer(task, TENSORS + 1), pointer(task, TENSORS + 2)
    w = words(task, FORWARD)
    in_place, total, none = side_by_side(w, 3), extent(w), filled_wide(a, 0.0, LANES)
    ta, tb, th = (
        on_stack(a, TILE_ELEMENTS),
        on_stack(a, TILE_ELEMENTS),
        on_stack(a, TILE_ELEMENTS),
    )
    for item in range(lo, hi):
        row, rows = bundle(w, item)
        wa, wb, wh = walk_of(a, w, 0, row), walk_of(b, w, 1, row), walk_of(h, w, 2, row)
        if in_place and rows == LANES:
            forward_steps(wa, wb, wh, none, True, total)
            continue
        carry = none
        for first in range(0, total, TILE):
            past = min(first + TILE, total)
            turn_in(wa, ta, rows, first, past)
            turn_in(wb, tb, rows, first, past)
            carry = forward_steps(
                (ta, 0, LANES), (tb, 0, LANES), (th, 0, LANES), carry, first == 0, past - first
            )
            turn_out(wh, th, rows, first, past)


# --- backward: g[n] = dh[n] + a[n+1]·g[n+1], db = g, da[n] = g[n]·h[n-1] --------------------------


@inlined
def backward_steps(dh, a, h, da, db, carries, begins, count, last):
    """The same against the scan, so that what comes before in it comes next here: h is walked one
    element further on. `last` is the number of the scan's first element, where nothing comes
    before."""
    later, factor = carries
    for n in range(count):
        g = get_wide(dh[0], dh[1] + n * dh[2], 1, LANES)
        if n > 0 or not begins:
            g = fma(factor, later, g)
        factor = get_wide(a[0], a[1] + n * a[2], 1, LANES)
        gradient = filled_wide(a[0], 0.0, LANES)
        if n < last:
            gradient = g * get_wide(h[0], h[1] + n * h[2], 1, LANES)
        put(da[0], da[1] + n * da[2], 1, gradient, False)
        put(db[0], db[1] + n * db[2], 1, g, False)
        later = g
    return later, factor


@kernel
def backward_rows(task, lo, hi):
    dh, a, h = pointer(task, TENSORS), pointer(task, TENSORS + 1), pointer(task, TENSORS + 2)
    da, db = pointer(task, TENSORS + 3), pointer(task, TENSORS + 4)
    w = words(task, BACKWARD)
    in_place, total, none = side_by_side(w, 5), extent(w), filled_wide(a, 0.0, LANES)
    tdh, ta, th = (
        on_stack(a, TILE_ELEMENTS),
        on_stack(a, TILE_ELEMENTS),
        on_stack(a, TILE_ELEMENTS),
    )
    tda, tdb = on_stack(a, TILE_ELEMENTS), on_stack(a, TILE_ELEMENTS)
    for item in range(lo, hi):
        row, rows = bundle(w, item)
        wdh, wa = walk_of(dh, w, 0, row), walk_of(a, w, 1, row)
        wh = (h, offset(w, 2, row) + step(w, 2), step(w, 2), apart(w, 2))
        wda, wdb = walk_of(da, w, 3, row), walk_of(db, w, 4, row)
        carries = (none, none)
        if in_place and rows == LANES:
            backward_steps(wdh, wa, wh, wda, wdb, carries, True, total, total - 1)
            continue
        for first in range(0, total, TILE):
            past = min(first + TILE, total)
            turn_in(wdh, tdh, rows, first, past)
            turn_in(wa, ta, rows, first, past)
            turn_in(wh, th, rows, first, min(past, total - 1))
            carries = backward_steps(
                (tdh, 0, LANES),
                (ta, 0, LANES),
                (th, 0, LANES),
                (tda, 0, LANES),
                (tdb, 0, LANES),
                carries,
                first == 0,
                past - first,
                total - 1 - first,
            )
            turn_out(wda, tda, rows, first, past)
            turn_out(wdb, tdb, rows, first, past)


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
