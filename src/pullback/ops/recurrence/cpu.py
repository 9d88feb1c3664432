"""The linear recurrence on the scan engine: one step after the other.

forward    h[j] = a[j]·h[j-1] + b[j]
backward   g[j] = dh[j] + a[j+1]·g[j+1], db[j] = g[j], da[j] = g[j]·h[j-1], from the far end
"""

from __future__ import annotations

from typing import Any

from pullback.contract.extension import Extension
from pullback.cpu.blocks import both
from pullback.cpu.emit import inlined
from pullback.cpu.extended_program import Strided, extended_program, widened, with_slots
from pullback.cpu.memory import filled_wide
from pullback.cpu.numerics import has_nan, one_nan_each, times
from pullback.cpu.program import Program
from pullback.cpu.scan import Scan
from pullback.cpu.scan_program import scan_program
from pullback.cpu.tiles import by_type
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


FORWARD = Walks(
    Scan(
        neutral=(1.0, 0.0),
        work=_work,
        start=_start,
        within=_within,
        combine=_combine,
        apply=_apply,
        rare=has_nan,
        repair=_repair,
        serial=True,
        inputs=(0, 1),
        outputs=(2,),
        ahead=(0, 0),
    ),
    "linear_scan",
    __name__,
)


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
def _within_back(columns, numbers, about):
    """Nothing comes before the last step: its factor has no gradient."""
    g, a, h = columns
    left = about[0] - 1 - numbers
    return (g, a, h, left), g + a


@by_type
def _combine_back(state, total):
    B = len(total) // 2

    def after(state, total):
        g = _steps_back(state, total[:B], total[B:])[B - 1]
        return g, total[2 * B - 1], like(g, 0.0)

    return after


@by_type
def _without_last(v, left):
    if len(v) == 4:
        return lambda v, left: (
            select(left == 0, 0.0, v[0]), select(left == 1, 0.0, v[1]),
            select(left == 2, 0.0, v[2]), select(left == 3, 0.0, v[3]),
        )  # fmt: skip
    return lambda v, left: _without_last(v[:4], left) + _without_last(v[4:], left - 4)


@inlined
def _apply_back(entering, inner):
    g, a, h, left = inner
    r = _steps_back(entering, g, a)
    da = both(times, r, h)
    if any_lane(left < len(h)):
        da = _without_last(da, left)
    return da, r


@inlined
def _repair_back(outputs):
    return one_nan_each(outputs[0]), one_nan_each(outputs[1])


BACKWARD = Walks(
    Scan(
        neutral=(0.0, 1.0, 0.0),
        work=_work,
        start=_start_back,
        within=_within_back,
        combine=_combine_back,
        apply=_apply_back,
        repair=_repair_back,
        serial=True,
        numbered=True,
        inputs=(0, 1, 2),
        outputs=(3, 4),
        ahead=(0, 0, 1),
    ),
    "linear_scan_backward",
    __name__,
)


def _forward(desc: Any, a: Any, b: Any, h: Any) -> Program:
    return scan_program(FORWARD, desc, (a, b, h))


def _backward(desc: Any, dh: Any, a: Any, h: Any, da: Any, db: Any) -> Program:
    return scan_program(BACKWARD, desc, (dh, a, h, da, db), against=True)


def forward(desc: Any, a: Any, b: Any, h: Any, initial: Any, offsets: Any) -> Program:
    if Extension.of(desc).is_plain:
        factors = Strided(widened(a, desc.input_shape))
        return with_slots(_forward(desc, factors, b, h), 3, 5)
    tensors = list(zip(STAGED, (a, b, h), strict=True))
    return extended_program(desc, _forward, tensors, initial, offsets)


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
    summed = sums_factors(desc)
    if Extension.of(desc).is_plain and not summed:
        return with_slots(_backward(desc, dh, a, h, da, db), 5, 8)
    tensors = list(zip(STAGED_BACKWARD, (dh, a, h, da, db), strict=True))
    return extended_program(
        desc,
        _backward,
        tensors,
        initial,
        offsets,
        d_initial,
        back=not desc.reverse,
        summed=summed,
    )
