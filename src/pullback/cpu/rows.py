"""The engine of maps over rows: a result for each element from all elements of its row.

An op is body(cursors, n, width, L): one row (L = 1), or `width` rows, at most L, side by side; of n
elements each; its cursors (pointer, index, step along the axis, streaming) on its tensors in the
order of the plan, the output last. What it knows of each row lies in vectors of L lanes. The engine
walks

    rows     along the axis, one by one
    across   strips of rows that lie side by side; and short rows in panels: so many are transposed
             into a scratch strip, and their results back, that what a row costs besides its
             elements (the way to it, sums over lanes) is paid once for all

Words after the tensors of a plan: rows side by side (1 along rows, 0 in panels), streaming, the
axis walk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pullback.cpu.block import TENSORS
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import Kernel, pointer, word, words
from pullback.cpu.loops import axis_words, between, extent, offset, step
from pullback.cpu.memory import advance, fence, is_aligned, on_stack
from pullback.cpu.named import named
from pullback.cpu.program import BYTES_PER_CHUNK, Phase, Program, grain_for, streams
from pullback.cpu.row_panels import load_panel, store_panel
from pullback.cpu.row_steps import LANES, WIDE
from pullback.tensor.layout import along_axis

# Elements of a row in a panel at most, by tensors, and how many rows pay.
# Gain (short rows in panels): log_softmax 65536x10 f32 4.13.
PANELED = {2: 96, 3: 32}
FEWEST = LANES // 2

# Work on a row goes on while the next is on its way, but that of the last one in a chunk is another
# thread's: so a large launch has few chunks, each of several rows.
CHUNKS = 64
LARGEST_CHUNK = 1 << 22


# --- where rows are -----------------------------------------------------------------------------


@inlined
def walk(task, tensors):
    return words(task, TENSORS + tensors + 2)


@inlined
def _place(task, tensors, tensor):
    """Where a tensor is, read once for all rows of a chunk."""
    w, p = walk(task, tensors), pointer(task, TENSORS + tensor)
    return p, offset(w, tensor, 0), step(w, tensor), between(w, tensor), w[1]


@inlined
def _row(w, place, tensor, row):
    p, start, apart, pitch, rank = place
    i = start + row * pitch if rank <= 1 else offset(w, tensor, row)
    return p, i, apart, False


@inlined
def _row_of_output(w, place, tensor, row, streaming):
    """Streaming only if that is possible for all of it."""
    p, i, apart, _ = _row(w, place, tensor, row)
    streaming = streaming and is_aligned(p, i, 16)
    return p, i, apart, streaming and (apart == 1 or is_aligned(p, i + apart, 16))


@inlined
def _streams(task, tensors):
    """Whether it pays to write past the caches, and the output lies apart from all inputs."""
    streaming = word(task, TENSORS + tensors + 1) != 0
    for other in range(tensors - 1):
        streaming = streaming and word(task, TENSORS + other) != word(task, TENSORS + tensors - 1)
    return streaming


class _Cursors(NamedTuple):
    """What is known of the tensors of a launch; cursors on a row; and on a scratch strip, where the
    output takes the place of the first input."""

    places: Callable[..., Any]
    row: Callable[..., Any]
    panel: Callable[..., Any]


def _on_two() -> _Cursors:
    def places(task):
        return _place(task, 2, 0), _place(task, 2, 1)

    def row(w, places, row, streaming):
        return _row(w, places[0], 0, row), _row_of_output(w, places[1], 1, row, streaming)

    def panel(scratch, size, L):
        return (scratch, 0, L, False), (scratch, 0, L, False)

    return _Cursors(inlined(places), inlined(row), inlined(panel))


def _on_three() -> _Cursors:
    def places(task):
        return _place(task, 3, 0), _place(task, 3, 1), _place(task, 3, 2)

    def row(w, places, row, streaming):
        x, y = _row(w, places[0], 0, row), _row(w, places[1], 1, row)
        return x, y, _row_of_output(w, places[2], 2, row, streaming)

    def panel(scratch, size, L):
        x = scratch, 0, L, False
        return x, (advance(scratch, size), 0, L, False), x

    return _Cursors(inlined(places), inlined(row), inlined(panel))


# --- kernels ------------------------------------------------------------------------------------


class RowKernels(NamedTuple):
    """The kernels of a body, by walk, and of how many elements rows in panels are at most."""

    rows: Kernel
    across: Kernel
    paneled: int


def row_kernels(body: Callable[..., Any], tensors: int, name: str, module: str) -> RowKernels:
    places_of, row_of, panel_of = _on_two() if tensors == 2 else _on_three()
    output, paneled = tensors - 1, PANELED[tensors]
    panel, scratch_size = paneled * WIDE, output * paneled * WIDE

    def rows(task, lo, hi):
        w, places, streaming = walk(task, tensors), places_of(task), _streams(task, tensors)
        n = extent(w)
        for row in range(lo, hi):
            body(row_of(w, places, row, streaming), n, 1, 1)
        fence()

    def across(task, lo, hi):
        w, places, streaming = walk(task, tensors), places_of(task), _streams(task, tensors)
        scratch, breadth = (
            on_stack(pointer(task, TENSORS), scratch_size),
            word(task, TENSORS + tensors),
        )
        n, in_panels = extent(w), breadth == 0
        if in_panels:
            breadth = 1
            for axis in range(w[1]):
                breadth *= w[2 + axis]
        strips = (breadth + WIDE - 1) // WIDE
        for item in range(lo, hi):
            outer = item // strips
            first = (item - outer * strips) * WIDE
            if in_panels:
                for t in range(output):
                    load_panel(task, w, t, first, breadth, advance(scratch, t * panel), WIDE)
                here, width = panel_of(scratch, panel, WIDE), WIDE
            else:
                row = outer * breadth + first
                here, width = row_of(w, places, row, streaming), min(WIDE, breadth - first)
            body(here, n, width, WIDE)
            if in_panels:
                store_panel(task, w, output, first, breadth, scratch, WIDE)
        fence()

    kernels = named(rows, f"{name}_rows", module), named(across, f"{name}_across", module)
    return RowKernels(*kernels, paneled)


def row_program(kernels: RowKernels, desc: Any, *views: Any) -> Program:
    """What a plan runs on these tensors, the output last."""
    loops = along_axis(desc.input_shape, desc.softmax_axis, [view.strides for view in views])
    n, count = loops.extent, loops.rest.count
    kernel, side_by_side, most = kernels.rows, 1, 1
    if loops.columns and loops.rest.extents:
        kernel, side_by_side, most = kernels.across, loops.rest.extents[-1], WIDE
    elif n <= kernels.paneled and count >= FEWEST:
        kernel, side_by_side, most = kernels.across, 0, WIDE
    breadth = side_by_side or count
    items = count // breadth * -(-breadth // most) if count and n else 0
    row_bytes = n * desc.element.itemsize
    chunk = max(BYTES_PER_CHUNK, min(count * row_bytes * len(views) // CHUNKS, LARGEST_CHUNK))
    grain = grain_for(row_bytes * len(views) * min(breadth, most), chunk)
    layout = (side_by_side, int(streams(count * row_bytes)), *axis_words(loops))
    return Program((Phase(kernel, items, grain),), layout)
