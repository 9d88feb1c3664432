"""Running log-sum-exp: y[j] = log(e^x[0] + … + e^x[j]).

The state is a reference (cpu_exponentials) and the sum in f64 relative to it, in f64 with what was
rounded off. The shortest way leaves the reference where it is: no x is far above it. The next has
one for each step and moves sums by powers of two, so that the bits are the same; the last knows
bases as well, which are what tells numbers far from zero, infinities and NaN apart.
"""

from collections.abc import Callable
from typing import Any

from numba import types

from pullback.cpu.blocks import each, running
from pullback.cpu.elementary import per_type
from pullback.cpu.emit import inlined
from pullback.cpu.memory import STORAGE, filled
from pullback.cpu.numerics import one_nan_each, plus, two_sum
from pullback.cpu.scan import Scan
from pullback.cpu.tiles import by_type, spread
from pullback.cpu.vector import (
    any_lane,
    is_nan,
    lane,
    like,
    maximum,
    not_le,
    select,
    splat,
    to_f64,
)
from pullback.cpu.walks import Walks
from pullback.ops.scan.cpu_exponentials import (
    INFINITY,
    NAN,
    STEP,
    by_the_limit,
    factor,
    factor_far,
    is_far,
    is_near,
    ln2,
    logarithm,
    logarithm_far,
    near_reference,
    reference,
    relative,
    relative_far,
)

Function = Callable[..., Any]

# How many binades above its reference an x may be while that stays where it is.
_room = per_type(60.0, 400.0)


@inlined
def work(p, n):
    return filled(p, 0.0, n)


@by_type
def start(p, n):
    if STORAGE[p.dtype].compute == types.float64:
        return lambda p, n: (splat(-INFINITY, n), splat(0.0, n), splat(0.0, n))
    return lambda p, n: (filled(p, -INFINITY, n), splat(0.0, n))


@by_type
def _wide(columns):
    if len(columns) == 4:
        return lambda columns: (
            to_f64(columns[0]), to_f64(columns[1]), to_f64(columns[2]), to_f64(columns[3]),
        )  # fmt: skip
    return lambda columns: _wide(columns[:4]) + _wide(columns[4:])


@by_type
def any_of(f, c, columns):
    """Whether f(c, v) holds for a lane of any column."""
    if len(columns) == 4:
        return lambda f, c, columns: any_lane(
            (f(c, columns[0]) | f(c, columns[1])) | (f(c, columns[2]) | f(c, columns[3]))
        )
    return lambda f, c, columns: any_of(f, c, columns[:4]) or any_of(f, c, columns[4:])


@inlined
def not_near(_none, v):
    return ~is_near(v)


# --- the reference stays --------------------------------------------------------------------------


@inlined
def _above(top, v):
    return not_le(v, top)


@by_type
def one_reference(state, R, none):
    """That of the state, or after nothing the first of these, so that the sum is not too small."""
    if state[0].n == R.n:
        return lambda state, R, none: select((state[0] == none) & (state[1] == 0), R, state[0])
    return lambda state, R, none: select(
        (state[0] == none) & (state[1] == 0), like(state[0], lane(R, 0)), state[0]
    )


@inlined
def _before(state, columns):
    return one_reference(state, reference(columns[0][0]), -INFINITY)


@inlined
def stays(state, columns):
    v, R = columns[0], _before(state, columns)
    top = select(by_the_limit(R), NAN, (R * STEP + _room(R)) * ln2(R))
    return not (any_lane(is_nan(state[1])) or any_of(_above, spread(top, v[0]), v))


@inlined
def relative_to(R, x):
    return relative(x, R)


@inlined
def _within_one(columns, state):
    v = columns[0]
    R = spread(_before(state, columns), v[0])
    sums = running(plus, _wide(each(relative_to, R, v)))
    return (R, sums), (R, sums[-1])


@by_type
def _added(state, total):
    """Both of one reference."""
    if len(state) == 2:
        return lambda state, total: (total[0], state[1] + total[1])

    def with_losses(state, total):
        s, lost = two_sum(state[1], total[1])
        return total[0], s, state[2] + lost

    return with_losses


