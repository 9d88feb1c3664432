"""Running sums: y[j] = x[0] + … + x[j]. The gradient is the same walk from the far end."""

from numba import types

from pullback.cpu.blocks import each, running
from pullback.cpu.emit import inlined
from pullback.cpu.memory import STORAGE, filled_wide
from pullback.cpu.numerics import finite_or_zero, one_nan_each, plus, two_sum
from pullback.cpu.scan import Scan
from pullback.cpu.tiles import by_type
from pullback.cpu.vector import any_lane, is_nan, select, splat
from pullback.cpu.walks import Walks

# A state is the sum of the chunk so far, that of the chunks before, and in f64 what was rounded off
# the first. -0.0 is the identity of addition: 0.0 would turn a sum of negative zeros positive.


@by_type
def _start(p, n):
    if STORAGE[p.dtype].compute == types.float64:
        return lambda p, n: (splat(-0.0, n), splat(-0.0, n), splat(0.0, n))
    return lambda p, n: (filled_wide(p, -0.0, n), filled_wide(p, -0.0, n))


@inlined
def _work(p, n):
    return filled_wide(p, 0.0, n)


@inlined
def _within(columns):
    v = running(plus, columns[0])
    return v, (v[-1],)


@by_type
def _combine(state, total):
    if len(state) == 2:
        return lambda state, total: (state[0] + total[0], state[1])

    def compensated(state, total):
        s, lost = two_sum(state[0], total[0])
        return s, state[1], state[2] + finite_or_zero(lost)

    return compensated


@by_type
def _value(state):
    if len(state) == 2:
        return lambda state: state[1] + state[0]

    def corrected(state):
        plain = state[1] + state[0]
        return select(state[2] == 0, plain, plain + state[2])

    return corrected


@inlined
def _carried(state):
    return (_value(state),)


@inlined
def _rebased(state, base):
    return (state[0], base[0], *state[2:])


@inlined
def _is_nan(state, outputs):
    return any_lane(is_nan(_value(state)))


@inlined
def _apply(entering, inner):
    return (each(plus, _value(entering), inner),)


@inlined
def _repair(outputs):
    return (one_nan_each(outputs[0]),)


@inlined
def _begun(none, initial):
    return (initial, *none[1:])


# The sum of nothing is 0.0.
@inlined
def _empty(none):
    return (none[0], 0.0 - none[1], *none[2:])


_SCAN = Scan(
    neutral=(-0.0,),
    work=_work,
    start=_start,
    within=_within,
    combine=_combine,
    apply=_apply,
    rare=_is_nan,
    repair=_repair,
    carried=_carried,
    rebased=_rebased,
    shown=_carried,
    begun=_begun,
    empty=_empty,
    delays=True,
)
CUMSUM = Walks(_SCAN, "cumsum", __name__)
