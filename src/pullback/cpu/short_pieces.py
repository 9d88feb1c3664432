"""The walk of a scan over short pieces of a line, W at a time.

Each lane of a tile has a run of pieces, one after the other: when a piece ends, its state is that
of a new line, and the lane goes on with the next. Blocks of a piece begin where it does, so that it
has the bits of a line by itself. cpu/piecewise gives such a kernel a run of pieces as if it were
one line, and their borders in it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from llvmlite import ir
from numba import types

from pullback.cpu.block import TENSORS
from pullback.cpu.columns import block_of, lanes_lines
from pullback.cpu.edges import about_line
from pullback.cpu.emit import I32, I64, LLVM_ELEMENT, Vec, inlined, op
from pullback.cpu.kernel import pointer, word, words
from pullback.cpu.loops import extent, step
from pullback.cpu.memory import as_i64_pointer, decoded, encoded
from pullback.cpu.numerics import one_nan
from pullback.cpu.parts import boxes_for
from pullback.cpu.piece_words import RUN_BORDERS, RUN_LATE, RUN_LESS, RUN_PIECES, field
from pullback.cpu.places import AXIS, EDGES, FINAL, INITIAL, edge_of
from pullback.cpu.scan import Scan
from pullback.cpu.tile_rows import ALONG, APART
from pullback.cpu.tiles import Pointer, by_type
from pullback.cpu.vector import any_lane, minimum, select, set_lane, splat, to_i64
from pullback.cpu.walk_parts import Pieces


@op
def _taken(words_: Pointer, at: Vec):
    """words_[at[r]] of each lane r."""

    def emit(b, words, at_):
        out = ir.Constant(at.llvm, ir.Undefined)
        for r in range(at.n):
            number = b.load(b.gep(words, [b.sext(b.extract_element(at_, I32(r)), I64)]))
            out = b.insert_element(out, b.trunc(number, I32), I32(r))
        return out

    return at(words_, at), emit


@op
def _values(p: Pointer, i: types.Integer, step: types.Integer, at: Vec, like: Vec):
    """p[i + step * at[r]] of each lane r, as Vecs of another's type."""
    kind = ir.VectorType(LLVM_ELEMENT[p.dtype], at.n)

    def emit(b, p_, i_, step_, at_, _like):
        out = ir.Constant(kind, ir.Undefined)
        for r in range(at.n):
            out = b.insert_element(out, b.load(_place(b, p_, i_, step_, at_, r)), I32(r))
        return decoded(b, p, out, like.dtype)

    return like(p, types.int64, types.int64, at, like), emit


@op
def _put(p: Pointer, i: types.Integer, step: types.Integer, at: Vec, mask: Vec, v: Vec):
    """And there, of the lanes that the mask has."""

    def emit(b, p_, i_, step_, at_, mask_, v_):
        raw = encoded(b, p, v_, v.dtype)
        for r in range(at.n):
            with b.if_then(b.extract_element(mask_, I32(r))):
                b.store(b.extract_element(raw, I32(r)), _place(b, p_, i_, step_, at_, r))

    return types.void(p, types.int64, types.int64, at, mask, v), emit


def _place(b, p, i, step, at, r):
    number = b.sext(b.extract_element(at, I32(r)), I64)
    return b.gep(p, [b.add(i, b.mul(step, number))])


@by_type
def _chosen(mask, u, v):
    """States: u where the mask is set, else v."""
    if len(v) == 1:
        return lambda mask, u, v: (select(mask, u[0], v[0]),)
    return lambda mask, u, v: (select(mask, u[0], v[0]), *_chosen(mask, u[1:], v[1:]))


@inlined
def _runs(borders, pieces, none, lanes):
    """For each lane its first piece and the one after its last: about as many steps for each."""
    first, last, p = none, none, 0
    for r in range(lanes):
        first = set_lane(first, r, p)
        goal, high = borders[pieces] * (r + 1) // lanes, pieces
        while p < high:
            middle = (p + high) // 2
            if borders[middle] < goal:
                p = middle + 1
            else:
                high = middle
        last = set_lane(last, r, p)
    return first, set_lane(last, lanes - 1, pieces)  # pieces without a step may follow the goal


