"""The greatest element of a row, found on the way of a pass: `no_max`, `max_with`, `row_max`.

A maximum ignores NaN, or becomes NaN: the sums show it, or a *NaN flag* (`no_nan_flag`,
`nan_flagged`, `max_or_nan`). Along rows of bf16 a maximum is a pair of 16-bit codes, compared as
integers: the code of a number that is not negative grows with it, as a signed integer above all
codes of negative numbers; if all are negative, the code falls with the number. A NaN flag is then
the greatest unsigned code: beyond -inf is NaN.
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
def no_max(p, L):
    """The maximum of no element."""

    def of_lanes(p, L):
        return narrowed(filled(p, -INFINITY, LANES), L)

    def of_codes(p, L):
        return _no_codes(p)

    return of_codes if traits(p).paired and L.literal_value != LANES else of_lanes


@by_type
def max_with(cursor, left, x, top, L):
    """The maximum with one more step, whose lanes are x."""

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
def row_max(top, L):
    """Of one row each, as f64."""

    def of_codes(top, L):
        return to_f64(_decoded_top(top))

    def of_lanes(top, L):
        return greatest(top, L)

    return of_codes if isinstance(top, types.BaseTuple) else of_lanes


@inlined
def reset_max(p, maxima, part, L):
    """Start again from no element."""
    for k in range(part, part + spots(L) if L == GROUP else part + 1):
        maxima[k] = no_max(p, L)


@by_type
def max_of_rows(maxima, part, L):
    """The maxima of a part, or of all rows of a group."""

    def of_codes(maxima, part, L):
        row_maxima = stack(splat(0.0, GROUP), 1)
        for r in range(GROUP):
            lane_by_lane(row_maxima)[r] = row_max(maxima[r], 1)
        return row_maxima[0]

    def of_lanes(maxima, part, L):
        return greatest_of_rows(maxima)

    if L.literal_value == GROUP:
        return of_codes if isinstance(maxima.dtype, types.BaseTuple) else of_lanes
    return lambda maxima, part, L: row_max(maxima[part], L)


@by_type
def no_nan_flag(p, L):
    """The flag of no element."""
    if traits(p).paired and L.literal_value != LANES:
        return lambda p, L: _no_code(p)
    return lambda p, L: like(no_max(p, L), 0.0)


@by_type
def nan_flagged(cursor, left, x, nan_flag, L):
    """The flag with one more step, whose lanes are x."""

    def of_lanes(cursor, left, x, nan_flag, L):
        return nan_flag + sum_as(x, nan_flag)

    def of_codes(cursor, left, x, nan_flag, L):
        return _farthest(_codes_at(cursor[0], cursor[1], LANES), nan_flag)

    def of_fewer(cursor, left, x, nan_flag, L):
        return _farthest(_codes_of(x), nan_flag)

    if nan_flag.dtype != types.int16:
        return of_lanes
    return of_codes if is_whole(left) else of_fewer


@by_type
def max_or_nan(maxima, nan_flags, part, L):
    """The maxima of a part, or of all rows of a group; NaN where there is one."""

    def lanes(maxima, nan_flags, part, L):
        return greatest(select(is_nan(nan_flags[part]), nan_flags[part], maxima[part]), L)

    def lanes_of_rows(maxima, nan_flags, part, L):
        for r in range(GROUP):
            maxima[r] = select(is_nan(nan_flags[r]), nan_flags[r], maxima[r])
        return greatest_of_rows(maxima)

    def codes(maxima, nan_flags, part, L):
        top = row_max(maxima[part], 1)
        return select(_has_nan(nan_flags[part]), like(top, NAN), top)

    def codes_of_rows(maxima, nan_flags, part, L):
        row_maxima = stack(splat(0.0, GROUP), 1)
        for r in range(GROUP):
            top = row_max(maxima[r], 1)
            lane_by_lane(row_maxima)[r] = select(_has_nan(nan_flags[r]), like(top, NAN), top)
        return row_maxima[0]

    in_codes = isinstance(maxima.dtype, types.BaseTuple)
    if L.literal_value == GROUP:
        return codes_of_rows if in_codes else lanes_of_rows
    return codes if in_codes else lanes


# --- a pass for the maxima alone ------------------------------------------------------------------
#
# Positions fall into CLASSES, modulo their number. Along a row the greatest of each class come with
# the top; across columns they have a cell each, in cells[0] as everything here.


@inlined
def _see(at, left, cells, part, L):
    maxima = cells[0]
    maxima[part] = max_with(at[0], left, take(at[0], left, -INFINITY, L), maxima[part], L)


@by_type
def scan_max(cursor, cells, n, width, L):
    def row(cursor, cells, n, width, L):
        cells[0][0] = no_max(cursor[0], L)
        each(_see, (cursor,), cells, n, width, L)

    def columns(cursor, cells, n, width, L):
        for k in range(SPAN):
            cells[0][k] = no_max(cursor[0], L)
        for j in range(n):
            for c in range(0, width, LANES):
                part = j % CLASSES * PARTS + c // LANES
                _see(moved((cursor,), j, c), width - c, cells, part, L)

    return row if L.literal_value == 1 else columns


@by_type
def max_of_part(maxima, part, L):
    """The top of each row of a part."""

    def columns(maxima, part, L):
        top = maxima[part]
        for k in range(1, CLASSES):
            top = maximum(maxima[k * PARTS + part], top)
        return greatest(top, L)

    return (lambda maxima, part, L: row_max(maxima[0], L)) if L.literal_value == 1 else columns


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


def _of_two(b, codes, nan_flag):
    return b.select(b.icmp_unsigned(">", codes, nan_flag), codes, nan_flag)


@op
def _farthest(codes: Vec, nan_flag: Vec):
    def emit(b, codes_, trace_):
        for k in range(0, codes.n, nan_flag.n):
            trace_ = _of_two(b, shuffle(b, codes_, codes_, range(k, k + nan_flag.n)), trace_)
        return trace_

    return nan_flag(codes, nan_flag), emit


@op
def _has_nan(nan_flag: Vec):
    """Whether it is beyond -inf, as one lane."""
    mask = Vec(types.boolean, 1)

    def emit(b, trace_):
        while (n := trace_.type.count // 2) > 0:
            halves = (shuffle(b, trace_, trace_, range(k, k + n)) for k in (0, n))
            trace_ = _of_two(b, *halves)
        return b.icmp_unsigned(">", trace_, constant(trace_.type, MOST_UNSIGNED))

    return mask(nan_flag), emit


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
