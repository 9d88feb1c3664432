"""Short lines of f32, four at a time: the steps of a tile are turned in registers, and back.

    in_fours(tile, start)    a function of (p, starts, q, others, n, count): lines of p that begin
                             at `starts` to those of q that begin at `others`, step by step ahead,
                             n >= 4 steps each. How many of the first `count` lines are done

tile(v, state) -> w, state takes four steps of four lines, f64 vectors by step; start(p) gives the
state before a line, and what changes no state.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable
from typing import Final

from llvmlite import ir
from numba import types

from pullback.cpu.emit import I64, Vec, inlined, op
from pullback.cpu.memory import advance
from pullback.cpu.tiles import Pointer, by_type
from pullback.cpu.transfer import block_at
from pullback.ops.scan.cpu_turned import square

STEPS: Final = 4
LINES: Final = 4
_ROW: Final = ir.VectorType(ir.FloatType(), STEPS)
_COLUMN: Final = Vec(types.float64, LINES)
_COLUMNS: Final = types.UniTuple(_COLUMN, STEPS)


def _places(b: ir.IRBuilder, p: ir.Value, starts: ir.Value, k: ir.Value) -> list[ir.Value]:
    begins = [b.load(b.gep(starts, [I64(line)])) for line in range(LINES)]
    return [block_at(b, p, b.add(begin, k), _ROW) for begin in begins]


@op
def _load_four(p: Pointer, starts: Pointer, k: types.Integer):
    """The steps from k on, each of all lines."""

    def emit(b, p_, starts_, k_):
        rows = [b.load(where, align=4) for where in _places(b, p_, starts_, k_)]
        out = ir.Constant(ir.ArrayType(_COLUMN.llvm, STEPS), ir.Undefined)
        for step, column in enumerate(square(b, rows)):
            out = b.insert_value(out, b.fpext(column, _COLUMN.llvm), step)
        return out

    return _COLUMNS(p, starts, types.int64), emit


@op
def _store_four(p: Pointer, starts: Pointer, k: types.Integer, v: types.UniTuple):
    def emit(b, p_, starts_, k_, v_):
        columns = [b.fptrunc(b.extract_value(v_, step), _ROW) for step in range(STEPS)]
        places = _places(b, p_, starts_, k_)
        for where, row in zip(places, square(b, columns), strict=True):
            b.store(row, where, align=4)

    return types.void(p, starts, types.int64, v), emit


@inlined
def _last(v, left, none):
    """The last so many steps first."""
    if left == 1:
        return v[3], none, none, none
    if left == 2:
        return v[2], v[3], none, none
    return v[1], v[2], v[3], none


@inlined
def _after(v, w, left):
    """Four steps that end with the first so many of w, and before them the last of v."""
    if left == 1:
        return v[1], v[2], v[3], w[0]
    if left == 2:
        return v[2], v[3], w[0], w[1]
    return v[3], w[0], w[1], w[2]


def in_fours(tile: Callable, start: Callable) -> Callable:
    @inlined
    def four_lines(p, starts, q, others, n):
        state, none = start(p)
        v, state = tile(_load_four(p, starts, 0), state)
        _store_four(q, others, 0, v)
        k = STEPS
        while k + STEPS <= n:
            v, state = tile(_load_four(p, starts, k), state)
            _store_four(q, others, k, v)
            k += STEPS
        if k < n:
            # What is written again is the same, and what is read again is not used.
            w, state = tile(_last(_load_four(p, starts, n - STEPS), n - k, none), state)
            _store_four(q, others, n - STEPS, _after(v, w, n - k))

    def lines(p, starts, q, others, n, count):
        whole = count // LINES * LINES
        for line in range(0, whole, LINES):
            four_lines(p, advance(starts, line), q, advance(others, line), n)
        return whole

    @by_type
    def chosen(p, starts, q, others, n, count):
        if p.dtype == types.float32:
            return lines
        return lambda p, starts, q, others, n, count: 0

    return chosen
