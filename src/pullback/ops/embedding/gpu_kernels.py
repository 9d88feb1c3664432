"""Lookups and what bags need, in Triton; the sums over positions are those of `segment`."""

from __future__ import annotations

import triton
import triton.language as tl

from pullback.gpu.pairs import LEAST, add_pairs, rounded, two_product
from pullback.gpu.tile import multiple, place, start_of_loop


@triton.jit(do_not_specialize=["count", "vocabulary", "columns", "blocks", "padding"])
def lookup(
    weight,
    indices,
    out,
    gate,
    count,
    vocabulary,
    columns,
    blocks,
    padding,
    ids_extents,
    ids_strides,
    weight_extents,
    weight_strides,
    weight_columns,
    weight_steps,
    out_extents,
    out_strides,
    out_columns,
    out_steps,
    P: tl.constexpr,
    B: tl.constexpr,
):
    """out[n] = weight[indices[n]], copied bit for bit; zeros where a position is not kept."""
    columns = multiple(columns, out_columns)
    program = tl.program_id(0).to(tl.int64)
    n = program // blocks * P + tl.arange(0, P)
    column = program % blocks * B + tl.arange(0, B)
    known = n < count
    live = known[:, None] & (column < columns)[None, :]
    if gate is not None:
        live = live & (tl.load(gate) == 0)
    row = tl.load(indices + place(n, ids_extents, ids_strides), mask=known, other=-1).to(tl.int64)
    kept = (row >= 0) & (row < vocabulary)
    if padding is not None:
        kept = kept & (row != padding)
    at = place(row, weight_extents, weight_strides)[:, None]
    at = at + place(column, weight_columns, weight_steps)[None, :]
    value = tl.load(weight + at, mask=live & kept[:, None], other=0.0)
    at = place(n, out_extents, out_strides)[:, None]
    at = at + place(column, out_columns, out_steps)[None, :]
    tl.store(out + at, value, mask=live)


@triton.jit(do_not_specialize=["bags", "count"])
def find_bags(offsets, borders, wrong, bags, given, count, step, B: tl.constexpr):
    """Where bags begin and, one more, where the last ends; of a block, the first offset that does
    not start at 0, decreases, or is beyond the positions. What is written stays inside them.
    Without offsets, bags are as long as the step."""
    k = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    if offsets is None:
        tl.store(borders + k, k * step, mask=k <= bags)
    else:
        known = k < given
        value = tl.load(offsets + k * step, mask=known, other=0).to(tl.int64)
        before = tl.load(offsets + (k - 1) * step, mask=known & (k > 0), other=0).to(tl.int64)
        bad = (value < before) | (value < 0) | (value > count) | ((k == 0) & (value != 0))
        tl.store(wrong + tl.program_id(0), tl.min(tl.where(known & bad, k, given), 0))
        border = tl.where(known, tl.minimum(tl.maximum(value, 0), count), count)
        tl.store(borders + k, border, mask=k <= bags)


@triton.jit(do_not_specialize=["bags", "count", "bits"])
def bag_of(borders, bag, bags, count, bits, B: tl.constexpr):
    """The bag of every position, -1 where it is in none: how many borders it has passed. Lanes
    side by side take the same steps."""
    n = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = n < count
    low, high = tl.zeros([B], tl.int64), tl.zeros([B], tl.int64) + bags + 1
    for _ in range(bits):
        open = low < high
        middle = (low + high) // 2
        passed = tl.load(borders + middle, mask=live & open, other=0) <= n
        low = tl.where(open & passed, middle + 1, low)
        high = tl.where(open & ~passed, middle, high)
    tl.store(bag + n, tl.where(low <= bags, low - 1, -1), mask=live)


@triton.jit(do_not_specialize=["bags"])
def count_kept(borders, rows, held, bags, P: tl.constexpr, B: tl.constexpr):
    """How many positions of each bag are kept."""
    bag = tl.program_id(0).to(tl.int64) * P + tl.arange(0, P)
    known = bag < bags
    begin = tl.load(borders + bag, mask=known, other=0)
    end = tl.load(borders + bag + 1, mask=known, other=0)
    total = tl.zeros([P, B], tl.int64)
    for first in range(start_of_loop(), tl.max(end - begin, 0), B):
        n = (begin + first)[:, None] + tl.arange(0, B)[None, :]
        row = tl.load(rows + n, mask=n < end[:, None], other=-1)
        total += (row >= 0).to(tl.int64)
    tl.store(held + bag, tl.sum(total, 1), mask=known)


