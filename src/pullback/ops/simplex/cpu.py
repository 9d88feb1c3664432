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
from pullback.ops.simplex.cpu_walk import STRIP
from pullback.tensor.layout import along_axis

Kernels = dict[SoftmaxKind, tuple[Kernel, Kernel]]

# Along rows, and across columns.
FORWARD: Kernels = {
    SoftmaxKind.SOFTMAX: (cpu_softmax.softmax_rows, cpu_softmax.softmax_columns),
    SoftmaxKind.LOG_SOFTMAX: (cpu_softmax.log_softmax_rows, cpu_softmax.log_softmax_columns),
    SoftmaxKind.SPARSEMAX: (cpu_sparse.sparsemax_rows, cpu_sparse.sparsemax_columns),
    SoftmaxKind.ENTMAX15: (cpu_sparse.entmax15_rows, cpu_sparse.entmax15_columns),
}
BACKWARD: Kernels = {
    SoftmaxKind.SOFTMAX: (cpu_backward.softmax_rows, cpu_backward.softmax_columns),
    SoftmaxKind.LOG_SOFTMAX: (cpu_backward.log_softmax_rows, cpu_backward.log_softmax_columns),
    SoftmaxKind.SPARSEMAX: (cpu_backward.sparsemax_rows, cpu_backward.sparsemax_columns),
    SoftmaxKind.ENTMAX15: (cpu_backward.entmax15_rows, cpu_backward.entmax15_columns),
}

# Work on a row goes on while the next is on its way, but that of the last one in a chunk is another
# thread's: so a large launch has few chunks, each of several rows. Adjoints along rows have fewer:
# there the first row of a chunk is only read at first, and the last only written in the end.
CHUNKS, OF_ADJOINTS = 64, 32
LARGEST_CHUNK = 1 << 22
FEWEST = 32  # short rows for which it pays to turn them


def _program(kernels: Kernels, of_rows: int, desc: Any, *views: Any) -> Program:
    strides = [view.strides for view in views]
    loops = along_axis(desc.input_shape, desc.softmax_axis, strides)
    rows, breadth = loops.rest.count, loops.rest.extents[-1] if loops.columns else 1
    in_panels = not loops.columns and rows >= FEWEST and loops.extent <= SHORT
    if in_panels:
        breadth = rows
    items = rows // breadth * -(-breadth // STRIP) if rows and loops.extent else 0
    row_bytes = loops.extent * desc.element.itemsize
    chunk = rows * row_bytes * len(views) // (CHUNKS if loops.columns else of_rows)
    chunk = max(BYTES_PER_CHUNK, min(chunk, LARGEST_CHUNK))
    grain = grain_for(row_bytes * len(views) * min(breadth, STRIP), chunk)
    words = (0 if in_panels else breadth, int(streams(rows * row_bytes)), *axis_words(loops))
    across = loops.columns or in_panels
    return Program((Phase(kernels[kind_of(desc)][across], items, grain),), words)


def forward(desc: Any, x: Any, y: Any) -> Program:
    return _program(FORWARD, CHUNKS, desc, x, y)


def backward(desc: Any, dy: Any, y: Any, dx: Any) -> Program:
    return _program(BACKWARD, OF_ADJOINTS, desc, dy, y, dx)
