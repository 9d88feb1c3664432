"""Kernels of extended scans (contract/extension): copy to the staged shape, scan there, copy back.

The first phase looks at the offsets and lets the words of staged tensors point to the workspace, so
that the kernels of the plain scan run as they are. Words of such a program: of cpu/piece_words, a
row for each staged tensor, the layout words of all of them, what is to be summed.
"""

import math
from typing import Final

import numpy as np

from pullback.cpu.block import DETAIL, STATUS
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import index_pointer, kernel, pointer, real, set_word, word, words
from pullback.cpu.loops import between, offset, step
from pullback.cpu.memory import as_i64_pointer, read_wide, scalar_wide, write
from pullback.cpu.piece_words import (
    AT_ONCE,
    BORDERS,
    COLUMNS,
    GRADIENT,
    GRADIENT_AT,
    HEAD,
    INITIAL,
    LAYOUT,
    OFFSETS,
    OFFSETS_STEP,
    PIECES,
    REVERSED,
    ROWS,
    STEPS,
    SUM_WORDS,
    SUMS,
    base_of,
    field,
)
from pullback.cpu.piecewise import piece_of
from pullback.cpu.scan_words import EXTENSION

BAD_OFFSETS: Final = 1
SLICE: Final = 1 << 14  # elements that are copied at once
# Of a row: the slot, its place in the workspace, the true address, whether it is written and holds
# positions, elements before the first, first results that are skipped, last elements that are cut;
# whether what stands first is the initial value, else its bits; the bits of what is written where
# nothing was scanned; whether it gives the gradient of the initial value; its place if it is
# summed.
(SLOT, PLACE, TRUE, WRITTEN, INDEX, LEADS, SKIPS, CUTS, FROM_INITIAL, FIRST, END, GIVES, SUMMED,
 ROW) = range(14)  # fmt: skip
# Tensors of the layout words: the staged shape, the initial value and its gradient, then the rows.
OF_STAGED, OF_INITIAL, OF_GRADIENT, OF_ROWS = range(4)


@inlined
def _row(task, number):
    return word(task, EXTENSION) + HEAD + ROW * number


@inlined
def _next_sum(task, at):
    kept = word(task, at + 3)
    return at + 5 + 3 * kept + 2 * word(task, at + 4 + kept)


@inlined
def _taken(borders, offsets, by, last, n):
    """Whether the borders, which are copied, go from 0 to n and never back."""
    if by == 1:
        for p in range(last + 1):
            borders[p] = np.int64(offsets[p])
    else:
        for p in range(last + 1):
            borders[p] = np.int64(offsets[p * by])
    wrong = 0  # negative if any of these is
    for p in range(last):
        wrong |= (borders[p + 1] - borders[p]) | borders[p] | (n - borders[p])
    return wrong >= 0 and borders[0] == 0 and borders[last] == n


@inlined
def _report(task, borders, last, n):
    """The first border that is wrong."""
    before = 0
    for p in range(last + 1):
        at = borders[p]
        if at < before or at > n or (p == 0 and at != 0) or (p == last and at != n):
            set_word(task, DETAIL, p)
            set_word(task, DETAIL + 1, at)
            set_word(task, STATUS, BAD_OFFSETS)
            return
        before = at


@kernel
def extended_begin(task, lo, hi):
    """Check the offsets; let staged tensors point to the workspace."""
    base = base_of(task)
    if field(task, BORDERS) >= 0:
        borders = as_i64_pointer(base + field(task, BORDERS))
        offsets, by = index_pointer(task, field(task, OFFSETS)), field(task, OFFSETS_STEP)
        last, n = field(task, PIECES), field(task, STEPS)
        if not _taken(borders, offsets, by, last, n):
            _report(task, borders, last, n)
            return
    at = field(task, SUM_WORDS)
    for _ in range(field(task, SUMS)):
        set_word(task, at, base + word(task, at))
        set_word(task, at + 1, word(task, word(task, at + 1)))
        at = _next_sum(task, at)
    for number in range(field(task, ROWS)):
        row = _row(task, number)
        slot = word(task, row + SLOT)
        true = word(task, slot)
        if word(task, row + SUMMED) >= 0:
            true = base + word(task, row + SUMMED)
        set_word(task, row + TRUE, true)
        set_word(task, slot, base + word(task, row + PLACE))
    e = word(task, EXTENSION)
    if field(task, GRADIENT) > 0:
        set_word(task, e + GRADIENT, word(task, field(task, GRADIENT)))
    if field(task, GRADIENT_AT) >= 0:
        set_word(task, e + GRADIENT, base + field(task, GRADIENT_AT))


# --- copies ---------------------------------------------------------------------------------------