@triton.jit
def divisors(bag, held, divisor, count, B: tl.constexpr):
    """For each position, how many its bag keeps; 1 where it is in none."""
    n = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = n < count
    here = tl.load(bag + n, mask=live, other=-1)
    kept = tl.load(held + here, mask=live & (here >= 0), other=1)
    tl.store(divisor + n, tl.maximum(kept, 1), mask=live)


@triton.jit(do_not_specialize=["count", "vocabulary", "columns", "padding"])
def make_cells(
    winners,
    begin,
    end,
    cells,
    divisor,
    count,
    vocabulary,
    columns,
    padding,
    winners_extents,
    winners_strides,
    B: tl.constexpr,
):
    """Maxima as positions of their own: the cell of the table that each came from, or -1. With
    borders of the groups of indices, also how many positions hold its row."""
    count = multiple(count, winners_extents)
    k = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = k < count
    row = tl.load(winners + place(k, winners_extents, winners_strides), mask=live, other=-1)
    kept = (row >= 0) & (row < vocabulary)
    if padding is not None:
        kept = kept & (row != padding)
    tl.store(cells + k, tl.where(kept, row * columns + k % columns, -1), mask=live)
    if begin is not None:
        first = tl.load(begin + row, mask=live & kept, other=0)
        last = tl.load(end + row, mask=live & kept, other=1)
        tl.store(divisor + k, tl.maximum(last - first, 1), mask=live)


@triton.jit
def _begin_kept(keys, k, count, extent, padding, keys_extents, keys_strides):
    """Keys, whether they are kept, and whether a run of kept ones begins."""
    live = k < count
    key = tl.load(keys + place(k, keys_extents, keys_strides), mask=live, other=-1).to(tl.int64)
    at = place(k - 1, keys_extents, keys_strides)
    before = tl.load(keys + at, mask=live & (k > 0), other=-1).to(tl.int64)
    kept = live & (key >= 0) & (key < extent)
    if padding is not None:
        kept = kept & (key != padding)
    return key, kept, kept & ((k == 0) | (key != before))


@triton.jit(do_not_specialize=["count", "extent", "padding"])
def count_rows(keys, found, count, extent, padding, keys_extents, keys_strides, B: tl.constexpr):
    """How many runs of kept keys begin in each block."""
    count = multiple(count, keys_extents)
    k = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    _, _, begins = _begin_kept(keys, k, count, extent, padding, keys_extents, keys_strides)
    tl.store(found + tl.program_id(0), tl.sum(begins.to(tl.int64), 0))


@triton.jit(do_not_specialize=["count", "extent", "padding", "capacity"])
def rank_rows(
    keys,
    found,
    ranks,
    rows,
    gate,
    count,
    extent,
    padding,
    capacity,
    step,
    keys_extents,
    keys_strides,
    B: tl.constexpr,
):
    """Keys by their rank among those that occur, `capacity` for those left out; which they are, and
    behind them how many."""
    count = multiple(count, keys_extents)
    number = tl.program_id(0).to(tl.int64)
    k = number * B + tl.arange(0, B)
    key, kept, begins = _begin_kept(keys, k, count, extent, padding, keys_extents, keys_strides)
    earlier = tl.zeros([B], tl.int64)
    for first in range(start_of_loop(), number, B):
        block = first + tl.arange(0, B)
        earlier += tl.load(found + block, mask=block < number, other=0)
    rank = tl.sum(earlier, 0) + tl.cumsum(begins.to(tl.int64), 0) - 1
    tl.store(ranks + k, tl.where(kept, rank, capacity), mask=k < count)
    open = begins
    if gate is not None:
        open = open & (tl.load(gate) == 0)
    tl.store(rows + rank * step, key, mask=open)
    last = k == count - 1
    if gate is not None:
        last = last & (tl.load(gate) == 0)
    tl.store(rows + capacity * step + k * 0, rank + 1, mask=last)


