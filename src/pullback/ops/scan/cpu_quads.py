"""What tiles of cpu_groups have in common.

chained(step, carry, totals, L)    carry -> what enters each quad, and the carry after them:
                                   step(carry, totals) from one quad to the next
chained_back(...)                  the same, last quad first
common_step(cursors)               1 or -1 if every cursor walks so, else 0
straight(cursors, k, step)         the cursors k steps on, that step being known
parted_words  combined  rounded    two neighbours of bf16 in a word of 32 bits
"""

from llvmlite import ir
from numba import types

from pullback.cpu.emit import I32, I64, Lane, constant, op, shaped
from pullback.cpu.tile_blocks import halved
from pullback.cpu.tiles import by_type
from pullback.cpu.vector import join

F32 = ir.FloatType()


def _at_once(step, carry, totals, L):
    return carry, step(carry, totals)


@by_type
def chained(step, carry, totals, L):
    if L.literal_value > 1 or totals[0].n == 1:
        return _at_once

    def lane_by_lane(step, carry, totals, L):
        u, carry = chained(step, carry, halved(totals, 0), L)
        v, carry = chained(step, carry, halved(totals, 1), L)
        return join(u, v), carry

    return lane_by_lane


@by_type
def chained_back(step, carry, totals, L):
    if L.literal_value > 1 or totals[0].n == 1:
        return _at_once

    def lane_by_lane(step, carry, totals, L):
        v, carry = chained_back(step, carry, halved(totals, 1), L)
        u, carry = chained_back(step, carry, halved(totals, 0), L)
        return join(u, v), carry

    return lane_by_lane


@op
def common_step(cursors: types.BaseTuple):
    """1 or -1 if every cursor walks so, else 0."""

    def emit(b, cursors_):
        steps = [
            b.extract_value(cursors_, [t, 2])
            for t, kind in enumerate(cursors)
            if isinstance(kind, types.BaseTuple)
        ]
        out = I64(0)
        for value in (1, -1):
            same = ir.IntType(1)(1)
            for step in steps:
                same = b.and_(same, b.icmp_signed("==", step, I64(value)))
            out = b.select(same, I64(value), out)
        return out

    return types.int64(cursors), emit


@op
def straight(cursors: types.BaseTuple, k: types.Integer, step: Lane):
    """The cursors k steps on, that step being known."""
    known = types.Tuple(
        [
            types.Tuple([c[0], types.int64, step, types.boolean])
            if isinstance(c, types.BaseTuple)
            else c
            for c in cursors
        ]
    )

    def emit(b, cursors_, k_, _step):
        by = k_ if step.literal_value == 1 else b.neg(k_)
        for t, kind in enumerate(cursors):
            if isinstance(kind, types.BaseTuple):
                there = b.add(b.extract_value(cursors_, [t, 1]), by)
                cursors_ = b.insert_value(cursors_, there, [t, 1])
        return cursors_

    return known(cursors, types.int64, step), emit


def parted_words(b: ir.IRBuilder, raw: ir.Value) -> tuple[ir.Value, ir.Value]:
    """bf16 is the upper half of f32."""
    words = b.bitcast(raw, ir.VectorType(I32, raw.type.count // 2))
    low = b.shl(words, constant(words.type, 16))
    high = b.and_(words, constant(words.type, 0xFFFF0000))
    kind = shaped(F32, words.type)
    return b.bitcast(low, kind), b.bitcast(high, kind)


def combined(b: ir.IRBuilder, even: ir.Value, odd: ir.Value) -> ir.Value:
    high = b.and_(odd, constant(odd.type, 0xFFFF0000))
    words = b.or_(b.lshr(even, constant(even.type, 16)), high)
    return b.bitcast(words, ir.VectorType(ir.IntType(16), 2 * even.type.count))


def rounded(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """f32 numbers whose upper 16 bits are the nearest bf16."""
    bits = b.bitcast(x, shaped(I32, x.type))
    odd = b.and_(b.lshr(bits, constant(bits.type, 16)), constant(bits.type, 1))
    return b.add(bits, b.add(odd, constant(bits.type, 0x7FFF)))
