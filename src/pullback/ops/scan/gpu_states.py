"""States of scans in Triton: what a running scan carries, and how two of them join.

A state is a pair (u, v) with an associative join, named by what it accumulates:

    sum      u                          logsum   v·e^u, u the running maximum
    product  u                          linear   the map q -> u·q + v
    first    extremum u met at v;       keep     the same with u in {0, 1}: what it drops, it drops
    last     who wins ties                       entirely, NaN included

Where pieces begin along a row, a flag beside the state says so: what was before does not count.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.tile import first_of, last_of
from pullback.ops.segment.gpu_kernels import run_first, run_last, run_product
from pullback.ops.segment.gpu_sums import run_sum


@triton.jit
def _add(a, b):
    return a + b


@triton.jit
def _multiply(a, b):
    return a * b


@triton.jit
def log_rest(u, v):
    """What a log-sum adds to its maximum: kept apart from it, because a large u would swallow it.
    Nothing where u is infinite, unless NaN came in."""
    settled = (tl.abs(u) == float("inf")) & (v == v)
    return tl.where(settled, 0.0, tl.log(v))


@triton.jit
def ratio(a, rest_a, b, rest_b):
    """e^(a-b) of numbers in two parts, where equal infinities are equal. What the difference loses
    in rounding, which a steep slope would show, is put back."""
    d = tl.where(a == b, 0.0, a - b)
    back = d - a
    lost = (a - (d - back)) - (b + back)
    lost = tl.where(tl.abs(d) + tl.abs(a) < float("inf"), lost, 0.0)
    return tl.exp(d + (rest_a - rest_b)) * (1.0 + lost)


@triton.jit
def log_add(u1, v1, u2, v2):
    """v1·e^u1 + v2·e^u2 relative to the greater exponent; equal infinities are equal."""
    fade = tl.exp(tl.where(u1 == u2, 0.0, -tl.abs(u1 - u2)))
    return tl.maximum(u1, u2), tl.where(u1 >= u2, v1 + v2 * fade, v1 * fade + v2)


@triton.jit
def _compose(u1, v1, u2, v2):
    """First map 1, then map 2. A product of factors may overflow where nothing is handed on."""
    return u1 * u2, tl.where(v1 == 0.0, 0.0, v1 * u2) + v2


@triton.jit
def _compose_kept(u1, v1, u2, v2):
    return u1 * u2, tl.where(u2 == 0.0, 0.0, v1) + v2


@triton.jit
def join(u1, v1, u2, v2, STATE: tl.constexpr):
    """State 1, then state 2."""
    if STATE == "sum":
        u, v = u1 + u2, v2
    elif STATE == "product":
        u, v = u1 * u2, v2
    elif STATE == "first":
        u, v = first_of(u1, v1, u2, v2)
    elif STATE == "last":
        u, v = last_of(u1, v1, u2, v2)
    elif STATE == "logsum":
        u, v = log_add(u1, v1, u2, v2)
    elif STATE == "linear":
        u, v = _compose(u1, v1, u2, v2)
    else:
        u, v = _compose_kept(u1, v1, u2, v2)
    return u, v


@triton.jit
def prefix(u, v, STATE: tl.constexpr, REVERSE: tl.constexpr):
    """States joined along the lanes."""
    if STATE == "sum":
        u = tl.associative_scan(u, 1, _add, reverse=REVERSE)
    elif STATE == "product":
        u = tl.associative_scan(u, 1, _multiply, reverse=REVERSE)
    elif STATE == "first":
        u, v = tl.associative_scan((u, v), 1, first_of, reverse=REVERSE)
    elif STATE == "last":
        u, v = tl.associative_scan((u, v), 1, last_of, reverse=REVERSE)
    elif STATE == "logsum":
        u, v = tl.associative_scan((u, v), 1, log_add, reverse=REVERSE)
    elif STATE == "linear":
        u, v = tl.associative_scan((u, v), 1, _compose, reverse=REVERSE)
    else:
        u, v = tl.associative_scan((u, v), 1, _compose_kept, reverse=REVERSE)
    return u, v


@triton.jit
def _run_logsum(f1, u1, v1, f2, u2, v2):
    u, v = log_add(u1, v1, u2, v2)
    return f1 | f2, tl.where(f2 != 0, u2, u), tl.where(f2 != 0, v2, v)


@triton.jit
def _run_linear(f1, u1, v1, f2, u2, v2):
    u, v = _compose(u1, v1, u2, v2)
    return f1 | f2, tl.where(f2 != 0, u2, u), tl.where(f2 != 0, v2, v)


@triton.jit
def _run_kept(f1, u1, v1, f2, u2, v2):
    u, v = _compose_kept(u1, v1, u2, v2)
    return f1 | f2, tl.where(f2 != 0, u2, u), tl.where(f2 != 0, v2, v)


@triton.jit
def _prefix_of_runs(f, u, v, STATE: tl.constexpr, REVERSE: tl.constexpr):
    """The same from the last flag on; and whether there was one."""
    if STATE == "sum":
        f, u = tl.associative_scan((f, u), 1, run_sum, reverse=REVERSE)
    elif STATE == "product":
        f, u = tl.associative_scan((f, u), 1, run_product, reverse=REVERSE)
    elif STATE == "first":
        f, u, v = tl.associative_scan((f, u, v), 1, run_first, reverse=REVERSE)
    elif STATE == "last":
        f, u, v = tl.associative_scan((f, u, v), 1, run_last, reverse=REVERSE)
    elif STATE == "logsum":
        f, u, v = tl.associative_scan((f, u, v), 1, _run_logsum, reverse=REVERSE)
    elif STATE == "linear":
        f, u, v = tl.associative_scan((f, u, v), 1, _run_linear, reverse=REVERSE)
    else:
        f, u, v = tl.associative_scan((f, u, v), 1, _run_kept, reverse=REVERSE)
    return f, u, v


@triton.jit
def resume(cu, cv, begins, u, v, STATE: tl.constexpr, REVERSE: tl.constexpr):
    """States joined along the lanes, after the state before all of them; `begins`, if given, flags
    the lanes with which a piece begins."""
    if begins is None:
        u, v = prefix(u, v, STATE, REVERSE)
        u, v = join(cu[:, None], cv[:, None], u, v, STATE)
    else:
        begun, u, v = _prefix_of_runs(begins, u, v, STATE, REVERSE)
        whole_u, whole_v = join(cu[:, None], cv[:, None], u, v, STATE)
        u, v = tl.where(begun != 0, u, whole_u), tl.where(begun != 0, v, whole_v)
    return u, v


@triton.jit
def flags(heads, k, n, R: tl.constexpr, B: tl.constexpr):
    """Whether a piece begins at k, for every row."""
    known = tl.load(heads + k, mask=(k >= 0) & (k < n), other=0)
    return tl.broadcast_to(known[None, :], [R, B])


@triton.jit
def unit(R: tl.constexpr, STATE: tl.constexpr, WIDE: tl.constexpr, OTHER: tl.constexpr):
    """The state of nothing, for every row; OTHER is the type of v."""
    if STATE == "logsum":
        u = tl.full([R], float("-inf"), WIDE)
    elif (STATE == "sum") | (STATE == "first") | (STATE == "last"):
        u = tl.full([R], 0.0, WIDE)
    else:
        u = tl.full([R], 1.0, WIDE)
    v = tl.full([R], -1 if (STATE == "first") | (STATE == "last") else 0, OTHER)
    return u, v


@triton.jit
def lift(x, live, position, STATE: tl.constexpr, SIGN: tl.constexpr):
    """Elements as states; `position` counts in the order of the scan. Dead lanes are nothing."""
    if STATE == "sum":
        u = tl.where(live, x, 0.0)
        v = u
    elif STATE == "product":
        u = tl.where(live, x, 1.0)
        v = u
    elif STATE == "logsum":
        # NaN travels in v, so that the running maximum u is always ordered.
        nan = x != x
        u = tl.where(nan | ~live, float("-inf"), x)
        v = tl.where(live, tl.where(nan, x, tl.where(x == float("-inf"), 0.0, 1.0)), 0.0)
        v = v.to(u.dtype)
    else:
        u = x * SIGN
        v = tl.where(live, position, -1)
    return u, v


@triton.jit
def with_nan_of(factor, term):
    """The term, or NaN where the factor of what is handed on is NaN: even if that is nothing."""
    return tl.where(factor != factor, factor, term)


@triton.jit
def load_state(us, vs, at, known, u, v):
    """The states stored at `at`, or the given ones where nothing is known."""
    return (
        tl.where(known, tl.load(us + at, mask=known, other=0.0), u),
        tl.where(known, tl.load(vs + at, mask=known, other=0), v),
    )


# --- what is before a chunk of a row, and what it leaves ----------------------------------------


@triton.jit
def start_of(
    us,
    vs,
    row,
    rows,
    part,
    chunks,
    STATE: tl.constexpr,
    WIDE: tl.constexpr,
    OTHER: tl.constexpr,
    R: tl.constexpr,
):
    """The state before a chunk of every row: of nothing, unless states are given."""
    u, v = unit(R, STATE, WIDE, OTHER)
    if us is not None:
        known = (row < rows) & (part > 0)
        u, v = load_state(us, vs, row * chunks + part - 1, known, u, v)
    return u, v


@triton.jit
def store_state(us, vs, fs, at, u, v, flagged, mask):
    """The state that a chunk leaves, and whether a piece begins in it."""
    tl.store(us + at, u, mask=mask)
    tl.store(vs + at, v, mask=mask)
    if fs is not None:
        tl.store(fs + at, flagged, mask=mask)
