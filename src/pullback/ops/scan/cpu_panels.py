"""Short lines, in panels: as many as a strip has are turned to lie side by side, and back.

What a line costs besides its elements (the way to it, a tile that it does not fill) is then paid
once for all lines of a panel. Lines have the same bits along the axis and across it. A launch of
this kind is one across no lines; its items are panels.

    in_panels(across, rows, fills, spare=False)
        across(task, lo, hi) over strips, as it is, and over panels. There lines are prolonged to
        whole tiles of `rows` steps (or rows(p)), each input by its fill; if `spare`, they keep
        their length, and OPTION says how many steps there are beyond it. at_once(p, starts, q,
        others, n, count) does some of the lines that walk ahead with no need of a room
    panel_lines(n)
        how many lines of n steps a panel takes
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

import math
from collections.abc import Callable
from typing import Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pullback.cpu.emit import I32, I64, LLVM_ELEMENT, inlined, op, shuffle
from pullback.cpu.kernel import pointer, word, words
from pullback.cpu.loops import extent, offset, step
from pullback.cpu.memory import (
    address,
    advance,
    line_elements,
    on_stack,
    prefetch_early,
    scalar,
    write,
)
from pullback.cpu.program import TENSORS
from pullback.cpu.staging import move_row
from pullback.cpu.sweep import AXIS, LINES, OPTION, STREAMS, STRIP
from pullback.cpu.tile_blocks import opaque
from pullback.cpu.tiles import Pointer, joined, stack
from pullback.cpu.transfer import block_at, lane_bytes
from pullback.ops.scan.cpu_columns import square

ROOM: Final = 16384  # elements of a tensor in a panel
FULL: Final = 4096  # fewer are enough where lines are short
AT_ONCE: Final = 8  # lines that are turned together,
STEPS: Final = 4  # so many steps of each
MOST: Final = 512  # lines of a panel
APART: Final = 16  # elements between rows of a room: a power of two would meet in the cache
OUTPUT: Final = 1
WALKED: Final = 4  # tensors of a launch
AS_BEFORE: Final = math.nan  # the fill of an input whose last step is repeated


def panel_lines(n: int) -> int:
    return max(AT_ONCE, min(MOST, FULL // n // AT_ONCE * AT_ONCE))


# --- turning --------------------------------------------------------------------------------------


def _places(b: ir.IRBuilder, p: ir.Value, starts: ir.Value, shift: ir.Value) -> list[ir.Value]:
    """Where four steps of each line are."""
    row = ir.VectorType(p.type.pointee, STEPS)
    begins = [b.load(b.gep(starts, [I64(k)])) for k in range(AT_ONCE)]
    return [block_at(b, p, b.add(begin, shift), row) for begin in begins]


def _columns(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Eight rows of four as four columns of eight."""
    size = lane_bytes(rows[0].type)
    if size == 8:
        halves = [square(b, rows[k : k + 4]) for k in (0, 4)]
        return [joined(b, list(pair)) for pair in zip(*halves, strict=True)]
    if size == 2:
        wide = ir.VectorType(I32, STEPS)
        columns = _columns(b, [b.zext(row, wide) for row in rows])
        return [b.trunc(c, ir.VectorType(ir.IntType(16), AT_ONCE)) for c in columns]
    return square(b, [joined(b, [rows[k], rows[k + 4]]) for k in range(4)])


def _rows(b: ir.IRBuilder, columns: list[ir.Value]) -> list[ir.Value]:
    """The way back."""
    size = lane_bytes(columns[0].type)
    if size == 2:
        wide = ir.VectorType(I32, AT_ONCE)
        rows = _rows(b, [b.zext(c, wide) for c in columns])
        return [b.trunc(row, ir.VectorType(ir.IntType(16), STEPS)) for row in rows]
    halves = [[shuffle(b, c, c, range(k, k + 4)) for c in columns] for k in (0, 4)]
    if size == 8:
        return square(b, halves[0]) + square(b, halves[1])
    pairs = square(b, columns)
    return [shuffle(b, pair, pair, range(k, k + 4)) for k in (0, 4) for pair in pairs]


