"""Lerp in Numba, element by element over merged loops.

An item of a kernel is a piece of the innermost loop. All arithmetic is in the wide type: b - a
cannot overflow for f32 and f16, and there is one rounding at the end.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload, register_jitable

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, real, word, words
from pullback.cpu.loops import extent, offset, step
from pullback.cpu.memory import (
    fence,
    filled_wide,
    get_first_wide,
    get_wide,
    is_aligned,
    put,
    put_first,
    to_next_line,
)
from pullback.cpu.program import TENSORS
from pullback.cpu.vector import absolute, any_lane, fma, like, select

LANES = 32  # fill whole cache lines, of every element
PIECE = 1 << 13  # elements of the innermost loop that make one item
MOST = 7  # tensors of one kernel; a layout with fewer repeats its last
GRADIENTS = 7  # slots of LerpBackward
DY, WEIGHT, OPERAND_A, OPERAND_B = TENSORS, TENSORS + 3, TENSORS + 4, TENSORS + 5
INFINITY = np.inf


# --- the walk: words are streaming, then the loops of seven tensors ------------------------------


@register_jitable
def _piece(item, n):
    """Row, first element and one past the last of an item."""
    pieces = (n + PIECE - 1) // PIECE
    row = item // pieces
    start = (item - row * pieces) * PIECE
    return row, start, min(start + PIECE, n)


@register_jitable
def _starts(w, row):
    return (
        offset(w, 0, row),
        offset(w, 1, row),
        offset(w, 2, row),
        offset(w, 3, row),
        offset(w, 4, row),
        offset(w, 5, row),
        offset(w, 6, row),
    )


@register_jitable
def _steps(w):
    return step(w, 0), step(w, 1), step(w, 2), step(w, 3), step(w, 4), step(w, 5), step(w, 6)


@inlined
def _further(at, k, by):
    return (
        at[0] + k * by[0],
        at[1] + k * by[1],
        at[2] + k * by[2],
        at[3] + k * by[3],
        at[4] + k * by[4],
        at[5] + k * by[5],
        at[6] + k * by[6],
    )


@inlined
def over_pieces(task, lo, hi, layout, out, number, strip, state):
    """Calls strip(state, at, by, count, streaming) for all elements, LANES at a time. Where all
    tensors are contiguous, which the compiler sees, vectors begin on a cache line of `out`, tensor
    `number` of the layout: a line written in two halves past the caches costs more than all the
    rest."""
    w, streaming = words(task, layout + 1), word(task, layout) != 0
    by, n = _steps(w), extent(w)
    unit = min(by) == 1 and max(by) == 1
    for item in range(lo, hi):
        row, k, end = _piece(item, n)
        start = _starts(w, row)
        if unit:
            ones = (1, 1, 1, 1, 1, 1, 1)
            head = min(to_next_line(out, start[number] + k), end - k)
            if head > 0:
                strip(state, _further(start, k, by), by, head, False)
                k += head
            while k + LANES <= end:
                strip(state, _further(start, k, ones), ones, LANES, streaming)
                k += LANES
        while k < end:
            strip(state, _further(start, k, by), by, min(end - k, LANES), False)
            k += LANES
    if streaming:
        fence()


@inlined
def _load(p, i, along, count):
    if count >= LANES:
        return get_wide(p, i, along, LANES)
    return get_first_wide(p, i, along, count, filled_wide(p, 0.0, LANES))


@inlined
def _store(p, i, along, count, v, streaming):
    if count >= LANES:
        put(p, i, along, v, streaming and is_aligned(p, i, 64))
    else:
        put_first(p, i, along, count, v)


# --- forward ------------------------------------------------------------------------------------


def held(p, near, a, b, w, rest):
    """`near`, or where b - a overflows although a and b are finite the plain weighted sum. By p's
    element: f32 and f16 are computed in a type wide enough."""
    raise NotImplementedError


def _as_is(p, near, a, b, w, rest):
    return near


def _guarded(p, near, a, b, w, rest):
    overflows = ~(absolute(b - a) < INFINITY)
    if any_lane(overflows):
        finite = (absolute(a) < INFINITY) & (absolute(b) < INFINITY)
        near = select(overflows & finite, fma(b, w, a * rest), near)
    return near


@overload(held, jit_options={"forceinline": True}, strict=False)
def _held(p, near, a, b, w, rest):
    return _guarded if p.dtype in (types.float64, types.uint16) else _as_is


_A, _B, _Y = TENSORS, TENSORS + 1, TENSORS + 2
_PARAM = TENSORS + 3  # and 1 - param, then the walk


@inlined
def constant_strip(state, at, by, count, streaming):
    """a + w·(b - a) or b - (b - a)·rest, whichever starts at the nearer end; rest is 1 - w."""
    pa, pb, y, w, rest, near_a = state
    a, b = _load(pa, at[0], by[0], count), _load(pb, at[1], by[1], count)
    near = fma(w, b - a, a) if near_a else fma(-rest, b - a, b)
    _store(y, at[2], by[2], count, held(y, near, a, b, w, rest), streaming)


@kernel
def lerp_forward(task, lo, hi):
    """y = lerp(a, b, w) for a constant w."""
    a, b, y = pointer(task, _A), pointer(task, _B), pointer(task, _Y)
    w = filled_wide(a, real(task, _PARAM), LANES)
    rest = filled_wide(a, real(task, _PARAM + 1), LANES)
    state = (a, b, y, w, rest, abs(real(task, _PARAM)) < 0.5)
    over_pieces(task, lo, hi, _PARAM + 2, y, 2, constant_strip, state)


@inlined
def weighted_strip(state, at, by, count, streaming):
    pa, pb, pw, y = state
    a, b = _load(pa, at[0], by[0], count), _load(pb, at[1], by[1], count)
    w = _load(pw, at[2], by[2], count)
    rest = filled_wide(y, 1.0, LANES) - w
    near = select(absolute(w) < 0.5, fma(w, b - a, a), fma(-rest, b - a, b))
    _store(y, at[3], by[3], count, held(y, near, a, b, w, rest), streaming)


@kernel
def lerp_weights(task, lo, hi):
    """y = lerp(a, b, w), each element with its own weight."""
    y = pointer(task, TENSORS + 3)
    state = (pointer(task, TENSORS), pointer(task, TENSORS + 1), pointer(task, TENSORS + 2), y)
    over_pieces(task, lo, hi, TENSORS + 4, y, 3, weighted_strip, state)


# --- gradients of operands that were not broadcast -----------------------------------------------


@inlined
def shares_strip(state, at, by, count, streaming):
    dy, da, db, w, rest = state
    g = _load(dy, at[0], by[0], count)
    _store(da, at[1], by[1], count, rest * g, streaming)
    _store(db, at[2], by[2], count, w * g, streaming)


@kernel
def lerp_backward(task, lo, hi):
    """da = (1 - w)·dy, db = w·dy for a constant w."""
    dy, da, db = pointer(task, _A), pointer(task, _B), pointer(task, _Y)
    w = filled_wide(dy, real(task, _PARAM), LANES)
    rest = filled_wide(dy, real(task, _PARAM + 1), LANES)
    over_pieces(task, lo, hi, _PARAM + 2, da, 1, shares_strip, (dy, da, db, w, rest))


def by_gap(p, g, a, b):
    """g·(b - a). By p's element: the gap of two bf16 may leave the range of f32, that of two f64
    the range of f64; half of it does not."""
    raise NotImplementedError


@inlined
def _plain_gap(p, g, a, b):
    return g * (b - a)


@inlined
def _half_gap(p, g, a, b):
    half = like(a, 0.5)
    return g * (b * half - a * half) * like(a, 2.0)


def _guarded_gap(p, g, a, b):
    v, overflows = _plain_gap(p, g, a, b), ~(absolute(b - a) < INFINITY)
    return select(overflows, _half_gap(p, g, a, b), v) if any_lane(overflows) else v


_GAPS = {types.uint16: _half_gap, types.float64: _guarded_gap}


@overload(by_gap, jit_options={"forceinline": True}, strict=False)
def _by_gap(p, g, a, b):
    return _GAPS.get(p.dtype, _plain_gap)


@inlined
def all_strip(state, at, by, count, streaming):
    dy, da, db, pw, pa, pb, dw = state
    g, w = _load(dy, at[0], by[0], count), _load(pw, at[3], by[3], count)
    a, b = _load(pa, at[4], by[4], count), _load(pb, at[5], by[5], count)
    _store(da, at[1], by[1], count, (filled_wide(dy, 1.0, LANES) - w) * g, streaming)
    _store(db, at[2], by[2], count, w * g, streaming)
    _store(dw, at[6], by[6], count, by_gap(dw, g, a, b), streaming)


@kernel
def weights_backward(task, lo, hi):
    """da = (1 - w)·dy, db = w·dy, dw = dy·(b - a), each element with its own weight."""
    da = pointer(task, TENSORS + 1)
    state = (
        pointer(task, DY),
        da,
        pointer(task, TENSORS + 2),
        pointer(task, WEIGHT),
        pointer(task, OPERAND_A),
        pointer(task, OPERAND_B),
        pointer(task, TENSORS + 6),
    )
    over_pieces(task, lo, hi, TENSORS + GRADIENTS, da, 1, all_strip, state)
