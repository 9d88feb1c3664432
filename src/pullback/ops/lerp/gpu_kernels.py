"""Lerp in Triton: elementwise over merged loops, and sums back to broadcast operands.

Arithmetic is in the wide type, and multiply-adds are fused where the CPU's are: elementwise results
have the CPU's bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.tile import lanes, multiple, place, start_of_loop, unless_failed


@triton.jit
def interpolate(a, b, w, rest):
    """a + w·(b - a) or b - (b - a)·rest, whichever starts at the nearer end; rest is 1 - w.
    Where b - a overflows although a and b are finite, the plain weighted sum stands in."""
    gap = b - a
    near = tl.where(tl.abs(w) < 0.5, tl.fma(w, gap, a), tl.fma(-rest, gap, b))
    finite = (tl.abs(a) < float("inf")) & (tl.abs(b) < float("inf"))
    plain = tl.fma(b, w, a * rest)
    return tl.where((tl.abs(gap) < float("inf")) | ~finite, near, plain)


@triton.jit(do_not_specialize=["count"])
def blend(
    a,
    b,
    weight,
    y,
    param: tl.float64,
    rest: tl.float64,
    count,
    extents,
    strides_a,
    strides_b,
    strides_w,
    strides_y,
    WIDE: tl.constexpr,
    B: tl.constexpr,
):
    """y = lerp(a, b, w); w is a constant if no tensor is given."""
    count = multiple(count, extents)
    index = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = index < count
    start = tl.load(a + place(index, extents, strides_a), mask=live, other=0.0).to(WIDE)
    end = tl.load(b + place(index, extents, strides_b), mask=live, other=0.0).to(WIDE)
    if weight is None:
        w = tl.full([B], param, tl.float64).to(WIDE)
        left = tl.full([B], rest, tl.float64).to(WIDE)
    else:
        w = tl.load(weight + place(index, extents, strides_w), mask=live, other=0.0).to(WIDE)
        left = 1.0 - w
    result = interpolate(start, end, w, left)
    tl.debug_barrier()  # y may be an input
    tl.store(y + place(index, extents, strides_y), result.to(y.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["count"])
def share(
    dy,
    da,
    db,
    param: tl.float64,
    rest: tl.float64,
    count,
    extents,
    strides_dy,
    strides_da,
    strides_db,
    WIDE: tl.constexpr,
    B: tl.constexpr,
):
    """da = (1 - w)·dy, db = w·dy for a constant w."""
    count = multiple(count, extents)
    index = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = index < count
    g = tl.load(dy + place(index, extents, strides_dy), mask=live, other=0.0).to(WIDE)
    to_a = (g * tl.full([B], rest, tl.float64).to(WIDE)).to(da.dtype.element_ty)
    to_b = (g * tl.full([B], param, tl.float64).to(WIDE)).to(db.dtype.element_ty)
    tl.debug_barrier()  # da or db may be dy
    tl.store(da + place(index, extents, strides_da), to_a, mask=live)
    tl.store(db + place(index, extents, strides_db), to_b, mask=live)


@triton.jit(
    do_not_specialize=["kept", "chunk"], do_not_specialize_on_alignment=["summed", "chunks"]
)
def sum_back(
    dy,
    weight,
    a,
    b,
    out,
    gate,
    factor: tl.float64,
    kept,
    summed,
    chunks,
    chunk,
    extents,
    inner,
    strides_dy,
    strides_w,
    strides_a,
    strides_b,
    strides_out,
    inner_dy,
    inner_w,
    inner_a,
    inner_b,
    WHICH: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """out[k] = Σ of (1 - w)·dy, w·dy or dy·(b - a) over `chunk` of the summed elements, in f64.
    `extents` are the loops over out, `inner` those summed over."""
    program = tl.program_id(0).to(tl.int64)
    row = program // chunks * R + tl.arange(0, R)
    part = program % chunks
    kept = lanes(kept, extents, strides_dy)
    summed = lanes(summed, inner, inner_dy)
    chunk = chunk // B * B  # as it is: the compiler is told so
    begin, end = part * chunk, tl.minimum(part * chunk + chunk, summed)
    total = tl.zeros([R, B], tl.float64)
    for first in range(begin, end, B):
        k = first + tl.arange(0, B).to(tl.int64)
        live = (row < kept)[:, None] & (k < end)[None, :]
        at = place(row, extents, strides_dy)[:, None] + place(k, inner, inner_dy)[None, :]
        term = tl.load(dy + at, mask=live, other=0.0).to(tl.float64)
        if WHICH == "weight":
            at = place(row, extents, strides_a)[:, None] + place(k, inner, inner_a)[None, :]
            start = tl.load(a + at, mask=live, other=0.0).to(tl.float64)
            at = place(row, extents, strides_b)[:, None] + place(k, inner, inner_b)[None, :]
            term *= tl.load(b + at, mask=live, other=0.0).to(tl.float64) - start
        elif weight is None:
            term *= factor
        else:
            at = place(row, extents, strides_w)[:, None] + place(k, inner, inner_w)[None, :]
            w = tl.load(weight + at, mask=live, other=0.0).to(tl.float64)
            term *= 1.0 - w if WHICH == "a" else w
        total += tl.where(live, term, 0.0)
    result = tl.sum(total, 1)
    if chunks == 1:
        at = place(row, extents, strides_out)
    else:
        at = row * chunks + part
    tl.store(out + at, result.to(out.dtype.element_ty), mask=row < unless_failed(kept, gate))


@triton.jit(do_not_specialize=["kept"])
def add_up(parts, out, gate, kept, chunks, extents, strides_out, R: tl.constexpr, B: tl.constexpr):
    """The sums of chunks, added in their order."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    total = tl.zeros([R, B], tl.float64)
    for first in range(start_of_loop(), chunks, B):
        k = first + tl.arange(0, B)
        live = (row < kept)[:, None] & (k < chunks)[None, :]
        total += tl.load(parts + (row * chunks)[:, None] + k[None, :], mask=live, other=0.0)
    result = tl.sum(total, 1).to(out.dtype.element_ty)
    live = row < unless_failed(kept, gate)
    tl.store(out + place(row, extents, strides_out), result, mask=live)
