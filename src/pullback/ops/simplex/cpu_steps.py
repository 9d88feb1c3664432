"""One step of a simplex kernel: LANES elements, along a row or across a strip of columns.

Along a row (L = 1), a step takes LANES neighbours on the axis; across (L = LANES), it takes one
position of the axis in LANES columns side by side, one *part* of the strip. `left` is the number of
elements or columns from here on; it stands in a tuple if all LANES are there and side by side.

Along a row, lanes may stand in any order that stores undo. In bf16 two neighbours share a word of
32 bits, the earlier one in its low half: a shift makes one an f32, a mask the other, and nothing
crosses lanes. So of 16 elements the eight at even places come first, then those at odd places.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable
from functools import reduce

from llvmlite import ir
from numba import types

from pullback.cpu import float16
from pullback.cpu.emit import (
    I32,
    I64,
    LLVM_ELEMENT,
    Lane,
    Scalar,
    Vec,
    constant,
    inlined,
    lanes_below,
    llvm_call,
    op,
    shuffle,
    splatted,
)
from pullback.cpu.memory import get, get_wide, prefetch, put
from pullback.cpu.tiles import by_type, joined, load, load_wide, store
from pullback.cpu.transfer import block_at, gathered, lane_bytes, scattered, stored
from pullback.ops.simplex.cpu_traits import BF16, CLASSES, LANES, traits

AHEAD = 16  # steps from a fetch across columns to its use
LINE = 512  # bits of a cache line
NEXT = 1 << 21  # bits of a row that leaves room for the next in the caches of a core
F32 = ir.FloatType()


# --- bf16 in pairs ------------------------------------------------------------------------------


def _split(b, v):
    """Its vectors of CLASSES lanes."""
    return [shuffle(b, v, v, range(k, k + CLASSES)) for k in range(0, v.type.count, CLASSES)]


def _apart(b, raw):
    """bf16 codes side by side as f32, the lanes in order of a step along a row."""
    words = b.bitcast(raw, ir.VectorType(I32, raw.type.count // 2))
    lanes = []
    for pairs in _split(b, words):
        lanes.append(b.shl(pairs, constant(pairs.type, 16)))
        lanes.append(b.and_(pairs, constant(pairs.type, 0xFFFF0000)))
    return b.bitcast(joined(b, lanes), ir.VectorType(F32, raw.type.count))


def _to_even(b, bits):
    """bf16 codes in the upper halves, rounded to nearest even. A NaN has zeros where it is cut, for
    it comes from bf16 or from an operation without a result: so it needs no care."""
    kind = bits.type
    odd = b.and_(b.lshr(bits, constant(kind, 16)), constant(kind, 1))
    return b.add(b.add(bits, odd), constant(kind, 0x7FFF))


def _from_zero(b, bits):
    """The same with halves away from zero."""
    return b.add(bits, constant(bits.type, 0x8000))


def _bits(b, v):
    return b.bitcast(v, ir.VectorType(I32, v.type.count))


def _together(b, bits):
    """Upper halves side by side again."""
    lanes = _split(b, bits)
    halves = ir.VectorType(ir.IntType(16), 2 * CLASSES)
    alternating = [k + k % 2 * 2 * CLASSES for k in range(2 * CLASSES)]
    pairs = []
    for even, odd in zip(lanes[::2], lanes[1::2], strict=True):
        low = b.bitcast(b.lshr(even, constant(even.type, 16)), halves)
        pairs.append(shuffle(b, low, b.bitcast(odd, halves), alternating))
    return joined(b, pairs)


@op
def _get_pairs(p: types.CPointer, i: types.Integer, step: Lane, n: Lane):
    """As `get` of neighbours."""
    kind = ir.VectorType(LLVM_ELEMENT[BF16], n.literal_value)

    def emit(b, p_, i_, _step, _n):
        return _apart(b, b.load(block_at(b, p_, i_, kind), align=lane_bytes(kind)))

    return Vec(types.float32, n.literal_value)(p, types.int64, step, n), emit


@op
def _load_pairs(cursor: types.BaseTuple, size: types.BaseTuple, fill: Scalar, rows: Lane, L: Lane):
    """As `load` of part of a row."""
    n = rows.literal_value
    kind = ir.VectorType(LLVM_ELEMENT[BF16], n)

    def emit(b, cursor_, size_, fill_, _rows, _L):
        p, i, step = (b.extract_value(cursor_, k) for k in range(3))
        count = b.extract_value(size_, 0)
        raw, rest = gathered(b, p, i, step, count, kind), float16.bf16_encoded(b, fill_)
        return _apart(b, b.select(lanes_below(b, count, n), raw, splatted(b, rest, n)))

    return Vec(types.float32, n)(cursor, size, types.float32, rows, L), emit


def _pair_stores(rounded: Callable) -> tuple[Callable, Callable]:
    """As `put` of neighbours, and as `store` of part of a row."""

    def put(p: types.CPointer, i: types.Integer, step: Lane, v: Vec, streaming: types.Boolean):
        def emit(b, p_, i_, _step, v_, streaming_):
            stored(b, p_, i_, _together(b, rounded(b, _bits(b, v_))), streaming_)

        return types.void(p, types.int64, step, v, types.boolean), emit

    def store(cursor: types.BaseTuple, size: types.BaseTuple, v: Vec, L: Lane):
        def emit(b, cursor_, size_, v_, _L):
            p, i, step = (b.extract_value(cursor_, k) for k in range(3))
            raw = _together(b, rounded(b, _bits(b, v_)))
            scattered(b, p, i, step, b.extract_value(size_, 0), raw)

        return types.void(cursor, size, v, L), emit

    return op(put), op(store)


@op
def _rounded_from_zero(p: types.CPointer, v: Vec):
    """v if p holds anything but bf16; else v as bf16 will have it."""

    def emit(b, _, v_):
        if not traits(p).paired:
            return v_
        bits = _from_zero(b, _bits(b, v_))
        return b.bitcast(b.and_(bits, constant(bits.type, 0xFFFF0000)), v.llvm)

    return v(p, v), emit


@by_type
def lane_of(p, j):
    """The lane of position j of a row, modulo CLASSES."""
    return (lambda p, j: j // 2 % CLASSES) if traits(p).paired else (lambda p, j: j % CLASSES)


def _in_pairs(cursor, L):
    return traits(cursor[0]).paired and L.literal_value == 1


# --- steps --------------------------------------------------------------------------------------


@inlined
def _ask_ahead(cursor):
    """Fetch a step that comes later: rows of a strip lie pages apart, unforeseen by hardware."""
    p, i, apart, _ = cursor
    prefetch(p, i + AHEAD * apart)
    prefetch(p, i + AHEAD * apart + LANES // 2)


@by_type
def ask(cursor, ahead, L):
    """Along a row, fetch the step of neighbours that lies so many elements ahead."""
    line = LINE // cursor[0].dtype.bitwidth

    def row(cursor, ahead, L):
        for k in range(0, LANES, line):
            prefetch(cursor[0], cursor[1] + ahead + k)

    return row if L.literal_value == 1 else (lambda cursor, ahead, L: None)


@by_type
def to_next(cursor, n):
    """How far ahead to ask: for what lies here in the next row, since memory has nothing else to do
    while this one is computed; nowhere if that would drive out what this one still needs."""
    longest = NEXT // cursor[0].dtype.bitwidth
    return lambda cursor, n: n if cursor[2] == 1 and n <= longest else 0


def _taker(get: Callable, load: Callable) -> Callable:
    @by_type
    def take(cursor, left, fill, L):
        whole, part = (_get_pairs, _load_pairs) if _in_pairs(cursor, L) else (get, load)

        def side_by_side(cursor, left, fill, L):
            return whole(cursor[0], cursor[1], 1, LANES)

        def row(cursor, left, fill, L):
            if left >= LANES and cursor[2] == 1:
                return whole(cursor[0], cursor[1], 1, LANES)
            return part(cursor, (min(left, LANES), 1), fill, LANES, 1)

        def columns(cursor, left, fill, L):
            _ask_ahead(cursor)
            if left >= LANES:
                return whole(cursor[0], cursor[1], 1, LANES)
            return part(cursor, (1, left), fill, 1, LANES)

        if isinstance(left, types.BaseTuple):
            return side_by_side
        return row if L.literal_value == 1 else columns

    return take


# The lanes of a step in the compute or the wide type, `fill` where there are none. Steps that are
# cut short, and rows whose elements lie apart, go lane by lane.
take, take_wide = _taker(get, load), _taker(get_wide, load_wide)


def _giver(pair_stores: tuple, across: Callable) -> Callable:
    @by_type
    def give(cursor, left, v, L):
        whole, part = pair_stores if _in_pairs(cursor, L) else (put, store)

        def side_by_side(cursor, left, v, L):
            whole(cursor[0], cursor[1], 1, v, cursor[3])

        def row(cursor, left, v, L):
            if left >= LANES and cursor[2] == 1:
                whole(cursor[0], cursor[1], 1, v, cursor[3])
            else:
                part(cursor, (min(left, LANES), 1), v, 1)

        def columns(cursor, left, v, L):
            v = across(cursor[0], v)
            if left >= LANES:
                whole(cursor[0], cursor[1], 1, v, cursor[3])
            else:
                part(cursor, (1, left), v, LANES)

        if isinstance(left, types.BaseTuple):
            return side_by_side
        return row if L.literal_value == 1 else columns

    return give


@inlined
def _as_it_is(p, v):
    return v


# Store the lanes of a step. Where exact results never lie half-way between two of bf16, a half
# stands for either side of it, and `give_inexact` takes the one that costs less.
give = _giver(_pair_stores(_to_even), _as_it_is)
give_inexact = _giver(_pair_stores(_from_zero), _rounded_from_zero)


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

    return whole if isinstance(left, types.BaseTuple) else (lambda cursor, left: False)


@op
def narrowed(v: Vec, L: Lane):
    """The greatest of each class of lanes along a row; across columns, v itself."""
    t = Vec(v.dtype, CLASSES if L.literal_value == 1 else v.n)

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