@op
def _turn_in(
    p: Pointer,
    starts: Pointer,
    shift: types.Integer,
    room: Pointer,
    at: types.Integer,
    pitch: types.Integer,
):
    """Four steps of eight lines, from `shift` after their starts, as four rows of the room."""

    def emit(b, p_, starts_, shift_, room_, at_, pitch_):
        size = p.dtype.bitwidth // 8
        rows = [b.load(where, align=size) for where in _places(b, p_, starts_, shift_)]
        for k, column in enumerate(_columns(b, rows)):
            there = b.add(at_, b.mul(pitch_, I64(k)))
            b.store(column, block_at(b, room_, there, column.type), align=size)

    return types.void(p, starts, types.int64, room, types.int64, types.int64), emit


@op
def _turn_out(
    p: Pointer,
    starts: Pointer,
    shift: types.Integer,
    room: Pointer,
    at: types.Integer,
    pitch: types.Integer,
):
    """The way back."""

    def emit(b, p_, starts_, shift_, room_, at_, pitch_):
        size = p.dtype.bitwidth // 8
        kind = ir.VectorType(LLVM_ELEMENT[p.dtype], AT_ONCE)
        there = [b.add(at_, b.mul(pitch_, I64(k))) for k in range(STEPS)]
        columns = [b.load(block_at(b, room_, i, kind), align=size) for i in there]
        places = _places(b, p_, starts_, shift_)
        for where, row in zip(places, _rows(b, columns), strict=True):
            b.store(row, where, align=size)

    return types.void(p, starts, types.int64, room, types.int64, types.int64), emit


def _moved_by(turn: Callable, one_by_one: Callable) -> Callable:
    @inlined
    def move(p, starts, along, room, pitch, n, count):
        """Between lines and a room, by squares that overlap where they do not fit."""
        if (along == 1 or along == -1) and n >= STEPS and count >= AT_ONCE:
            for line in range(0, count, AT_ONCE):
                first = min(line, count - AT_ONCE)
                for k in range(0, n, STEPS):
                    begin = min(k, n - STEPS)
                    shift, row, down = begin, begin, pitch
                    if along < 0:
                        shift, row, down = 1 - STEPS - begin, begin + STEPS - 1, -pitch
                    turn(p, advance(starts, first), shift, room, first + row * pitch, down)
        else:
            for line in range(count):
                for k in range(n):
                    one_by_one(p, starts[line] + k * along, room, line + k * pitch)

    return move


@inlined
def _one_in(p, i, room, at):
    room[at] = p[i]


@inlined
def _one_out(p, i, room, at):
    p[i] = room[at]


_fill, _empty = _moved_by(_turn_in, _one_in), _moved_by(_turn_out, _one_out)

# --- panels ---------------------------------------------------------------------------------------


@inlined
def _ask_for_next(p, starts, along, n, count):
    """Ask for what the next panel reads, if its lines lie one after the other: no machine foresees
    it, since other tensors come in between."""
    apart = starts[count - 1] - starts[0]
    if along == 1 and count > 1 and apart == (count - 1) * n:
        begin = starts[0] + count * n
        for i in range(begin, begin + count * n, line_elements(p)):
            prefetch_early(p, i)


@intrinsic
def _as_task(typing_context, task, block):
    return task(task, block), lambda context, builder, signature, args: args[1]


@inlined
def _lines(w):
    """How many there are."""
    lines = 1
    for axis in range(w[1]):
        lines *= w[2 + axis]
    return lines


@inlined
def _start_all(w, tensor, first, count, starts):
    """Where the lines of a panel start, and whether they lie side by side already."""
    rank = w[1]
    inner, apart = w[1 + rank], w[3 + rank + tensor * (rank + 2) + rank]
    done, beside = 0, apart == 1
    while done < count:
        line = first + done
        start, run = offset(w, tensor, line), min(inner - line % inner, count - done)
        for k in range(run):
            starts[done + k] = start + k * apart
        # Every run, not the last line alone: permuted loops may end where adjacent lines would.
        beside = beside and start == starts[0] + done
        done += run
    return beside


_BLOCK: Final = AXIS + 3 + 3 * WALKED
_AT: Final = AXIS + 3
_STARTS: Final = MOST * WALKED


