"""Groups given by where they begin and end, on the GPU: checked, and spread to positions."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from pullback.contract.element import ElementKind
from pullback.gpu.program import ALIGNMENT, Operand, Scratch, ceil_div
from pullback.ops.segment.gpu_groups import FLAT, Groups, check_bytes

BORDERS = 3  # the status word of the finding


@triton.jit
def border_at(offsets, p, given, n, by):
    """Border p, the one after it, and whether it is none: not from 0 to n, or below the last."""
    known = p < given
    border = tl.load(offsets + p * by, mask=known, other=0).to(tl.int64)
    before = tl.load(offsets + (p - 1) * by, mask=known & (p > 0), other=0).to(tl.int64)
    after = tl.load(offsets + (p + 1) * by, mask=p + 1 < given, other=-1).to(tl.int64)
    bad = (border < before) | (border > n) | ((p == 0) & (border != 0))
    return border, after, known & (bad | ((p == given - 1) & (border != n)))


@triton.jit(do_not_specialize=["given", "n"])
def check_borders(offsets, wrong, given, n, by, B: tl.constexpr):
    """Of a block of borders, the first that is none."""
    p = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    _, _, bad = border_at(offsets, p, given, n, by)
    tl.store(wrong + tl.program_id(0), tl.min(tl.where(bad, p, given), 0))


@triton.jit
def group_at(k, offsets, groups, by, bits, STRETCH: tl.constexpr):
    """The last group that begins at or before k, and so the one that holds it, if each group begins
    STRETCH later than the one before. Lanes side by side take the same steps."""
    low = tl.zeros_like(k)
    high = low + groups - 1
    for _ in range(bits):
        middle = (low + high + 1) // 2
        begun = tl.load(offsets + middle * by).to(tl.int64) + middle * STRETCH <= k
        low = tl.where(begun, middle, low)
        high = tl.where(begun, high, middle - 1)
    return low


@triton.jit(do_not_specialize=["count", "groups", "bits"])
def spread_groups(offsets, keys, count, groups, by, bits, B: tl.constexpr):
    """The group of every position."""
    k = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    tl.store(keys + k, group_at(k, offsets, groups, by, bits, 0), mask=k < count)


def of_borders(groups: Groups, borders: Operand, view: Any) -> Scratch:
    """The group of every position, from borders that are checked."""
    given, by = groups.extent + 1, view.strides[0]
    blocks = ceil_div(given, FLAT.block)
    wrong = groups.arena.take(ElementKind.I64, blocks)
    where = {"offsets": borders, "by": by}
    groups.flat(check_borders, given, 8 * given, **where, wrong=wrong, given=given, n=groups.count)
    findings = {"ids": borders, "outside": wrong, "descent": wrong, "count": given}
    groups.conclude(blocks, view, **findings, OUTSIDE=BORDERS, DESCENT=0)
    keys = groups.arena.take(ElementKind.I64, groups.count)
    if groups.count and groups.extent:
        bits = groups.extent.bit_length()
        where |= {"keys": keys, "count": groups.count, "groups": groups.extent, "bits": bits}
        groups.flat(spread_groups, groups.count, 16 * groups.count, **where)
    return keys


def border_bytes(positions: int, groups: int) -> int:
    """Scratch for it."""
    return check_bytes(groups + 1) + 8 * positions + ALIGNMENT
