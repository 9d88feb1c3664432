"""The gradient of running products: R[j] = dy[j] + x[j+1]·R[j+1], dx[j] = y[j-1]·R[j].

The walk goes from the far end of a line. Before it is known what comes after a block, it is known
what the block makes of it: c = x[j+1]·R[j+1] enters, x·R leaves as slope·c + offset, and each R is
p·c + b. No division: zeros in the input cost nothing. An initial value is y[-1], and its gradient
what leaves the line.

Of an exclusive scan, dx[j] = y[j]·R[j] with R[j] = dy[j+1] + x[j+1]·R[j+1]: R[j] enters, R[j-1]
leaves.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numba import types

from pullback.cpu.blocks import both
from pullback.cpu.edges import at_step
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
from pullback.cpu.tiles import by_type, spread
from pullback.cpu.vector import absolute, all_lanes, fma, select, splat
from pullback.cpu.walks import Walks
from pullback.ops.scan.cpu_cumprod import CUMPROD, f64_lanes, repair, stays_in_range

Function = Callable[..., Any]


@inlined
def _start(p, n):
    return (splat(0.0, n),)


# Of a block: p and b of each step, slope and offset of the block; R of each step from these; R of
# each step and what leaves the block, step by step.


@inlined
def _parts(g, v):
    """The first p is 1."""
    b1 = fma(v[0], g[0], g[1])
    b2 = fma(v[1], b1, g[2])
    b3 = fma(v[2], b2, g[3])
    p2 = v[0] * v[1]
    p3 = p2 * v[2]
    return (v[0], p2, p3), (g[0], b1, b2, b3), (p3 * v[3], v[3] * b3)


@inlined
def _sums(c, p, b):
    return b[0] + c, fma(p[0], c, b[1]), fma(p[1], c, b[2]), fma(p[2], c, b[3])


@inlined
def _step_by_step(c, g, v):
    r0 = g[0] + c
    r1 = g[1] + v[0] * r0
    r2 = g[2] + v[1] * r1
    r3 = g[3] + v[2] * r2
    return (r0, r1, r2, r3), v[3] * r3


@inlined
def _parts_exclusive(g, v):
    """The first R is c."""
    b2 = fma(v[1], g[0], g[1])
    b3 = fma(v[2], b2, g[2])
    p2 = v[0] * v[1]
    p3 = p2 * v[2]
    return (v[0], p2, p3), (g[0], b2, b3), (p3 * v[3], fma(v[3], b3, g[3]))


@inlined
def _sums_exclusive(c, p, b):
    return c, fma(p[0], c, b[0]), fma(p[1], c, b[1]), fma(p[2], c, b[2])


@inlined
def _step_by_step_exclusive(c, g, v):
    r1 = g[0] + v[0] * c
    r2 = g[1] + v[1] * r1
    r3 = g[2] + v[2] * r2
    return (c, r1, r2, r3), g[3] + v[3] * r3


@inlined
def _is_affine(slope):
    return absolute(slope) < INFINITY


@inlined
def _may(state, columns):
    v = columns[1]
    return all_lanes(_is_affine(((v[0] * v[1]) * v[2]) * v[3]))


def _affine_by(parts: Function, sums: Function) -> tuple[Function, ...]:
    """within, combine and apply."""

    @inlined
    def within(columns):
        g, v, before = columns
        p, b, total = parts(g, v)
        return (p, b, before), total

    @inlined
    def combine(state, total):
        return (fma(total[0], state[0], total[1]),)

    @inlined
    def apply(entering, inner):
        p, b, before = inner
        return (both(times, before, sums(entering[0], p, b)),)

    return within, combine, apply


def _careful_by(parts: Function, sums: Function, step_by_step: Function) -> tuple[Function, ...]:
    """inf · 0 between two factors is no number, though in their places they may never meet: blocks
    with an infinite factor go step by step, and blocks beside them as ever."""

    @inlined
    def within(columns):
        g, v, before = columns
        p, b, total = parts(g, v)
        return (p, b, before, g, v, total[0]), total + g + v

    @inlined
    def combine(state, total):
        slow = step_by_step(state[0], total[2:6], total[6:])[1]
        return (select(_is_affine(total[0]), fma(total[0], state[0], total[1]), slow),)

    @inlined
    def apply(entering, inner):
        p, b, before, g, v, slope = inner
        affine = _is_affine(slope)
        fast, slow = sums(entering[0], p, b), step_by_step(entering[0], g, v)[0]
        r = (
            select(affine, fast[0], slow[0]),
            select(affine, fast[1], slow[1]),
            select(affine, fast[2], slow[2]),
            select(affine, fast[3], slow[3]),
        )
        return (both(times, before, r),)

    return within, combine, apply


@inlined
def _edged(columns, numbers, about):
    """Before the first element is the initial value."""
    g, v, before = columns
    if about[5]:
        before = at_step(before, spread(about[4], before[0]), numbers, about[3] - 1)
    return g, v, before


@inlined
def _edged_exclusive(columns, numbers, about):
    """The last element is in no result: whatever it is, its gradient is 0. What comes before the
    first is the identity, whatever was given."""
    g, v, before = columns
    v, before = at_step(v, 1.0, numbers, about[2]), at_step(before, 1.0, numbers, about[2])
    if not about[5]:
        before = at_step(before, 1.0, numbers, about[3] - 1)
    return g, v, before


def _walks(name: str, ways: tuple[Function, ...], edged: Function, ahead: int) -> Walks:
    within, combine, apply = _careful_by(*ways)
    scan = Scan(
        neutral=(-0.0, 1.0, 1.0),
        work=f64_lanes,
        start=_start,
        within=within,
        combine=combine,
        apply=apply,
        rare=inlined(lambda state, outputs: any_nan(outputs[0])),
        repair=repair,
        fast=(_may, *_affine_by(*ways[:2])),
        shown=inlined(lambda state: state),
        edged=edged,
        inputs=(0, 2, 3),
        ahead=(0, 0, ahead),
    )
    return Walks(scan, name, __name__)


_WAYS = _parts, _sums, _step_by_step
CUMPROD_BACKWARD = _walks("cumprod_backward", _WAYS, _edged, 1)
CUMPROD_BACKWARD_EXCLUSIVE = _walks(
    "cumprod_backward_exclusive",
    (_parts_exclusive, _sums_exclusive, _step_by_step_exclusive),
    _edged_exclusive,
    0,
)


# --- f16 and bf16: the walk ahead saves the product before each block -----------------------------


@inlined
def _products_before(v, y):
    """Before each step, where y is the product before the last."""
    b = y * v[3]
    c = y * (v[3] * v[2])
    return y * ((v[3] * v[2]) * v[1]), c, b, y


@inlined
def _may_quads(state, columns):
    v = columns[1]
    return _may(state, (v, v[:4])) and _may(state, (v, v[4:]))


def _by_quads(within: Function, combine: Function, apply: Function) -> tuple[Function, ...]:
    """A block of eight as two of four."""

    @inlined
    def both_within(columns):
        g, v, y = columns
        early = _products_before(v[4:], y)
        late = _products_before(v[:4], early[0] * v[4])
        a, first = within((g[:4], v[:4], late))
        b, second = within((g[4:], v[4:], early))
        return (a, first, b), (*first, *second)

    @by_type
    def both_combined(state, total):
        n = len(total) // 2
        return lambda state, total: combine(combine(state, total[:n]), total[n:])

    @inlined
    def both_applied(entering, inner):
        a, first, b = inner
        u, w = apply(entering, a), apply(combine(entering, first), b)
        return (u[0] + w[0],)

    return both_within, both_combined, both_applied


_PRODUCTS = Scan(
    neutral=(1.0,),
    work=f64_lanes,
    start=CUMPROD.scan.start,
    within=CUMPROD.scan.within,
    combine=CUMPROD.scan.combine,
    apply=inlined(lambda entering, inner, option: entering[0]),
    inputs=(2,),
    outputs=(),
    saves=types.float64,
)
_BY_QUADS = _by_quads(*_careful_by(*_WAYS))
_SCAN_RECOMPUTED = replace(
    CUMPROD_BACKWARD.scan,
    neutral=(-0.0, 1.0),
    inputs=(0, 2),
    ahead=(0, 0),
    edged=None,
    recalls=types.float64,
    within=_BY_QUADS[0],
    combine=_BY_QUADS[1],
    apply=_BY_QUADS[2],
    fast=(_may_quads, *_by_quads(*_affine_by(*_WAYS[:2]))),
)
CUMPROD_BACKWARD_RECOMPUTED = Walks(
    _SCAN_RECOMPUTED, "cumprod_backward_recomputed", __name__, ahead=_PRODUCTS
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


def _exact_step(kept: Function) -> Function:
    @inlined
    def step(state, g, v):
        """(R, its error), and the state after it: x·R and what is rounded off."""
        r, lost = two_sum(g, state[0])
        error = kept(r, state[1] + lost)
        carry, rest = two_product(v, r)
        return (r, error), (carry, kept(carry, fma(v, error, rest)))

    return step


def _exact_step_exclusive(kept: Function) -> Function:
    @inlined
    def step(state, g, v):
        carry, rest = two_product(v, state[0])
        error = kept(carry, fma(v, state[1], rest))
        r, lost = two_sum(g, carry)
        return state, (r, kept(r, error + lost))

    return step


def _exact_by(step: Function, scaled: Function) -> tuple[Function, ...]:
    """combine and apply."""

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


@inlined
def _shown_exact(state):
    """Zeros keep their sign."""
    return (select(state[1] == 0, state[0], state[0] + state[1]),)


def _exact_walks(name: str, step_by: Function, edged: Function, ahead: int) -> Walks:
    """step_by(kept) has kept(number, error) -> the error that goes on."""
    combine, apply = _exact_by(step_by(error_in_range), _guarded)
    scan = Scan(
        neutral=(-0.0, 1.0, 1.0),
        work=f64_lanes,
        start=_start_exact,
        within=_within_exact,
        combine=combine,
        apply=apply,
        repair=repair,
        trial=(_fits, _within_exact, *_exact_by(step_by(any_error), _corrected)),
        serial=True,
        shown=_shown_exact,
        edged=edged,
        inputs=(0, 2, 3),
        ahead=(0, 0, ahead),
    )
    return Walks(scan, name, __name__)


CUMPROD_BACKWARD_F64 = _exact_walks("cumprod_backward_f64", _exact_step, _edged, 1)
CUMPROD_BACKWARD_F64_EXCLUSIVE = _exact_walks(
    "cumprod_backward_f64_exclusive", _exact_step_exclusive, _edged_exclusive, 0
)
