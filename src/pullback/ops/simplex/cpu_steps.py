"""One step of a simplex kernel: LANES elements, along a row or across a strip of columns.

Along a row (L = 1), a step takes LANES neighbours on the axis; across (L = LANES), it takes one
position of the axis in LANES columns side by side, one *part* of the strip. `left` is the number of
elements or columns from here on: (left,) if all LANES are there and side by side; (left, None) if
they are side by side, but fewer; (left, None, None) if they are no more than HALF. Along a row,
lanes may stand in any order that stores undo (see cpu_pairs).
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable
from functools import reduce

from llvmlite import ir
from numba import types

from pullback.cpu.emit import (
    I32,
    I64,
    Lane,
    Scalar,
    Vec,
    inlined,
    lanes_below,
    llvm_call,
    op,
    shuffle,
    splatted,
)
from pullback.cpu.memory import (
    STORAGE,
    decoded,
    encoded,
    get,
    get_wide,
    prefetch,
    prefetch_early,
    put,
)
from pullback.cpu.pieces import first_loaded, first_stored
from pullback.cpu.tiles import by_type
from pullback.cpu.transfer import (
    block_at,
    either,
    gathered,
    lane_bytes,
    scattered,
)
from pullback.ops.simplex.cpu_pairs import (
    apart,
    bits_of,
    from_zero,
    get_pairs,
    in_pairs,
    put_pairs,
    rounded_from_zero,
    to_even,
    together,
)
from pullback.ops.simplex.cpu_traits import CLASSES, HALF, LANES

AHEAD = 16  # steps from a fetch across columns to its use
LINE = 512  # bits of a cache line
NEXT = 1 << 21  # bits of a row that leaves room for the next in the caches of a core


def lanes_of(left):
    return HALF if len(left) == 3 else LANES


def is_whole(left):
    return isinstance(left, types.BaseTuple) and len(left) == 1


# --- steps cut short ----------------------------------------------------------------------------
#
# Fewer than LANES, or apart: in pieces where lanes lie side by side, one by one elsewhere. The last
# step of a short row knows that they do.


def _apart_by(b, cursor_, L):
    """Where a step begins, and the distance of its lanes."""
    p, i, step = (b.extract_value(cursor_, k) for k in range(3))
    return p, i, step if L.literal_value == 1 else I64(1)


def _value(b, cursor, raw, dtype, L):
    return apart(b, raw) if in_pairs(cursor, L) else decoded(b, cursor[0], raw, dtype)


def _masked(b, p, i, mask, rest):
    where = block_at(b, p, i, rest.type)
    values = [where, I32(lane_bytes(rest.type)), mask, rest]
    return llvm_call(b, "masked.load", rest.type, values, [rest.type, where.type])


def _part_takers(target: Callable) -> tuple[Callable, Callable]:
    def take(cursor: types.BaseTuple, count: types.Integer, fill: Scalar, L: Lane):
        dtype = target(STORAGE[cursor[0].dtype])

        def emit(b, cursor_, count_, fill_, _L):
            p, i, step = _apart_by(b, cursor_, L)
            rest = splatted(b, encoded(b, cursor[0], fill_, dtype), LANES)
            there = lanes_below(b, count_, LANES)
            raw = either(
                b,
                b.icmp_signed("==", step, I64(1)),
                lambda: first_loaded(b, p, i, count_, rest),
                lambda: b.select(there, gathered(b, p, i, step, count_, rest.type), rest),
            )
            return _value(b, cursor, raw, dtype, L)

        return Vec(dtype, LANES)(cursor, types.int64, dtype, L), emit

    def take_last(cursor: types.BaseTuple, left: types.BaseTuple, fill: Scalar, L: Lane):
        dtype, n = target(STORAGE[cursor[0].dtype]), lanes_of(left)

        def emit(b, cursor_, left_, fill_, _L):
            p, i = (b.extract_value(cursor_, k) for k in (0, 1))
            count = b.extract_value(left_, 0)
            rest = splatted(b, encoded(b, cursor[0], fill_, dtype), n)
            if lane_bytes(rest.type) == 2:  # no machine below AVX-512 masks these
                raw = first_loaded(b, p, i, count, rest)
            else:
                raw = _masked(b, p, i, lanes_below(b, count, n), rest)
            return _value(b, cursor, raw, dtype, L)

        return Vec(dtype, n)(cursor, left, dtype, L), emit

    return op(take), op(take_last)


def _part_givers(rounded: Callable) -> tuple[Callable, Callable]:
    def raw_of(b, cursor, v, v_, L):
        if in_pairs(cursor, L):
            return together(b, rounded(b, bits_of(b, v_)))
        return encoded(b, cursor[0], v_, v.dtype)

    def give(cursor: types.BaseTuple, count: types.Integer, v: Vec, L: Lane):
        def emit(b, cursor_, count_, v_, _L):
            p, i, step = _apart_by(b, cursor_, L)
            raw, no = raw_of(b, cursor, v, v_, L), ir.IntType(1)(0)
            either(
                b,
                b.icmp_signed("==", step, I64(1)),
                lambda: first_stored(b, p, i, count_, raw, no),
                lambda: scattered(b, p, i, step, count_, raw),
            )

        return types.void(cursor, types.int64, v, L), emit

    def give_last(cursor: types.BaseTuple, left: types.BaseTuple, v: Vec, L: Lane):
        def emit(b, cursor_, left_, v_, _L):
            p, i, streaming = (b.extract_value(cursor_, k) for k in (0, 1, 3))
            first_stored(b, p, i, b.extract_value(left_, 0), raw_of(b, cursor, v, v_, L), streaming)

        return types.void(cursor, left, v, L), emit

    return op(give), op(give_last)


# --- steps --------------------------------------------------------------------------------------


@inlined
def _prefetch_ahead(cursor):
    """Fetch a step that comes later: rows of a strip lie pages apart, unforeseen by hardware."""
    p, i, apart, _ = cursor
    prefetch(p, i + AHEAD * apart)
    prefetch(p, i + AHEAD * apart + LANES // 2)


def _prefetcher(fetch: Callable) -> Callable:
    @by_type
    def prefetch(cursor, ahead, L):
        """Along a row, fetch the step of neighbours that lies so many elements ahead."""
        line = LINE // cursor[0].dtype.bitwidth

        def row(cursor, ahead, L):
            for k in range(0, LANES, line):
                fetch(cursor[0], cursor[1] + ahead + k)

        return row if L.literal_value == 1 else (lambda cursor, ahead, L: None)

    return prefetch


prefetch_step, prefetch_step_early = _prefetcher(prefetch), _prefetcher(prefetch_early)


@by_type
def to_next(cursor, n):
    """How far ahead to prefetch: the same place in the next row, since memory is idle while this
    one is computed; not at all if that would evict what this one still needs."""
    longest = NEXT // cursor[0].dtype.bitwidth
    return lambda cursor, n: n if cursor[2] == 1 and n <= longest else 0


def _taker(get: Callable, target: Callable) -> Callable:
    part, last = _part_takers(target)

    @by_type
    def take(cursor, left, fill, L):
        whole = get_pairs if in_pairs(cursor, L) else get

        def side_by_side(cursor, left, fill, L):
            return whole(cursor[0], cursor[1], 1, LANES)

        def row(cursor, left, fill, L):
            if left >= LANES and cursor[2] == 1:
                return whole(cursor[0], cursor[1], 1, LANES)
            return part(cursor, min(left, LANES), fill, L)

        def columns(cursor, left, fill, L):
            _prefetch_ahead(cursor)
            if left >= LANES:
                return whole(cursor[0], cursor[1], 1, LANES)
            return part(cursor, left, fill, L)

        def shortened(cursor, left, fill, L):
            return last(cursor, left, fill, L)

        if isinstance(left, types.BaseTuple):
            return side_by_side if len(left) == 1 else shortened
        return row if L.literal_value == 1 else columns

    return take


# The lanes of a step in the compute or the wide type, `fill` where there are none.
take = _taker(get, lambda storage: storage.compute)
take_wide = _taker(get_wide, lambda storage: storage.wide)


def _giver(rounded: Callable, across: Callable) -> Callable:
    pairs, (part, last) = put_pairs(rounded), _part_givers(rounded)

    @by_type
    def give(cursor, left, v, L):
        whole = pairs if in_pairs(cursor, L) else put

        def side_by_side(cursor, left, v, L):
            whole(cursor[0], cursor[1], 1, v, cursor[3])

        def row(cursor, left, v, L):
            if left >= LANES and cursor[2] == 1:
                whole(cursor[0], cursor[1], 1, v, cursor[3])
            else:
                part(cursor, min(left, LANES), v, L)

        def columns(cursor, left, v, L):
            v = across(cursor[0], v)
            if left >= LANES:
                whole(cursor[0], cursor[1], 1, v, cursor[3])
            else:
                part(cursor, left, v, L)

        def shortened(cursor, left, v, L):
            last(cursor, left, v, L)

        if isinstance(left, types.BaseTuple):
            return side_by_side if len(left) == 1 else shortened
        return row if L.literal_value == 1 else columns

    return give


@inlined
def _as_it_is(p, v):
    return v


# Store the lanes of a step. Where exact results never lie half-way between two of bf16, a half
# stands for either side of it, and `give_inexact` takes the one that costs less.
give = _giver(to_even, _as_it_is)
give_inexact = _giver(from_zero, rounded_from_zero)


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

    return whole if is_whole(left) else (lambda cursor, left: False)


@op
def narrowed(v: Vec, L: Lane):
    """The greatest of each class of lanes along a row; across columns, v itself."""
    t = Vec(v.dtype, v.n if L.literal_value == LANES else CLASSES)

    def emit(b, v_, _):
        while v_.type.count > t.n:
            n = v_.type.count // 2
            low, high = shuffle(b, v_, v_, range(n)), shuffle(b, v_, v_, range(n, 2 * n))
            v_ = b.select(b.fcmp_ordered(">", low, high), low, high)
        return v_

    return t(v, L), emit


@by_type
def lanes_left(left):
    """The number of lanes from here on."""
    return (lambda left: left[0]) if isinstance(left, types.BaseTuple) else (lambda left: left)


@op
def _are_adjacent(cursors: types.BaseTuple):
    """Whether the elements of a row lie side by side in every tensor."""

    def emit(b, cursors_):
        steps = [b.extract_value(cursors_, [t, 2]) for t in range(len(cursors))]
        return reduce(b.and_, [b.icmp_signed("==", step, I64(1)) for step in steps])

    return types.boolean(cursors), emit


@inlined
def whole_steps(cursors, n):
    """How many elements of a row belong to whole steps of neighbours in memory."""
    return n - n % LANES if _are_adjacent(cursors) else 0
