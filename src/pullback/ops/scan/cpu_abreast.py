"""Lines abreast: a few lines of f64 along the axis at once, one in each lane.

What a step of f64 takes from the one before takes long, and the steps of other lines meanwhile cost
nothing. A tile is turned on its way from memory and back; then it is one of a walk across, and so
are the bits. What goes past the caches waits on the stack, and leaves line by line.

    abreast(task, p, tensor, line)     a cursor at several lines; its fifth number: how far apart
    abreast_back(...)                  the same at their far ends, walking back
    are_even(task, tensor, line, L)    whether L lines are equally far apart
    load_steps(cursor, size, fill, rows, L)   a tile of such a cursor, or of any other
    store_steps(cursor, size, v, L)
    sweep_abreast(tile, cursors, box, n, state, L)
                                       tile(cursors, size, state, L) -> state over whole tiles of n
                                       steps, the second cursor being the output's: how many steps
                                       that were, and the state after them
    one_of(state, line)                the state of one line
"""

from typing import Final

from llvmlite import ir
from numba import types

from pullback.cpu.emit import I64, Lane, Vec, inlined, op, shuffle
from pullback.cpu.kernel import word, words
from pullback.cpu.loops import extent, offset, step
from pullback.cpu.memory import is_aligned
from pullback.cpu.staging import move_row
from pullback.cpu.sweep import AXIS, STREAMS
from pullback.cpu.tiles import by_type, joined, load, moved, store, with_second
from pullback.cpu.transfer import block_at, either, lowest, stored
from pullback.ops.scan.cpu_quads import common_step

STEPS_ABREAST: Final = 8  # of a tile
PANEL: Final = 256  # steps that leave at once
PITCH: Final = PANEL + 8
OUT_BOX: Final = 4 * PITCH


def _is_abreast(cursor: types.Type) -> bool:
    return isinstance(cursor, types.BaseTuple) and len(cursor) == 5


# --- memory ---------------------------------------------------------------------------------------

# Of four rows, pairs exchange elements, then pairs of pairs.
_EVEN, _ODD, _LOW, _HIGH = (0, 4, 2, 6), (1, 5, 3, 7), (0, 1, 4, 5), (2, 3, 6, 7)


