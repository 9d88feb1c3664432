"""The gradient of running products: R[j] = dy[j] + x[j+1]·R[j+1], dx[j] = y[j-1]·R[j].

The walk goes from the far end of a line. Before it is known what comes after a block, it is known
what the block makes of it: c = x[j+1]·R[j+1] enters, x·R leaves as slope·c + offset, and each R is
p·c + b. No division: zeros in the input cost nothing.
"""

from collections.abc import Callable
from typing import Any

from pullback.cpu.blocks import both
from pullback.cpu.emit import inlined
from pullback.cpu.numerics import (
    INFINITY,
    any_error,
    any_nan,
    error_in_range,
    times,
    two_product,
    two_sum,
)
from pullback.cpu.scan import Scan
from pullback.cpu.vector import absolute, all_lanes, fma, select, splat
from pullback.cpu.walks import Walks
from pullback.ops.scan.cpu_cumprod import f64_lanes, repair, stays_in_range


@inlined
def _start(p, n):
    return (splat(0.0, n),)


@inlined
def _parts(g, v):
    """Of each step p and b (R = p·c + b; the first p is 1), and slope and offset of the block."""
    b1 = fma(v[0], g[0], g[1])
    b2 = fma(v[1], b1, g[2])
    b3 = fma(v[2], b2, g[3])
    p2 = v[0] * v[1]
    p3 = p2 * v[2]
    return (v[0], p2, p3), (g[0], b1, b2, b3), (p3 * v[3], v[3] * b3)


@inlined
def _within(columns):
    g, v, before = columns
    p, b, total = _parts(g, v)
    return (p, b, before), total


@inlined
def _combine(state, total):
    return (fma(total[0], state[0], total[1]),)


@inlined
def _sums(c, p, b):
    return b[0] + c, fma(p[0], c, b[1]), fma(p[1], c, b[2]), fma(p[2], c, b[3])


@inlined
def _apply(entering, inner):
    p, b, before = inner
    return (both(times, before, _sums(entering[0], p, b)),)


# inf · 0 between two factors is no number, though in their places they may never meet: blocks with
# an infinite factor go step by step, and blocks beside them as ever.


@inlined
def _is_affine(slope):
    return absolute(slope) < INFINITY


@inlined
def _step_by_step(c, g, v):
    r0 = g[0] + c
    r1 = g[1] + v[0] * r0
    r2 = g[2] + v[1] * r1
    return r0, r1, r2, g[3] + v[2] * r2


@inlined
def _careful_within(columns):
    g, v, before = columns
    p, b, total = _parts(g, v)
    return (p, b, before, g, v, total[0]), total + g + v


@inlined
def _careful_combine(state, total):
    g, v = total[2:6], total[6:]
    slow = v[3] * _step_by_step(state[0], g, v)[3]
    return (select(_is_affine(total[0]), fma(total[0], state[0], total[1]), slow),)


@inlined
def _careful_apply(entering, inner):
    p, b, before, g, v, slope = inner
    affine = _is_affine(slope)
    fast, slow = _sums(entering[0], p, b), _step_by_step(entering[0], g, v)
    r = (
        select(affine, fast[0], slow[0]),
        select(affine, fast[1], slow[1]),
        select(affine, fast[2], slow[2]),
        select(affine, fast[3], slow[3]),
    )
    return (both(times, before, r),)


@inlined
def _may(state, columns):
    v = columns[1]
    return all_lanes(_is_affine(((v[0] * v[1]) * v[2]) * v[3]))


@inlined
def _rare(state, outputs):
    return any_nan(outputs[0])


CUMPROD_BACKWARD = Walks(
    Scan(
        neutral=(0.0, 1.0, 1.0),
        work=f64_lanes,
        start=_start,
        within=_careful_within,
        combine=_careful_combine,
        apply=_careful_apply,
        rare=_rare,
        repair=repair,
        fast=(_may, _within, _combine, _apply),
        inputs=(0, 2, 3),
        ahead=(0, 0, 1),
    ),
    "cumprod_backward",
    __name__,
)


# --- f64, step by step with the rounding errors ---------------------------------------------------


@inlined
def _start_exact(p, n):
    return splat(0.0, n), splat(0.0, n)


@inlined
def _within_exact(columns):
    return columns, columns[0] + columns[1]


@inlined
def _corrected(before, r):
    return fma(before, r[0], before * r[1])


@inlined
def _guarded(before, r):
    correction = before * r[1]
    return select(absolute(correction) < INFINITY, _corrected(before, r), before * r[0])


def _exact_by(kept: Callable[..., Any], scaled: Callable[..., Any]) -> tuple[Any, ...]:
    """combine and apply, with kept(number, error) -> the error that goes on."""

    @inlined
    def step(state, g, v):
        """(R, its error), and the state after it: x·R and what is rounded off."""
        r, lost = two_sum(g, state[0])
        error = kept(r, state[1] + lost)
        carry, rest = two_product(v, r)
        return (r, error), (carry, kept(carry, fma(v, error, rest)))

    @inlined
    def combine(state, total):
        g, v = total[:4], total[4:]
        _, state = step(state, g[0], v[0])
        _, state = step(state, g[1], v[1])
        _, state = step(state, g[2], v[2])
        return step(state, g[3], v[3])[1]

    @inlined
    def apply(entering, inner):
        g, v, before = inner
        a, state = step(entering, g[0], v[0])
        b, state = step(state, g[1], v[1])
        c, state = step(state, g[2], v[2])
        d, _ = step(state, g[3], v[3])
        return ((
            scaled(before[0], a), scaled(before[1], b),
            scaled(before[2], c), scaled(before[3], d),
        ),)  # fmt: skip

    return combine, apply


@inlined
def _fits(state, outputs):
    v = outputs[0]
    size = (absolute(v[0]) + absolute(v[1])) + (absolute(v[2]) + absolute(v[3]))
    return stays_in_range(state, outputs) and all_lanes(size < INFINITY)


_combine_exact, _apply_exact = _exact_by(error_in_range, _guarded)

CUMPROD_BACKWARD_F64 = Walks(
    Scan(
        neutral=(0.0, 1.0, 1.0),
        work=f64_lanes,
        start=_start_exact,
        within=_within_exact,
        combine=_combine_exact,
        apply=_apply_exact,
        repair=repair,
        trial=(_fits, _within_exact, *_exact_by(any_error, _corrected)),
        serial=True,
        inputs=(0, 2, 3),
        ahead=(0, 0, 1),
    ),
    "cumprod_backward_f64",
    __name__,
)
