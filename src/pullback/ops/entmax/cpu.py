"""entmax and the losses on the CPU: which kernels run for a descriptor, and over what."""

from __future__ import annotations

from math import prod
from typing import Any

from pullback.cpu.kernel import Kernel
from pullback.cpu.loops import axis_words
from pullback.cpu.program import Phase, Program, bits_of, grain_for
from pullback.ops.entmax import cpu_gradient, cpu_loss, cpu_map
from pullback.ops.entmax.contract import row_shape
from pullback.ops.entmax.cpu_rows import LANES
from pullback.tensor.layout import AxisLoops, along_axis, contiguous_strides

COST = 16  # how many times the work on an element is that of a copy


def _grain(desc: Any, rows: int) -> int:
    extent = (desc.input_shape or (1,))[desc.softmax_axis]
    return grain_for(COST * rows * extent * desc.element.itemsize)


def _uniform(desc: Any, rows: Kernel, columns: Kernel, *views: Any) -> Program:
    """One alpha: along rows, or across columns where those lie side by side."""
    loops = along_axis(desc.input_shape, desc.softmax_axis, [view.strides for view in views])
    count, breadth, kernel, wide = loops.rest.count, 1, rows, 1
    if loops.columns:
        breadth, kernel, wide = loops.rest.extents[-1], columns, LANES
    items = count // breadth * -(-breadth // wide) if count and loops.extent else 0
    words = (breadth, bits_of(desc.alpha - 1.0), 0, 0, 0, 0, *axis_words(loops))
    return Program((Phase(kernel, items, _grain(desc, wide)),), words)


def _each(desc: Any, loops: AxisLoops, check: Kernel, kernels: tuple[Kernel, ...]) -> Any:
    """Phases of rows that have each their own alpha, the check first."""
    count = loops.rest.count if loops.extent else 0
    phases = (Phase(kernel, count, _grain(desc, 1)) for kernel in kernels)
    return Phase(check, count, max(count, 1)), *phases


def forward(desc: Any, x: Any, alpha: Any, y: Any) -> Program:
    if alpha is None:
        return _uniform(desc, cpu_map.map_rows, cpu_map.map_columns, x, y)
    strides = [view.strides for view in (x, alpha, y)]
    loops = along_axis(desc.input_shape, desc.softmax_axis, strides)
    kernels = (
        cpu_map.softmax_rows,
        cpu_map.entmax15_rows,
        cpu_map.sparsemax_rows,
        cpu_map.map_each,
    )
    words = (1, 0, 0, 0, 0, 0, *axis_words(loops))
    return Program(_each(desc, loops, cpu_map.check_map, kernels), words)


def _counting(shape: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...]:
    """Strides by which elements of a tensor of `shape`, broadcast to `full`, are numbered."""
    strides = contiguous_strides(shape)
    steps = tuple(0 if n == 1 else step for n, step in zip(shape, strides, strict=True))
    return (0,) * (len(full) - len(shape)) + steps


def backward(desc: Any, dy: Any, y: Any, alpha: Any, x: Any, dx: Any, dalpha: Any) -> Program:
    if alpha is None:
        kernels = cpu_gradient.gradient_rows, cpu_gradient.gradient_columns
        return _uniform(desc, *kernels, dy, y, dx)
    shape, axis = desc.input_shape, desc.softmax_axis
    first = along_axis(shape, axis, [view.strides for view in (dy, y, alpha, dx)])
    counting = _counting(desc.alpha_shape, shape)
    second = along_axis(shape, axis, [dy.strides, x.strides, alpha.strides, counting])
    last, own = max(len(desc.alpha_shape) - 1, 0), contiguous_strides(desc.alpha_shape)
    third = along_axis(desc.alpha_shape, last, [own, dalpha.strides])
    check, *rest = _each(
        desc,
        first,
        cpu_map.check_backward,
        (
            cpu_map.softmax_adjoints,
            cpu_map.entmax15_adjoints,
            cpu_map.sparsemax_adjoints,
            cpu_gradient.gradient_each,
        ),
    )
    rows = prod(row_shape(desc))
    phases = (
        check,
        # dx may be the buffer of dy, so what reads dy comes first.
        Phase(cpu_gradient.alpha_gradients, rows, _grain(desc, 1)),
        Phase(cpu_gradient.sum_gradients, 1, 1),
        *rest,
    )
    at = cpu_map.HEADER + len(axis_words(first))
    walks = (*axis_words(first), *axis_words(second), *axis_words(third))
    counts = (at, rows, prod(desc.alpha_shape), at + len(axis_words(second)))
    return Program(phases, (1, 0, *counts, *walks))


# --- losses -------------------------------------------------------------------------------------


def _walk(desc: Any, *views: Any) -> AxisLoops:
    """Tensors of the input's shape, of one value for each row, or none."""
    rank, axis = len(desc.input_shape), desc.softmax_axis
    strides = []
    for view in views:
        steps = (0,) * rank if view is None else tuple(view.strides)
        strides.append(steps if len(steps) == rank else (*steps[:axis], 0, *steps[axis:]))
    return along_axis(desc.input_shape, axis, strides)


def _loss_program(desc: Any, kernel: Kernel, classes: Any, *views: Any) -> Program:
    loops = _walk(desc, *views)
    rows = prod(row_shape(desc))
    phases = (Phase(kernel, rows, _grain(desc, 1)),)
    words = (int(desc.labels), bits_of(desc.alpha - 1.0), int(desc.keep), *axis_words(loops))
    if classes is None:
        return Program(phases, words)
    check = Phase(cpu_loss.check_classes, rows, max(rows, 1))
    return Program((check, *phases), words, classes.element)


def loss(desc: Any, x: Any, target: Any, classes: Any, loss: Any, p: Any) -> Program:
    return _loss_program(desc, cpu_loss.losses, classes, x, target, classes, loss, p)


def loss_backward(desc: Any, dy: Any, target: Any, classes: Any, p: Any, dx: Any) -> Program:
    return _loss_program(desc, cpu_loss.loss_gradients, classes, dy, target, classes, p, dx)
