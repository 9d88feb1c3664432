"""Fenchel-Young losses in Triton: Σ [t·(log_b t - w) - u·(t - p)] / alpha over a row, see
`contract`.

No term is negative. A row whose target is the map itself, to the last places that its dtype tells
apart, has a loss of exactly 0. With u as in `simplex.gpu_kernels`, a term of sparsemax is
(t - u)², and of entmax15 (√t - u)²·(2√t + u), where the map is not 0.

FINE is f32 in f32: exponentials and logarithms from our own polynomials, sums in pairs of f32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.exponential import exp_f32, log_pair
from pullback.gpu.pairs import add_pairs, rounded, two_product, two_sum
from pullback.gpu.tile import divide, grid, place, start_of_loop
from pullback.ops.simplex.gpu_kernels import (
    STEPS,
    facts,
    newton,
    newton_sums,
    shift,
    tiled_sums,
)

# --- softmax --------------------------------------------------------------------------------------


@triton.jit
def _below(x, peak, live, FINE: tl.constexpr):
    """e^(x - max) of what is less than the maximum, 0 elsewhere."""
    z = tl.where(live & (x < peak[:, None]), x - peak[:, None], float("-inf"))
    if FINE:
        _, rest = two_sum(x, -peak[:, None])
        e = exp_f32(z)
        e = tl.where(z > float("-inf"), tl.fma(e, rest, e), 0.0)
    else:
        e = tl.exp(z)
    return e


@triton.jit
def _others(x, peak, live, FINE: tl.constexpr):
    """Powers of what is less than the maximum, by rows the largest of them, and how many are equal
    to the maximum: a sum without it keeps the digits of a loss close to 0."""
    e = _below(x, peak, live, FINE)
    return e, tl.max(e, 1), tl.sum((live & (x == peak[:, None])).to(tl.int32), 1)


@triton.jit
def _beyond_one(total, rest, many):
    """What a row adds up to relative to its maximum, less 1, as a pair."""
    s, r = two_sum((many - 1).to(total.dtype), total)
    return s, r + rest


@triton.jit
def _level(excess, rest, FINE: tl.constexpr):
    """log(1 + excess) as a pair, with the digits of an excess next to 0, and 1 / (1 + excess)."""
    whole, lost = two_sum(excess, tl.full(excess.shape, 1.0, excess.dtype))
    inverse = divide(tl.full(whole.shape, 1.0, whole.dtype), whole)
    if FINE:
        high, low = log_pair(whole)
        high, low = two_sum(high, low + (lost + rest) * inverse)
    else:
        high = tl.log(whole) + (lost + rest) * inverse
        low = tl.zeros_like(high)
    return high, low, inverse, lost + rest


@triton.jit
def _softmax_terms(x, t, peak, live, excess, rest, FINE: tl.constexpr):
    """The terms as pairs, and the map."""
    high, low, inverse, lost = _level(excess, rest, FINE)
    top = live & (x == peak[:, None])
    e = tl.where(top, 1.0, _below(x, peak, live, FINE))
    p = e * inverse[:, None]
    # What rounding took from the quotient and from the sum.
    lost = (tl.fma(-(1.0 + excess), inverse, 1.0) - lost * inverse) * inverse
    p = tl.fma(e, lost[:, None], p)
    positive = t > 0.0
    z = tl.where(top, 0.0, x - peak[:, None])
    safe = tl.where(positive, t, 1.0)
    # 1 - p of a maximum that has nearly all keeps its digits.
    short = tl.where(top & (t == 1.0), (excess * inverse)[:, None], t - p)
    if FINE:
        logs, logs_low = log_pair(safe)
        _, off = two_sum(x, -peak[:, None])
        gap, r1 = two_sum(logs, -z)
        gap, r2 = two_sum(gap, tl.broadcast_to(high[:, None], gap.shape))
        r = (r1 + r2) + (logs_low + low[:, None] - tl.where(top, 0.0, off))
        term, left = two_product(safe, gap)
        left = tl.fma(safe, r, left)
        term, r = two_sum(term, -short)
        left = left + r
    else:
        term = safe * (tl.log(safe) - (z - high[:, None])) - short
        left = tl.zeros_like(term)
    term = tl.where(z > float("-inf"), term, float("inf"))
    term = tl.where(positive, tl.maximum(term, 0.0), p)
    kept = positive & (term > 0.0) & (term < float("inf"))
    return term, tl.where(kept, left, 0.0), p


@triton.jit
def _class_loss(score, peak, excess, rest, most, n, FINE: tl.constexpr, REL, ABS):
    """log Σ e^(x - m) + m - x at the class; 0 where the map is 1, as far as the dtype tells."""
    high, low, _, _ = _level(excess, rest, FINE)
    top = score == peak
    value, r = two_sum(high, tl.where(top, 0.0, peak - score))
    value = tl.where(tl.abs(value) < float("inf"), value + (r + low), value)
    sure = top & (excess <= REL + ABS) & (excess <= ABS * (2.0 * n))
    sure = sure & (most * (1.0 - REL) <= ABS)
    return tl.where(sure, 0.0, value)


# --- sparsemax and entmax15 -----------------------------------------------------------------------


@triton.jit
def _threshold_terms(z, t, tau, KIND: tl.constexpr):
    """The terms, and the map."""
    u = z - tau[:, None]
    on = u > 0.0
    t = tl.maximum(t, 0.0)
    if KIND == "sparsemax":
        p = tl.maximum(u, 0.0)
        term = tl.where(on, (t - u) * (t - u), t * (t - 2.0 * u))
    else:
        p, s = tl.maximum(u, 0.0) * tl.maximum(u, 0.0), tl.sqrt(t)
        term = tl.where(on, (s - u) * (s - u) * (2.0 * s + u), t * (2.0 * s - 3.0 * u))
    return tl.where(on | (t > 0.0), term, 0.0), p


# --- of any map -----------------------------------------------------------------------------------


@triton.jit
def _root(x, peak, live, KIND: tl.constexpr, FINE: tl.constexpr):
    """What the map of rows in registers is known by, as a pair: what a softmax adds up to beyond
    its maximum, or a threshold; and of a softmax the largest power less than 1."""
    if KIND == "softmax":
        e, most, many = _others(x, peak, live, FINE)
        total, rest = tl.reduce((e, tl.zeros_like(e)), 1, add_pairs)
        total, rest = _beyond_one(total, rest, many)
    else:
        total = tl.full(peak.shape, -1.0, peak.dtype)
        rest, most = tl.zeros_like(total), tl.zeros_like(total)
        z = shift(x, peak, live, KIND)
        first, second, count = newton_sums(z, total, KIND)
        left = tl.full((), STEPS, tl.int32)
        while left > 0:
            higher = newton(total, first, second, count, KIND)
            left = tl.where(tl.max((higher > total).to(tl.int32), 0) > 0, left - 1, 0)
            total = higher
            first, second, count = newton_sums(z, total, KIND)
    return total, rest, most


@triton.jit
def _tiled_root(
    x,
    at,
    row_live,
    n,
    step,
    peak,
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
            e, own_most, own_many = _others(value, peak, live, FINE)
            sums, rests = add_pairs(sums, rests, e, tl.zeros_like(e))
            most, many = tl.maximum(most, own_most), many + own_many
        total, rest = tl.reduce((sums, rests), 1, add_pairs)
        total, rest = _beyond_one(total, rest, many)
    else:
        first, second, count = tiled_sums(x, at, row_live, n, step, peak, total, KIND, R, B)
        left = tl.full((), STEPS, tl.int32)
        while left > 0:
            higher = newton(total, first, second, count, KIND)
            left = tl.where(tl.max((higher > total).to(tl.int32), 0) > 0, left - 1, 0)
            total = higher
            first, second, count = tiled_sums(x, at, row_live, n, step, peak, total, KIND, R, B)
    return total, rest, most


@triton.jit
def _terms(x, t, peak, live, total, rest, KIND: tl.constexpr, FINE: tl.constexpr, REL, ABS):
    """The terms of the loss as pairs, the map, and whether the target is another one."""
    if KIND == "softmax":
        term, left, p = _softmax_terms(x, t, peak, live, total, rest, FINE)
    else:
        term, p = _threshold_terms(shift(x, peak, live, KIND), t, total, KIND)
        left = tl.zeros_like(term)
    p = tl.where((peak > float("-inf"))[:, None], p, 0.0)
    other = live & ~(tl.abs(t - p) <= tl.maximum(t, p) * REL + ABS)
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
def _concluded(total, left, others, peak, nans, KIND: tl.constexpr):
    """The loss of rows from the sums of their terms; 0 where the target is the map, and in rows
    without mass."""
    value = rounded(total, left)
    if KIND == "sparsemax":
        value = value * 0.5
    elif KIND == "entmax15":
        value = divide(value, tl.full(value.shape, 1.5, value.dtype))
    value = tl.where((others == 0) | ((peak == float("-inf")) & (total == total)), 0.0, value)
    return tl.where(nans > 0, float("nan"), value)


@triton.jit
def loss_rows(
    x,
    target,
    classes,
    loss,
    p,
    gate,
    n,
    rows,
    step_x,
    step_target,
    step_p,
    extents,
    strides_x,
    strides_target,
    strides_classes,
    strides_loss,
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
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    k = tl.arange(0, B).to(tl.int64)
    row_live = row < rows
    if gate is not None:
        row_live = row_live & (tl.load(gate) == 0)
    live = row_live[:, None] & (k < n)[None, :]
    at_x, at_target, own = place(row, extents, strides_x), None, None
    value = tl.load(x + grid(at_x, k, step_x), mask=live, other=0.0).to(WIDE)
    if LABELS:
        at = place(row, extents, strides_classes)
        own = tl.load(classes + at, mask=row_live, other=0).to(tl.int64)
    else:
        at_target = place(row, extents, strides_target)
    t = target_of(target, at_target, k, step_target, own, live, LABELS, WIDE)
    peak, nans, _ = facts(value, live)
    total, rest, most = _root(value, peak, live, KIND, FINE)
    term, left, map_, other = _terms(value, t, peak, live, total, rest, KIND, FINE, REL, ABS)
    if LABELS & (KIND == "softmax"):
        score = tl.load(x + at_x + own * step_x, mask=row_live, other=0.0).to(WIDE)
        term = _class_loss(score, peak, total, rest, most, n, FINE, REL, ABS)
        left, others = tl.zeros_like(term), tl.full([R], 1, tl.int32)
    else:
        term, left = tl.reduce((term, left), 1, add_pairs)
        others = tl.max(other, 1)
    found = _concluded(term, left, others, peak, nans, KIND)
    at = place(row, extents, strides_loss)
    tl.store(loss + at, found.to(loss.dtype.element_ty), mask=row_live)
    if p is not None:
        map_ = tl.where((nans > 0)[:, None], float("nan"), map_)
        at = grid(place(row, extents, strides_p), k, step_p)
        tl.debug_barrier()  # p may be x
        tl.store(p + at, map_.to(p.dtype.element_ty), mask=live)


@triton.jit
def loss_tiles(
    x,
    target,
    classes,
    loss,
    p,
    gate,
    n,
    rows,
    step_x,
    step_target,
    step_p,
    extents,
    strides_x,
    strides_target,
    strides_classes,
    strides_loss,
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
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    row_live = row < rows
    if gate is not None:
        row_live = row_live & (tl.load(gate) == 0)
    at_x, at_target, at_p, own = place(row, extents, strides_x), None, None, None
    if LABELS:
        at = place(row, extents, strides_classes)
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
    total, rest, most = _tiled_root(x, at_x, row_live, n, step_x, peak, KIND, FINE, R, B)
    sums, rests = tl.zeros([R, B], WIDE), tl.zeros([R, B], WIDE)
    others = tl.zeros([R, B], tl.int32)
    if LABELS & (KIND == "softmax"):
        score = tl.load(x + at_x + own * step_x, mask=row_live, other=0.0).to(WIDE)
        term = _class_loss(score, peak, total, rest, most, n, FINE, REL, ABS)
        left, any_other = tl.zeros_like(term), tl.full([R], 1, tl.int32)
    if (p is not None) | (not LABELS) | (KIND != "softmax"):
        for start in range(start_of_loop(), n, B):
            k = start + tl.arange(0, B).to(tl.int64)
            live = row_live[:, None] & (k < n)[None, :]
            value = tl.load(x + grid(at_x, k, step_x), mask=live, other=0.0).to(WIDE)
            t = target_of(target, at_target, k, step_target, own, live, LABELS, WIDE)
            each, lost, map_, other = _terms(
                value, t, peak, live, total, rest, KIND, FINE, REL, ABS
            )
            sums, rests = add_pairs(sums, rests, each, lost)
            others = others | other
            if p is not None:
                map_ = tl.where((nans > 0)[:, None], float("nan"), map_)
                tl.debug_barrier()  # p may be x
                tl.store(p + grid(at_p, k, step_p), map_.to(p.dtype.element_ty), mask=live)
    if (not LABELS) | (KIND != "softmax"):
        term, left = tl.reduce((sums, rests), 1, add_pairs)
        any_other = tl.max(others, 1)
    found = _concluded(term, left, any_other, peak, nans, KIND)
    at = place(row, extents, strides_loss)
    tl.store(loss + at, found.to(loss.dtype.element_ty), mask=row_live)
