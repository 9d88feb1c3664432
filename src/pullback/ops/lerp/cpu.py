"""Lerp in Numba: elementwise over merged loops, and sums back to broadcast operands.

An item of an elementwise kernel is a piece of the innermost loop. All arithmetic is in the wide
type: b - a cannot overflow for f32 and halves, and there is one rounding at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba.extending import register_jitable

from pullback.cpu.kernel import kernel, pointer, real, word, words
from pullback.cpu.loops import axis_words, extent, offset, step
from pullback.cpu.memory import (
    fence,
    filled_wide,
    get_first_wide,
    get_wide,
    is_aligned,
    put,
    put_first,
    read_wide,
    scalar_wide,
    write,
)
from pullback.cpu.program import TENSORS, Phase, Program, bits_of, grain_for, streams
from pullback.cpu.vector import absolute, fma, select
from pullback.tensor.layout import AxisLoops, Loops, merge

LANES = 16
PIECE = 1 << 13  # elements of the innermost loop that make one item
INFINITY = np.inf


@register_jitable
def interpolate(a, b, w, rest):
    """a + w·(b - a) or b - (b - a)·rest, whichever starts at the nearer end; rest is 1 - w.
    Where b - a overflows although a and b are finite, the plain weighted sum stands in."""
    gap = b - a
    near = select(absolute(w) < 0.5, fma(w, gap, a), fma(-rest, gap, b))
    finite = (absolute(a) < INFINITY) & (absolute(b) < INFINITY)
    return select((absolute(gap) < INFINITY) | ~finite, near, fma(b, w, a * rest))


# --- a constant weight: words are param, 1 - param, streaming, then the loops ------------------

_A, _B, _Y = TENSORS, TENSORS + 1, TENSORS + 2
_PARAM = TENSORS + 3
_LOOPS = _PARAM + 3


@register_jitable
def _piece(item, n):
    """Row, first element and one past the last of an item."""
    pieces = (n + PIECE - 1) // PIECE
    row = item // pieces
    start = (item - row * pieces) * PIECE
    return row, start, min(start + PIECE, n)


@kernel
def lerp_forward(task, lo, hi):
    """y = lerp(a, b, w) for a constant w."""
    a, b, y, loops = pointer(task, _A), pointer(task, _B), pointer(task, _Y), words(task, _LOOPS)
    w = filled_wide(a, real(task, _PARAM), LANES)
    rest = filled_wide(a, real(task, _PARAM + 1), LANES)
    sa, sb, sy = step(loops, 0), step(loops, 1), step(loops, 2)
    for item in range(lo, hi):
        row, k, end = _piece(item, extent(loops))
        i, j, o = offset(loops, 0, row), offset(loops, 1, row), offset(loops, 2, row)
        stream = word(task, _PARAM + 2) != 0 and is_aligned(y, o + k * sy, 16)
        while k + LANES <= end:
            u, v = get_wide(a, i + k * sa, sa, LANES), get_wide(b, j + k * sb, sb, LANES)
            put(y, o + k * sy, sy, interpolate(u, v, w, rest), stream)
            k += LANES
        if k < end:
            left = end - k
            u = get_first_wide(a, i + k * sa, sa, left, w)
            v = get_first_wide(b, j + k * sb, sb, left, w)
            put_first(y, o + k * sy, sy, left, interpolate(u, v, w, rest))
    fence()


@kernel
def lerp_backward(task, lo, hi):
    """da = (1 - w)·dy, db = w·dy for a constant w."""
    dy, da, db = pointer(task, _A), pointer(task, _B), pointer(task, _Y)
    loops = words(task, _LOOPS)
    w = filled_wide(dy, real(task, _PARAM), LANES)
    rest = filled_wide(dy, real(task, _PARAM + 1), LANES)
    sg, sa, sb = step(loops, 0), step(loops, 1), step(loops, 2)
    for item in range(lo, hi):
        row, k, end = _piece(item, extent(loops))
        g, i, j = offset(loops, 0, row), offset(loops, 1, row), offset(loops, 2, row)
        stream = word(task, _PARAM + 2) != 0
        stream_a = stream and is_aligned(da, i + k * sa, 16)
        stream_b = stream and is_aligned(db, j + k * sb, 16)
        while k + LANES <= end:
            v = get_wide(dy, g + k * sg, sg, LANES)
            put(da, i + k * sa, sa, rest * v, stream_a)
            put(db, j + k * sb, sb, w * v, stream_b)
            k += LANES
        if k < end:
            left = end - k
            v = get_first_wide(dy, g + k * sg, sg, left, w)
            put_first(da, i + k * sa, sa, left, rest * v)
            put_first(db, j + k * sb, sb, left, w * v)
    fence()


# --- a tensor of weights -----------------------------------------------------------------------


@kernel
def lerp_weights(task, lo, hi):
    """y = lerp(a, b, w), each element with its own weight."""
    a, b, w, y = (
        pointer(task, TENSORS),
        pointer(task, TENSORS + 1),
        pointer(task, TENSORS + 2),
        pointer(task, TENSORS + 3),
    )
    loops = words(task, TENSORS + 4)
    sa, sb, sw, sy = step(loops, 0), step(loops, 1), step(loops, 2), step(loops, 3)
    one = filled_wide(a, 1.0, LANES)
    for item in range(lo, hi):
        row, k, end = _piece(item, extent(loops))
        i, j = offset(loops, 0, row), offset(loops, 1, row)
        m, o = offset(loops, 2, row), offset(loops, 3, row)
        while k + LANES <= end:
            u, v = get_wide(a, i + k * sa, sa, LANES), get_wide(b, j + k * sb, sb, LANES)
            t = get_wide(w, m + k * sw, sw, LANES)
            put(y, o + k * sy, sy, interpolate(u, v, t, one - t), False)
            k += LANES
        if k < end:
            left = end - k
            u = get_first_wide(a, i + k * sa, sa, left, one)
            v = get_first_wide(b, j + k * sb, sb, left, one)
            t = get_first_wide(w, m + k * sw, sw, left, one)
            put_first(y, o + k * sy, sy, left, interpolate(u, v, t, one - t))


# --- gradients summed back to the shapes of the operands --------------------------------------
#
# Words of one gradient: which one, number of kept loops and their extents, number of summed loops
# and their extents, then for dy, weight, a, b and the gradient its strides along kept and summed
# loops. The summed loops stay in the order of the axes, so that the order of addition follows from
# the shapes alone. Sums are carried in f64 for every element.

_GRADIENTS = 7  # slots of LerpBackward
_GRADIENT_OF_A, _GRADIENT_OF_B, _GRADIENT_OF_WEIGHT = 0, 1, 2
_DY, _WEIGHT, _OPERAND_A, _OPERAND_B = TENSORS, TENSORS + 3, TENSORS + 4, TENSORS + 5
_TARGETS = (TENSORS + 1, TENSORS + 2, TENSORS + 6)


@register_jitable
def _at(extents, strides, rank, index):
    """Offset of a flat index over loops, the last of which runs fastest."""
    total = 0
    for axis in range(rank - 1, -1, -1):
        outer = index // extents[axis]
        total += (index - outer * extents[axis]) * strides[axis]
        index = outer
    return total


@register_jitable
def _term(task, which, at_dy, at_weight, at_a, at_b):
    """One summand: (1 - w)·dy, w·dy or dy·(b - a), in f64."""
    g = np.float64(read_wide(pointer(task, _DY), at_dy))
    if which == _GRADIENT_OF_WEIGHT:
        gap = np.float64(read_wide(pointer(task, _OPERAND_B), at_b))
        return g * (gap - np.float64(read_wide(pointer(task, _OPERAND_A), at_a)))
    if word(task, _WEIGHT) == 0:
        return g * real(task, TENSORS + _GRADIENTS + which)
    w = np.float64(read_wide(pointer(task, _WEIGHT), at_weight))
    return g * (1.0 - w) if which == _GRADIENT_OF_A else g * w


@register_jitable
def _sum_back(task, lo, hi, which, target, at):
    w = words(task, word(task, at))
    kept = w[0]
    summed = w[1 + kept]
    extents, inner = words(task, word(task, at) + 1), words(task, word(task, at) + 2 + kept)
    count = 1
    for axis in range(summed):
        count *= inner[axis]
    first = word(task, at) + 2 + kept + summed
    width = kept + summed
    out = pointer(task, target)
    for item in range(lo, hi):
        total = -0.0
        for term in range(count):
            total += _term(
                task,
                which,
                _at(extents, words(task, first), kept, item)
                + _at(inner, words(task, first + kept), summed, term),
                _at(extents, words(task, first + width), kept, item)
                + _at(inner, words(task, first + width + kept), summed, term),
                _at(extents, words(task, first + 2 * width), kept, item)
                + _at(inner, words(task, first + 2 * width + kept), summed, term),
                _at(extents, words(task, first + 3 * width), kept, item)
                + _at(inner, words(task, first + 3 * width + kept), summed, term),
            )
        place = _at(extents, words(task, first + 4 * width), kept, item)
        write(out, place, scalar_wide(out, total))


@kernel
def sum_to_a(task, lo, hi):
    """da[k] = Σ (1 - w)·dy over the axes along which a was broadcast."""
    _sum_back(task, lo, hi, _GRADIENT_OF_A, TENSORS + 1, TENSORS + _GRADIENTS + 2)


@kernel
def sum_to_b(task, lo, hi):
    """db[k] = Σ w·dy over the axes along which b was broadcast."""
    _sum_back(task, lo, hi, _GRADIENT_OF_B, TENSORS + 2, TENSORS + _GRADIENTS + 3)


@kernel
def sum_to_weight(task, lo, hi):
    """dw[k] = Σ dy·(b - a) over the axes along which the weight was broadcast."""
    _sum_back(task, lo, hi, _GRADIENT_OF_WEIGHT, TENSORS + 6, TENSORS + _GRADIENTS + 4)


# --- programs -----------------------------------------------------------------------------------


def _innermost(loops: Loops) -> AxisLoops:
    """The merged loops with the innermost as the axis."""
    if not loops.extents:
        return AxisLoops(1, (1,) * len(loops.strides), loops, False)
    rest = Loops(loops.extents[:-1], tuple(s[:-1] for s in loops.strides))
    return AxisLoops(loops.extents[-1], tuple(s[-1] for s in loops.strides), rest, False)


def _elementwise(kernel: Any, desc: Any, views: Sequence[Any], words: tuple[int, ...]) -> Program:
    walk = _innermost(merge(desc.shape, [view.strides for view in views]))
    items = walk.rest.count * -(-walk.extent // PIECE)
    size = min(walk.extent, PIECE) * desc.element.itemsize * len(views)
    return Program((Phase(kernel, items, grain_for(size)),), words + axis_words(walk))


def _constant(desc: Any, outputs: int) -> tuple[int, ...]:
    param = float(desc.param)
    nbytes = int(np.prod(desc.shape, dtype=object)) * desc.element.itemsize * outputs
    return bits_of(param), bits_of(1.0 - param), int(streams(nbytes))


def forward(desc: Any, a: Any, b: Any, y: Any) -> Program:
    return _elementwise(lerp_forward, desc, (a, b, y), _constant(desc, 1))


def backward(desc: Any, dy: Any, da: Any, db: Any) -> Program:
    return _elementwise(lerp_backward, desc, (dy, da, db), _constant(desc, 2))


def forward_weights(desc: Any, a: Any, b: Any, weight: Any, y: Any) -> Program:
    return _elementwise(lerp_weights, desc, (a, b, weight, y), ())


def _stretched(view: Any, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of an operand, as if it had the full rank; stride 0 where broadcast."""
    if view is None:
        return (1,) * rank, (0,) * rank
    missing = rank - len(view.shape)
    strides = tuple(0 if n == 1 else s for n, s in zip(view.shape, view.strides, strict=True))
    return (1,) * missing + view.shape, (0,) * missing + strides


