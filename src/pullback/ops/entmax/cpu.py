"""entmax and the losses on the CPU: which kernels run for a descriptor, and over what."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from pullback.contract.element import ElementKind
from pullback.cpu.kernel import Kernel
from pullback.cpu.loops import axis_words
from pullback.cpu.program import Phase, Program, bits_of, grain_for
from pullback.ops.entmax import cpu_gradient, cpu_loss, cpu_map
from pullback.ops.entmax.contract import alpha_shape, loss_alpha, row_shape
from pullback.tensor.layout import AxisLoops, along_axis, contiguous_strides, merge

COST = 4  # how many times the work on an element is that of a copy
SIDE_BY_SIDE = 16  # columns that share cache lines: the work of one thread


def _phase(desc: Any, loops: AxisLoops, kernel: Kernel) -> Phase:
    """A kernel over rows."""
    rows = loops.rest.count
    grain = grain_for(COST * loops.extent * desc.element.itemsize)
    return Phase(kernel, rows, max(grain, SIDE_BY_SIDE) if loops.columns else grain)


def _in_order(desc: Any, *strides: Any) -> AxisLoops:
    """The walk along rows of tensors with these strides, rows in the order of the shape."""
    shape, axis = desc.input_shape, desc.softmax_axis
    rest = [s[:axis] + s[axis + 1 :] for s in strides]
    ordered = merge(shape[:axis] + shape[axis + 1 :], rest, ordered=True)
    return replace(along_axis(shape, axis, strides), rest=ordered)


def _uniform(desc: Any, kernel: Kernel, *views: Any) -> Program:
    """One alpha for all rows."""
    loops = along_axis(desc.input_shape, desc.softmax_axis, [view.strides for view in views])
    words = (bits_of(desc.alpha - 1.0), 0, 0, 0, 0, *axis_words(loops))
    return Program((_phase(desc, loops, kernel),), words)


def _each(desc: Any, loops: AxisLoops, check: Kernel, kernels: tuple[Kernel, ...]) -> Any:
    """Phases of rows that have each their own alpha, the check first."""
    count = loops.rest.count if loops.extent else 0
    phases = (replace(_phase(desc, loops, kernel), count=count) for kernel in kernels)
    return Phase(check, count, max(count, 1)), *phases


def forward(desc: Any, x: Any, alpha: Any, y: Any) -> Program:
    if alpha is None:
        return _uniform(desc, cpu_map.map_rows, x, y)
    strides = [view.strides for view in (x, alpha, y)]
    loops = along_axis(desc.input_shape, desc.softmax_axis, strides)
    kernels = (*cpu_map.ROWS, cpu_map.map_each)
    words = (0, 0, 0, 0, 0, *axis_words(loops))
    return Program(_each(desc, loops, cpu_map.CHECK_MAP, kernels), words)


def _counting(shape: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...]:
    """Strides by which elements of a tensor of `shape`, broadcast to `full`, are numbered."""
    strides = contiguous_strides(shape)
    steps = tuple(0 if n == 1 else step for n, step in zip(shape, strides, strict=True))
    return (0,) * (len(full) - len(shape)) + steps


def backward(desc: Any, dy: Any, y: Any, alpha: Any, x: Any, dx: Any, dalpha: Any) -> Program:
    if alpha is None:
        return _uniform(desc, cpu_gradient.gradient_rows, dy, y, dx)
    shape, axis = desc.input_shape, desc.softmax_axis
    first = along_axis(shape, axis, [view.strides for view in (dy, y, alpha, dx)])
    own_shape = alpha_shape(desc)
    second = _in_order(desc, dy.strides, x.strides, alpha.strides, _counting(own_shape, shape))
    last, own = max(len(own_shape) - 1, 0), contiguous_strides(own_shape)
    third = along_axis(own_shape, last, [own, dalpha.strides])
    check, *rest = _each(
        desc,
        first,
        cpu_map.CHECK_BACKWARD,
        (*cpu_map.ADJOINTS, cpu_gradient.gradient_each),
    )
    rows = prod(row_shape(desc))
    phases = (
        check,
        # dx may be the buffer of dy, so what reads dy comes first.
        replace(_phase(desc, second, cpu_gradient.alpha_gradients), count=rows),
        Phase(cpu_gradient.sum_gradients, 1, 1),
        *rest,
    )
    at = cpu_map.HEADER + len(axis_words(first))
    walks = (*axis_words(first), *axis_words(second), *axis_words(third))
    counts = (at, rows, prod(own_shape), at + len(axis_words(second)))
    return Program(phases, (0, *counts, *walks))


# --- losses -------------------------------------------------------------------------------------


def _strides(desc: Any, view: Any) -> tuple[int, ...]:
    """Of a tensor of the input's shape, of one value for each row, or of none."""
    rank, axis = len(desc.input_shape), desc.softmax_axis
    steps = (0,) * rank if view is None else tuple(view.strides)
    return steps if len(steps) == rank else (*steps[:axis], 0, *steps[axis:])


def _loss_program(desc: Any, kernel: Kernel, classes: Any, *views: Any) -> Program:
    strides = [_strides(desc, view) for view in views]
    loops = along_axis(desc.input_shape, desc.softmax_axis, strides)
    rows = prod(row_shape(desc))
    phases = (replace(_phase(desc, loops, kernel), count=rows),)
    walk, beta = axis_words(loops), loss_alpha(desc) - 1.0
    narrow = classes is not None and classes.element is ElementKind.I32
    there = cpu_loss.WALK - cpu_loss.WORDS + len(walk)
    words = (bits_of(beta), int(desc.keep), int(narrow), there, *walk)
    if classes is None:
        return Program(phases, words)
    # Whatever the element is: it reads classes alone.
    check = Phase(cpu_loss.check_classes, rows, max(rows, 1), ElementKind.F64)
    ordered = axis_words(_in_order(desc, _strides(desc, classes)))
    return Program((check, *phases), (*words, *ordered))


def loss(desc: Any, x: Any, target: Any, classes: Any, loss: Any, p: Any) -> Program:
    kernel = cpu_loss.losses
    if desc.labels:
        softmax = loss_alpha(desc) == 1
        kernel = cpu_loss.softmax_class_losses if softmax else cpu_loss.class_losses
    return _loss_program(desc, kernel, classes, x, target, classes, loss, p)


def loss_backward(desc: Any, dy: Any, target: Any, classes: Any, p: Any, dx: Any) -> Program:
    kernel = cpu_loss.class_gradients if desc.labels else cpu_loss.loss_gradients
    return _loss_program(desc, kernel, classes, dy, target, classes, p, dx)
