"""Panels: short rows of a tensor, transposed into a scratch strip and back.

Blocks of a few rows and positions are transposed in registers. The last block of a row overlaps the
one before, and the last panel takes the last row several times: both only repeat themselves.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from pullback.cpu.block import TENSORS
from pullback.cpu.emit import I32, I64, Lane, inlined, op
from pullback.cpu.kernel import pointer
from pullback.cpu.loops import extent, offset, step
from pullback.cpu.memory import prefetch
from pullback.cpu.tile_rows import size_of
from pullback.cpu.tiles import literal, stack
from pullback.cpu.transfer import block_at
from pullback.cpu.transpose import SIDE, columns_of_rows, rows_of_columns

EARLY = 4096


def _shape(p: types.CPointer) -> tuple[Any, int, int]:
    """The word in which it is transposed, rows of a block, and elements of a row in it."""
    size = size_of(p)
    return {2: I32, 4: I32, 8: I64}[size], 4 if size == 8 else 8, SIDE * (2 if size == 2 else 1)


@op
def _rows_of_block(p: types.CPointer):
    return literal(_shape(p)[1], p)


@op
def _steps_of_block(p: types.CPointer):
    return literal(_shape(p)[2], p)


@op
def _line_of(p: types.CPointer):
    """Elements of a cache line."""
    return literal(64 // size_of(p), p)


def _places(b, p, starts_, j_, first_):
    """Where the rows of a block begin in memory."""
    starts = (b.load(b.gep(starts_, [b.add(first_, I64(r))])) for r in range(_shape(p)[1]))
    return [b.add(start, j_) for start in starts]


def _in_scratch(b, scratch_, j_, first_, s, kind, L):
    at = b.add(b.mul(b.add(j_, I64(s)), I64(L.literal_value)), first_)
    return block_at(b, scratch_, at, kind)


@op
def _load_block(
    p: types.CPointer,
    starts: types.CPointer,
    scratch: types.CPointer,
    first: types.Integer,
    j: types.Integer,
    L: Lane,
):
    """Rows from `first` on, positions from j on, to the scratch strip."""
    word, W, _ = _shape(p)
    size, lanes = size_of(p), ir.VectorType(ir.IntType(8 * size_of(p)), W)

    def emit(b, p_, starts_, scratch_, first_, j_, _L):
        kind = ir.VectorType(word, SIDE)
        here = (block_at(b, p_, at, kind) for at in _places(b, p, starts_, j_, first_))
        columns = columns_of_rows(b, [b.load(at, align=size) for at in here])
        if size == 2:
            sixteen = ir.Constant(columns[0].type, [16] * W)
            halves = ((b.trunc(c, lanes), b.trunc(b.lshr(c, sixteen), lanes)) for c in columns)
            columns = [h for both in halves for h in both]
        for s, column in enumerate(columns):
            b.store(column, _in_scratch(b, scratch_, j_, first_, s, lanes, L), align=size)

    sig = types.void(p, starts, scratch, types.int64, types.int64, L)
    return sig, emit


@op
def _store_block(
    p: types.CPointer,
    starts: types.CPointer,
    scratch: types.CPointer,
    first: types.Integer,
    j: types.Integer,
    L: Lane,
):
    """And back."""
    word, W, B = _shape(p)
    size, lanes = size_of(p), ir.VectorType(ir.IntType(8 * size_of(p)), W)

    def emit(b, p_, starts_, scratch_, first_, j_, _L):
        places = (_in_scratch(b, scratch_, j_, first_, s, lanes, L) for s in range(B))
        columns = [b.load(place, align=size) for place in places]
        if size == 2:
            wide = ir.VectorType(word, W)
            sixteen = ir.Constant(wide, [16] * W)
            pairs = zip(columns[::2], columns[1::2], strict=True)
            columns = [
                b.or_(b.zext(low, wide), b.shl(b.zext(high, wide), sixteen)) for low, high in pairs
            ]
        places = _places(b, p, starts_, j_, first_)
        for at, row in zip(places, rows_of_columns(b, columns), strict=True):
            b.store(row, block_at(b, p_, at, row.type), align=size)

    sig = types.void(p, starts, scratch, types.int64, types.int64, L)
    return sig, emit


def _transposing(
    move_block: Callable[..., Any], move_one: Callable[..., Any]
) -> Callable[..., Any]:
    @inlined
    def transpose(task, w, tensor, first, rows, scratch, L):
        """L rows of a tensor of `rows`, from or to a scratch strip."""
        p, n, apart = pointer(task, TENSORS + tensor), extent(w), step(w, tensor)
        starts, W, B = stack(0, L), _rows_of_block(p), _steps_of_block(p)
        for r in range(L):
            starts[r] = offset(w, tensor, min(first + r, rows - 1))
        if apart == 1 and n >= B:
            for r in range(0, L, W):
                for k in range(W):
                    for j in range(0, n, _line_of(p)):
                        prefetch(p, starts[r + k] + EARLY + j)
                for j in range(0, n, B):
                    move_block(p, starts, scratch, r, min(j, n - B), L)
        else:
            for r in range(L):
                for j in range(n):
                    move_one(p, starts[r] + j * apart, scratch, j * L + r)

    return transpose


@inlined
def _load_one(p, i, scratch, k):
    scratch[k] = p[i]


@inlined
def _store_one(p, i, scratch, k):
    p[i] = scratch[k]


load_panel = _transposing(_load_block, _load_one)
store_panel = _transposing(_store_block, _store_one)
