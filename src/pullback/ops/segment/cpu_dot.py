"""Products of two rows: what a weight receives.

They are summed in the wide type. Those of bf16, whose wide type has no wider range, and of f64,
which has none, may overflow on the way to a sum that fits, or to both infinities: where the sum is
not finite it is formed again, that of bf16 in f64, that of f64 from smaller factors.
"""

from __future__ import annotations

from numba import types

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import Kernel, index_pointer, pointer, word
from pullback.cpu.memory import filled_wide, write
from pullback.cpu.named import named
from pullback.cpu.tiles import by_type
from pullback.cpu.vector import any_lane, lane, reduce_add, select, splat, to_f64
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_index import single_step
from pullback.ops.segment.cpu_list import row_of
from pullback.ops.segment.cpu_strip import MANY_LOOPS, as_wide, load_wide
from pullback.ops.segment.cpu_sum import is_endless, nothing, plus, summed
from pullback.ops.segment.cpu_walk import columns_of
from pullback.ops.segment.cpu_words import ints, position_offset

SMALLER = 2.0**-544  # two factors times this, and 2^127 products fit


@inlined
def row_product(source, i, along, rows, k, step, columns, n):
    """The sum of source[i + c*along] * rows[k + c*step] over the columns, n at a time, as one lane
    of the wide type."""
    total, rest = nothing(source, n)
    for c in range(0, columns, n):
        count = min(columns - c, n)
        u = load_wide(source, i + c * along, (0, along, count, n))
        v = load_wide(rows, k + c * step, (0, step, count, n))
        total, rest = plus(source, total, rest, u * v)
    value = splat(reduce_add(summed(source, total, rest)), 1)
    return product_again(source, i, along, rows, k, step, columns, n, value)


@inlined
def small_product(u, v):
    """u * v times SMALLER squared. Factors that are infinite or NaN stay so, and must not meet a
    zero that only the scaling has made."""
    whole, small = u * v, (u * SMALLER) * (v * SMALLER)
    return select(is_endless(whole) & ~is_endless(small), small, whole * SMALLER * SMALLER)


@by_type
def product_again(source, i, along, rows, k, step, columns, n, value):
    """The sum in a wider range where `value` is not finite."""
    if source.dtype not in (types.uint16, types.float64):
        return lambda source, i, along, rows, k, step, columns, n, value: value

    def in_f64(source, i, along, rows, k, step, columns, n, value):
        if not any_lane(is_endless(value)):
            return value
        total = splat(-0.0, n)
        for c in range(0, columns, n):
            count = min(columns - c, n)
            u = load_wide(source, i + c * along, (0, along, count, n))
            v = load_wide(rows, k + c * step, (0, step, count, n))
            total += to_f64(u) * to_f64(v)
        return as_wide(source, splat(reduce_add(total), 1))

    def scaled_down(source, i, along, rows, k, step, columns, n, value):
        if not any_lane(is_endless(value)):
            return value
        total, rest = nothing(source, n)
        for c in range(0, columns, n):
            count = min(columns - c, n)
            u = load_wide(source, i + c * along, (0, along, count, n))
            v = load_wide(rows, k + c * step, (0, step, count, n))
            total, rest = plus(source, total, rest, small_product(u, v))
        whole = splat(reduce_add(summed(source, total, rest)), 1)
        return whole * (1.0 / SMALLER) * (1.0 / SMALLER)

    return scaled_down if source.dtype == types.float64 else in_f64


def weight_gradients(module: str, *, slots: tuple[int, int], lanes: int) -> Kernel:
    """Each position with a row and a bag gets the product of the row with the gradient of the bag.
    Items are positions; `slots` are those of the table and of the result."""
    table, result = slots

    def gradients(task, lo, hi):
        source, rows, target = pointer(task, at.SOURCE), pointer(task, table), pointer(task, result)
        ids, bag_of = index_pointer(task, at.IDS), ints(task, at.BAG_OF_AT)
        stride, table_row = word(task, at.POSITION_ROW), word(task, at.TABLE_ROW)
        step, target_step = word(task, at.TABLE_STEP), word(task, at.D_WEIGHTS_STEP)
        along, count, ids_step = columns_of(task)[3][0], word(task, at.COLUMNS), single_step(task)
        for n in range(lo, hi):
            value, row = filled_wide(target, 0.0, 1), row_of(task, ids, n, ids_step)
            where = n * target_step if target_step != MANY_LOOPS else position_offset(task, 2, n)
            if row >= 0 and bag_of[n] >= 0:
                i, k = bag_of[n] * stride, row * table_row
                value = row_product(source, i, along, rows, k, step, count, lanes)
            write(target, where, lane(value, 0))

    return named(gradients, "weight_gradients", module)
