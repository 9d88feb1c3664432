"""The gradient of running extrema: dx[k] = Σ dy[j] over the j whose extremum is x[k].

An element is a record if it takes over the extremum. A walk ahead saves which steps are, a bit for
each; the walk back sums dy up to the next record. The first step of a line is a record whatever it
holds. Equal terms are rounded the same way at every step, so that a plain sum of thousands drifts:
sums are of chunks, and in f64 with what was rounded off.
"""

from numba import types

from pullback.cpu.blocks import both, each, running
from pullback.cpu.emit import inlined
from pullback.cpu.memory import STORAGE, filled, filled_wide
from pullback.cpu.numerics import INFINITY, finite_or_zero, one_nan_each, two_sum
from pullback.cpu.saved import bits_of, no_bits
from pullback.cpu.scan import Scan
from pullback.cpu.tiles import by_type, spread
from pullback.cpu.vector import (
    all_lanes,
    as_int,
    is_nan,
    like,
    maximum,
    reduce_max,
    select,
    splat,
    to_u8,
)
from pullback.cpu.walks import Walks
from pullback.ops.scan.cpu_cummax import all_numbers, holds_of, wins_of

# --- ahead: the records ---------------------------------------------------------------------------

_first_wins, _last_wins = wins_of(False), wins_of(True)
_first_holds, _last_holds = holds_of(False), holds_of(True)


@inlined
def _first_of(a, b):
    return a


@inlined
def _larger(a, b):
    return maximum(b, a)


@inlined
def _larger_or_nan(a, b):
    return select(_first_wins(b, a), b, a)


@inlined
def _first_ahead(b, a):
    return b > a


@inlined
def _last_ahead(b, a):
    return b >= a


@by_type
def _bits(masks):
    """Those of four steps twice: of all records, all bits."""
    if len(masks) == 8:
        return lambda masks: bits_of(masks)

    def twice(masks):
        bits = bits_of(masks)
        return bits | (bits << 4)

    return twice


# If every step of a tile is a record, it takes over from the one before it.


@by_type
def _all_ahead(ahead, v, before):
    if len(v) == 4:
        return lambda ahead, v, before: all_lanes(
            (ahead(v[0], before[0]) & ahead(v[1], before[1]))
            & (ahead(v[2], before[2]) & ahead(v[3], before[3]))
        )
    return lambda ahead, v, before: (
        _all_ahead(ahead, v[:4], before[:4]) and _all_ahead(ahead, v[4:], before[4:])
    )


@inlined
def _rises(state, columns, before, last_too):
    best = spread(state[0], columns[0][0])
    before = each(_larger, best, before[0])
    if last_too:
        return _all_ahead(_last_ahead, columns[0], before)
    return _all_ahead(_first_ahead, columns[0], before)


@inlined
def _highest(columns):
    return (splat(reduce_max(running(_larger, columns[0])[-1]), 1),)


def _records_by(larger, first, last):
    """within, combine and apply. Which of equal elements stays is no matter here."""

    @inlined
    def within(columns):
        v = running(larger, columns[0])
        return (columns[0], v), (v[-1],)

    @inlined
    def combine(state, total):
        return (larger(state[0], total[0]),)

    @inlined
    def apply(entering, inner, last_too):
        v, upto = inner
        before = (entering[0], *each(larger, entering[0], upto)[:-1])
        if last_too:
            return _bits(both(last, v, before))
        return _bits(both(first, v, before))

    return within, combine, apply


@inlined
def _holds(state, columns, last_too):
    return _last_holds(state, columns) if last_too else _first_holds(state, columns)


@by_type
def _cut(v, numbers, k):
    """Nothing from step k on."""
    if len(v) == 4:
        return lambda v, numbers, k: (
            select(numbers < k, v[0], -INFINITY),
            select(numbers < k - 1, v[1], -INFINITY),
            select(numbers < k - 2, v[2], -INFINITY),
            select(numbers < k - 3, v[3], -INFINITY),
        )
    return lambda v, numbers, k: _cut(v[:4], numbers, k) + _cut(v[4:], numbers, k - 4)


@inlined
def _edged_ahead(columns, numbers, about):
    """The block that begins the walk may be short, and what stands for its other steps is negated
    with them."""
    (v,) = columns
    short = about[0] % len(v)
    return (_cut(v, numbers, short if short > 0 else about[0]),)


_within, _combine, _apply = _records_by(_larger_or_nan, _first_wins, _last_wins)

_RECORDS = Scan(
    neutral=(-INFINITY,),
    work=inlined(lambda p, n: filled(p, 0.0, n)),
    start=inlined(lambda p, n: (filled(p, -INFINITY, n),)),
    within=_within,
    combine=_combine,
    apply=_apply,
    fast=(all_numbers, *_records_by(_larger, _first_ahead, _last_ahead)),
    rising=(
        _rises,
        inlined(lambda state, columns: like(to_u8(is_nan(columns[0][0])), 255)),
        _highest,
    ),
    held=(_holds, inlined(lambda state, columns: like(to_u8(is_nan(columns[0][0])), 0))),
    carried=inlined(lambda state: state),
    rebased=inlined(lambda state, base: (_larger_or_nan(base[0], state[0]),)),
    flips=True,
    edged=_edged_ahead,
    inputs=(2,),
    outputs=(),
    saves=types.uint8,
)


# --- back: the sums -------------------------------------------------------------------------------

# A state is the sum of the chunk since its last record, the sum of the chunks before, and in f64
# what was rounded off the first. After a record there is none of before: SETTLED says so, which is
# not the identity that a chunk begins with.
SETTLED = 0.0


