"""Running products, y[j] = x[0]·…·x[j], carried in f64.

Four factors of f32, bf16 or f16 stay inside the range of f64, so that a block is one such product
or two. Factors of f64 do not: they are multiplied one by one, with the rounding error of each.
"""

from collections.abc import Callable
from typing import Any

from pullback.cpu.blocks import each, running
from pullback.cpu.emit import inlined
from pullback.cpu.numerics import (
    INFINITY,
    any_error,
    error_in_range,
    has_nan,
    one_nan_each,
    times,
    two_product,
)
from pullback.cpu.scan import Scan
from pullback.cpu.tiles import by_type
from pullback.cpu.vector import absolute, all_lanes, fma, splat
from pullback.cpu.walks import Walks


@inlined
def f64_lanes(p, n):
    return splat(0.0, n)


@inlined
def repair(outputs):
    return (one_nan_each(outputs[0]),)


@inlined
def _start(p, n):
    return (splat(1.0, n),)


@by_type
def _within(columns):
    if len(columns[0]) == 8:

        def two_quads(columns):
            u, w = running(times, columns[0][:4]), running(times, columns[0][4:])
            return u + w, (u[3], w[3])

        return two_quads

    def one_quad(columns):
        v = running(times, columns[0])
        return v, (v[3],)

    return one_quad


@by_type
def _combine(state, total):
    if len(total) == 2:
        return lambda state, total: (state[0] * total[0] * total[1],)
    return lambda state, total: (state[0] * total[0],)


@by_type
def _apply(entering, inner):
    if len(inner) == 8:

        def two_quads(entering, inner):
            u = each(times, entering[0], inner[:4])
            return (u + each(times, u[3], inner[4:]),)

        return two_quads
    return lambda entering, inner: (each(times, entering[0], inner),)


_SCAN = Scan(
    neutral=(1.0,),
    work=f64_lanes,
    start=_start,
    within=_within,
    combine=_combine,
    apply=_apply,
    rare=has_nan,
    repair=repair,
    shown=inlined(lambda state: state),
    begun=inlined(lambda none, initial: (initial,)),
    delays=True,
)
CUMPROD = Walks(_SCAN, "cumprod", __name__)


# --- f64, step by step ----------------------------------------------------------------------------


@inlined
def _start_exact(p, n):
    return splat(1.0, n), splat(0.0, n)


@inlined
def _within_exact(columns):
    return columns[0], columns[0]


def _exact_by(kept: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """combine and apply, with kept(product, error) -> the error that goes on."""

    @inlined
    def step(state, v):
        product, lost = two_product(state[0], v)
        return product, kept(product, fma(state[1], v, lost))

    @inlined
    def states(state, v):
        a = step(state, v[0])
        b = step(a, v[1])
        c = step(b, v[2])
        return a, b, c, step(c, v[3])

    @inlined
    def combine(state, total):
        return states(state, total)[3]

    @inlined
    def apply(entering, inner):
        a, b, c, d = states(entering, inner)
        return ((a[0] + a[1], b[0] + b[1], c[0] + c[1], d[0] + d[1]),)

    return combine, apply


@inlined
def stays_in_range(state, outputs):
    """What left the range once does not come back."""
    return all_lanes((absolute(state[0]) < INFINITY) & (absolute(state[1]) < INFINITY))


_combine_exact, _apply_exact = _exact_by(error_in_range)

_SCAN_F64 = Scan(
    neutral=(1.0,),
    work=f64_lanes,
    start=_start_exact,
    within=_within_exact,
    combine=_combine_exact,
    apply=_apply_exact,
    repair=repair,
    trial=(stays_in_range, _within_exact, *_exact_by(any_error)),
    serial=True,
    shown=inlined(lambda state: (state[0] + state[1],)),
    begun=inlined(lambda none, initial: (initial, none[1])),
    delays=True,
)
# Gain (a kernel for each direction): cumprod 4096x4096 f64 1.20.
CUMPROD_F64 = Walks(_SCAN_F64, "cumprod_f64", __name__, by_direction=True)