@inlined
def _lay_out(task, block):
    """The task of a panel: a strip of lines side by side."""
    for slot in range(AXIS):
        block[slot] = word(task, slot)
    block[STREAMS] = 0
    block[AXIS + 1], block[AXIS + 2] = 1, word(task, STRIP)
    for t in range(WALKED):
        block[_AT + 3 * t], block[_AT + 3 * t + 2] = 0, 1


@inlined
def _prolong(room, pitch, begin, end, value):
    """Steps after the last, to fill a tile."""
    for i in range(begin * pitch, end * pitch):
        write(room, i, scalar(room, value))


@inlined
def _repeat_last(room, pitch, n, end, count):
    for k in range(n, end):
        move_row(room, (n - 1) * pitch, room, k * pitch, count, False)


@inlined
def _none_at_once(p, starts, q, others, n, count):
    return 0


def in_panels(
    across: Callable,
    rows: int | Callable,
    fills: dict[int, float],
    *,
    spare: bool = False,
    at_once: Callable = _none_at_once,
) -> Callable:
    body, tile_of = inlined(across), inlined(lambda p: rows) if isinstance(rows, int) else rows
    tensors, values = (OUTPUT, *fills), (0.0, *fills.values())
    rooms_size, output = ROOM * (max(tensors) + 1), OUTPUT

    @inlined
    def bring(task, block, t, rooms, starts, first, count, repeats, filled):
        """A tensor to its room; whether it has one."""
        w, pitch = words(task, AXIS), word(task, STRIP) + APART
        p, along, mine = pointer(task, TENSORS + t), step(w, t), advance(starts, MOST * t)
        room = advance(rooms, ROOM * t)
        beside = _start_all(w, t, first, count, mine)
        block[TENSORS + t] = address(advance(p, mine[0])) if beside else address(room)
        block[_AT + 3 * t + 1] = along if beside else pitch
        if t != output and not beside:
            _ask_for_next(p, mine, along, extent(w), count)
            _fill(p, mine, along, room, pitch, extent(w), count)
            if repeats:
                _repeat_last(room, pitch, extent(w), filled, count)
        return not beside

    @inlined
    def panels(task, lo, hi):
        block, starts = stack(0, _BLOCK), stack(0, _STARTS)
        rooms = on_stack(pointer(task, TENSORS), rooms_size)
        w, n, most = words(task, AXIS), extent(words(task, AXIS)), word(task, STRIP)
        turned, lines = word(task, LINES) == 0, _lines(words(task, AXIS))
        there, begin, end, times = task, lo, hi, 1
        tile = tile_of(pointer(task, TENSORS))
        filled = (n + tile - 1) // tile * tile
        if turned:
            _lay_out(task, block)
            for k in range(opaque(len(tensors))):
                if values[k] == values[k]:
                    _prolong(advance(rooms, ROOM * tensors[k]), most + APART, n, filled, values[k])
            there, begin, end, times = _as_task(task, block), 0, 1, hi - lo
        for panel in range(lo, lo + times):
            first = panel * most
            count = min(most, lines - first)
            back = False
            if turned and step(w, 0) == 1 and step(w, output) == 1 and n >= STEPS:
                others = advance(starts, MOST * output)
                _start_all(w, 0, first, count, starts)
                _start_all(w, output, first, count, others)
                p, q = pointer(task, TENSORS), pointer(task, TENSORS + output)
                done = at_once(p, starts, q, others, n, count)
                first, count = first + done, count - done
                if count == 0:
                    continue
            if turned:
                whole = True
                for k in range(opaque(len(tensors))):
                    t, repeats = tensors[k], values[k] != values[k]
                    own = bring(task, block, t, rooms, starts, first, count, repeats, filled)
                    back, whole = back or (own and t == output), whole and own
                more = filled - n if whole else 0
                block[LINES], block[AXIS] = count, n if spare else n + more
                if spare:
                    block[OPTION] = more
            body(there, begin, end)
            if back:
                p, room = pointer(task, TENSORS + output), advance(rooms, ROOM * output)
                mine = advance(starts, MOST * output)
                _empty(p, mine, step(w, output), room, most + APART, n, count)

    return panels
