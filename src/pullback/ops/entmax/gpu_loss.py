"""Fenchel-Young losses in Triton: Σ [t·(log_b t - w) - u·(t - p)] / alpha over a row, see
`contract`.

No term is negative. A row whose target is the map itself, to the last places that its dtype tells
apart, has a loss of exactly 0. With u = z - τ as in `simplex.gpu_threshold`, a term of sparsemax is
(t - u)², and of entmax15 (√t - u)²·(2√t + u), where the map is not 0; halves of them are added up.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.pairs import add_pairs, rounded
from pullback.gpu.tile import along, bounds, divide, grid, place, start_of_loop
from pullback.ops.entmax.gpu_root import root_of_rows, root_of_tiles
from pullback.ops.entmax.gpu_terms import (
    beyond_one,
    class_loss,
    others,
    power_terms,
    softmax_terms,
    threshold_terms,
)
from pullback.ops.simplex.gpu_threshold import (
    facts,
    shift,
    threshold_of_rows,
    threshold_of_tiles,
)

# Of a map with a threshold that is a pair of f32: rounding errors of the threshold.
NOISE = tl.constexpr(2.0**-44)

# --- of any map -----------------------------------------------------------------------------------


@triton.jit
def _root(x, peak, live, n, b, KIND: tl.constexpr, FINE: tl.constexpr):
    """What the map of rows in registers is known by: what a softmax adds up to beyond its maximum,
    as a pair, a threshold, or a root; and of a softmax the largest power less than 1."""
    if KIND == "softmax":
        e, most, many = others(x, peak, live, FINE)
        total, rest = tl.reduce((e, tl.zeros_like(e)), 1, add_pairs)
        total, rest = beyond_one(total, rest, many)
    elif KIND == "entmax":
        total, rest = root_of_rows(shift(x, peak, live, KIND), peak, n, b)
        most = tl.zeros_like(total)
    else:
        total, rest = threshold_of_rows(x, peak, live, KIND, FINE)
        most = tl.zeros_like(total)
    return total, rest, most


@triton.jit
def _tiled_root(
    x,
    at,
    row_live,
    n,
    step,
    peak,
    b,
    KIND: tl.constexpr,
    FINE: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """The same of rows in tiles."""
    total = tl.full(peak.shape, -1.0, peak.dtype)
    rest, most = tl.zeros_like(total), tl.zeros_like(total)
    if KIND == "softmax":
        sums, rests = tl.zeros([R, B], peak.dtype), tl.zeros([R, B], peak.dtype)
        many = tl.zeros([R], tl.int64)
        for start in range(start_of_loop(), n, B):
            k = start + tl.arange(0, B).to(tl.int64)
            live = row_live[:, None] & (k < n)[None, :]
            value = tl.load(x + grid(at, k, step), mask=live, other=0.0).to(peak.dtype)
            e, own_most, own_many = others(value, peak, live, FINE)
            sums, rests = add_pairs(sums, rests, e, tl.zeros_like(e))
            most, many = tl.maximum(most, own_most), many + own_many
        total, rest = tl.reduce((sums, rests), 1, add_pairs)
        total, rest = beyond_one(total, rest, many)
    elif KIND == "entmax":
        total, rest = root_of_tiles(x, at, row_live, n, step, peak, b, R, B)
    else:
        total, rest = threshold_of_tiles(x, at, row_live, n, step, peak, KIND, FINE, R, B)
    return total, rest, most


@triton.jit
def _terms(x, t, peak, live, total, rest, b, KIND: tl.constexpr, FINE: tl.constexpr, REL, ABS):
    """The terms of the loss as pairs, the map, and whether the target is another one."""
    if KIND == "softmax":
        term, left, p = softmax_terms(x, t, peak, live, total, rest, FINE)
    else:
        z = shift(x, peak, live, KIND)
        if KIND == "entmax":
            term, p = power_terms(z, t, total, rest, b)
            left = tl.zeros_like(term)
        else:
            term, left, p = threshold_terms(x, z, t, peak, total, rest, KIND, FINE)
    p = tl.where((peak > float("-inf"))[:, None], p, 0.0)
    near = tl.maximum(t, p) * REL + ABS
    if FINE & (KIND != "softmax"):
        near = tl.where((t > 0.0) & (p > 0.0), near + NOISE, near)
    other = live & ~(tl.abs(t - p) <= near)
    term = tl.where(t == t, term, t)
    return tl.where(live, term, 0.0), tl.where(live, left, 0.0), p, other.to(tl.int32)


@triton.jit
def target_of(target, at, k, step, own, live, LABELS: tl.constexpr, WIDE: tl.constexpr):
    """A tile of a distribution, or that which has all at the class."""
    if LABELS:
        t = tl.where(live & (k[None, :] == own[:, None]), 1.0, 0.0).to(WIDE)
    else:
        t = tl.load(target + grid(at, k, step), mask=live, other=0.0).to(WIDE)
    return t


@triton.jit
def _concluded(total, left, apart, peak, nans, b, KIND: tl.constexpr):
    """The loss of rows from the sums of their terms; 0 where the target is the map, and in rows
    without mass."""
    value = rounded(total, left)
    if KIND == "entmax15":
        value = divide(value, tl.full(value.shape, 0.75, value.dtype))
    elif KIND == "entmax":
        value = value / (1.0 + b)
    value = tl.where((apart == 0) | ((peak == float("-inf")) & (total == total)), 0.0, value)
    return tl.where(nans > 0, float("nan"), value)


@triton.jit(do_not_specialize=["n", "rows"])
def loss_rows(
    x,
    target,
    classes,
    loss,
    p,
    gate,
    beta: tl.float64,
    n,
    rows,
    step_x,
    step_target,
    step_p,
    extents,
    strides_x,
    strides_target,
    each_classes,
    each_loss,
    strides_p,
    KIND: tl.constexpr,
    LABELS: tl.constexpr,
    FINE: tl.constexpr,
    WIDE: tl.constexpr,
    REL: tl.constexpr,
    ABS: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """R whole rows in registers: each element is read once, and the map written once."""
    n, rows = bounds(n, rows, step_x, extents, strides_x)
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    k = tl.arange(0, B).to(tl.int64)
    row_live, b = row < rows, tl.zeros([R], tl.float64) + beta
    if gate is not None:
        row_live = row_live & (tl.load(gate) == 0)
    live = row_live[:, None] & (k < n)[None, :]
    at_x, at_target, own = place(row, extents, strides_x), None, None
    value = tl.load(x + grid(at_x, k, step_x), mask=live, other=0.0).to(WIDE)
    if LABELS:
        at = place(row, extents, each_classes)
        own = tl.load(classes + at, mask=row_live, other=0).to(tl.int64)
    else:
        at_target = place(row, extents, strides_target)
    t = target_of(target, at_target, k, step_target, own, live, LABELS, WIDE)
    peak, nans, _ = facts(value, live)
    total, rest, most = _root(value, peak, live, n, b, KIND, FINE)
    term, left, map_, other = _terms(value, t, peak, live, total, rest, b, KIND, FINE, REL, ABS)
    if LABELS & (KIND == "softmax"):
        score = tl.load(x + at_x + along(own, step_x), mask=row_live, other=0.0).to(WIDE)
        term = class_loss(score, peak, total, rest, most, n, FINE, REL, ABS)
        left, apart = tl.zeros_like(term), tl.full([R], 1, tl.int32)
    else:
        term, left = tl.reduce((term, left), 1, add_pairs)
        apart = tl.max(other, 1)
    found = _concluded(term, left, apart, peak, nans, b, KIND)
    at = place(row, extents, each_loss)
    tl.store(loss + at, found.to(loss.dtype.element_ty), mask=row_live)
    if p is not None:
        map_ = tl.where((nans > 0)[:, None], float("nan"), map_)
        at = grid(place(row, extents, strides_p), k, step_p)
        tl.debug_barrier()  # p may be x
        tl.store(p + at, map_.to(p.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["n", "rows"])
def loss_tiles(
    x,
    target,
    classes,
    loss,
    p,
    gate,
    beta: tl.float64,
    n,
    rows,
    step_x,
    step_target,
    step_p,
    extents,
    strides_x,
    strides_target,
    each_classes,
    each_loss,
    strides_p,
    KIND: tl.constexpr,
    LABELS: tl.constexpr,
    FINE: tl.constexpr,
    WIDE: tl.constexpr,
    REL: tl.constexpr,
    ABS: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """R rows too long for registers: once for the maximum, once for each sum, and once for the
    terms and the map, but for those of a softmax and its class."""
    n, rows = bounds(n, rows, step_x, extents, strides_x)
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    row_live, b = row < rows, tl.zeros([R], tl.float64) + beta
    if gate is not None:
        row_live = row_live & (tl.load(gate) == 0)
    at_x, at_target, at_p, own = place(row, extents, strides_x), None, None, None
    if LABELS:
        at = place(row, extents, each_classes)
        own = tl.load(classes + at, mask=row_live, other=0).to(tl.int64)
    else:
        at_target = place(row, extents, strides_target)
    if p is not None:
        at_p = place(row, extents, strides_p)
    peak, nans = tl.full([R], float("-inf"), WIDE), tl.zeros([R], tl.int32)
    for start in range(start_of_loop(), n, B):
        k = start + tl.arange(0, B).to(tl.int64)
        live = row_live[:, None] & (k < n)[None, :]
        value = tl.load(x + grid(at_x, k, step_x), mask=live, other=0.0).to(WIDE)
        own_peak, own_nans, _ = facts(value, live)
        peak, nans = tl.maximum(peak, own_peak), tl.maximum(nans, own_nans)
    total, rest, most = _tiled_root(x, at_x, row_live, n, step_x, peak, b, KIND, FINE, R, B)
    sums, rests = tl.zeros([R, B], WIDE), tl.zeros([R, B], WIDE)
    apart = tl.zeros([R, B], tl.int32)
    if LABELS & (KIND == "softmax"):
        score = tl.load(x + at_x + along(own, step_x), mask=row_live, other=0.0).to(WIDE)
        term = class_loss(score, peak, total, rest, most, n, FINE, REL, ABS)
        left, any_other = tl.zeros_like(term), tl.full([R], 1, tl.int32)
    if (p is not None) | (not LABELS) | (KIND != "softmax"):
        for start in range(start_of_loop(), n, B):
            k = start + tl.arange(0, B).to(tl.int64)
            live = row_live[:, None] & (k < n)[None, :]
            value = tl.load(x + grid(at_x, k, step_x), mask=live, other=0.0).to(WIDE)
            t = target_of(target, at_target, k, step_target, own, live, LABELS, WIDE)
            each, lost, map_, other = _terms(
                value, t, peak, live, total, rest, b, KIND, FINE, REL, ABS
            )
            sums, rests = add_pairs(sums, rests, each, lost)
            apart = apart | other
            if p is not None:
                map_ = tl.where((nans > 0)[:, None], float("nan"), map_)
                tl.debug_barrier()  # p may be x
                tl.store(p + grid(at_p, k, step_p), map_.to(p.dtype.element_ty), mask=live)
    if (not LABELS) | (KIND != "softmax"):
        term, left = tl.reduce((sums, rests), 1, add_pairs)
        any_other = tl.max(apart, 1)
    found = _concluded(term, left, any_other, peak, nans, b, KIND)
    at = place(row, extents, each_loss)
    tl.store(loss + at, found.to(loss.dtype.element_ty), mask=row_live)
