"""Copies of tensors to the shape that an extended scan runs on, and back (contract/extension).

A position of a tensor is k, one of the staged shape s. Both are in the order of memory: in a scan
that is reversed, the first scanned of a piece is its last.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.tile import grid, place, unless_failed
from pullback.ops.segment.gpu_borders import border_at, group_at


@triton.jit(do_not_specialize=["n", "given"])
def find_heads(
    offsets,
    wrong,
    heads,
    n,
    given,
    by,
    MORE: tl.constexpr,
    REVERSE: tl.constexpr,
    B: tl.constexpr,
):
    """Flag the staged positions at which pieces begin, and those between pieces that belong to
    none. Of a block, the first border that is none."""
    p = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    border, following, bad = border_at(offsets, p, given, n, by)
    tl.store(wrong + tl.program_id(0), tl.min(tl.where(bad, p, given), 0))
    sound = (p + 1 < given) & (border >= 0) & (following >= border) & (following <= n)
    there, count = _staged(p, border, following, MORE)
    first = there + count - 1 if REVERSE else there
    tl.store(heads + first, 1, mask=sound & (count > 0))
    if MORE < 0:
        tl.store(heads + there + count, 1, mask=sound & (following > border))


@triton.jit
def _staged(p, begin, end, MORE: tl.constexpr):
    """Where piece p, from `begin` to `end`, is staged, and how many elements of it are."""
    there = begin + p * MORE if MORE > 0 else begin
    return there, tl.maximum(end - begin + MORE, 0)


@triton.jit
def _piece_of(k, offsets, n, pieces, by, bits, MORE: tl.constexpr, STAGED: tl.constexpr):
    """The piece of each position, a staged one or a tensor's own: its number, where it begins and
    ends, where it is staged, how many of it are."""
    p = tl.zeros_like(k)
    begin, end = p, p + n
    if offsets is not None:
        p = group_at(k, offsets, pieces, by, bits, MORE if STAGED & (MORE > 0) else 0)
        begin = tl.load(offsets + p * by).to(tl.int64)
        end = tl.load(offsets + (p + 1) * by).to(tl.int64)
    there, count = _staged(p, begin, end, MORE)
    return p, begin, end, there, count


@triton.jit(do_not_specialize=["n", "extent", "rows", "tiles", "pieces", "bits"])
def stage_in(
    own,
    staged,
    initial,
    offsets,
    gate,
    first: tl.float64,
    n,
    extent,
    rows,
    tiles,
    pieces,
    by,
    bits,
    step_own,
    step_staged,
    step_initial,
    extents,
    strides_own,
    strides_staged,
    strides_initial,
    MORE: tl.constexpr,
    SHIFT: tl.constexpr,
    REVERSE: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """Copy a tensor of n along the axis to its staged form; element j of a piece is scanned as
    number j + SHIFT. What is scanned before them is the initial value, or `first`."""
    program = tl.program_id(0).to(tl.int64)
    row = program // tiles * R + tl.arange(0, R)
    s = program % tiles * B + tl.arange(0, B)
    live = (row < unless_failed(rows, gate))[:, None] & (s < extent)[None, :]
    p, begin, end, there, count = _piece_of(s, offsets, n, pieces, by, bits, MORE, True)
    number = there + count - 1 - s if REVERSE else s - there
    j = number - SHIFT
    inside = (number >= 0) & (number < count) & (j >= 0) & (j < end - begin)
    k = end - 1 - j if REVERSE else begin + j
    at = grid(place(row, extents, strides_own), k, step_own)
    value = tl.load(own + at, mask=live & inside[None, :], other=0.0)
    if initial is None:
        ahead = tl.full([R, B], first, tl.float64).to(value.dtype)
    else:
        at = grid(place(row, extents, strides_initial), p, step_initial)
        ahead = tl.load(initial + at, mask=live & (number == 0)[None, :], other=0.0)
    at = grid(place(row, extents, strides_staged), s, step_staged)
    tl.store(staged + at, tl.where(inside[None, :], value, ahead), mask=live)


@triton.jit(do_not_specialize=["n", "rows", "tiles", "pieces", "bits"])
def stage_out(
    own,
    staged,
    offsets,
    gate,
    end_value: tl.float64,
    n,
    rows,
    tiles,
    pieces,
    by,
    bits,
    step_own,
    step_staged,
    extents,
    strides_own,
    strides_staged,
    MORE: tl.constexpr,
    SHIFT: tl.constexpr,
    LEADS: tl.constexpr,
    INDEX: tl.constexpr,
    REVERSE: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """Copy a staged tensor back; where nothing was scanned it has `end_value`. With INDEX, staged
    positions become positions along the axis; of the LEADS first, and of nothing, -1."""
    program = tl.program_id(0).to(tl.int64)
    row = program // tiles * R + tl.arange(0, R)
    k = program % tiles * B + tl.arange(0, B)
    live = (row < unless_failed(rows, gate))[:, None] & (k < n)[None, :]
    _, begin, end, there, count = _piece_of(k, offsets, n, pieces, by, bits, MORE, False)
    number = (end - 1 - k if REVERSE else k - begin) + SHIFT
    inside = ((number >= 0) & (number < count))[None, :]
    s = there + count - 1 - number if REVERSE else there + number
    at = grid(place(row, extents, strides_staged), s, step_staged)
    value = tl.load(staged + at, mask=live & inside, other=0)
    if INDEX:
        last = (there + count - 1)[None, :]
        j = (last - value if REVERSE else value - there[None, :]) - LEADS
        met = (end - 1)[None, :] - j if REVERSE else begin[None, :] + j
        value = tl.where(inside & (j >= 0), met, -1)
    else:
        value = tl.where(inside, value, tl.full([R, B], end_value, tl.float64).to(value.dtype))
    tl.store(own + grid(place(row, extents, strides_own), k, step_own), value, mask=live)


@triton.jit(do_not_specialize=["n", "rows", "tiles", "pieces"])
def stage_first(
    target,
    staged,
    offsets,
    gate,
    n,
    rows,
    tiles,
    pieces,
    by,
    step_target,
    step_staged,
    extents,
    strides_target,
    strides_staged,
    MORE: tl.constexpr,
    REVERSE: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """What the first scanned of every piece has, 0 where nothing is scanned: the gradient of the
    initial value."""
    program = tl.program_id(0).to(tl.int64)
    row = program // tiles * R + tl.arange(0, R)
    p = program % tiles * B + tl.arange(0, B)
    known = p < pieces
    live = (row < unless_failed(rows, gate))[:, None] & known[None, :]
    begin, end = tl.zeros_like(p), tl.zeros_like(p) + n
    if offsets is not None:
        begin = tl.load(offsets + p * by, mask=known, other=0).to(tl.int64)
        end = tl.load(offsets + (p + 1) * by, mask=known, other=0).to(tl.int64)
    there, count = _staged(p, begin, end, MORE)
    s = there + count - 1 if REVERSE else there
    at = grid(place(row, extents, strides_staged), s, step_staged)
    value = tl.load(staged + at, mask=live & (count > 0)[None, :], other=0.0)
    at = grid(place(row, extents, strides_target), p, step_target)
    tl.store(target + at, value, mask=live)
