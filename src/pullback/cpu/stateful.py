"""Kernels of scans that start from the state of another run and leave theirs.

A state is one f64 for each line. Elements are copied to the workspace as f64, the kernels of f64
scan them there, and results are rounded once on the way back. Scans that know no initial value and
no last state of their own get the state as one more element before the first; the last result is
then the state they leave. Words of such a program begin where word EXTENSION says: the head, a row
for each tensor that is copied, the layout words of the staged shape, both states and the rows.
"""

from typing import Final

import numpy as np
from llvmlite import ir
from numba import types

from pullback.cpu.block import WORKSPACE
from pullback.cpu.emit import inlined, op
from pullback.cpu.kernel import kernel, pointer, real, set_word, word, words
from pullback.cpu.loops import between, offset, step
from pullback.cpu.memory import STORAGE, as_f64_pointer, as_i64_pointer, read_wide, write
from pullback.cpu.scan_words import EXTENSION

SLICE: Final = 1 << 14  # elements that are copied at once
# STEPS of the axis; whether the state LEADS; results before the first, of an exclusive scan (LATE);
# whether it is REVERSED; how many steps are copied AT_ONCE, of COLUMNS lines that are neighbours in
# the staged shape; how many ROWS; where the LAYOUT words begin; the words with the addresses of the
# state, of the one that is left and of the results, 0 if the scan sees to both states itself; what
# is written where nothing was scanned (END); the words with the addresses of positions of states
# and of indices, and how far the two positions of a line are APART.
STEPS, LEADS, LATE, REVERSED, AT_ONCE, COLUMNS, ROWS, LAYOUT, STATE, FINAL, RESULTS, END = range(12)
PLACES, INDICES, APART = range(12, 15)
HEAD: Final = 15
# Of a row: the word of the slot, its place in the workspace, its own address, whether it is WRITTEN
# (SCANNED: but not copied back) and holds positions, and the bits of what leads it, if that is not
# the state.
SLOT, PLACE, TRUE, WRITTEN, INDEX, BY_STATE, FIRST, ROW = range(8)
READ, GIVEN, SCANNED = range(3)
# Tensors of the layout words.
OF_STAGED, OF_STATE, OF_FINAL, OF_PLACES, OF_ROWS = range(5)


@inlined
def _field(task, which):
    return word(task, word(task, EXTENSION) + which)


@inlined
def _row(task, number):
    return word(task, EXTENSION) + HEAD + ROW * number


@op
def _narrowed(p: types.CPointer, v: types.Float):
    """An f64 as p's wide type. To f32 it goes by rounding to odd, so that what follows, to f16 or
    bf16, rounds as if once: there is no half-way case of 16 bits next to an odd f32."""
    wide = STORAGE[p.dtype].wide
    if wide == types.float64:
        return wide(p, types.float64), lambda b, _p, v_: v_

    def emit(b, _p, v_):
        near = b.fptrunc(v_, ir.FloatType())
        back, bits = b.fpext(near, ir.DoubleType()), b.bitcast(near, ir.IntType(32))
        fabs = b.module.declare_intrinsic("llvm.fabs", [ir.DoubleType()])
        larger = b.fcmp_ordered(">", b.call(fabs, [v_]), b.call(fabs, [back]))
        one = ir.IntType(32)(1)
        moved = b.select(larger, b.add(bits, one), b.sub(bits, one))
        even = b.icmp_unsigned("==", b.and_(bits, one), ir.IntType(32)(0))
        differs = b.and_(b.fcmp_ordered("!=", v_, back), even)
        return b.bitcast(b.select(differs, moved, bits), ir.FloatType())

    return wide(p, types.float64), emit


@kernel
def stateful_begin(task, lo, hi):
    """Let copied tensors point to the workspace."""
    base = (word(task, WORKSPACE) + 63) & ~63
    for number in range(_field(task, ROWS)):
        row = _row(task, number)
        set_word(task, row + TRUE, word(task, word(task, row + SLOT)))
        set_word(task, word(task, row + SLOT), base + word(task, row + PLACE))


@inlined
def _slice(task, item):
    """Its first line, and its steps."""
    n, most = _field(task, STEPS), _field(task, AT_ONCE)
    slices = (n + most - 1) // most
    group = item // slices
    begin = (item - group * slices) * most
    return group * _field(task, COLUMNS), begin, min(begin + most, n)


@kernel
def stateful_in(task, lo, hi):
    """Inputs to the workspace, as f64."""
    w, columns = words(task, _field(task, LAYOUT)), _field(task, COLUMNS)
    ahead = _field(task, LEADS) if _field(task, REVERSED) == 0 else 0
    by, near = step(w, OF_STAGED), between(w, OF_STAGED)
    for item in range(lo, hi):
        line, begin, end = _slice(task, item)
        staged = offset(w, OF_STAGED, line) + ahead * by
        for number in range(_field(task, ROWS)):
            row, t = _row(task, number), OF_ROWS + number
            if word(task, row + WRITTEN) != READ:
                continue
            p, q = pointer(task, row + TRUE), as_f64_pointer(word(task, word(task, row + SLOT)))
            here, to, far = offset(w, t, line), step(w, t), between(w, t)
            for k in range(begin, end):
                i, j = here + k * to, staged + k * by
                for c in range(columns):
                    q[j + c * near] = np.float64(read_wide(p, i + c * far))


