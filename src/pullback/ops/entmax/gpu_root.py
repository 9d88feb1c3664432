"""The root of entmax in Triton: with b = alpha - 1, p = max(1 + b·(z - c), 0)^(1/b) of z = x - max
sums to 1, and is e^(z - c) at b = 0. See `cpu_rows` for how it is found: Newton's method on
log_b Σ p, from c = 0 and, for alpha > 2, on log Σ p over -log p of the maximum, within a bracket.

All is in f64, whatever the dtype. `beta` is b by rows; a root is c and what 1 + b·(z - c) is at the
maximum, which for alpha > 2 may be far below the last place of c.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.tile import grid, start_of_loop
from pullback.ops.simplex.gpu_threshold import shift

STEPS = tl.constexpr(64)  # rows of alpha <= 2 take six or so, others twice that
NEAR = tl.constexpr(2.0**-4)  # below this, a quotient that cancels is a power series
ABOVE = tl.constexpr(1.0 + 2.0**-40)
LAST = tl.constexpr(2.0**-48)  # a step this small beside the whole is the last


@triton.jit
def log1p(s):
    u = 1.0 + s
    return tl.where(u == float("inf"), u, tl.log(u) + (s - (u - 1.0)) / u)


@triton.jit
def expm1(y):
    e = tl.exp(y)
    careful = (e - 1.0) * (y / tl.log(e))
    return tl.where(e == 1.0, y, tl.where(tl.abs(y) < 1.0, careful, e - 1.0))


@triton.jit
def _shrink(y):
    """(1 - e^-y) / y."""
    near = tl.abs(y) < NEAR
    series = 1.0 - y * (0.5 - y * (1.0 / 6 - y * (1.0 / 24 - y * (1.0 / 120 - y * (1.0 / 720)))))
    safe = tl.where(near, 1.0, y)
    return tl.where(near, series, (1.0 - tl.exp(-safe)) / safe)


@triton.jit
def _root_at(t, beta):
    """The root that a search for c, or for -log p of the maximum, has come to."""
    steep = beta > 1.0
    c = tl.where(steep, -expm1(-beta * t) / tl.where(steep, beta, 1.0), t)
    return c, tl.where(steep, tl.exp(-beta * t), 1.0 - beta * t)


@triton.jit
def powers(z, c, own, beta):
    """u = 1 + b·(z - c), log p, p and ∂p/∂z = p / u; the last two are 0 off the support."""
    beta, c = beta[:, None], c[:, None]
    there = z > float("-inf")
    z = tl.where(there, z, 0.0)
    s = beta * (z - c)
    u = tl.where(beta <= 1.0, 1.0 + s, own[:, None] + beta * z)
    on = there & (u > 0.0)
    safe = tl.where(on, u, 1.0)
    lost = tl.where(on & (beta < 1.0), (s - (u - 1.0)) / safe, 0.0)
    v = (tl.log(safe) + lost) / tl.where(beta == 0.0, 1.0, beta)
    v = tl.where(beta == 0.0, z - c, v)
    p = tl.where(on, tl.exp(v), 0.0)
    return tl.where(there, u, float("-inf")), v, p, p / safe


@triton.jit
def _others(z, c, own, beta):
    """By rows Σ p and Σ ∂p/∂z over what is less than the maximum, and how many are equal to it."""
    _, _, p, slope = powers(z, c, own, beta)
    top = z == 0.0
    rest, slope = tl.sum(tl.where(top, 0.0, p), 1), tl.sum(tl.where(top, 0.0, slope), 1)
    return rest, slope, tl.sum(top.to(tl.float64), 1)


@triton.jit
def _step(t, own, rest, slope, many, beta):
    """What the row has beyond 1, and the step of Newton's method."""
    gentle = beta <= 1.0
    flat = beta == 0.0
    v = log1p(tl.where(gentle, -beta * t, 0.0)) / tl.where(flat, 1.0, beta)
    v = tl.where(flat | (beta > 1.0), -t, v)
    short = expm1(v)
    excess = rest + (many - 1.0) * (1.0 + short) + short
    level, mass = log1p(excess), many * (1.0 + short)
    steep = (1.0 + excess) / (slope * own + mass) * level
    down = (1.0 + excess) / (slope + mass / own) * level * _shrink(beta * level)
    return excess, tl.where(gentle, down, steep)


@triton.jit
def _bound(n, beta):
    """Beyond every root."""
    logs = tl.log(tl.zeros_like(beta) + n)
    return tl.where(beta <= 1.0, logs * _shrink(beta * logs), logs) * ABOVE


@triton.jit
def _climbed(t, low, high, excess, step, turn, beta):
    """Where Newton's method leads, or the middle of the bracket; the bracket, and whether that was
    more than a last step."""
    low = tl.where(excess >= 0.0, tl.maximum(low, t), low)
    high = tl.where(excess >= 0.0, high, t)
    there = t + step
    inside = (there >= low) & (there <= high) & ~((turn % 4 == 3) & (beta > 1.0))
    there = tl.where(inside, there, (low + high) * 0.5)
    return there, low, high, ~(tl.abs(there - t) <= LAST * there)


@triton.jit
def root_of_rows(z, peak, n, beta):
    """The root of rows in registers."""
    t, low = tl.zeros_like(beta), tl.zeros_like(beta)
    high, going = _bound(n, beta), peak > float("-inf")
    turn = tl.full((), 0, tl.int32)
    while turn < STEPS:
        c, own = _root_at(t, beta)
        rest, slope, many = _others(z, c, own, beta)
        excess, step = _step(t, own, rest, slope, many, beta)
        there, low, high, more = _climbed(t, low, high, excess, step, turn, beta)
        t = tl.where(going, there, t)
        going = going & more
        turn = tl.where(tl.max(going.to(tl.int32), 0) > 0, turn + 1, STEPS)
    return _root_at(t, beta)


@triton.jit
def root_of_tiles(x, at, row_live, n, step_x, peak, beta, R: tl.constexpr, B: tl.constexpr):
    """The root of rows in tiles, which are read for every step."""
    t, low = tl.zeros_like(beta), tl.zeros_like(beta)
    high, going = _bound(n, beta), peak > float("-inf")
    turn = tl.full((), 0, tl.int32)
    while turn < STEPS:
        c, own = _root_at(t, beta)
        rest, slope, many = tl.zeros_like(beta), tl.zeros_like(beta), tl.zeros_like(beta)
        for start in range(start_of_loop(), n, B):
            k = start + tl.arange(0, B).to(tl.int64)
            live = row_live[:, None] & (k < n)[None, :]
            value = tl.load(x + grid(at, k, step_x), mask=live, other=0.0).to(tl.float64)
            r, s, m = _others(shift(value, peak, live, "entmax"), c, own, beta)
            rest, slope, many = rest + r, slope + s, many + m
        excess, step = _step(t, own, rest, slope, many, beta)
        there, low, high, more = _climbed(t, low, high, excess, step, turn, beta)
        t = tl.where(going, there, t)
        going = going & more
        turn = tl.where(tl.max(going.to(tl.int32), 0) > 0, turn + 1, STEPS)
    return _root_at(t, beta)