def _turned(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """A square of two or four rows as its columns, and back."""
    if len(rows) == 2:
        return [shuffle(b, rows[0], rows[1], (k, k + 2)) for k in (0, 1)]
    even, odd = ([shuffle(b, rows[i], rows[i + 1], half) for i in (0, 2)] for half in (_EVEN, _ODD))
    return [shuffle(b, u, v, half) for half in (_LOW, _HIGH) for u, v in (even, odd)]


def _places(b: ir.IRBuilder, cursor_: ir.Value, L: int, back: bool) -> list[ir.Value]:
    """Where a tile begins in each line."""
    i, pitch = b.extract_value(cursor_, 1), b.extract_value(cursor_, 4)
    begin = lowest(b, i, STEPS_ABREAST) if back else i
    return [b.add(begin, b.mul(pitch, I64(line))) for line in range(L)]


def _forwards(b: ir.IRBuilder, cursor_: ir.Value) -> ir.Value:
    return b.icmp_signed("==", b.extract_value(cursor_, 2), I64(1))


@op
def _load_abreast(cursor: types.BaseTuple, L: Lane):
    lines = L.literal_value

    def emit(b, cursor_, _L):
        p = b.extract_value(cursor_, 0)
        row = ir.VectorType(p.type.pointee, lines)

        def along(back: bool) -> ir.Value:
            steps: list[ir.Value] = []
            places = _places(b, cursor_, lines, back)
            for k in range(0, STEPS_ABREAST, lines):
                at = [block_at(b, p, b.add(place, I64(k)), row) for place in places]
                steps += _turned(b, [b.load(where, align=8) for where in at])
            return joined(b, steps[::-1] if back else steps)

        return either(b, _forwards(b, cursor_), lambda: along(False), lambda: along(True))

    return Vec(cursor[0].dtype, STEPS_ABREAST * lines)(cursor, L), emit


@op
def _store_abreast(cursor: types.BaseTuple, v: Vec, L: Lane):
    lines = L.literal_value

    def emit(b, cursor_, v_, _L):
        p, streaming = b.extract_value(cursor_, 0), b.extract_value(cursor_, 3)

        def along(back: bool) -> None:
            steps = [shuffle(b, v_, v_, range(i, i + lines)) for i in range(0, v.n, lines)]
            steps = steps[::-1] if back else steps
            squares = [_turned(b, steps[k : k + lines]) for k in range(0, len(steps), lines)]
            places = _places(b, cursor_, lines, back)
            for place, rows in zip(places, zip(*squares, strict=True), strict=True):
                stored(b, p, place, joined(b, list(rows)), streaming)

        either(b, _forwards(b, cursor_), lambda: along(False), lambda: along(True))

    return types.void(cursor, v, L), emit


@by_type
def load_steps(cursor, size, fill, rows, L):
    if _is_abreast(cursor):
        return lambda cursor, size, fill, rows, L: _load_abreast(cursor, L)
    return lambda cursor, size, fill, rows, L: load(cursor, size, fill, rows, L)


@by_type
def store_steps(cursor, size, v, L):
    if _is_abreast(cursor):
        return lambda cursor, size, v, L: _store_abreast(cursor, v, L)
    return lambda cursor, size, v, L: store(cursor, size, v, L)


# --- walking --------------------------------------------------------------------------------------


@inlined
def _lines_at(task, p, i, along, pitch):
    begin = i + 1 if along < 0 else i
    aligned = is_aligned(p, begin, 16) and is_aligned(p, begin + pitch, 16)
    return p, i, along, word(task, STREAMS) != 0 and aligned, pitch


@inlined
def abreast(task, p, tensor, line):
    w = words(task, AXIS)
    i = offset(w, tensor, line)
    return _lines_at(task, p, i, step(w, tensor), offset(w, tensor, line + 1) - i)


@inlined
def abreast_back(task, p, tensor, line):
    w = words(task, AXIS)
    i, along = offset(w, tensor, line), step(w, tensor)
    pitch = offset(w, tensor, line + 1) - i
    return _lines_at(task, p, i + (extent(w) - 1) * along, -along, pitch)


@inlined
def are_even(task, tensor, line, L):
    w = words(task, AXIS)
    i = offset(w, tensor, line)
    pitch, even = offset(w, tensor, line + 1) - i, True
    for k in range(2, L):
        even = even and offset(w, tensor, line + k) - i == k * pitch
    return even


@inlined
def sweep_abreast(tile, cursors, box, n, state, L):
    done, steps = 0, _panel(cursors, n)
    while steps > 0:
        at = moved(cursors, done, 0)
        there = with_second(at, _staged(at[1], box, steps))
        for k in range(0, steps, STEPS_ABREAST):
            state = tile(moved(there, k, 0), None, state, L)
        _leave(at[1], box, steps, L)
        done += steps
        steps = _panel(cursors, n - done)
    return done, state


@inlined
def _panel(cursors, n):
    """How many of n steps the next panel has."""
    steps = min(PANEL, n // STEPS_ABREAST * STEPS_ABREAST)
    return steps if common_step(cursors) != 0 else 0


@inlined
def _staged(out, box, steps):
    """Where a panel is written."""
    first = 0 if out[2] > 0 else steps - 1
    return (box, first, out[2], False, PITCH) if out[3] else out


@inlined
def _leave(out, box, steps, L):
    p, i, along, streaming, pitch = out
    begin = i if along > 0 else i - (steps - 1)
    for line in range(L if streaming else 0):
        move_row(box, line * PITCH, p, begin + line * pitch, steps, streaming)


@op
def one_of(state: types.BaseTuple, line: types.Integer):
    lines = types.Tuple([Vec(v.dtype, 1) for v in state])

    def emit(b, state_, line_):
        out = ir.Constant(ir.ArrayType(lines[0].llvm, len(lines)), ir.Undefined)
        for k in range(len(lines)):
            lane = b.extract_element(b.extract_value(state_, k), line_)
            one = b.insert_element(ir.Constant(lines[0].llvm, ir.Undefined), lane, I64(0))
            out = b.insert_value(out, one, k)
        return out

    return lines(state, types.int64), emit