@kernel
def stateful_firsts(task, lo, hi):
    """What leads each line."""
    w = words(task, _field(task, LAYOUT))
    at = _field(task, STEPS) * step(w, OF_STAGED) if _field(task, REVERSED) != 0 else 0
    state = as_f64_pointer(word(task, _field(task, STATE)))
    for line in range(lo, hi):
        for number in range(_field(task, ROWS)):
            row = _row(task, number)
            if word(task, row + WRITTEN) == READ:
                q = as_f64_pointer(word(task, word(task, row + SLOT)))
                first = real(task, row + FIRST)
                if word(task, row + BY_STATE) != 0:
                    first = state[offset(w, OF_STATE, line)]
                q[offset(w, OF_STAGED, line) + at] = first


@inlined
def _position(task, at):
    """A position in the staged shape as one along the axis; that of the state is -1."""
    if _field(task, REVERSED) == 0:
        return at - _field(task, LEADS)
    return -1 if at == _field(task, STEPS) else at


@inlined
def _begins(task, places, where):
    """Where this window begins in the whole sequence."""
    begins = places[where + _field(task, APART)]
    return begins - _field(task, STEPS) if _field(task, REVERSED) != 0 else begins


@inlined
def _in_sequence(task, w, line, found, some):
    """A position as the whole sequence counts, if positions of states are given. A state that
    stands for nothing is no rival of the first element, if `some` were scanned."""
    address = word(task, _field(task, PLACES)) if _field(task, PLACES) != 0 else 0
    if address == 0:
        return found
    places, where = as_i64_pointer(address), offset(w, OF_PLACES, line)
    if found >= 0:
        return found + _begins(task, places, where)
    state = word(task, _field(task, STATE))
    if state == 0 or places[where] >= 0:
        return places[where] if state != 0 else -1
    none = as_f64_pointer(state)[offset(w, OF_STATE, line)]
    if some and none == real(task, word(task, EXTENSION) + END):
        last = _field(task, STEPS) - 1 if _field(task, REVERSED) != 0 else 0
        return last + _begins(task, places, where)
    return -1


@kernel
def stateful_out(task, lo, hi):
    """Results from the workspace, rounded."""
    w, columns = words(task, _field(task, LAYOUT)), _field(task, COLUMNS)
    reverse, late = _field(task, REVERSED) != 0, _field(task, LATE)
    moved = late if reverse else _field(task, LEADS) - late
    extent = _field(task, STEPS) + _field(task, LEADS)
    by, near = step(w, OF_STAGED), between(w, OF_STAGED)
    last = real(task, word(task, EXTENSION) + END)
    for item in range(lo, hi):
        line, begin, end = _slice(task, item)
        staged = offset(w, OF_STAGED, line)
        for number in range(_field(task, ROWS)):
            row, t = _row(task, number), OF_ROWS + number
            if word(task, row + WRITTEN) != GIVEN:
                continue
            source, target = word(task, word(task, row + SLOT)), word(task, row + TRUE)
            p, q = as_f64_pointer(source), pointer(task, row + TRUE)
            here, to, far = offset(w, t, line), step(w, t), between(w, t)
            for k in range(begin, end):
                i, j, there = staged + (k + moved) * by, here + k * to, k + moved
                scanned = 0 <= there < extent
                for c in range(columns):
                    if word(task, row + INDEX) != 0:
                        at = as_i64_pointer(source)[i + c * near] if scanned else 0
                        found = _position(task, at) if scanned else -1
                        first = k == (_field(task, STEPS) - 1 if reverse else 0)
                        found = _in_sequence(task, w, line + c, found, late == 0 or not first)
                        as_i64_pointer(target)[j + c * far] = found
                    else:
                        v = p[i + c * near] if scanned else last
                        write(q, j + c * far, _narrowed(q, v))


@kernel
def stateful_lasts(task, lo, hi):
    """The last result of each line: the state it leaves."""
    w, extent = words(task, _field(task, LAYOUT)), _field(task, STEPS) + _field(task, LEADS)
    at = 0 if _field(task, REVERSED) != 0 else (extent - 1) * step(w, OF_STAGED)
    results = as_f64_pointer(word(task, _field(task, RESULTS)))
    final = as_f64_pointer(word(task, _field(task, FINAL)))
    for line in range(lo, hi):
        v = real(task, word(task, EXTENSION) + END)
        if extent > 0:
            v = results[offset(w, OF_STAGED, line) + at]
        final[offset(w, OF_FINAL, line)] = v


@kernel
def stateful_places(task, lo, hi):
    """Where the extremum of each line stands, and where the next window begins."""
    w, extent = words(task, _field(task, LAYOUT)), _field(task, STEPS) + _field(task, LEADS)
    at = 0 if _field(task, REVERSED) != 0 else (extent - 1) * step(w, OF_STAGED)
    indices = as_i64_pointer(word(task, _field(task, INDICES)))
    places = as_i64_pointer(word(task, _field(task, PLACES)))
    for line in range(lo, hi):
        found, where = -1, offset(w, OF_PLACES, line)
        if extent > 0:
            found = _position(task, indices[offset(w, OF_STAGED, line) + at])
        begins = _begins(task, places, where)
        places[where] = _in_sequence(task, w, line, found, _field(task, STEPS) > 0)
        if _field(task, REVERSED) == 0:
            begins += _field(task, STEPS)
        places[where + _field(task, APART)] = begins
