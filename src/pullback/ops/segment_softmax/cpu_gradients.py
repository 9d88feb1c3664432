"""Gradients of segment_softmax and segment_log_softmax in Numba.

    softmax        dx = y·(dy - Σ y·dy)
    log_softmax    dx = dy - e^y·Σ dy

A segment without mass (y all 0, or all -inf) has no gradient, whatever dy; NaN in y makes it NaN.
Beside the sum goes a flag: 0 without mass, 1 with, 2 where NaN has been met.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

import math
from collections.abc import Callable

from pullback.cpu.elementary import exp
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import Kernel
from pullback.cpu.memory import filled_wide
from pullback.cpu.vector import is_nan, like, maximum, select, splat
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_engine import first_slot, get_part, put_parts, spread
from pullback.ops.segment.cpu_list import fetch_listed, list_rows
from pullback.ops.segment.cpu_panel import over_saved_panels, write_row
from pullback.ops.segment.cpu_strip import as_wide, in_saved, in_source, load, load_wide
from pullback.ops.segment.cpu_sum import (
    finite_rest,
    none_of_blocks,
    nothing,
    plus,
    plus_block,
    summed,
)

INFINITY, NAN = math.inf, math.nan
PARTS = 3  # of a block: the sum, its correction and the flag


@inlined
def _pair(state, j, cols):
    """dy and y of a row."""
    listed, source, saved, rows = state[3], state[4], state[5], state[7]
    return load_wide(source, rows[j], in_source(cols)), load(saved, listed[j], in_saved(cols))


@inlined
def _product(p, dy, y):
    """The term of a row, and what it says of the mass."""
    wide = as_wide(p, y)
    return wide * dy, select(wide == 0, like(dy, 0.0), like(dy, 1.0))


@inlined
def _plain(p, dy, y):
    wide = as_wide(p, y)
    flag = select(wide == -INFINITY, like(dy, 0.0), like(dy, 1.0))
    return dy, select(is_nan(wide), like(dy, 2.0), flag)


@inlined
def _by_share(p, dy, y, sum, flag):
    return select(flag > 0, as_wide(p, y) * (dy - sum), 0.0)


@inlined
def _by_log(p, dy, y, sum, flag):
    dx = select(flag > 0, dy - as_wide(p, exp(y)) * sum, 0.0)
    return select(flag > 1, NAN, dx)


@inlined
def _join(task, p, block, cols):
    _, slot, blocks, _ = block
    (total, rest), flag = none_of_blocks(cols[4]), splat(0.0, cols[4])
    for k in range(slot, slot + blocks):
        total, rest = plus_block(task, p, PARTS * k, cols, total, rest)
        flag = maximum(get_part(task, PARTS * k + 2, cols), flag)
    put_parts(task, PARTS * slot, cols, (summed(p, total, rest), rest, flag))


@inlined
def _again(task, state, block, cols):
    part, saved = PARTS * first_slot(block), state[5]
    sum, flag = get_part(task, part, cols), get_part(task, part + 2, cols)
    return as_wide(saved, sum), as_wide(saved, flag)


@inlined
def _over_both(task, columns, wide, strip, state, block):
    """All strips of a block, with the rows of dy listed too."""
    if block[2] < block[3]:
        list_rows(task, at.SEGMENT_ROW, block, state[7])
    over_saved_panels(task, columns, wide, strip, state, block)


def _kernels(
    name: str, term: Callable[..., object], gradient: Callable[..., object]
) -> tuple[Kernel, Kernel, Kernel]:
    @inlined
    def total(task, state, block, cols):
        saved = state[5]
        total, rest = nothing(saved, cols[4])
        flag = filled_wide(saved, 0.0, cols[4])
        for j in range(block[3] - block[2]):
            fetch_listed(state[4], state[7], j, in_source(cols))
            fetch_listed(saved, state[3], j, in_saved(cols))
            dy, y = _pair(state, j, cols)
            v, mark = term(saved, dy, y)
            total, rest = plus(saved, total, rest, v)
            flag = maximum(mark, flag)
        return total, rest, flag

    @inlined
    def write(task, state, block, cols, whole):
        sum, flag = whole
        for j in range(block[3] - block[2]):
            dy, y = _pair(state, j, cols)
            write_row(state[2], j, cols, gradient(state[5], dy, y, sum, flag))

    return spread(
        __name__,
        (f"{name}_gradients", f"combine_{name}_gradients", f"{name}_gradients_long"),
        total=total,
        whole=inlined(lambda p, found: (summed(p, found[0], found[1]), found[2])),
        write=write,
        parts=inlined(lambda p, found: (found[0], finite_rest(found[1]), found[2])),
        join=_join,
        again=_again,
        many=PARTS,
        over=_over_both,
        over_long=_over_both,
    )


SOFTMAX = _kernels("softmax", _product, _by_share)
LOG_SOFTMAX = _kernels("log_softmax", _plain, _by_log)
