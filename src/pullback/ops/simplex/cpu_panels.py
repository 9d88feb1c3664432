"""Short rows, in panels: so many rows as a strip has columns are turned into columns, and back.

What a row costs besides its elements (the way to it, sums over lanes) is then paid once for all
rows of a panel. Columns have the bits of rows. A launch of this kind is one across columns whose
breadth is 0; its items are panels.

Gain (short rows in panels): entmax15 65536x10 bf16 1.27.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable

from numba.extending import intrinsic

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import pointer, word
from pullback.cpu.loops import extent, offset, step
from pullback.cpu.memory import address, advance, on_stack
from pullback.cpu.program import TENSORS
from pullback.cpu.tiles import stack
from pullback.ops.simplex.cpu_traits import LANES
from pullback.ops.simplex.cpu_walk import STRIP, walk

SHORT = 40  # elements of a row, at most: longer ones are as fast by themselves
PANEL = SHORT * STRIP


@intrinsic
def _as_task(typing_context, task, block):
    return task(task, block), lambda context, builder, signature, args: args[1]


@inlined
def _rows(w):
    """How many there are."""
    rows = 1
    for axis in range(w[1]):
        rows *= w[2 + axis]
    return rows


def in_panels(body: Callable, tensors: int) -> Callable:
    """body(task, lo, hi, LANES) across columns, where they are and where short rows become some.
    The last of the tensors is written."""
    rooms_size, words, output = tensors * PANEL, TENSORS + 4 * tensors + 5, tensors - 1

    @inlined
    def lay_out(task, block, scratch):
        """The task of a panel: a strip of columns that lie side by side."""
        for slot in range(TENSORS):
            block[slot] = word(task, slot)
        at = TENSORS + tensors + 5
        block[at - 4], block[at - 3] = 0, extent(walk(task, tensors))
        block[at - 2], block[at - 1] = 1, STRIP
        for t in range(tensors):
            block[TENSORS + t] = address(advance(scratch, t * PANEL))
            block[at + 3 * t], block[at + 3 * t + 1], block[at + 3 * t + 2] = 0, STRIP, 1

    @inlined
    def fill(task, scratch, first, count):
        w = walk(task, tensors)
        for t in range(output):
            p, apart = pointer(task, TENSORS + t), step(w, t)
            for row in range(count):
                start = offset(w, t, first + row)
                for j in range(extent(w)):
                    scratch[t * PANEL + j * STRIP + row] = p[start + j * apart]

    @inlined
    def empty(task, scratch, first, count):
        w = walk(task, tensors)
        p, apart = pointer(task, TENSORS + output), step(w, output)
        for row in range(count):
            start = offset(w, output, first + row)
            for j in range(extent(w)):
                p[start + j * apart] = scratch[output * PANEL + j * STRIP + row]

    @inlined
    def run(task, lo, hi):
        block, scratch = stack(0, words), on_stack(pointer(task, TENSORS), rooms_size)
        turned, rows = word(task, TENSORS + tensors) == 0, _rows(walk(task, tensors))
        there, begin, end, times = task, lo, hi, 1
        if turned:
            lay_out(task, block, scratch)
            there, begin, end, times = _as_task(task, block), 0, 1, hi - lo
        for panel in range(lo, lo + times):
            first = panel * STRIP
            count = min(STRIP, rows - first)
            if turned:
                block[TENSORS + tensors] = count
                fill(task, scratch, first, count)
            body(there, begin, end, LANES)
            if turned:
                empty(task, scratch, first, count)

    return run