@inlined
def _moved_by(task, row, p):
    """From where an element is in a piece to where it is staged."""
    begin, end, there, count = piece_of(task, p)
    moved = word(task, row + LEADS) - word(task, row + SKIPS)
    return there + count - end - moved if field(task, REVERSED) != 0 else there - begin + moved


@inlined
def _window(task, row, begin, end):
    """Which of a piece are staged."""
    low, high = word(task, row + SKIPS), word(task, row + CUTS)
    if field(task, REVERSED) != 0:
        low, high = high, low
    return begin + low, end - high


@inlined
def _first_piece(task, position):
    """The first that ends after a position."""
    if field(task, BORDERS) < 0:
        return 0
    borders = as_i64_pointer(base_of(task) + field(task, BORDERS))
    low, high = 0, field(task, PIECES) - 1
    while low < high:
        middle = (low + high) // 2
        if borders[middle + 1] > position:
            high = middle
        else:
            low = middle + 1
    return low


@inlined
def _copied(p, i, by, near, q, j, to, far, count, columns):
    """count steps of so many lines, from p[i] on to q[j] on."""
    if columns == 1:
        if by == 1 and to == 1:
            for k in range(count):
                q[j + k] = p[i + k]
        else:
            for k in range(count):
                q[j + k * to] = p[i + k * by]
        return
    for k in range(count):
        here, there = i + k * by, j + k * to
        if near == 1 and far == 1:
            for c in range(columns):
                q[there + c] = p[here + c]
        else:
            for c in range(columns):
                q[there + c * far] = p[here + c * near]


@inlined
def _copied_positions(task, piece, p, i, by, near, q, j, to, far, count, columns):
    """Positions of the staged shape as positions along the axis; that of the initial value is -1.
    Elements, not results, are what they are about."""
    begin, end, _, scanned = piece_of(task, piece)
    leads = int(field(task, INITIAL) > 0)
    ahead, own = begin - leads, 0
    if field(task, REVERSED) != 0:
        ahead, own = end - scanned + leads, scanned - 1
    for k in range(count):
        for c in range(columns):
            at = p[i + k * by + c * near]
            q[j + k * to + c * far] = -1 if leads != 0 and at == own else at + ahead


@inlined
def _copy(task, row, piece, i, by, near, j, to, far, count, columns, back):
    """Between the staged shape, at i, and the tensor itself, at j."""
    if word(task, row + INDEX) != 0:
        staged = as_i64_pointer(word(task, word(task, row + SLOT)))
        true = as_i64_pointer(word(task, row + TRUE))
        _copied_positions(task, piece, staged, i, by, near, true, j, to, far, count, columns)
    elif back:
        p, q = pointer(task, word(task, row + SLOT)), pointer(task, row + TRUE)
        _copied(p, i, by, near, q, j, to, far, count, columns)
    else:
        p, q = pointer(task, row + TRUE), pointer(task, word(task, row + SLOT))
        _copied(p, j, to, far, q, i, by, near, count, columns)


@inlined
def _runs(task, lo, hi, back):
    """Slices of lines, of each the elements that are staged; lines that are neighbours together."""
    w, n = words(task, field(task, LAYOUT)), field(task, STEPS)
    most, columns = field(task, AT_ONCE), field(task, COLUMNS)
    slices = (n + most - 1) // most
    by, near = step(w, OF_STAGED), between(w, OF_STAGED)
    for item in range(lo, hi):
        group = item // slices
        line, from_ = group * columns, (item - group * slices) * most
        to_, first, staged = (
            min(from_ + most, n),
            _first_piece(task, from_),
            offset(w, OF_STAGED, line),
        )
        for number in range(field(task, ROWS)):
            row, t = _row(task, number), OF_ROWS + number
            if (word(task, row + WRITTEN) != 0) != back:
                continue
            own, to, far = offset(w, t, line), step(w, t), between(w, t)
            p, j = first, from_
            while j < to_:
                begin, end, _, _ = piece_of(task, p)
                low, high = _window(task, row, begin, end)
                low, high = max(low, j), min(high, to_)
                if high > low:
                    i = staged + (low + _moved_by(task, row, p)) * by
                    _copy(
                        task, row, p, i, by, near, own + low * to, to, far, high - low, columns,
                        back,
                    )  # fmt: skip
                j, p = max(end, j), p + 1


@kernel
def extended_in(task, lo, hi):
    """Inputs to the staged shape."""
    _runs(task, lo, hi, False)


@kernel
def extended_out(task, lo, hi):
    """Outputs from the staged shape."""
    _runs(task, lo, hi, True)


@inlined
def _first_of(task, begin, count):
    """Where the first scanned of a piece is."""
    return begin + count - 1 if field(task, REVERSED) != 0 else begin


