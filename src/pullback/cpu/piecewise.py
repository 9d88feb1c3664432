"""Kernels of plain scans, run on each piece of a line by itself (contract/extension).

Items are those of the plain kernel times the pieces. The kernel is called by its address with a
block of words of its own, in which a line is the piece: one kernel serves all scans.
"""

from typing import Final

from pullback.cpu.atomics import call_kernel
from pullback.cpu.block import WORKSPACE
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, word
from pullback.cpu.memory import advance, as_i64_pointer
from pullback.cpu.piece_words import (
    AXIS_AT,
    BACK,
    BORDERS,
    ENDS,
    INNER,
    JOINS,
    KEPT_BYTES,
    KEPT_STEPS,
    LENGTH,
    MORE,
    OF_EDGES,
    PIECES,
    PLAIN,
    RUN_BORDERS,
    RUN_LATE,
    RUN_LESS,
    RUN_PIECES,
    STEPS,
    TOGETHER,
    WALKED,
    base_of,
    field,
)
from pullback.cpu.scan_words import EXTENSION
from pullback.cpu.words import address_of, stack_words

LONG: Final = 512  # steps of a piece that goes by itself
# Pieces that go together. Not a power of two: lanes would share the sets of the first cache.
AT_MOST: Final = 800
BLOCK: Final = 64  # pieces that are looked at at once
WORTH: Final = 16  # steps that take about as long in a lane as a call


@inlined
def piece_of(task, p):
    """Begin and end of a piece, where it begins in the staged shape, and how many are scanned."""
    more = field(task, MORE)
    begin, end = 0, field(task, STEPS)
    if field(task, BORDERS) >= 0:
        borders = as_i64_pointer(base_of(task) + field(task, BORDERS))
        begin, end = borders[p], borders[p + 1]
    return begin, end, begin + max(more, 0) * p, max(end - begin + more, 0)


@inlined
def _staged_begin(borders, more, p):
    """Where a piece begins in the staged shape."""
    return borders[p] + max(more, 0) * p


@inlined
def _run_of(borders, more, first, pieces, steps, most, ends):
    """How many short pieces there are from the first on, at most so many, in lines of so many
    pieces and steps; where each begins after it, and the last ends, goes to `ends`. None where one
    of them would leave most lanes idle."""
    shift, apart = -_staged_begin(borders, more, first), max(more, 0)
    run, longest, piece = 0, 0, first
    ends[0] = 0
    while run < most:
        some, at, largest = min(BLOCK, most - run, pieces - piece), advance(borders, piece), 0
        for k in range(some):
            ends[run + k + 1] = at[k + 1] + apart * (piece + k + 1) + shift
            largest = max(largest, at[k + 1] - at[k])
        if largest > LONG:
            while at[1] - at[0] <= LONG:
                longest, run, at = max(longest, at[1] - at[0]), run + 1, advance(at, 1)
            break
        longest, run, piece = max(longest, largest), run + some, piece + some
        if piece == pieces:
            piece, shift = 0, shift + steps
    return run if longest <= run * WORTH else 0


@inlined
def _turned(ends, run):
    """The same in the order of a walk from the far end."""
    total = ends[run]
    for k in range((run + 1) // 2):
        low, high = ends[k], ends[run - k]
        ends[k], ends[run - k] = total - high, total - low
    if run % 2 == 0:
        ends[run // 2] = total - ends[run // 2]


@inlined
def _set_lines(block, task, axis, begin, count, piece):
    """A line of the block is so many steps from there on; its initial value that of the piece."""
    pitch, back = word(task, axis + 1) + 2, field(task, BACK)
    first, end = axis + pitch, axis + pitch * (1 + field(task, WALKED))
    block[axis] = count
    from_ = 1 - begin - count if back != 0 else begin
    for at in range(first, axis + pitch * (1 + field(task, OF_EDGES)), pitch):
        block[at] = from_ * block[at + 1]
    for at in range(axis + pitch * (1 + field(task, OF_EDGES)), end, pitch):
        block[at] = (-piece if back != 0 else piece) * block[at + 1]


@kernel
def run_pieces(task, lo, hi):
    """The kernel at address PLAIN on each piece by itself: items are its items times pieces. Runs
    of short pieces go to the kernel at address TOGETHER, if there is one. What is read of the task
    is read before the loop: a call in between might have changed it."""
    length, pieces, back = field(task, LENGTH), field(task, PIECES), field(task, BACK)
    block, plain, more = stack_words(length), field(task, PLAIN), field(task, MORE)
    together, ends = field(task, TOGETHER), stack_words(AT_MOST + 1)
    for k in range(length):
        block[k] = word(task, k)
    axis, base, own = field(task, AXIS_AT), base_of(task), word(task, EXTENSION)
    space, steps = base + field(task, INNER), field(task, KEPT_STEPS)
    nbytes, writes_ends = field(task, KEPT_BYTES), field(task, ENDS) != 0
    borders = as_i64_pointer(base + field(task, BORDERS))
    joins, extent = field(task, JOINS) != 0, word(task, axis)
    block[own + RUN_BORDERS] = address_of(ends)
    block[own + RUN_LESS] = int(more < 0)
    block[own + RUN_LATE] = int(more < 0 and back != 0)
    item = lo
    while item < hi:
        inner = item // pieces
        piece, run = item - inner * pieces, 0
        begin = _staged_begin(borders, more, piece)
        if together != 0:
            most = min(hi - item if joins else min(pieces - piece, hi - item), AT_MOST)
            run = _run_of(borders, more, piece, pieces, extent, most, ends)
        if run > 0:
            if ends[run] > 0 or writes_ends:
                first = piece + run - 1 if back != 0 else piece
                _set_lines(block, task, axis, begin, ends[run], first)
                if back != 0:
                    _turned(ends, run)
                block[own + RUN_PIECES] = run
                call_kernel(together, address_of(block), inner, inner + 1)
            item += run
            continue
        count = borders[piece + 1] - borders[piece] + more
        if count > 0 or writes_ends:
            _set_lines(block, task, axis, begin, max(count, 0), piece)
            block[WORKSPACE] = space + (begin // steps + piece) * nbytes
            call_kernel(plain, address_of(block), inner, inner + 1)
        item += 1
