"""The backward of the running log-sum-exp of f16 and bf16, whose y is too coarse to read.

The walk ahead saves reference and sum before each block of steps; the walk back takes the sums of a
block from there again:

    T[j] = dy[j] / s[j] + T[j+1],  dx[j] = e^x[j]·T[j]

T is relative to the references of the sums. A state is the reference of the sum before the block
that the walk back came from, and T.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numba import types

from pullback.cpu.blocks import both, each, running
from pullback.cpu.emit import inlined
from pullback.cpu.numerics import plus
from pullback.cpu.tiles import by_type, spread
from pullback.cpu.vector import (
    any_lane,
    as_float,
    as_int,
    is_nan,
    select,
    to_f32,
    to_f64,
    to_i32,
    to_i64,
)
from pullback.cpu.walks import Walks
from pullback.ops.scan.cpu_exponentials import (
    INFINITY,
    NAN,
    is_far,
    is_tiny,
    lowered,
    lowered_far,
    relative,
)
from pullback.ops.scan.cpu_logcumsumexp import (
    LOGCUMSUMEXP,
    STEP_FAR,
    STEP_NEAR,
    any_of,
    one_reference,
    states_of,
    stays,
    sums_are_near,
)
from pullback.ops.scan.cpu_logcumsumexp_backward import (
    LOGCUMSUMEXP_BACKWARD,
    adding,
    applied_by,
    apply_one,
    begins_near,
    combine_one,
    far_result,
    moved,
    near_result,
    nothing,
    pair_of,
)

Function = Callable[..., Any]


@inlined
def _both_saved(entering, inner, option):
    R, s = to_i64(as_int(entering[0])), to_i64(as_int(to_f32(entering[1])))
    return as_float((R << 32) | (s & 0xFFFFFFFF))


@inlined
def _sum_before(saved):
    bits = as_int(saved)
    return as_float(to_i32(bits >> 32)), to_f64(as_float(to_i32(bits)))


def _saving(way: tuple[Function, ...]) -> tuple[Function, ...]:
    return (*way[:-1], _both_saved)


@inlined
def _all_stay(state, columns):
    before = _sum_before(columns[2])
    R = spread(one_reference(state, before[0], INFINITY), before[0])
    if any_lane((before[0] != R) | is_far(R)) or any_of(is_tiny, R, columns[1]):
        return False
    return stays(before, columns[1:])


@inlined
def _all_are_near(state, columns):
    sums = _sum_before(columns[2])
    return begins_near(state) and sums_are_near(sums, (_turned(columns[1]),))


@inlined
def _over(g, s):
    return to_f64(g) * to_f64(1.0 / to_f32(s))


@inlined
def _term(g, own):
    """dy over the sum. Later +inf weigh nothing."""
    R, s = own
    return R, _over(g, select(to_f64(R) == INFINITY, select(is_nan(s), s, 1.0), s))


@inlined
def _value(_none, own):
    """What y is as far as infinities and NaN go."""
    return select(is_nan(to_f32(own[1])), NAN, own[0])


@by_type
def _turned(v):
    if len(v) == 1:
        return lambda v: v
    n = len(v) // 2
    return lambda v: _turned(v[n:]) + _turned(v[:n])


def _recomputing(sum_step: Function, lower: Function, result_of: Function) -> tuple[Function, ...]:
    """within, combine and apply."""
    combine = adding(lower)

    @inlined
    def within(columns):
        g, x, saved = columns
        before = _sum_before(saved)
        sums = _turned(states_of(sum_step, before, _turned(x))[0])
        shares, last = states_of(combine, nothing(sums[0][0]), both(_term, g, sums))
        y = (*each(_value, 0.0, sums), _value(0.0, before))
        about = both(pair_of, both(pair_of, shares, x), both(pair_of, y[:-1], y[1:]))
        return about, moved(lower, last, before[0])

    return within, combine, applied_by(lower, result_of)


@by_type
def _sums_from(s, e):
    """s and the first of these, and so on."""
    if len(e) == 1:
        return lambda s, e: (s + to_f64(e[0]),)
    n = len(e) // 2

    def halves(s, e):
        u = _sums_from(s, e[:n])
        return u + _sums_from(u[-1], e[n:])

    return halves


@inlined
def _weight(R, x):
    return relative(x, R)


@inlined
def _within_one(columns, state):
    g, x, saved = columns
    R, s = _sum_before(saved)
    e = each(_weight, R, x)
    sums = _turned(_sums_from(s, _turned(e)))
    shares = running(plus, both(_over, g, sums))
    return both(pair_of, shares, e), (R, shares[-1])


_SUMS = replace(
    LOGCUMSUMEXP.scan,
    inputs=(2,),
    outputs=(),
    saves=types.float64,
    apply=_both_saved,
    fast=_saving(LOGCUMSUMEXP.scan.fast),
    faster=_saving(LOGCUMSUMEXP.scan.faster),
)
_within, _combine, _apply = _recomputing(STEP_FAR, lowered_far, far_result)
_SCAN = replace(
    LOGCUMSUMEXP_BACKWARD.scan,
    neutral=(0.0, -INFINITY),
    inputs=(0, 2),
    ahead=(0, 0),
    recalls=types.float64,
    within=_within,
    combine=_combine,
    apply=_apply,
    fast=(_all_are_near, *_recomputing(STEP_NEAR, lowered, near_result)),
    faster=(_all_stay, _within_one, combine_one, apply_one),
)
LOGCUMSUMEXP_RECOMPUTED = Walks(_SCAN, "logcumsumexp_recomputed", __name__, ahead=_SUMS)
