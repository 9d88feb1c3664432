"""Gradients of Fenchel-Young losses in Triton: (p - t)·dy, and 0 in rows without mass. FINE is f32
in f32: what rounding takes from the difference is made up for."""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.pairs import two_product, two_sum
from pullback.gpu.tile import bounds, grid, place, start_of_loop
from pullback.ops.entmax.gpu_loss import target_of


@triton.jit
def _has_mass(p, live):
    """By rows, whether any is not 0."""
    return tl.max((live & ((p != 0.0) | (p != p))).to(tl.int32), 1)


@triton.jit
def _gradient(p, t, g, FINE: tl.constexpr):
    gap = p - t
    dx = gap * g
    if FINE:
        gap, lost = two_sum(p, -t)
        dx, rest = two_product(gap, tl.broadcast_to(g, gap.shape))
        rest = tl.fma(lost, tl.broadcast_to(g, gap.shape), rest)
        dx = tl.where(tl.abs(dx) < float("inf"), dx + rest, dx)
    return dx


@triton.jit(do_not_specialize=["n", "rows"])
def loss_back(
    grad,
    target,
    classes,
    p,
    dx,
    gate,
    n,
    rows,
    step_target,
    step_p,
    step_dx,
    extents,
    each_grad,
    strides_target,
    each_classes,
    strides_p,
    strides_dx,
    LABELS: tl.constexpr,
    FINE: tl.constexpr,
    WIDE: tl.constexpr,
    TILED: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """R rows: whether there is mass, then each element; read once unless tiled."""
    n, rows = bounds(n, rows, step_p, extents, strides_p)
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    row_live = row < rows
    if gate is not None:
        row_live = row_live & (tl.load(gate) == 0)
    at_p, at_dx = place(row, extents, strides_p), place(row, extents, strides_dx)
    at_target, own = None, None
    if LABELS:
        at = place(row, extents, each_classes)
        own = tl.load(classes + at, mask=row_live, other=0).to(tl.int64)
    else:
        at_target = place(row, extents, strides_target)
    at = place(row, extents, each_grad)
    g = tl.load(grad + at, mask=row_live, other=0.0).to(WIDE)[:, None]
    if TILED:
        mass = tl.zeros([R], tl.int32)
        for start in range(start_of_loop(), n, B):
            k = start + tl.arange(0, B).to(tl.int64)
            live = row_live[:, None] & (k < n)[None, :]
            value = tl.load(p + grid(at_p, k, step_p), mask=live, other=0.0).to(WIDE)
            mass = mass | _has_mass(value, live)
        for start in range(start_of_loop(), n, B):
            k = start + tl.arange(0, B).to(tl.int64)
            live = row_live[:, None] & (k < n)[None, :]
            value = tl.load(p + grid(at_p, k, step_p), mask=live, other=0.0).to(WIDE)
            t = target_of(target, at_target, k, step_target, own, live, LABELS, WIDE)
            found = tl.where((mass > 0)[:, None], _gradient(value, t, g, FINE), 0.0)
            tl.debug_barrier()  # dx may be p or the target
            tl.store(dx + grid(at_dx, k, step_dx), found.to(dx.dtype.element_ty), mask=live)
    else:
        k = tl.arange(0, B).to(tl.int64)
        live = row_live[:, None] & (k < n)[None, :]
        value = tl.load(p + grid(at_p, k, step_p), mask=live, other=0.0).to(WIDE)
        t = target_of(target, at_target, k, step_target, own, live, LABELS, WIDE)
        mass = _has_mass(value, live)
        found = tl.where((mass > 0)[:, None], _gradient(value, t, g, FINE), 0.0)
        tl.debug_barrier()  # dx may be p or the target
        tl.store(dx + grid(at_dx, k, step_dx), found.to(dx.dtype.element_ty), mask=live)
