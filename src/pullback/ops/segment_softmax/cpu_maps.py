"""segment_softmax and segment_log_softmax in Numba: every row divided by the sum of its segment.

A block of rows leaves its maximum m and the sum of e^(x - m), in the wide type. Blocks of long
segments leave them as partial results, which are brought to the common maximum in order. Where x
and m are the same infinity, their difference counts as 0: entries at +inf share the mass equally.
NaN makes the sum NaN, and all that follows from it.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

import math
from functools import partial

from numba import types

from pullback.cpu.elementary import exp, log
from pullback.cpu.emit import inlined
from pullback.cpu.memory import as_f64_pointer, filled, get, put
from pullback.cpu.tiles import by_type
from pullback.cpu.vector import absolute, fma, like, maximum, select, splat
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_engine import first_slot, get_part, put_parts, spread
from pullback.ops.segment.cpu_list import fetch_listed
from pullback.ops.segment.cpu_panel import write_row
from pullback.ops.segment.cpu_strip import as_compute, as_wide, in_saved, load
from pullback.ops.segment.cpu_sum import finite_rest, none_of_blocks, nothing, plus, summed

INFINITY = math.inf
PARTS = 3  # of a block: the maximum, the sum and its correction


@by_type
def power(p, x, m):
    """e^(x - m) for x <= m. Rounding x - m would cost digits of the result, so what it loses is
    made up for; f16 and bf16 have none to lose."""

    def rounded(p, x, m):
        return exp(select(x == m, like(x, 0.0), x - m))

    def exact(p, x, m):
        d = x - m
        back = d - x
        lost = (x - (d - back)) - (m + back)
        e = exp(select(x == m, like(x, 0.0), d))
        return select(absolute(lost) < 1.0, fma(e, lost, e), e)  # of infinities NaN is lost

    return exact if p.dtype in (types.float32, types.float64) else rounded


@inlined
def keep_powers(p, places, rows, kept, m, view):
    """e^(x - m) of all rows of a block, kept; their sum and its correction."""
    total, rest = nothing(p, view[3])
    for j in range(rows):
        e = power(p, load(p, places[j], view), m)
        put(kept, j * view[3], 1, e, False)
        total, rest = plus(p, total, rest, as_wide(p, e))
    return total, rest


@inlined
def kept_power(kept, j, n):
    return get(kept, j * n, 1, n)


@inlined
def powers(p, places, rows, kept, view):
    """The maximum of each column, NaN left out; the sum of the powers, and its correction."""
    m = filled(p, -INFINITY, view[3])
    for j in range(rows):
        fetch_listed(p, places, j, view)
        m = maximum(load(p, places[j], view), m)
    return m, *keep_powers(p, places, rows, kept, m, view)


@inlined
def whole_powers(p, found):
    return found[0], summed(p, found[1], found[2])


@inlined
def power_parts(p, found):
    return found[0], found[1], finite_rest(found[2])


@inlined
def joined(task, p, block, cols):
    """The maximum and the sum of a long segment, from those of its blocks."""
    _, slot, blocks, _ = block
    m, (total, rest) = splat(-INFINITY, cols[4]), none_of_blocks(cols[4])
    for k in range(slot, slot + blocks):
        m = maximum(get_part(task, PARTS * k, cols), m)
    for k in range(slot, slot + blocks):
        scale = power(as_f64_pointer(0), get_part(task, PARTS * k, cols), m)
        total, rest = plus(p, total, rest, get_part(task, PARTS * k + 1, cols) * scale)
        total, rest = plus(p, total, rest, get_part(task, PARTS * k + 2, cols) * scale)
    return m, summed(p, total, rest)


@inlined
def join_powers(task, p, block, cols):
    """They replace those of the first block."""
    put_parts(task, PARTS * block[1], cols, joined(task, p, block, cols))


@inlined
def _again(task, state, block, cols):
    p, part = state[5], PARTS * first_slot(block)
    m, sum = get_part(task, part, cols), get_part(task, part + 1, cols)
    return as_compute(p, m), as_wide(p, sum)


@inlined
def inverse(m, sum):
    """1 / sum; 0 where all is -inf, which has no mass."""
    return select((m == -INFINITY) & (sum == sum), 0.0, 1.0 / sum)


@inlined
def log_sum(m, sum):
    """log sum; +inf where all is -inf, so that log-probabilities are -inf."""
    return select((m == -INFINITY) & (sum == sum), INFINITY, log(sum))


# --- maps -----------------------------------------------------------------------------------------


@inlined
def _total(task, state, block, cols):
    places, p, kept = state[3], state[5], state[6]
    return powers(p, places, block[3] - block[2], kept, in_saved(cols))


@inlined
def _write_shares(task, state, block, cols, whole):
    """e^(x - m) / sum of each row; the powers are kept."""
    share = inverse(*whole)
    for j in range(block[3] - block[2]):
        e = as_wide(state[5], kept_power(state[6], j, cols[4]))
        write_row(state[2], j, cols, e * share)


@inlined
def _write_logs(task, state, block, cols, whole):
    """x - m - log sum of each row."""
    p, (m, _), off = state[5], whole, log_sum(*whole)
    for j in range(block[3] - block[2]):
        x = load(p, state[3][j], in_saved(cols))
        wide = as_wide(p, x)
        wide = select(x == m, like(wide, 0.0), wide - as_wide(p, m))
        write_row(state[2], j, cols, wide - off)


@inlined
def kept_again(task, state, block, cols):
    """The same, and the powers of the block."""
    m, sum = _again(task, state, block, cols)
    keep_powers(state[5], state[3], block[3] - block[2], state[6], m, in_saved(cols))
    return m, sum


over_powers = partial(
    spread, whole=whole_powers, parts=power_parts, join=join_powers, many=PARTS, total=_total
)
SOFTMAX = over_powers(
    __name__,
    ("softmax_segments", "combine_powers", "softmax_long"),
    write=_write_shares,
    again=kept_again,
    saved=at.SOURCE,
)
LOG_SOFTMAX = over_powers(
    __name__,
    ("log_softmax_segments", "combine_log_powers", "log_softmax_long"),
    write=_write_logs,
    again=_again,
    saved=at.SOURCE,
)
