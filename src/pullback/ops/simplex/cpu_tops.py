"""The greatest element of a row, found on the way of a pass: `no_top`, `higher`, `peak`.

A top passes over NaN, or becomes NaN: sums will show it, or a *trace* (`no_trace`, `traced`,
`seen`). Along rows of bf16 a top is a pair of codes, with no arithmetic on what they stand for: of
what is not negative the code grows with it, as a signed number beyond the codes of all that is; if
all is negative, it falls with it. A trace is then the greatest code, unsigned: beyond -inf is NaN.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types

from pullback.cpu.emit import Lane, Vec, constant, inlined, op, shuffle
from pullback.cpu.memory import filled
from pullback.cpu.tiles import by_type, moved, stack
from pullback.cpu.transfer import block_at
from pullback.cpu.vector import is_nan, like, maximum, select, splat, to_f64
from pullback.ops.simplex.cpu_groups import lane_by_lane
from pullback.ops.simplex.cpu_steps import is_whole, narrowed, take
from pullback.ops.simplex.cpu_traits import CLASSES, GROUP, LANES, traits
from pullback.ops.simplex.cpu_walk import (
    PARTS,
    SPAN,
    each,
    greatest,
    greatest_of_rows,
    pair,
    spots,
    sum_as,
)

INFINITY, NAN = np.inf, np.nan
CODES = Vec(types.int16, 16)
LEAST_SIGNED, MOST_UNSIGNED = -1, -128  # codes of no number, and of -inf


@by_type
def no_top(p, L):
    """The top of nothing."""

    def of_lanes(p, L):
        return narrowed(filled(p, -INFINITY, LANES), L)

    def of_codes(p, L):
        return _no_codes(p)

    return of_codes if traits(p).paired and L.literal_value != LANES else of_lanes


@by_type
def higher(cursor, left, x, top, L):
    """The top of more: of a step, whose lanes are x."""

    def of_lanes(cursor, left, x, top, L):
        return maximum(narrowed(x, L), top)

    def of_codes(cursor, left, x, top, L):
        return _among(_codes_at(cursor[0], cursor[1], LANES), top)

    def of_fewer(cursor, left, x, top, L):
        return _among(_codes_of(x), top)

    if not isinstance(top, types.BaseTuple):
        return of_lanes
    return of_codes if is_whole(left) else of_fewer


@by_type
def peak(top, L):
    """Of one row each, as f64."""

    def of_codes(top, L):
        return to_f64(_decoded_top(top))

    def of_lanes(top, L):
        return greatest(top, L)

    return of_codes if isinstance(top, types.BaseTuple) else of_lanes


@inlined
def forget(p, tops, part, L):
    """Begin again."""
    for k in range(part, part + spots(L) if L == GROUP else part + 1):
        tops[k] = no_top(p, L)


@by_type
def highest(tops, part, L):
    """The peaks of a part, or of all rows of a group."""

    def of_codes(tops, part, L):
        peaks = stack(splat(0.0, GROUP), 1)
        for r in range(GROUP):
            lane_by_lane(peaks)[r] = peak(tops[r], 1)
        return peaks[0]

    def of_lanes(tops, part, L):
        return greatest_of_rows(tops)

    if L.literal_value == GROUP:
        return of_codes if isinstance(tops.dtype, types.BaseTuple) else of_lanes
    return lambda tops, part, L: peak(tops[part], L)


@by_type
def no_trace(p, L):
    """The trace of nothing."""
    if traits(p).paired and L.literal_value != LANES:
        return lambda p, L: _no_code(p)
    return lambda p, L: like(no_top(p, L), 0.0)


@by_type
def traced(cursor, left, x, trace, L):
    """The trace of more: of a step, whose lanes are x."""

    def of_lanes(cursor, left, x, trace, L):
        return trace + sum_as(x, trace)

    def of_codes(cursor, left, x, trace, L):
        return _farthest(_codes_at(cursor[0], cursor[1], LANES), trace)

    def of_fewer(cursor, left, x, trace, L):
        return _farthest(_codes_of(x), trace)

    if trace.dtype != types.int16:
        return of_lanes
    return of_codes if is_whole(left) else of_fewer


@by_type
def seen(tops, traces, part, L):
    """The peaks of a part, or of all rows of a group; NaN where there is one."""

    def lanes(tops, traces, part, L):
        return greatest(select(is_nan(traces[part]), traces[part], tops[part]), L)

    def lanes_of_rows(tops, traces, part, L):
        for r in range(GROUP):
            tops[r] = select(is_nan(traces[r]), traces[r], tops[r])
        return greatest_of_rows(tops)

    def codes(tops, traces, part, L):
        top = peak(tops[part], 1)
        return select(_has_nan(traces[part]), like(top, NAN), top)

    def codes_of_rows(tops, traces, part, L):
        peaks = stack(splat(0.0, GROUP), 1)
        for r in range(GROUP):
            top = peak(tops[r], 1)
            lane_by_lane(peaks)[r] = select(_has_nan(traces[r]), like(top, NAN), top)
        return peaks[0]

    in_codes = isinstance(tops.dtype, types.BaseTuple)
    if L.literal_value == GROUP:
        return codes_of_rows if in_codes else lanes_of_rows
    return codes if in_codes else lanes


# --- a pass for the tops alone ------------------------------------------------------------------
#
# Positions fall into CLASSES, modulo their number. Along a row the greatest of each class come with
# the top; across columns they have a cell each, in cells[0] as everything here.


@inlined
def _see(at, left, cells, part, L):
    tops = cells[0]
    tops[part] = higher(at[0], left, take(at[0], left, -INFINITY, L), tops[part], L)


@by_type
def survey(cursor, cells, n, width, L):
    def row(cursor, cells, n, width, L):
        cells[0][0] = no_top(cursor[0], L)
        each(_see, (cursor,), cells, n, width, L)

    def columns(cursor, cells, n, width, L):
        for k in range(SPAN):
            cells[0][k] = no_top(cursor[0], L)
        for j in range(n):
            for c in range(0, width, LANES):
                part = j % CLASSES * PARTS + c // LANES
                _see(moved((cursor,), j, c), width - c, cells, part, L)

    return row if L.literal_value == 1 else columns


@by_type
def summit(tops, part, L):
    """The top of each row of a part."""

    def columns(tops, part, L):
        top = tops[part]
        for k in range(1, CLASSES):
            top = maximum(tops[k * PARTS + part], top)
        return greatest(top, L)

    return (lambda tops, part, L: peak(tops[0], L)) if L.literal_value == 1 else columns


@by_type
def by_class(top):
    """The greatest of each class of a row."""
    return (lambda top: _decoded_classes(top)) if isinstance(top, types.BaseTuple) else _as_it_is


def _as_it_is(top):
    return top


# --- codes --------------------------------------------------------------------------------------


@op
def _no_codes(p: types.CPointer):
    codes = types.UniTuple(CODES, 2)

    def emit(b, _p):
        ends = (constant(CODES.llvm, end) for end in (LEAST_SIGNED, MOST_UNSIGNED))
        return pair(b, ir.ArrayType(CODES.llvm, 2), *ends)

    return codes(p), emit


@op
def _codes_at(p: types.CPointer, i: types.Integer, n: Lane):
    codes = Vec(types.int16, n.literal_value)

    def emit(b, p_, i_, _n):
        return b.load(block_at(b, p_, i_, codes.llvm), align=2)

    return codes(p, types.int64, n), emit


@op
def _codes_of(x: Vec):
    codes = x.of(types.int16)

    def emit(b, x_):
        bits = b.bitcast(x_, x.of(types.int32).llvm)
        return b.trunc(b.lshr(bits, constant(bits.type, 16)), codes.llvm)

    return codes(x), emit


@op
def _among(codes: Vec, top: types.BaseTuple):
    def emit(b, codes_, top_):
        most, least = (b.extract_value(top_, k) for k in (0, 1))
        for k in range(0, codes.n, CODES.n):
            some = shuffle(b, codes_, codes_, range(k, k + CODES.n))
            most = b.select(b.icmp_signed(">", some, most), some, most)
            least = b.select(b.icmp_unsigned("<", some, least), some, least)
        return pair(b, top_.type, most, least)

    return top(codes, top), emit


@op
def _no_code(p: types.CPointer):
    return CODES(p), lambda b, _p: constant(CODES.llvm, 0)


def _of_two(b, codes, trace):
    return b.select(b.icmp_unsigned(">", codes, trace), codes, trace)


@op
def _farthest(codes: Vec, trace: Vec):
    def emit(b, codes_, trace_):
        for k in range(0, codes.n, trace.n):
            trace_ = _of_two(b, shuffle(b, codes_, codes_, range(k, k + trace.n)), trace_)
        return trace_

    return trace(codes, trace), emit


@op
def _has_nan(trace: Vec):
    """Whether it is beyond -inf, as one lane."""
    mask = Vec(types.boolean, 1)

    def emit(b, trace_):
        while (n := trace_.type.count // 2) > 0:
            halves = (shuffle(b, trace_, trace_, range(k, k + n)) for k in (0, n))
            trace_ = _of_two(b, *halves)
        return b.icmp_unsigned(">", trace_, constant(trace_.type, MOST_UNSIGNED))

    return mask(trace), emit


def _decoded(n: int) -> Callable:
    """The greatest of n classes as f32, from those of all lanes."""

    def decoded(top: types.BaseTuple):
        values = Vec(types.float32, n)

        def emit(b, top_):
            most, least = (b.extract_value(top_, k) for k in (0, 1))
            while most.type.count > n:
                half = most.type.count // 2
                (a, c), (d, e) = (
                    [shuffle(b, v, v, range(k, k + half)) for k in (0, half)] for v in (most, least)
                )
                most = b.select(b.icmp_signed(">", a, c), a, c)
                least = b.select(b.icmp_unsigned("<", d, e), d, e)
            negative = b.icmp_signed("<", most, constant(most.type, 0))
            codes = b.zext(b.select(negative, least, most), values.of(types.int32).llvm)
            return b.bitcast(b.shl(codes, constant(codes.type, 16)), values.llvm)

        return values(top), emit

    return op(decoded)


_decoded_top, _decoded_classes = _decoded(1), _decoded(CLASSES)
