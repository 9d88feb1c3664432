"""Gradients of the simplex maps in Triton: dx = w·(dy - Σ w·dy / Σ w) with a power w of y, for
softmax y itself, with Σ w = 1; for log_softmax dx = dy - e^y·Σ dy. A row is in registers, or in
tiles where it does not fit.

FINE is f32 in f32: sums with what rounding took from them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.exponential import exp_f32
from pullback.gpu.pairs import add_pairs, two_product
from pullback.gpu.tile import bounds, divide, grid, place, start_of_loop
from pullback.ops.simplex.gpu_exponential import sum_of


@triton.jit
def _weights(y, KIND: tl.constexpr, FINE: tl.constexpr):
    """What dy is weighted with."""
    if KIND == "softmax":
        w = y
    elif KIND == "sparsemax":
        w = tl.where(y > 0.0, 1.0, 0.0).to(y.dtype)
    elif FINE:
        w = tl.sqrt_rn(tl.where(y > 0.0, y, 0.0))
    else:
        w = tl.sqrt(tl.where(y > 0.0, y, 0.0))
    return w


@triton.jit
def _weighted(dy, y, live, KIND: tl.constexpr, FINE: tl.constexpr):
    """Of a tile: what is summed, w·dy or dy itself, with what rounding took; by rows Σ w of a map
    with a threshold, how many have mass, how many NaN."""
    mass = (y > float("-inf")) if KIND == "log_softmax" else (y != 0.0)
    masses = tl.sum((mass & live).to(tl.int32), 1)
    nans = tl.sum(((y != y) & live).to(tl.int32), 1)
    rest, total = tl.zeros_like(dy), tl.zeros([y.shape[0]], y.dtype)
    if KIND == "log_softmax":
        term = dy
    else:
        w = _weights(y, KIND, FINE)
        if KIND != "softmax":
            dy = tl.where(w > 0.0, dy, 0.0)  # not read off the support
            total = tl.sum(tl.where(live, w, 0.0), 1)
        if FINE:
            term, rest = two_product(w, dy)
            rest = tl.where(tl.abs(term) < float("inf"), rest, 0.0)
        else:
            term = w * dy
    return tl.where(live, term, 0.0), tl.where(live, rest, 0.0), total, masses, nans


@triton.jit
def _gradient(dy, y, dot, rest, total, masses, nans, KIND: tl.constexpr, FINE: tl.constexpr):
    if FINE:
        rest = tl.where(tl.abs(dot) < float("inf"), rest, 0.0)
    if KIND == "log_softmax":
        if FINE:
            power = exp_f32(tl.where(y == y, y, 0.0))
            power = tl.where(y > float("-inf"), power, 0.0)
            dx = (dy - power * dot[:, None]) - power * rest[:, None]
        else:
            dx = dy - tl.exp(y) * dot[:, None]
    else:
        w = _weights(y, KIND, FINE)
        if KIND != "softmax":
            total = tl.where(total > 0.0, total, 1.0)
            mean = divide(dot, total)
            if FINE:
                # What rounding took from the quotient and from the sum.
                rest = (tl.fma(-mean, total, dot) + rest) / total
                rest = tl.where(tl.abs(mean) < float("inf"), rest, 0.0)
            dot = mean
        dx = w * ((dy - dot[:, None]) - rest[:, None])
        if KIND != "softmax":
            dx = tl.where(w > 0.0, dx, 0.0)
    dx = tl.where(((masses == 0) & (nans == 0))[:, None], 0.0, dx)
    return tl.where((nans > 0)[:, None], float("nan"), dx)


@triton.jit(do_not_specialize=["n", "rows"])
def map_back(
    dy,
    y,
    dx,
    n,
    rows,
    step_dy,
    step_y,
    step_dx,
    extents,
    strides_dy,
    strides_y,
    strides_dx,
    KIND: tl.constexpr,
    FINE: tl.constexpr,
    WIDE: tl.constexpr,
    TILED: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """The gradient of R rows: sums over the row, then each element; read once unless tiled."""
    n, rows = bounds(n, rows, step_dy, extents, strides_dy)
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    at_dy, at_y = place(row, extents, strides_dy), place(row, extents, strides_y)
    at_dx = place(row, extents, strides_dx)
    if TILED:
        sums, rests = tl.zeros([R, B], WIDE), tl.zeros([R, B], WIDE)
        masses, nans = tl.zeros([R], tl.int32), tl.zeros([R], tl.int32)
        total = tl.zeros([R], WIDE)
        for start in range(start_of_loop(), n, B):
            k = start + tl.arange(0, B).to(tl.int64)
            live = (row < rows)[:, None] & (k < n)[None, :]
            g = tl.load(dy + grid(at_dy, k, step_dy), mask=live, other=0.0).to(WIDE)
            p = tl.load(y + grid(at_y, k, step_y), mask=live, other=0.0).to(WIDE)
            term, lost, t, m, nan = _weighted(g, p, live, KIND, FINE)
            if FINE:
                sums, rests = add_pairs(sums, rests, term, lost)
            else:
                sums += term
            if (KIND == "sparsemax") | (KIND == "entmax15"):
                total += t
            masses, nans = tl.maximum(masses, m), tl.maximum(nans, nan)
        dot, rest = sum_of(sums, rests, FINE)
        for start in range(start_of_loop(), n, B):
            k = start + tl.arange(0, B).to(tl.int64)
            live = (row < rows)[:, None] & (k < n)[None, :]
            g = tl.load(dy + grid(at_dy, k, step_dy), mask=live, other=0.0).to(WIDE)
            p = tl.load(y + grid(at_y, k, step_y), mask=live, other=0.0).to(WIDE)
            result = _gradient(g, p, dot, rest, total, masses, nans, KIND, FINE)
            tl.debug_barrier()  # dx may be dy or y
            tl.store(dx + grid(at_dx, k, step_dx), result.to(dx.dtype.element_ty), mask=live)
    else:
        k = tl.arange(0, B).to(tl.int64)
        live = (row < rows)[:, None] & (k < n)[None, :]
        g = tl.load(dy + grid(at_dy, k, step_dy), mask=live, other=0.0).to(WIDE)
        p = tl.load(y + grid(at_y, k, step_y), mask=live, other=0.0).to(WIDE)
        term, lost, total, masses, nans = _weighted(g, p, live, KIND, FINE)
        dot, rest = sum_of(term, lost, FINE)
        result = _gradient(g, p, dot, rest, total, masses, nans, KIND, FINE)
        tl.debug_barrier()  # dx may be dy or y
        tl.store(dx + grid(at_dx, k, step_dx), result.to(dx.dtype.element_ty), mask=live)