@by_type
def _total(state, v):
    if len(state) == 2:
        return lambda state, v: state[1] + v
    return lambda state, v: state[1] + (v + state[2])


@inlined
def _result(state, v):
    return logarithm(_total(state, v), state[0])


@inlined
def _apply(entering, inner):
    R, sums = inner
    return (each(_result, (R, *entering[1:]), sums),)


# --- it moves -------------------------------------------------------------------------------------


@by_type
def states_of(step, state, x):
    """States (reference, sum) after each step."""
    if len(x) == 1:

        def one(step, state, x):
            state = step(state, x[0])
            return (state,), state

        return one
    n = len(x) // 2

    def halves(step, state, x):
        u, state = states_of(step, state, x[:n])
        v, state = states_of(step, state, x[n:])
        return u + v, state

    return halves


@by_type
def _moved(factor_of, state, R):
    """A state relative to a higher reference."""
    if len(state) == 2:
        return lambda factor_of, state, R: (R, state[1] * factor_of(state[0], R))

    def with_losses(factor_of, state, R):
        f = factor_of(state[0], R)
        return R, state[1] * f, state[2] * f

    return with_losses


def _step_by(reference_of: Function, relative_of: Function, factor_of: Function) -> Function:
    @inlined
    def step(state, x):
        R = maximum(reference_of(x), state[0])
        return R, state[1] * factor_of(state[0], R) + to_f64(relative_of(x, R))

    return step


STEP_NEAR = _step_by(near_reference, relative, factor)
STEP_FAR = _step_by(reference, relative_far, factor_far)


def _moving(step: Function, factor_of: Function, log_of: Function) -> tuple[Function, ...]:
    """within, combine and apply. References of a block begin with nothing."""

    @inlined
    def within(columns):
        x = columns[0]
        return states_of(step, (like(x[0], -INFINITY), to_f64(like(x[0], 0.0))), x)

    @inlined
    def combine(state, total):
        R = maximum(total[0], state[0])
        return _added(_moved(factor_of, state, R), (R, total[1] * factor_of(total[0], R)))

    @inlined
    def result(state, own):
        R = maximum(own[0], state[0])
        return log_of(_total(_moved(factor_of, state, R), own[1] * factor_of(own[0], R)), R)

    @inlined
    def apply(entering, inner):
        return (each(result, entering, inner),)

    return within, combine, apply


@inlined
def _not_near_or_nothing(_none, v):
    return ~(is_near(v) | (v == -INFINITY))


@inlined
def sums_are_near(state, columns):
    """Nothing has a reference already; -inf has none at the beginning."""
    R, s, x = state[0], state[1], columns[0]
    far = (is_far(R) & (R != -INFINITY)) | (R != R)
    odd = any_lane(far) or any_lane(is_nan(s)) or any_lane(~is_near(x[0]))
    return not (odd or any_of(_not_near_or_nothing, 0.0, x))


@inlined
def _shown(state):
    return (logarithm_far(_total(state, 0.0), state[0]),)


@inlined
def _begun(none, initial):
    R = maximum(reference(initial), none[0])
    return (R, to_f64(relative_far(initial, R)), *none[2:])


_within, _combine, _apply_far = _moving(STEP_FAR, factor_far, logarithm_far)
_SCAN = Scan(
    neutral=(-INFINITY,),
    work=work,
    start=start,
    within=_within,
    combine=_combine,
    apply=_apply_far,
    rare=inlined(lambda state, outputs: any_lane(is_nan(state[1]))),
    repair=inlined(lambda outputs: (one_nan_each(outputs[0]),)),
    fast=(sums_are_near, *_moving(STEP_NEAR, factor, logarithm)),
    faster=(stays, _within_one, _added, _apply),
    relative=True,
    busy={2: 32, 4: 32, 8: 16},
    shown=_shown,
    begun=_begun,
    delays=True,
)
LOGCUMSUMEXP = Walks(_SCAN, "logcumsumexp", __name__)
