"""The linear recurrence on the scan engine: one step after the other.

forward    h[j] = a[j]·h[j-1] + b[j]
backward   g[j] = dh[j] + a[j+1]·g[j+1], db[j] = g[j], da[j] = g[j]·h[j-1], from the far end
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pullback.cpu.blocks import both
from pullback.cpu.edges import at_step
from pullback.cpu.emit import inlined
from pullback.cpu.extended_program import extended_program, with_slots
from pullback.cpu.memory import filled_wide
from pullback.cpu.numerics import has_nan, one_nan_each, times
from pullback.cpu.program import Program
from pullback.cpu.scan import Scan
from pullback.cpu.scan_program import scan_program
from pullback.cpu.stateful_program import stateful_program
from pullback.cpu.tiles import by_type, spread
from pullback.cpu.vector import any_lane, fma, like, select
from pullback.cpu.walks import Walks
from pullback.ops.recurrence.contract import STAGED, STAGED_BACKWARD, sums_factors


@inlined
def _work(p, n):
    return filled_wide(p, 0.0, n)


# A state is what comes before a step: h, and 1 where that is nothing. The first factor is not
# looked at: an infinite one has nothing to multiply. Backwards it is g and the factor to come.


@inlined
def _start(p, n):
    return filled_wide(p, 0.0, n), filled_wide(p, 1.0, n)


@by_type
def _steps(state, a, b):
    if len(a) == 4:

        def four(state, a, b):
            h0 = select(state[1] > 0, b[0], fma(a[0], state[0], b[0]))
            h1 = fma(a[1], h0, b[1])
            h2 = fma(a[2], h1, b[2])
            return h0, h1, h2, fma(a[3], h2, b[3])

        return four

    def eight(state, a, b):
        u = _steps(state, a[:4], b[:4])
        return u + _steps((u[3], like(u[3], 0.0)), a[4:], b[4:])

    return eight


@inlined
def _within(columns):
    return columns, columns[0] + columns[1]


@by_type
def _combine(state, total):
    B = len(total) // 2

    def after(state, total):
        h = _steps(state, total[:B], total[B:])[B - 1]
        return h, like(h, 0.0)

    return after


@inlined
def _apply(entering, inner):
    return (_steps(entering, inner[0], inner[1]),)


@inlined
def _repair(outputs):
    return (one_nan_each(outputs[0]),)


_SCAN = Scan(
    neutral=(1.0, -0.0),
    work=_work,
    start=_start,
    within=_within,
    combine=_combine,
    apply=_apply,
    rare=has_nan,
    repair=_repair,
    serial=True,
    shown=inlined(lambda state: (state[0],)),
    begun=inlined(lambda none, initial: (initial, like(initial, 0.0))),
    inputs=(0, 1),
    outputs=(2,),
    ahead=(0, 0),
    alike=(0,),
    delays=True,
)
# A kernel for each direction: linear_scan 4096x4096 f64 is 1.12 times as fast as with one for both,
# which was below the floor of 0.9 of its speed.
FORWARD = Walks(_SCAN, "linear_scan", __name__, by_direction=True)


# --- backward -------------------------------------------------------------------------------------


@inlined
def _start_back(p, n):
    return filled_wide(p, 0.0, n), filled_wide(p, 0.0, n), filled_wide(p, 1.0, n)


@by_type
def _steps_back(state, g, a):
    """g of each step; the factor of a step is for the next."""
    if len(a) == 4:

        def four(state, g, a):
            g0 = select(state[2] > 0, g[0], fma(state[1], state[0], g[0]))
            g1 = fma(a[0], g0, g[1])
            g2 = fma(a[1], g1, g[2])
            return g0, g1, g2, fma(a[2], g2, g[3])

        return four

    def eight(state, g, a):
        u = _steps_back(state, g[:4], a[:4])
        return u + _steps_back((u[3], a[3], like(u[3], 0.0)), g[4:], a[4:])

    return eight


@inlined
def _edged_back(columns, numbers, about):
    """Before the last step of this walk is the initial value."""
    g, a, h = columns
    if about[5]:
        h = at_step(h, spread(about[4], h[0]), numbers, about[3] - 1)
    return g, a, h


@inlined
def _within_back(columns, numbers, about):
    """Nothing comes before the last step, if there is no initial value: its factor has no
    gradient."""
    g, a, h = columns
    left = about[3] - 1 - numbers + (len(h) if about[5] else 0)
    return (g, a, h, left), g + a


@by_type
def _combine_back(state, total):
    B = len(total) // 2

    def after(state, total):
        g = _steps_back(state, total[:B], total[B:])[B - 1]
        return g, total[2 * B - 1], like(g, 0.0)

    return after


@inlined
def _gradients(r, h, left):
    da = both(times, r, h)
    if any_lane(left < len(h)):
        da = at_step(da, 0.0, -left, 0)
    return da, r


@inlined
def _apply_back(entering, inner):
    g, a, h, left = inner
    return _gradients(_steps_back(entering, g, a), h, left)


@inlined
def _repair_back(outputs):
    return one_nan_each(outputs[0]), one_nan_each(outputs[1])


_SCAN_BACK = Scan(
    neutral=(-0.0, 1.0, 0.0),
    work=_work,
    start=_start_back,
    within=_within_back,
    combine=_combine_back,
    apply=_apply_back,
    repair=_repair_back,
    serial=True,
    shown=inlined(lambda state: (state[0] * state[1],)),
    edged=_edged_back,
    numbered=True,
    inputs=(0, 1, 2),
    outputs=(3, 4),
    ahead=(0, 0, 1),
    alike=(1,),
)
BACKWARD = Walks(_SCAN_BACK, "linear_scan_backward", __name__)


# Of an exclusive scan, g[j] = dh[j+1] + a[j+1]·g[j+1] and da[j] = g[j]·h[j]: g[j] enters, g[j-1]
# leaves.


@by_type
def _steps_exclusive(c, g, a):
    """g of each step, and what leaves them."""
    if len(a) == 4:

        def four(c, g, a):
            r1 = fma(a[0], c, g[0])
            r2 = fma(a[1], r1, g[1])
            r3 = fma(a[2], r2, g[2])
            return (c, r1, r2, r3), fma(a[3], r3, g[3])

        return four

    def eight(c, g, a):
        u, c = _steps_exclusive(c, g[:4], a[:4])
        w, c = _steps_exclusive(c, g[4:], a[4:])
        return u + w, c

    return eight


@inlined
def _edged_exclusive(columns, numbers, about):
    """The last element is in no result: whatever it is, its gradients are 0."""
    g, a, h = columns
    return (
        g,
        at_step(a, 1.0, numbers, about[2]),
        at_step(h, 0.0, numbers, about[2]),
    )


@by_type
def _combine_exclusive(state, total):
    B = len(total) // 2
    return lambda state, total: (_steps_exclusive(state[0], total[:B], total[B:])[1],)


@inlined
def _apply_exclusive(entering, inner):
    g, a, h, left = inner
    return _gradients(_steps_exclusive(entering[0], g, a)[0], h, left)


BACKWARD_EXCLUSIVE = Walks(
    replace(
        _SCAN_BACK,
        start=inlined(lambda p, n: (filled_wide(p, 0.0, n),)),
        combine=_combine_exclusive,
        apply=_apply_exclusive,
        shown=inlined(lambda state: state),
        edged=_edged_exclusive,
        ahead=(0, 0, 0),
    ),
    "linear_scan_backward_exclusive",
    __name__,
)


def _forward(desc: Any, a: Any, b: Any, h: Any, edges: Any = (None, None)) -> Program:
    return scan_program(FORWARD, desc, (a, b, h), edges=edges)


def _backward(
    desc: Any, dh: Any, a: Any, h: Any, da: Any, db: Any, edges: Any = (None, None)
) -> Program:
    walks = BACKWARD_EXCLUSIVE if desc.exclusive else BACKWARD
    return scan_program(walks, desc, (dh, a, h, da, db), against=True, edges=edges)


def forward(
    desc: Any,
    a: Any,
    b: Any,
    h: Any,
    initial: Any,
    offsets: Any,
    state: Any,
    final_state: Any,
) -> Program:
    tensors = list(zip(STAGED, (a, b, h), strict=True))
    if desc.stateful:
        given = state, final_state
        return stateful_program(desc, _forward, tensors, given, own=True, identity=0.0)
    found = extended_program(desc, _forward, tensors, initial, offsets, own=True)
    return with_slots(found, 5, 7)


def backward(
    desc: Any,
    dh: Any,
    a: Any,
    h: Any,
    da: Any,
    db: Any,
    initial: Any,
    offsets: Any,
    d_initial: Any,
) -> Program:
    tensors = list(zip(STAGED_BACKWARD, (dh, a, h, da, db), strict=True))
    return extended_program(
        desc,
        _backward,
        tensors,
        initial,
        offsets,
        d_initial,
        back=not desc.reverse,
        summed=sums_factors(desc),
        own=True,
    )
