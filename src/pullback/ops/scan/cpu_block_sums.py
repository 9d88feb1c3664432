"""Sums of blocks of steps, and of many blocks: in f64 with what was rounded off as a second vector.

Equal terms are rounded the same way at every step, so that a plain f64 sum of thousands drifts.
"""

from llvmlite import ir
from numba import types

from pullback.cpu.emit import Lane, Vec, op, shuffle
from pullback.cpu.memory import STORAGE, filled_wide
from pullback.cpu.numerics import finite_or_zero, two_sum
from pullback.cpu.tiles import by_type, spread
from pullback.cpu.vector import half, lane_at, like, select, splat
from pullback.ops.scan.cpu_extremum import BLOCK


@by_type
def no_sum(p, L):
    if STORAGE[p.dtype].compute == types.float64:
        return lambda p, L: (filled_wide(p, -0.0, L), filled_wide(p, 0.0, L))
    return lambda p, L: filled_wide(p, -0.0, L)


@by_type
def increased(carry, totals):
    if isinstance(carry, Vec):
        return lambda carry, totals: carry + totals

    def compensated(carry, totals):
        s, lost = two_sum(carry[0], totals)
        return s, carry[1] + finite_or_zero(lost)

    return compensated


@by_type
def rounded(carry):
    if isinstance(carry, Vec):
        return lambda carry: carry
    # Zeros keep their sign.
    return lambda carry: select(carry[1] == 0, carry[0], carry[0] + carry[1])


@by_type
def cleared(carry):
    if isinstance(carry, Vec):
        return lambda carry: like(carry, -0.0)
    return lambda carry: (like(carry[0], -0.0), like(carry[1], 0.0))


@by_type
def joined(one, other):
    """The sum of two sums."""
    if isinstance(one, Vec):
        return lambda one, other: one + other

    def compensated(one, other):
        s, lost = increased(one, other[0])
        return s, lost + other[1]

    return compensated


@by_type
def chosen(mask, one, other):
    if isinstance(one, Vec):
        return lambda mask, one, other: select(mask, one, other)
    return lambda mask, one, other: (
        select(mask, one[0], other[0]),
        select(mask, one[1], other[1]),
    )


@by_type
def spread_sum(one, like_):
    if isinstance(one, Vec):
        return lambda one, like_: spread(one, like_)
    return lambda one, like_: (spread(one[0], like_[0]), spread(one[1], like_[1]))


@by_type
def line_of(carry, k):
    if isinstance(carry, Vec):
        return lambda carry, k: splat(lane_at(carry, k), 1)
    return lambda carry, k: (splat(lane_at(carry[0], k), 1), splat(lane_at(carry[1], k), 1))


@op
def total(v: Vec, L: Lane):
    """The sums of the steps of each block: what `suffix_sums` by doubling gives for the first."""
    blocks = v.n // (BLOCK * L.literal_value)
    together = L.literal_value == 1 and blocks == 4 and v.dtype == types.float32

    def emit(b, v_, _L):
        return _totals_of_four(b, v_) if together else _totals(b, v_, L.literal_value)

    return Vec(v.dtype, blocks * L.literal_value)(v, L), emit


def _totals(b: ir.IRBuilder, v: ir.Value, L: int) -> ir.Value:
    lanes = v.type.count // BLOCK
    while v.type.count > lanes:
        odd = [i // L % 2 for i in range(v.type.count)]
        halves = ([i for i, k in enumerate(odd) if k == half] for half in (0, 1))
        v = b.fadd(*(shuffle(b, v, v, half) for half in halves))
    return v


# Of two vectors of eight, the even and the odd lanes, without crossing 128 bits.
_EVEN, _ODD = (0, 2, 8, 10, 4, 6, 12, 14), (1, 3, 9, 11, 5, 7, 13, 15)


def _totals_of_four(b: ir.IRBuilder, v: ir.Value) -> ir.Value:
    """The same, four blocks of one line at a time."""
    parts = [shuffle(b, v, v, range(k, k + BLOCK)) for k in range(0, v.type.count, BLOCK)]
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [b.fadd(shuffle(b, *p, _EVEN), shuffle(b, *p, _ODD)) for p in pairs]
    return b.fadd(*(shuffle(b, parts[0], parts[0], range(k, k + 4)) for k in (0, 4)))


@by_type
def totals_back(totals, carry, L):
    """The totals of all blocks added to what comes after them, last one first."""
    if totals.n == L.literal_value:
        return lambda totals, carry, L: increased(carry, totals)

    def halves(totals, carry, L):
        return totals_back(half(totals, 0), totals_back(half(totals, 1), carry, L), L)

    return halves
