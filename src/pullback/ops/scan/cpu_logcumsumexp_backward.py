"""The backward of the running log-sum-exp, walked from the far end:

    T[j] = dy[j]·e^-y[j] + T[j+1],  dx[j] = e^x[j]·T[j]

T is f64, over the reference of a y (cpu_exponentials). In the shortest way that stays where it is,
with all y near it; in the next each step has its own, with the same bits; the last knows bases as
well, those of infinities among them.

f64 has no wider type: T is lifted by a power of two, so that the smallest gradients keep all their
digits, large ones have a sum of their own, and both carry what was rounded off from block to block.
"""

from collections.abc import Callable
from typing import Any

from numba import types

from pullback.cpu.blocks import both, each, running
from pullback.cpu.elementary import per_type
from pullback.cpu.emit import inlined
from pullback.cpu.memory import STORAGE, filled
from pullback.cpu.numerics import any_nan, one_nan_each, two_sum
from pullback.cpu.numerics import plus as added
from pullback.cpu.scan import Scan
from pullback.cpu.tiles import by_type, spread
from pullback.cpu.vector import (
    absolute,
    any_lane,
    is_nan,
    like,
    not_le,
    select,
    splat,
    to_f32,
    to_f64,
)
from pullback.cpu.walks import Walks
from pullback.ops.scan.cpu_exponentials import (
    INFINITY,
    LIFT,
    by_the_limit,
    is_far,
    is_tiny,
    lowered,
    lowered_far,
    near_reference,
    reference,
    relative,
    relative_far,
    steps_of,
    weighted,
    weighted_far,
)
from pullback.ops.scan.cpu_logcumsumexp import (
    any_of,
    not_near,
    one_reference,
    states_of,
    work,
)

Function = Callable[..., Any]

# How many references a y may be from that of its block.
_room = per_type(1.8, 6.0)
# Gradients of f64 that have a sum of their own, both are lifted by LIFT.
LARGE, SMALL = 2.0**400, 2.0**100


@by_type
def _start(p, n):
    """Nothing: whatever the reference, it stays that."""
    if STORAGE[p.dtype].compute == types.float64:
        return lambda p, n: (
            splat(INFINITY, n), splat(0.0, n), splat(0.0, n), splat(0.0, n), splat(0.0, n),
        )  # fmt: skip
    return lambda p, n: (filled(p, INFINITY, n), splat(0.0, n))


# --- sums -----------------------------------------------------------------------------------------
# A sum is a reference and T; of f64, T of the lifted gradients and that of the large ones. A state
# of f64 has what was rounded off each of these as well.


@by_type
def nothing(R):
    if R.dtype == types.float32:
        return lambda R: (R, to_f64(like(R, 0.0)))
    return lambda R: (R, like(R, 0.0), like(R, 0.0))


@by_type
def _terms(R, g, e):
    if e.dtype == types.float32:
        return lambda R, g, e: (R, to_f64(g) * to_f64(e))

    def lifted(R, g, e):
        large = _is_large(0.0, g)
        small = (select(large, 0.0, g) * 2.0**LIFT) * e
        return R, small, (select(large, g, 0.0) * 2.0**-LIFT) * e

    return lifted


@inlined
def _with_loss(s, lost, t):
    """s + t and what was rounded off so far; nothing is lost of an infinite sum."""
    s, more = two_sum(s, t)
    return s, lost + select(is_nan(more), 0.0, more)


@by_type
def plus(s, t):
    """Both of one reference; s may be a state."""
    if len(s) == 2:
        return lambda s, t: (s[0], s[1] + t[1])
    if len(s) == 3:
        return lambda s, t: (s[0], s[1] + t[1], s[2] + t[2])

    def with_losses(s, t):
        small, small_lost = _with_loss(s[1], s[3], t[1])
        large, large_lost = _with_loss(s[2], s[4], t[2])
        return s[0], small, large, small_lost, large_lost

    return with_losses


@by_type
def _total(state, t):
    """The sum of both, of one reference."""
    if len(state) == 2:
        return lambda state, t: plus(state, t)
    return lambda state, t: (
        state[0], state[1] + (t[1] + state[3]), state[2] + (t[2] + state[4]),
    )  # fmt: skip


@by_type
def moved(lower, s, R):
    if len(s) == 2:
        return lambda lower, s, R: (R, lower(s[1], s[0], R, 0.0))

    if len(s) == 3:

        def small_and_large(lower, s, R):
            """Large ones that become small count among these, which have room for them."""
            large = lower(s[2], s[0], R, 0.0)
            becomes = absolute(large) < SMALL
            small = lower(s[1], s[0], R, 0.0) + select(becomes, lower(s[2], s[0], R, 2 * LIFT), 0.0)
            return R, small, select(becomes, 0.0, large)

        return small_and_large

    def with_losses(lower, s, R):
        """The loss of a large sum may be larger than what is left of it."""
        large, lost = lower(s[2], s[0], R, 0.0), lower(s[4], s[0], R, 0.0)
        becomes = (absolute(large) < SMALL) & (absolute(lost) < SMALL)
        more = select(becomes, lower(s[2], s[0], R, 2 * LIFT), 0.0)
        small, small_lost = _with_loss(lower(s[1], s[0], R, 0.0), lower(s[3], s[0], R, 0.0), more)
        more_lost = select(becomes, lower(s[4], s[0], R, 2 * LIFT), 0.0)
        left = select(becomes, 0.0, large), select(becomes, 0.0, lost)
        return R, small, left[0], small_lost + more_lost, left[1]

    return with_losses


