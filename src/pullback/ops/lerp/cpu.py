"""Lerp in Numba: programs, and gradients summed back to broadcast operands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba.extending import register_jitable

from pullback.cpu.kernel import kernel, pointer, real, word, words
from pullback.cpu.loops import axis_words
from pullback.cpu.memory import read_wide, scalar_wide, write
from pullback.cpu.program import TENSORS, Phase, Program, bits_of, grain_for, streams
from pullback.ops.lerp.cpu_elementwise import (
    DY,
    GRADIENTS,
    MOST,
    OPERAND_A,
    OPERAND_B,
    PIECE,
    WEIGHT,
    lerp_backward,
    lerp_forward,
    lerp_weights,
    weights_backward,
)
from pullback.tensor.layout import AxisLoops, Loops, merge

STREAMED = 1 << 19  # bytes that are worth a fence
SMALL = 2.0**-540  # times two factors of f64: a million million such terms have a finite sum


# --- gradients summed back to the shapes of the operands --------------------------------------
#
# Words of one gradient: which one, number of kept loops and their extents, number of summed loops
# and their extents, then for dy, weight, a, b and the gradient its strides along kept and summed
# loops. The summed loops stay in the order of the axes, so that the order of addition follows from
# the shapes alone. Sums are carried in f64 for every element, with what rounding takes from them;
# a sum of f64 that leaves the range is taken again, scaled down.

_GRADIENT_OF_A, _GRADIENT_OF_B, _GRADIENT_OF_WEIGHT = 0, 1, 2


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
def _factors(task, which, at, scale):
    """What is multiplied to a summand, in f64, both times `scale`: dy and 1 - w, w or b - a."""
    at_dy, at_weight, at_a, at_b = at
    g = scale * np.float64(read_wide(pointer(task, DY), at_dy))
    if which == _GRADIENT_OF_WEIGHT:
        gap = scale * np.float64(read_wide(pointer(task, OPERAND_B), at_b))
        return g, gap - scale * np.float64(read_wide(pointer(task, OPERAND_A), at_a))
    if word(task, WEIGHT) == 0:
        return g, scale * real(task, TENSORS + GRADIENTS + which)
    w = scale * np.float64(read_wide(pointer(task, WEIGHT), at_weight))
    return g, scale - w if which == _GRADIENT_OF_A else w


@register_jitable
def _term(task, which, at):
    g, factor = _factors(task, which, at, 1.0)
    return g * factor


@register_jitable
def _small_term(task, which, at):
    """A summand times SMALL²: finite if what is multiplied is."""
    v = _term(task, which, at)
    if abs(v) < math.inf:
        return v * SMALL * SMALL
    g, factor = _factors(task, which, at, SMALL)
    return g * factor if abs(g) < math.inf and abs(factor) < math.inf else v


@register_jitable
def _sum_back(task, lo, hi, which, target, at):
    w = words(task, word(task, at))
    kept = w[0]
    extents = words(task, word(task, at) + 1)
    width = kept + w[1 + kept]
    places = words(task, word(task, at) + 2 + width + 4 * width)
    out = pointer(task, target)
    for item in range(lo, hi):
        total = _total(task, which, at, item, _term)
        if not abs(total) < math.inf:  # on the way to a sum that may be finite, or of another sign
            total = _total(task, which, at, item, _small_term) / SMALL / SMALL
        write(out, _at(extents, places, kept, item), scalar_wide(out, total))


@register_jitable
def _total(task, which, at, item, summand):
    """The sum of summand(...) over the summed loops."""
    w = words(task, word(task, at))
    kept = w[0]
    summed = w[1 + kept]
    extents, inner = words(task, word(task, at) + 1), words(task, word(task, at) + 2 + kept)
    width = kept + summed
    first = word(task, at) + 2 + width
    count = 1
    for axis in range(summed):
        count *= inner[axis]
    total, rest = -0.0, 0.0
    for term in range(count):
        places = (
            _at(extents, words(task, first), kept, item)
            + _at(inner, words(task, first + kept), summed, term),
            _at(extents, words(task, first + width), kept, item)
            + _at(inner, words(task, first + width + kept), summed, term),
            _at(extents, words(task, first + 2 * width), kept, item)
            + _at(inner, words(task, first + 2 * width + kept), summed, term),
            _at(extents, words(task, first + 3 * width), kept, item)
            + _at(inner, words(task, first + 3 * width + kept), summed, term),
        )
        v = summand(task, which, places)
        grown = total + v
        back = grown - total
        rest += (total - (grown - back)) + (v - back)
        total = grown
    # No correction keeps the sign of a zero; an infinite sum has made it NaN.
    if abs(rest) > 0.0 and abs(rest) < math.inf:
        total += rest
    return total


@kernel
def sum_to_a(task, lo, hi):
    """da[k] = Σ (1 - w)·dy over the axes along which a was broadcast."""
    _sum_back(task, lo, hi, _GRADIENT_OF_A, TENSORS + 1, TENSORS + GRADIENTS + 2)


@kernel
def sum_to_b(task, lo, hi):
    """db[k] = Σ w·dy over the axes along which b was broadcast."""
    _sum_back(task, lo, hi, _GRADIENT_OF_B, TENSORS + 2, TENSORS + GRADIENTS + 3)


@kernel
def sum_to_weight(task, lo, hi):
    """dw[k] = Σ dy·(b - a) over the axes along which the weight was broadcast."""
    _sum_back(task, lo, hi, _GRADIENT_OF_WEIGHT, TENSORS + 6, TENSORS + GRADIENTS + 4)


# --- programs -----------------------------------------------------------------------------------


def _innermost(loops: Loops) -> AxisLoops:
    """The merged loops with the innermost as the axis."""
    if not loops.extents:
        return AxisLoops(1, (1,) * len(loops.strides), loops, False)
    rest = Loops(loops.extents[:-1], tuple(s[:-1] for s in loops.strides))
    return AxisLoops(loops.extents[-1], tuple(s[-1] for s in loops.strides), rest, False)


def _elementwise(
    kernel: Any, desc: Any, views: Sequence[Any], outputs: int, *words: int
) -> Program:
    views = [*views, *list(views[-1:]) * (MOST - len(views))]
    walk = _innermost(merge(desc.shape, [view.strides for view in views]))
    items = walk.rest.count * -(-walk.extent // PIECE)
    total = int(np.prod(desc.shape, dtype=object)) * desc.element.itemsize
    streaming = streams(total * outputs)
    size = min(walk.extent, PIECE) * desc.element.itemsize * (outputs + 1)
    grain = grain_for(size, STREAMED) if streaming else grain_for(size)
    return Program((Phase(kernel, items, grain),), (*words, int(streaming), *axis_words(walk)))


def _constant(desc: Any) -> tuple[int, int]:
    param = float(desc.param)
    return bits_of(param), bits_of(1.0 - param)


def forward(desc: Any, a: Any, b: Any, y: Any) -> Program:
    return _elementwise(lerp_forward, desc, (a, b, y), 1, *_constant(desc))


def backward(desc: Any, dy: Any, da: Any, db: Any) -> Program:
    return _elementwise(lerp_backward, desc, (dy, da, db), 2, *_constant(desc))


def forward_weights(desc: Any, a: Any, b: Any, weight: Any, y: Any) -> Program:
    return _elementwise(lerp_weights, desc, (a, b, weight, y), 1)


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
    views = (dy, da, db, weight, a, b, dweight)
    if weight is not None and all(view.shape == desc.shape for view in views):
        return _elementwise(weights_backward, desc, views, 3)
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
    start = TENSORS + GRADIENTS + 5
    starts = [start, start + len(tables[0]), start + len(tables[0]) + len(tables[1])]
    words = [bits_of(1.0 - param), bits_of(param), *starts, *tables[0], *tables[1], *tables[2]]
    return Program(tuple(phases), tuple(words))