def _enters(scan: Scan) -> Callable[..., Any]:
    """(task, none, line, piece, W) -> the states before the pieces of the lanes, and the initial
    value of each, if there is one. Scans that flip signs have none."""
    work, begun = scan.work, scan.begun or inlined(lambda none, initial: none)
    if scan.flips:
        return inlined(lambda task, none, line, piece, W: (none, work(pointer(task, TENSORS), W)))

    @inlined
    def enter(task, none, line, piece, W):
        state, initial = none, work(pointer(task, TENSORS), W)
        if word(task, INITIAL) != 0:
            source, i, _ = edge_of(task, 0, line)
            by = step(words(task, AXIS), word(task, EDGES))
            initial = _values(source, i, by, piece, initial)
            state = begun(none, initial)
        return state, initial

    return enter


def _leaves(scan: Scan) -> Callable[..., Any]:
    """(task, none, state, line, piece, over, steps): write what is asked for at the end of the
    pieces that are over; of those without a step it is that of none."""
    shown = scan.shown
    if shown is None or scan.flips:
        return inlined(lambda task, none, state, line, piece, over, steps: None)

    @inlined
    def leave(task, none, state, line, piece, over, steps):
        if word(task, FINAL) != 0:
            target, i, _ = edge_of(task, 1, line)
            by = step(words(task, AXIS), word(task, EDGES) + 1)
            v = select(steps > 0, shown(state)[0], shown(none)[0])
            _put(target, i, by, piece, over, one_nan(v))

    return leave


def short_pieces(scan: Scan) -> Callable[..., Any]:
    # What helps where a tile holds nothing new does not in short pieces.
    scan = replace(scan, held=())
    shared = Pieces(scan)
    start, tile, enter, leave = shared.start, shared.tile, _enters(scan), _leaves(scan)
    ins_of, outs_of, back_of, splat_ = shared.ins, shared.outs, shared.back, shared.splat
    most = max(scan.ahead)

    def pieces(task, lo, hi):
        p = pointer(task, TENSORS)
        n, B, W = extent(words(task, AXIS)), block_of(p), lanes_lines(p, 2)
        back, none = back_of(task), start(task, p, W)
        still = boxes_for(ins_of(task, 0), W, B, ALONG, back)
        borders = as_i64_pointer(field(task, RUN_BORDERS))
        count = field(task, RUN_PIECES)
        less, late = field(task, RUN_LESS), field(task, RUN_LATE)
        zeros = splat(types.int32(0), W)
        for line in range(lo, hi):
            ins, outs = ins_of(task, line), outs_of(task, line)
            ins = splat_(ins, still, 0, 0, n, 1, W, B, ALONG, back)
            piece, last = _runs(borders, count, zeros, W)
            number = zeros
            state, initial = enter(task, none, line, minimum(piece, count - 1), W)
            k = _taken(borders, piece)
            after = _taken(borders, minimum(piece + 1, count))
            left = select(piece < last, after - k - less, zeros)
            k, steps = k + late, left
            while any_lane(piece < last):
                about = about_line(task, to_i64(steps), initial)
                state = tile(
                    ins, outs, k, n - B - most, left, number, about, state, False, W, APART, back
                )
                number, left = number + B, left - B
                over = left <= 0
                leave(task, none, state, line, piece, over & (piece < last), steps)
                piece = select(over, minimum(piece + 1, last), piece)
                k = select(over, after + late, k + B)
                following = _taken(borders, minimum(piece + 1, count))
                whole = select(piece < last, following - after - less, zeros)
                steps, left = select(over, whole, steps), select(over, whole, left)
                number, after = select(over, zeros, number), following
                fresh, given = enter(task, none, line, minimum(piece, count - 1), W)
                state, initial = _chosen(over, fresh, state), select(over, given, initial)

    return pieces
