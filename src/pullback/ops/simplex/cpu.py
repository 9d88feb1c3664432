"""The simplex maps on the CPU: which kernel runs for a descriptor, and over what."""

from __future__ import annotations

from typing import Any

from pullback.contract.kinds import SoftmaxKind
from pullback.cpu.kernel import Kernel
from pullback.cpu.loops import axis_words
from pullback.cpu.program import BYTES_PER_CHUNK, Phase, Program, grain_for, streams
from pullback.ops.simplex import cpu_backward, cpu_softmax, cpu_sparse
from pullback.ops.simplex.contract import kind_of
from pullback.ops.simplex.cpu_panels import SHORT
from pullback.ops.simplex.cpu_traits import GROUP
from pullback.ops.simplex.cpu_walk import STRIP
from pullback.tensor.layout import along_axis

Kernels = dict[SoftmaxKind, tuple[Kernel, Kernel, Kernel | None]]

# Along rows, across columns, and along groups of short rows; where there is none for groups, those
# are turned into columns.
FORWARD: Kernels = {
    SoftmaxKind.SOFTMAX: (
        cpu_softmax.softmax_rows,
        cpu_softmax.softmax_columns,
        cpu_softmax.softmax_groups,
    ),
    SoftmaxKind.LOG_SOFTMAX: (
        cpu_softmax.log_softmax_rows,
        cpu_softmax.log_softmax_columns,
        cpu_softmax.log_softmax_groups,
    ),
    SoftmaxKind.SPARSEMAX: (cpu_sparse.sparsemax_rows, cpu_sparse.sparsemax_columns, None),
    SoftmaxKind.ENTMAX15: (cpu_sparse.entmax15_rows, cpu_sparse.entmax15_columns, None),
}
BACKWARD: Kernels = {
    SoftmaxKind.SOFTMAX: (
        cpu_backward.softmax_rows,
        cpu_backward.softmax_columns,
        cpu_backward.softmax_groups,
    ),
    SoftmaxKind.LOG_SOFTMAX: (
        cpu_backward.log_softmax_rows,
        cpu_backward.log_softmax_columns,
        cpu_backward.log_softmax_groups,
    ),
    SoftmaxKind.SPARSEMAX: (
        cpu_backward.sparsemax_rows,
        cpu_backward.sparsemax_columns,
        cpu_backward.sparsemax_groups,
    ),
    SoftmaxKind.ENTMAX15: (
        cpu_backward.entmax15_rows,
        cpu_backward.entmax15_columns,
        cpu_backward.entmax15_groups,
    ),
}

# Work on a row goes on while the next is on its way, but that of the last one in a chunk is another
# thread's: so a large launch has few chunks, each of several rows. Adjoints along rows have fewer:
# there the first row of a chunk is only read at first, and the last only written in the end.
CHUNKS, OF_ADJOINTS = 64, 32
LARGEST_CHUNK = 1 << 22
GROUPED = 128  # elements of rows in groups, at most
FEWEST, FEWEST_TURNED = GROUP // 2, 32  # short rows for which it pays


def _variant(kernels: tuple[Kernel, Kernel, Kernel | None], loops: Any) -> tuple[Kernel, int, int]:
    """The kernel for such loops, how many rows an item has at most, and how many of them lie side
    by side: 0 if they are to be turned into columns."""
    rows, columns, groups = kernels
    if not loops.rest.extents:
        return rows, 1, 1
    inner = loops.rest.extents[-1]
    if loops.columns:
        return columns, STRIP, inner
    if groups is None:
        if loops.rest.count >= FEWEST_TURNED and loops.extent <= SHORT:
            return columns, STRIP, 0
    elif inner >= FEWEST and loops.extent <= GROUPED and set(loops.steps) == {1}:
        return groups, GROUP, inner
    return rows, 1, 1


def _program(kernels: Kernels, of_rows: int, desc: Any, *views: Any) -> Program:
    strides = [view.strides for view in views]
    loops = along_axis(desc.input_shape, desc.softmax_axis, strides)
    kernel, most, side_by_side = _variant(kernels[kind_of(desc)], loops)
    rows, breadth = loops.rest.count, side_by_side or loops.rest.count
    items = rows // breadth * -(-breadth // most) if rows and loops.extent else 0
    row_bytes = loops.extent * desc.element.itemsize
    chunk = rows * row_bytes * len(views) // (CHUNKS if loops.columns else of_rows)
    chunk = max(BYTES_PER_CHUNK, min(chunk, LARGEST_CHUNK))
    grain = grain_for(row_bytes * len(views) * min(breadth, most), chunk)
    words = (side_by_side, int(streams(rows * row_bytes)), *axis_words(loops))
    return Program((Phase(kernel, items, grain),), words)


def forward(desc: Any, x: Any, y: Any) -> Program:
    return _program(FORWARD, CHUNKS, desc, x, y)


def backward(desc: Any, dy: Any, y: Any, dx: Any) -> Program:
    return _program(BACKWARD, OF_ADJOINTS, desc, dy, y, dx)
