"""What stands before a line, and what is left at its end: a value for each lane.

lanes_from(p, i, pitch, count, like)   p[i], p[i + pitch], ... of the first `count` lanes, as
                                       Vecs of another's type; of the others 0
lanes_to(p, i, pitch, count, v)        and there
at_step(columns, value, numbers, k)    columns that have a value at step k; `numbers` are those
                                       of the first steps of their lanes

What the walks of a scan make of it: `starts`, `begins`, `finishes`, and `about_line`.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from pullback.cpu.block import TENSORS
from pullback.cpu.emit import I64, LLVM_ELEMENT, Vec, constant, inlined, op
from pullback.cpu.kernel import pointer, word
from pullback.cpu.memory import decoded, encoded
from pullback.cpu.numerics import one_nan
from pullback.cpu.places import EXCLUSIVE, FINAL, INITIAL, OPTION, REVERSED, SIGN, STRAIGHT, edge_of
from pullback.cpu.scan import Scan, flip
from pullback.cpu.tiles import Pointer, by_type
from pullback.cpu.transfer import block_at, either, gathered, lane_bytes, scattered
from pullback.cpu.vector import select


def _in_a_row(b: ir.IRBuilder, pitch: ir.Value, count: ir.Value, n: int) -> ir.Value:
    near = b.icmp_signed("==", pitch, I64(1))
    return b.and_(near, b.icmp_signed("==", count, I64(n)))


@op
def lanes_from(p: Pointer, i: types.Integer, pitch: types.Integer, count: types.Integer, like: Vec):
    kind = ir.VectorType(LLVM_ELEMENT[p.dtype], like.n)

    def emit(b, p_, i_, pitch_, count_, _like):
        raw = either(
            b,
            _in_a_row(b, pitch_, count_, like.n),
            lambda: b.load(block_at(b, p_, i_, kind), align=lane_bytes(kind)),
            lambda: gathered(b, p_, i_, pitch_, count_, kind, constant(kind, 0)),
        )
        return decoded(b, p, raw, like.dtype)

    return like(p, *[types.int64] * 3, like), emit


@op
def lanes_to(p: Pointer, i: types.Integer, pitch: types.Integer, count: types.Integer, v: Vec):
    def emit(b, p_, i_, pitch_, count_, v_):
        raw = encoded(b, p, v_, v.dtype)

        def whole():
            b.store(raw, block_at(b, p_, i_, raw.type), align=lane_bytes(raw.type))

        def apart():
            scattered(b, p_, i_, pitch_, count_, raw)

        either(b, _in_a_row(b, pitch_, count_, v.n), whole, apart)

    return types.void(p, *[types.int64] * 3, v), emit


@by_type
def at_step(columns, value, numbers, k):
    if len(columns) == 4:
        return lambda columns, value, numbers, k: (
            select(numbers == k, value, columns[0]),
            select(numbers == k - 1, value, columns[1]),
            select(numbers == k - 2, value, columns[2]),
            select(numbers == k - 3, value, columns[3]),
        )
    return lambda columns, value, numbers, k: (
        at_step(columns[:4], value, numbers, k) + at_step(columns[4:], value, numbers, k - 4)
    )


# --- lines of a scan ------------------------------------------------------------------------------


def starts(scan: Scan) -> Callable[..., Any]:
    """(task, p, lanes) -> the state before lines without an initial value."""
    start, empty = scan.start, scan.empty
    if empty is None:
        return inlined(lambda task, p, lanes: start(p, lanes))

    @inlined
    def start_of(task, p, lanes):
        none = start(p, lanes)
        if word(task, EXCLUSIVE) != 0:
            none = empty(none)
        return none

    return start_of


@inlined
def about_line(task, n, initial):
    """See cpu/scan."""
    return (
        n, word(task, REVERSED), 0, n, initial, word(task, INITIAL) != 0, word(task, SIGN),
        word(task, EXCLUSIVE) != 0, word(task, OPTION) != 0,
    )  # fmt: skip


@inlined
def runs_back(task):
    """1 where lines run against memory order, else 0."""
    return 1 if word(task, STRAIGHT) < 0 else 0


@inlined
def runs_ahead(task):
    """The same for lines walked from the other end."""
    return 1 if word(task, STRAIGHT) > 0 else 0


def begins(scan: Scan) -> Callable[..., Any]:
    """(task, none, line, c, count, lanes) -> the state before the lines from c on, and the initial
    value of each, if there is one."""
    work, begun = scan.work, scan.begun or inlined(lambda none, initial: none)
    signed = flip if scan.flips else inlined(lambda sign, v: v)

    @inlined
    def begin(task, none, line, c, count, lanes):
        state, initial = none, work(pointer(task, TENSORS), lanes)
        if word(task, INITIAL) != 0:
            start, i, pitch = edge_of(task, 0, line)
            initial = lanes_from(start, i + c * pitch, pitch, count, initial)
            state = begun(none, signed(word(task, SIGN), initial))
        return state, initial

    return begin


def finishes(scan: Scan) -> Callable[..., Any]:
    """(task, state, line, c, count): write what is asked for at the end of the lines."""
    shown = scan.shown
    if shown is None:
        return inlined(lambda task, state, line, c, count: None)

    @inlined
    def finish(task, state, line, c, count):
        if word(task, FINAL) != 0:
            end, i, pitch = edge_of(task, 1, line)
            lanes_to(end, i + c * pitch, pitch, count, one_nan(shown(state)[0]))

    return finish
