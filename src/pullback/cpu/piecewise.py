"""Kernels of plain scans, run on each piece of a line by itself (contract/extension).

Items are those of the plain kernel times the pieces. The kernel is called by its address with a
block of words of its own, in which a line is the piece: one kernel serves all scans.
Words of an extended program begin where word EXTENSION says.
"""

from typing import Final

from pullback.cpu.atomics import call_kernel
from pullback.cpu.block import WORKSPACE
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, word
from pullback.cpu.memory import as_i64_pointer
from pullback.cpu.scan_words import EXTENSION
from pullback.cpu.words import address_of, stack_words

# LENGTH of the block; PIECES; STEPS of the axis; MORE elements scanned in each piece; whether it is
# REVERSED, and whether the plain scan walks BACK; where the BORDERS are in the workspace, or -1;
# the slot of the offsets and their step; the layout words of the plain scan (AXIS_AT) and how many
# tensors they have (WALKED); where its own workspace is (INNER), and how many bytes of it are for
# how many steps of all lines (KEPT_BYTES, KEPT_STEPS); staged tensors (ROWS); their LAYOUT words;
# the slot of the initial value, that of its gradient or, in the workspace, its place; how many sums
# there are, and their words; how many steps are copied AT_ONCE, of COLUMNS lines that are
# neighbours in the staged shape; the address of the kernel of the PLAIN scan.
_NAMED: Final = 24
LENGTH, PIECES, STEPS, MORE, REVERSED, BACK, BORDERS, OFFSETS, OFFSETS_STEP, AXIS_AT = range(10)
WALKED, INNER, KEPT_BYTES, KEPT_STEPS, ROWS, LAYOUT, INITIAL, GRADIENT = range(10, 18)
GRADIENT_AT, SUMS, SUM_WORDS, AT_ONCE, COLUMNS, PLAIN = range(18, _NAMED)
HEAD: Final = _NAMED


@inlined
def base_of(task):
    return (word(task, WORKSPACE) + 63) & ~63


@inlined
def field(task, which):
    return word(task, word(task, EXTENSION) + which)


@inlined
def piece_of(task, p):
    """Begin and end of a piece, where it begins in the staged shape, and how many are scanned."""
    more = field(task, MORE)
    begin, end = 0, field(task, STEPS)
    if field(task, BORDERS) >= 0:
        borders = as_i64_pointer(base_of(task) + field(task, BORDERS))
        begin, end = borders[p], borders[p + 1]
    return begin, end, begin + max(more, 0) * p, max(end - begin + more, 0)


@kernel
def run_pieces(task, lo, hi):
    """The kernel at address PLAIN on each piece by itself: items are its items times pieces. What
    is read of the task is read before the loop: a call in between might have changed it."""
    length, pieces, back = field(task, LENGTH), field(task, PIECES), field(task, BACK)
    block, plain, more = stack_words(length), field(task, PLAIN), field(task, MORE)
    for k in range(length):
        block[k] = word(task, k)
    axis, base = field(task, AXIS_AT), base_of(task)
    space, steps = base + field(task, INNER), field(task, KEPT_STEPS)
    nbytes = field(task, KEPT_BYTES)
    borders = as_i64_pointer(base + field(task, BORDERS))
    pitch = word(task, axis + 1) + 2
    first, end = axis + pitch, axis + pitch * (1 + field(task, WALKED))
    inner = lo // pieces
    piece = lo - inner * pieces
    for _ in range(lo, hi):
        begin = borders[piece]
        count = borders[piece + 1] - begin + more
        begin += max(more, 0) * piece
        if count > 0:
            block[axis] = count
            from_ = 1 - begin - count if back != 0 else begin
            for at in range(first, end, pitch):
                block[at] = from_ * block[at + 1]
            block[WORKSPACE] = space + (begin // steps + piece) * nbytes
            call_kernel(plain, address_of(block), inner, inner + 1)
        piece += 1
        if piece == pieces:
            piece, inner = 0, inner + 1