@triton.jit
def _dots_in(
    dout,
    weight,
    kept,
    columns,
    at_dout,
    dout_columns,
    dout_steps,
    at_weight,
    weight_columns,
    weight_steps,
    WIDE: tl.constexpr,
    P: tl.constexpr,
    B: tl.constexpr,
):
    """By positions, the products of two rows summed."""
    total = tl.zeros([P, B], WIDE)
    for first in range(start_of_loop(), columns, B):
        column = first + tl.arange(0, B).to(tl.int64)
        use = kept[:, None] & (column < columns)[None, :]
        at = at_dout[:, None] + place(column, dout_columns, dout_steps)[None, :]
        g = tl.load(dout + at, mask=use, other=0.0)
        at = at_weight[:, None] + place(column, weight_columns, weight_steps)[None, :]
        w = tl.load(weight + at, mask=use, other=0.0)
        total += g.to(WIDE) * w.to(WIDE)
    return tl.sum(total, 1)


@triton.jit
def _dots_in_pairs(
    dout,
    weight,
    kept,
    columns,
    at_dout,
    dout_columns,
    dout_steps,
    at_weight,
    weight_columns,
    weight_steps,
    P: tl.constexpr,
    B: tl.constexpr,
):
    """The same in pairs of f32; and 1 where those have not the range."""
    s, r = tl.zeros([P, B], tl.float32), tl.zeros([P, B], tl.float32)
    beyond = tl.zeros([P, B], tl.int32)
    for first in range(start_of_loop(), columns, B):
        column = first + tl.arange(0, B).to(tl.int64)
        use = kept[:, None] & (column < columns)[None, :]
        at = at_dout[:, None] + place(column, dout_columns, dout_steps)[None, :]
        g = tl.load(dout + at, mask=use, other=0.0)
        at = at_weight[:, None] + place(column, weight_columns, weight_steps)[None, :]
        w = tl.load(weight + at, mask=use, other=0.0)
        product, lost = two_product(g, w)
        s, r = add_pairs(s, r, product, lost)
        beyond |= ((tl.abs(product) < LEAST) & (g != 0.0) & (w != 0.0)).to(tl.int32)
    s, r = tl.reduce((s, r), 1, add_pairs)
    infinite = (~(tl.abs(s) < float("inf"))).to(tl.int32)
    return rounded(s, r), tl.max(tl.maximum(tl.max(beyond, 1), infinite), 0)


@triton.jit(do_not_specialize=["count", "columns"])
def dots(
    dout,
    weight,
    rows,
    bag,
    out,
    gate,
    count,
    columns,
    out_extents,
    out_strides,
    dout_extents,
    dout_strides,
    dout_columns,
    dout_steps,
    weight_extents,
    weight_strides,
    weight_columns,
    weight_steps,
    WIDE: tl.constexpr,
    P: tl.constexpr,
    B: tl.constexpr,
):
    """For each position, its row of the table times its bag's gradient; 0 where it is not kept. In
    pairs of f32, and in f64 where those have not the range."""
    PAIRS: tl.constexpr = dout.dtype.element_ty == tl.float32
    columns = multiple(columns, dout_columns)
    n = tl.program_id(0).to(tl.int64) * P + tl.arange(0, P)
    known = n < count
    row = tl.load(rows + n, mask=known, other=-1)
    here = tl.load(bag + n, mask=known, other=-1)
    kept = (row >= 0) & (here >= 0)
    at_dout = place(here, dout_extents, dout_strides)
    at_weight = place(row, weight_extents, weight_strides)
    sides = (
        dout,
        weight,
        kept,
        columns,
        at_dout,
        dout_columns,
        dout_steps,
        at_weight,
        weight_columns,
        weight_steps,
    )
    if PAIRS:
        result, beyond = _dots_in_pairs(*sides, P, B)
        if beyond > 0:
            result = _dots_in(*sides, WIDE, P, B).to(tl.float32)
    else:
        result = _dots_in(*sides, WIDE, P, B).to(out.dtype.element_ty)
    live = known
    if gate is not None:
        live = live & (tl.load(gate) == 0)
    at = place(n, out_extents, out_strides)
    tl.store(out + at, result, mask=live)