@by_type
def _result(weighted_, s, x):
    if len(s) == 2:
        return lambda weighted_, s, x: weighted_(s[1], x, s[0], like(x, 0.0))

    def of_both(weighted_, s, x):
        none = s[2] == 0
        v = select(none, s[1], s[2] + s[1] * 2.0 ** (-2 * LIFT))
        return weighted_(v, x, s[0], select(none, like(x, -LIFT), LIFT))

    return of_both


# --- the reference stays --------------------------------------------------------------------------


@by_type
def _none_large(state, g):
    """Nor a loss without a sum, which has a reference although the sum has none."""
    if len(state) == 2:
        return lambda state, g: True

    def none(state, g):
        odd = (state[2] != 0) | (state[4] != 0) | ((state[1] == 0) & (state[3] != 0))
        return not (any_lane(odd) or any_of(_is_large, 0.0, g))

    return none


@inlined
def _is_large(_none, g):
    return not_le(absolute(g), LARGE)


@inlined
def _is_beyond(R, y):
    return not_le(absolute(y * steps_of(y) - R), _room(y))


@inlined
def _stays(state, columns):
    g, x, y, _ = columns
    own = one_reference(state, reference(y[0]), INFINITY)
    R = spread(own, x[0])
    beyond = any_of(_is_beyond, R, y) or any_of(is_tiny, R, x)
    return not (any_lane(by_the_limit(own)) or beyond) and _none_large(state, g)


@by_type
def _small_term(R, v):
    if R.dtype == types.float32:
        return lambda R, v: to_f64(v[0]) * to_f64(relative(-v[1], -R))
    return lambda R, v: (v[0] * 2.0**LIFT) * relative(-v[1], -R)


@inlined
def pair_of(u, v):
    return u, v


@inlined
def _within_one(columns, state):
    g, x, y, _ = columns
    R = spread(one_reference(state, reference(y[0]), INFINITY), x[0])
    sums = running(added, each(_small_term, R, both(pair_of, g, y)))
    return both(pair_of, sums, each(_weight, R, x)), (R, sums[-1])


@inlined
def _weight(R, x):
    return relative(x, R)


@by_type
def combine_one(state, total):
    if len(state) == 2:
        return lambda state, total: (total[0], state[1] + total[1])

    def with_losses(state, total):
        small, lost = _with_loss(state[1], state[3], total[1])
        return total[0], small, state[2], lost, state[4]

    return with_losses


@by_type
def _result_one(state, v):
    if v[1].dtype == types.float32:
        return lambda state, v: to_f32(to_f64(v[1]) * (state[1] + v[0]))
    return lambda state, v: (v[1] * (state[1] + (v[0] + state[3]))) * 2.0**-LIFT


@inlined
def apply_one(entering, inner):
    return (each(_result_one, entering, inner),)


# --- it moves -------------------------------------------------------------------------------------


def adding(lower: Function) -> Function:
    """(sum, term) -> the sum over the reference of the term; of blocks, too."""
    return inlined(lambda s, term: plus(moved(lower, s, term[0]), term))


def applied_by(lower: Function, result_of: Function) -> Function:
    """Of each step its sum, x, y, and the y after it."""

    @inlined
    def result(entering, v):
        (own, x), (y, after) = v
        return result_of(_total(moved(lower, entering, own[0]), own), x, y, after)

    return inlined(lambda entering, inner: (each(result, entering, inner),))


def _moving(
    reference_of: Function, relative_of: Function, lower: Function, result_of: Function
) -> tuple[Function, ...]:
    """within, combine and apply."""
    combine = adding(lower)

    @inlined
    def term(g, y):
        R = reference_of(y)
        return _terms(R, g, relative_of(-y, -R))

    @inlined
    def within(columns):
        g, x, y, after = columns
        sums, last = states_of(combine, nothing(reference_of(y[0])), both(term, g, y))
        return both(pair_of, both(pair_of, sums, x), both(pair_of, y, after)), last

    return within, combine, applied_by(lower, result_of)


@inlined
def near_result(s, x, y, after):
    return _result(weighted, s, x)


@inlined
def far_result(s, x, y, after):
    """The first +inf has the weight of all later results, a prefix of -inf has none."""
    v = select(y == INFINITY, select(after == INFINITY, like(x, -INFINITY), INFINITY), x)
    return select(y == -INFINITY, 0.0, _result(weighted_far, s, v))


@by_type
def _anything(state):
    if len(state) == 2:
        return lambda state: state[1] != 0
    return lambda state: ((state[1] != 0) | (state[2] != 0)) | ((state[3] != 0) | (state[4] != 0))


@inlined
def begins_near(state):
    return not any_lane(is_far(state[0]) & _anything(state))


@inlined
def _all_near(state, columns):
    return begins_near(state) and not any_of(not_near, 0.0, columns[2])


_within, _combine, _apply = _moving(reference, relative_far, lowered_far, far_result)
_SCAN = Scan(
    neutral=(0.0, -INFINITY, 0.0, 0.0),
    work=work,
    start=_start,
    within=_within,
    combine=_combine,
    apply=_apply,
    rare=inlined(lambda state, outputs: any_nan(outputs[0])),
    repair=inlined(lambda outputs: (one_nan_each(outputs[0]),)),
    fast=(_all_near, *_moving(near_reference, relative, lowered, near_result)),
    faster=(_stays, _within_one, combine_one, apply_one),
    relative=True,
    busy={2: 16, 4: 16, 8: 16},
    inputs=(0, 2, 3, 3),
    ahead=(0, 0, 0, 1),
)
LOGCUMSUMEXP_BACKWARD = Walks(_SCAN, "logcumsumexp_backward", __name__)
