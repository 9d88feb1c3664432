"""One step of a map over rows: LANES elements, of a row or of as many rows side by side.

Along a row (L = 1), a step takes LANES neighbours on the axis; across (L = LANES), it takes one
position of the axis in LANES rows side by side. `left` is the number of elements or rows from here
on; along a row (left,) where all LANES are there and neighbours in memory, (left, None) where they
are neighbours, but fewer.

    take(cursor, left, fill, L)   take_wide   the lanes of a step in the compute or the wide type
    give(cursor, left, v, L)                  store them
    whole_steps(cursors, n)                   elements of a row in whole steps of neighbours
    narrowed(v, L)  largest(v, L)  exists(width, L)  is_void(cursor, left)
    prefetch_step(cursor, ahead, L)  to_next(cursor, n)
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable
from functools import reduce

from llvmlite import ir
from numba import types

from pullback.cpu.columns import NUMBERS, encoded_as
from pullback.cpu.emit import I64, Lane, Vec, inlined, lanes_below, llvm_call, op, shuffle
from pullback.cpu.memory import (
    STORAGE,
    filled,
    filled_wide,
    get,
    get_first,
    get_first_wide,
    get_wide,
    prefetch,
    put,
    put_first,
)
from pullback.cpu.numerics import INFINITY
from pullback.cpu.tiles import by_type
from pullback.cpu.transfer import block_at, stored

CLASSES = 8  # lanes of one vector
LANES = 4 * CLASSES  # of a step: their chains of arithmetic hide each other's latency
WIDE = 2 * LANES  # rows of a strip
AHEAD = 16  # steps from a prefetch across to its use
LINE = 512  # bits of a cache line
EARLY = 1 << 15  # bits of rows from a prefetch along them to its use, at least
NEXT = 1 << 21  # bits of a row that leaves room for the next in the caches of a core


# --- memory that is needed soon -----------------------------------------------------------------


@by_type
def prefetch_lanes(cursor, ahead):
    """The lines of LANES elements."""
    line = LINE // cursor[0].dtype.bitwidth

    def lines(cursor, ahead):
        for k in range(0, LANES, line):
            prefetch(cursor[0], cursor[1] + ahead + k)

    return lines


@by_type
def prefetch_step(cursor, ahead, L):
    """Along a row, fetch the step of neighbours that lies so many elements ahead."""

    def row(cursor, ahead, L):
        prefetch_lanes(cursor, ahead)

    return row if L.literal_value == 1 else (lambda cursor, ahead, L: None)


@by_type
def to_next(cursor, n):
    """How far ahead to prefetch: the same place in the next row, since memory is idle while this
    one is computed; nearer if that would evict what this one still needs, farther if rows are so
    short that memory could not answer in time."""
    longest, nearest = NEXT // cursor[0].dtype.bitwidth, EARLY // cursor[0].dtype.bitwidth
    return lambda cursor, n: n if nearest < n <= longest else nearest


# --- to and from memory -------------------------------------------------------------------------


def _taker(get: Callable, get_first: Callable, filled: Callable) -> Callable:
    @by_type
    def take(cursor, left, fill, L):
        def whole(cursor, left, fill, L):
            return get(cursor[0], cursor[1], 1, LANES)

        def row(cursor, left, fill, L):
            p, i, step, _ = cursor
            if left >= LANES:
                return get(p, i, step, LANES)
            return get_first(p, i, step, left, filled(p, fill, LANES))

        def across(cursor, left, fill, L):
            p, i, step, _ = cursor
            # Rows of a strip lie pages apart, unforeseen by hardware.
            for c in range(0, L, LANES):
                prefetch_lanes(cursor, AHEAD * step + c)
            if left >= L:
                return get(p, i, 1, L)
            return get_first(p, i, 1, left, filled(p, fill, L))

        def tail(cursor, left, fill, L):
            p, i, _, _ = cursor
            return get_first(p, i, 1, left[0], filled(p, fill, LANES))

        if isinstance(left, types.BaseTuple):
            return whole if len(left) == 1 else tail
        return row if L.literal_value == 1 else across

    return take


# `fill` stands where there are no lanes.
take = _taker(get, get_first, filled)
take_wide = _taker(get_wide, get_first_wide, filled_wide)


@op
def _put_numbers(p: types.CPointer, i: types.Integer, v: Vec, streaming: types.Boolean):
    """v to neighbours. A NaN comes from such memory or from an operation without a result: in bf16
    it has zeros where it is cut, so it needs no care."""

    def emit(b, p_, i_, v_, streaming_):
        stored(b, p_, i_, encoded_as(b, p, v_, v.dtype, NUMBERS), streaming_)

    return types.void(p, types.int64, v, types.boolean), emit


@by_type
def give(cursor, left, v, L):
    def whole(cursor, left, v, L):
        _put_numbers(cursor[0], cursor[1], v, cursor[3])

    def row(cursor, left, v, L):
        p, i, step, _ = cursor
        if left >= LANES:
            put(p, i, step, v, False)
        else:
            put_first(p, i, step, left, v)

    def across(cursor, left, v, L):
        p, i, _, streaming = cursor
        if left >= L:
            _put_numbers(p, i, v, streaming)
        else:
            put_first(p, i, 1, left, v)

    def tail(cursor, left, v, L):
        put_first(cursor[0], cursor[1], 1, left[0], v)

    if isinstance(left, types.BaseTuple):
        return whole if len(left) == 1 else tail
    return row if L.literal_value == 1 else across


@op
def _are_adjacent(cursors: types.BaseTuple):
    """Whether the elements of a row lie side by side in every tensor."""

    def emit(b, cursors_):
        there = [t for t, cursor in enumerate(cursors) if isinstance(cursor, types.BaseTuple)]
        steps = [b.extract_value(cursors_, [t, 2]) for t in there]
        return reduce(b.and_, [b.icmp_signed("==", step, I64(1)) for step in steps])

    return types.boolean(cursors), emit


@inlined
def whole_steps(cursors, n):
    """Elements in whole steps of neighbours, and in those and the fewer that follow."""
    adjacent = _are_adjacent(cursors)
    return n - n % LANES if adjacent else 0, n if adjacent else 0


@op
def _all_zero(p: types.CPointer, i: types.Integer, n: Lane):
    """Whether all bits of n neighbours are 0."""
    words = ir.VectorType(I64, n.literal_value * p.dtype.bitwidth // 64)

    def emit(b, p_, i_, _n):
        bits = b.load(block_at(b, p_, i_, words), align=p.dtype.bitwidth // 8)
        any_bit = llvm_call(b, "vector.reduce.or", I64, [bits], [bits.type])
        return b.icmp_unsigned("==", any_bit, I64(0))

    return types.boolean(p, types.int64, n), emit


@by_type
def is_void(cursor, left):
    """Whether a whole step along a row is all 0; of other steps nothing is known."""

    def whole(cursor, left):
        return _all_zero(cursor[0], cursor[1], LANES)

    known = isinstance(left, types.BaseTuple) and len(left) == 1
    return whole if known else (lambda cursor, left: False)


# --- lanes --------------------------------------------------------------------------------------


def _larger(b, low, high):
    """NaN where either is."""
    chosen = b.select(b.fcmp_ordered(">", low, high), low, high)
    return b.select(b.fcmp_unordered("uno", low, low), low, chosen)


def cast(b, v, kind):
    if v.type == kind:
        return v
    return (b.fptrunc if kind.element == ir.FloatType() else b.fpext)(v, kind)


@op
def narrowed(v: Vec, L: Lane):
    """The greatest of each class of lanes along a row; across, v itself. NaN may be passed over."""
    t = Vec(v.dtype, v.n if L.literal_value > 1 else CLASSES)

    def emit(b, v_, _):
        while v_.type.count > t.n:
            n = v_.type.count // 2
            low, high = shuffle(b, v_, v_, range(n)), shuffle(b, v_, v_, range(n, 2 * n))
            v_ = b.select(b.fcmp_ordered(">", low, high), low, high)
        return v_

    return t(v, L), emit


@by_type
def no_max(p, L):
    """The maximum of no element, by lanes."""
    lanes = max(L.literal_value, CLASSES)
    return lambda p, L: filled(p, -INFINITY, lanes)


@op
def nan_of(v: Vec, nan: Vec):
    """Any NaN of v in as many lanes, or what was found before."""

    def emit(b, v_, nan_):
        for k in range(0, v.n, nan.n):
            some = shuffle(b, v_, v_, range(k, k + nan.n))
            nan_ = b.select(b.fcmp_unordered("uno", some, some), some, nan_)
        return nan_

    return nan(v, nan), emit


@op
def largest(v: Vec, L: Lane):
    """The greatest of the lanes that belong to one row, as f64; NaN if there is one."""
    t = Vec(types.float64, L.literal_value)

    def emit(b, v_, _):
        while v_.type.count > t.n:
            n = v_.type.count // 2
            low, high = shuffle(b, v_, v_, range(n)), shuffle(b, v_, v_, range(n, 2 * n))
            v_ = _larger(b, low, high)
        return cast(b, v_, t.llvm)

    return t(v, L), emit


@op
def exists(width: types.Integer, L: Lane):
    """Mask of the rows that there are from some row on."""
    mask = Vec(types.boolean, L.literal_value)

    def emit(b, width_, _):
        return lanes_below(b, width_, mask.n)

    return mask(types.int64, L), emit


@op
def computed(p: types.CPointer, v: Vec):
    """v in the compute type of p."""
    t = v.of(STORAGE[p.dtype].compute)
    return t(p, v), lambda b, _, v_: cast(b, v_, t.llvm)