def _gradient_words(shape: tuple[int, ...], target: Any, views: Sequence[Any]) -> list[int]:
    target_shape, target_strides = _stretched(target, len(shape))
    kept = [axis for axis, n in enumerate(shape) if target_shape[axis] == n]
    summed = [axis for axis in range(len(shape)) if axis not in kept]
    words = [len(kept), *(shape[axis] for axis in kept)]
    words += [len(summed), *(shape[axis] for axis in summed)]
    for strides in [_stretched(view, len(shape))[1] for view in views] + [target_strides]:
        words += [strides[axis] for axis in (*kept, *summed)]
    return words


def backward_summed(
    desc: Any, dy: Any, da: Any, db: Any, weight: Any, a: Any, b: Any, dweight: Any
) -> Program:
    phases, tables = [], []
    for summing, target in ((sum_to_a, da), (sum_to_b, db), (sum_to_weight, dweight)):
        tables.append(
            [] if target is None else _gradient_words(desc.shape, target, (dy, weight, a, b))
        )
        if target is not None:
            count = int(np.prod(target.shape, dtype=object))
            terms = int(np.prod(desc.shape, dtype=object)) // max(count, 1)
            phases.append(Phase(summing, count, grain_for(16 * max(terms, 1))))
    param = 0.0 if desc.param is None else float(desc.param)
    start = TENSORS + _GRADIENTS + 5
    starts = [start, start + len(tables[0]), start + len(tables[0]) + len(tables[1])]
    words = [bits_of(1.0 - param), bits_of(param), *starts, *tables[0], *tables[1], *tables[2]]
    return Program(tuple(phases), tuple(words))