@kernel
def extended_firsts(task, lo, hi):
    """What stands before the elements of each piece."""
    w, pieces = words(task, field(task, LAYOUT)), field(task, PIECES)
    for item in range(lo, hi):
        line = item // pieces
        _, _, there, count = piece_of(task, item - line * pieces)
        at = offset(w, OF_STAGED, line) + _first_of(task, there, count) * step(w, OF_STAGED)
        here = offset(w, OF_INITIAL, line) + (item - line * pieces) * step(w, OF_INITIAL)
        for number in range(field(task, ROWS)):
            row = _row(task, number)
            if word(task, row + WRITTEN) != 0 or word(task, row + LEADS) == 0 or count == 0:
                continue
            q = pointer(task, word(task, row + SLOT))
            if word(task, row + FROM_INITIAL) != 0:
                q[at] = pointer(task, field(task, INITIAL))[here]
            else:
                write(q, at, scalar_wide(q, real(task, row + FIRST)))


@kernel
def extended_ends(task, lo, hi):
    """What outputs have where nothing was scanned, and the gradient of the initial value."""
    w, pieces = words(task, field(task, LAYOUT)), field(task, PIECES)
    reverse = field(task, REVERSED) != 0
    for item in range(lo, hi):
        line = item // pieces
        piece = item - line * pieces
        begin, end, there, count = piece_of(task, piece)
        for number in range(field(task, ROWS)):
            row = _row(task, number)
            if word(task, row + WRITTEN) == 0:
                continue
            _write_end(task, row, w, OF_ROWS + number, line, begin, end, reverse)
            if word(task, row + GIVES) != 0 and field(task, GRADIENT) != 0:
                here = offset(w, OF_GRADIENT, line) + piece * step(w, OF_GRADIENT)
                p = pointer(task, word(task, EXTENSION) + GRADIENT)
                if count > 0:
                    first = _first_of(task, there, count) * step(w, OF_STAGED)
                    staged = pointer(task, word(task, row + SLOT))
                    p[here] = staged[offset(w, OF_STAGED, line) + first]
                else:
                    write(p, here, scalar_wide(p, 0.0))


@inlined
def _write_end(task, row, w, t, line, begin, end, reverse):
    skips, cuts = word(task, row + SKIPS), word(task, row + CUTS)
    if end > begin and (skips != 0 or cuts != 0):
        at = end - 1 if (skips != 0) == reverse else begin
        here = offset(w, t, line) + at * step(w, t)
        if word(task, row + INDEX) != 0:
            as_i64_pointer(word(task, row + TRUE))[here] = -1
        else:
            q = pointer(task, row + TRUE)
            write(q, here, scalar_wide(q, real(task, row + END)))


# --- sums -----------------------------------------------------------------------------------------

# Words of a sum: addresses of the source (in the workspace) and of the target, how many items there
# are, loops that are kept and their extents, loops that are summed and their extents,
# strides of the source along both, those of the target along the first.


@inlined
def _at(extents, strides, rank, index):
    """Offset of a flat index over loops, the last of which runs fastest."""
    total = 0
    for axis in range(rank - 1, -1, -1):
        outer = index // extents[axis]
        total += (index - outer * extents[axis]) * strides[axis]
        index = outer
    return total


@inlined
def _summed(task, at, item):
    """In f64 with what rounding takes from it, in the order of the axes."""
    w = words(task, at)
    kept = w[3]
    summed = w[4 + kept]
    extents, inner = words(task, at + 4), words(task, at + 5 + kept)
    strides = at + 5 + kept + summed
    runs, length, step = 1, 1, 0
    if summed > 0:
        length, step = inner[summed - 1], word(task, strides + kept + summed - 1)
    for axis in range(summed - 1):
        runs *= inner[axis]
    source = pointer(task, at)
    begin = _at(extents, words(task, strides), kept, item)
    total, rest = -0.0, 0.0
    for run in range(runs):
        first = begin + _at(inner, words(task, strides + kept), summed - 1, run)
        for term in range(length):
            v = np.float64(read_wide(source, first + term * step))
            grown = total + v
            back = grown - total
            rest += (total - (grown - back)) + (v - back)
            total = grown
    # No correction keeps the sign of a zero; an infinite sum has made it NaN.
    if abs(rest) > 0.0 and abs(rest) < math.inf:
        total += rest
    if runs * length == 0:
        total = 0.0
    out = pointer(task, at + 1)
    place = _at(extents, words(task, strides + kept + summed), kept, item)
    write(out, place, scalar_wide(out, total))


@kernel
def extended_sum(task, lo, hi):
    """Gradients of tensors that were broadcast."""
    for item in range(lo, hi):
        at, left = field(task, SUM_WORDS), item
        while left >= word(task, at + 2):
            left -= word(task, at + 2)
            at = _next_sum(task, at)
        _summed(task, at, left)