@by_type
def _start(p, n):
    if STORAGE[p.dtype].compute == types.float64:
        return lambda p, n: (splat(-0.0, n), splat(-0.0, n), splat(0.0, n))
    return lambda p, n: (filled_wide(p, -0.0, n), filled_wide(p, -0.0, n))


@inlined
def _has(records, bits):
    return (records & bits) != 0


# Of each step, whether it is a record; whether one before it in the block is.


@by_type
def _is_record(g, r):
    if len(g) == 4:
        return lambda g, r: (_has(r, 8), _has(r, 4), _has(r, 2), _has(r, 1))
    return lambda g, r: _is_record(g[:4], r >> 4) + _is_record(g[4:], r)


@by_type
def _is_behind(g, r):
    if len(g) == 4:
        return lambda g, r: (_has(r, 0), _has(r, 8), _has(r, 12), _has(r, 14))
    return lambda g, r: (
        _has(r, 0), _has(r, 128), _has(r, 192), _has(r, 224),
        _has(r, 240), _has(r, 248), _has(r, 252), _has(r, 254),
    )  # fmt: skip


@inlined
def _next_sum(before, step):
    """Of a step (dy, whether it is a record), given that of the step before."""
    return step[0] + select(before[1], -0.0, before[0]), step[1]


@by_type
def _paired(u, v):
    if len(u) == 4:
        return lambda u, v: ((u[0], v[0]), (u[1], v[1]), (u[2], v[2]), (u[3], v[3]))
    return lambda u, v: _paired(u[:4], v[:4]) + _paired(u[4:], v[4:])


@inlined
def _within_back(columns):
    g, r = columns
    sums, behind = running(_next_sum, _paired(g, _is_record(g, r))), _is_behind(g, r)
    total, closed = sums[-1]
    some = select(_has(r, 2 ** len(g) - 1), like(g[0], 1.0), 0.0)
    return (sums, behind), (select(closed, -0.0, total), some)


@by_type
def _combine_back(state, total):
    if len(state) == 2:

        def plain(state, total):
            new = total[1] > 0.0
            sum_ = select(new, -0.0, state[0]) + total[0]
            return sum_, select(new, SETTLED, state[1])

        return plain

    def compensated(state, total):
        new = total[1] > 0.0
        s, lost = two_sum(select(new, -0.0, state[0]), total[0])
        lost = select(new, 0.0, state[2]) + finite_or_zero(lost)
        return s, select(new, SETTLED, state[1]), lost

    return compensated


@inlined
def _is_settled(state):
    return as_int(state[1]) == 0


@by_type
def _value(state):
    if len(state) == 2:
        return lambda state: select(_is_settled(state), state[0], state[1] + state[0])

    def corrected(state):
        plain = select(_is_settled(state), state[0], state[1] + state[0])
        return select(state[2] == 0, plain, plain + state[2])

    return corrected


@inlined
def _given(entering, step):
    """The gradient of a step ((its sum, whether it is a record), whether one is before it)."""
    (sum_, record), behind = step
    return select(record, sum_ + select(behind, -0.0, entering), 0.0)


@inlined
def _apply_back(entering, inner):
    return (each(_given, _value(entering), _paired(*inner)),)


# Of tiles without a record.


@by_type
def _total(g):
    if len(g) == 4:
        return lambda g: ((g[0] + g[1]) + g[2]) + g[3]
    return lambda g: (((_total(g[:4]) + g[4]) + g[5]) + g[6]) + g[7]


@by_type
def _increased(state, total):
    if len(state) == 2:
        return lambda state, total: (state[0] + total[0], state[1])

    def compensated(state, total):
        s, lost = two_sum(state[0], total[0])
        return s, state[1], state[2] + finite_or_zero(lost)

    return compensated


@inlined
def _within_none(columns):
    g = columns[0]
    return each(_first_of, like(g[0], 0.0), g), (_total(g),)


# Of tiles of nothing but records.


@by_type
def _settled(state, total):
    if len(state) == 2:
        return lambda state, total: total
    return lambda state, total: (total[0], total[1], total[1])


@inlined
def _within_all(columns):
    g = columns[0]
    return g, (like(g[0], -0.0), like(g[0], SETTLED))


@inlined
def _apply_all(entering, g):
    return (one_nan_each((g[0] + _value(entering), *g[1:])),)


@inlined
def _edged(columns, numbers, about):
    """The block that ends the walk may be short: its bits are those of its first steps in the walk
    ahead. The last of its steps is a record."""
    g, r = columns
    B = len(g)
    left = about[3] - numbers
    ends = (left > 0) & (left <= B)
    missing = to_u8(select(ends, B - left, 0))
    return g, (r << missing) | (to_u8(ends) << missing)


@inlined
def _carried(state):
    return (_value(state),)


@inlined
def _rebased(state, base):
    return (state[0], select(_is_settled(state), state[1], base[0]), *state[2:])


_SCAN = Scan(
    neutral=(-0.0,),
    work=inlined(lambda p, n: filled_wide(p, 0.0, n)),
    start=_start,
    within=_within_back,
    combine=_combine_back,
    apply=_apply_back,
    repair=inlined(lambda outputs: (one_nan_each(outputs[0]),)),
    fast=(
        inlined(lambda state, columns: no_bits(~columns[1])),
        _within_all,
        _settled,
        _apply_all,
    ),
    faster=(
        inlined(lambda state, columns: no_bits(columns[1])),
        _within_none,
        _increased,
        inlined(lambda entering, inner: (inner,)),
    ),
    carried=_carried,
    rebased=_rebased,
    edged=_edged,
    recalls=types.uint8,
)
EXTREMUM_BACKWARD = Walks(_SCAN, "extremum_backward", __name__, ahead=_RECORDS)
