"""Rows grouped by id, on the GPU: checked, sorted stably, and cut at the borders of the groups.

Keys are the ids, with everything skipped behind the last group; the framework sorts them. Group s
is then positions offsets[s] to offsets[s+1] of the sorted order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from pullback.contract.element import ElementKind
from pullback.gpu.program import ALIGNMENT, Arena, Operand, Scratch, Sort, Step, Tile, ceil_div
from pullback.gpu.tile import place, start_of_loop
from pullback.tensor.layout import merge

FLAT = Tile(1, 1024, 4)
STATUS_WORDS = 3
RANGE, ORDER = 1, 2  # the status words of the two findings about ids


@triton.jit
def inspect(ids, outside, descent, count, least, extent, ids_extents, ids_strides, B: tl.constexpr):
    """Of a block of ids, the first position out of range and the first below the one before."""
    k = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = k < count
    later = live & (k > 0)
    value = tl.load(ids + place(k, ids_extents, ids_strides), mask=live, other=0).to(tl.int64)
    before = tl.load(ids + place(k - 1, ids_extents, ids_strides), mask=later, other=0).to(tl.int64)
    bad = live & ((value < least) | (value >= extent))
    tl.store(outside + tl.program_id(0), tl.min(tl.where(bad, k, count), 0))
    tl.store(descent + tl.program_id(0), tl.min(tl.where(later & (value < before), k, count), 0))


@triton.jit
def conclude(
    ids,
    outside,
    descent,
    status,
    count,
    blocks,
    ids_extents,
    ids_strides,
    OUTSIDE: tl.constexpr,
    DESCENT: tl.constexpr,
    LATER: tl.constexpr,
    B: tl.constexpr,
):
    """The status word of a check, and the position and value it is about. OUTSIDE and DESCENT are
    the codes of the two findings, 0 if one does not matter; LATER: an earlier check goes first."""
    far = tl.full([B], count, tl.int64)
    first, fall = far, far
    for start in range(start_of_loop(), blocks, B):
        k = start + tl.arange(0, B)
        first = tl.minimum(first, tl.load(outside + k, mask=k < blocks, other=count))
        fall = tl.minimum(fall, tl.load(descent + k, mask=k < blocks, other=count))
    first_outside, first_descent = tl.min(first, 0), tl.min(fall, 0)
    is_outside = (first_outside < count) & (OUTSIDE != 0)
    is_descent = (first_descent < count) & (DESCENT != 0)
    code = tl.where(is_outside, OUTSIDE, tl.where(is_descent, DESCENT, 0))
    where = tl.where(is_outside, first_outside, first_descent)
    one = tl.arange(0, 1).to(tl.int64)
    at = one + where
    value = tl.load(ids + place(at, ids_extents, ids_strides), mask=at < count, other=0)
    free = one == 0
    if LATER:
        free = tl.load(status + one) == 0
    tl.debug_barrier()
    tl.store(status + one, one + code, mask=free)
    tl.store(status + 1 + one, at, mask=free)
    tl.store(status + 2 + one, value.to(tl.int64), mask=free)


@triton.jit
def make_keys(
    ids, keys, bags, count, extent, padding, skipped, ids_extents, ids_strides, B: tl.constexpr
):
    """Ids, and `skipped` for those out of range, padding, or in no bag."""
    k = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = k < count
    value = tl.load(ids + place(k, ids_extents, ids_strides), mask=live, other=0).to(tl.int64)
    kept = (value >= 0) & (value < extent)
    if padding is not None:
        kept = kept & (value != padding)
    if bags is not None:
        kept = kept & (tl.load(bags + k, mask=live, other=-1) >= 0)
    tl.store(keys + k, tl.where(kept, value, skipped), mask=live)


@triton.jit
def find_borders(keys, offsets, count, extent, bits, keys_extents, keys_strides, B: tl.constexpr):
    """offsets[s] is the first position whose key is s or more, by bisection, for s up to extent."""
    s = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = s <= extent
    low, high = tl.zeros([B], tl.int64), tl.zeros([B], tl.int64) + count
    for _ in range(bits):
        open = low < high
        middle = (low + high) // 2
        at = place(middle, keys_extents, keys_strides)
        key = tl.load(keys + at, mask=live & open, other=0).to(tl.int64)
        below = key < s
        low = tl.where(open & below, middle + 1, low)
        high = tl.where(open & ~below, middle, high)
    tl.store(offsets + s, low, mask=live)


# --- steps --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Groups:
    """Collects the steps that group ids; `status` is what later steps ask before they write."""

    count: int
    extent: int
    arena: Arena
    steps: list[Step | Sort]
    status: Scratch | None = None
    order: Scratch | None = None
    offsets: Scratch | None = None

    def flat(
        self, kernel: Any, items: int, traffic: int, tile: Tile = FLAT, /, **arguments: Any
    ) -> None:
        """A step over items side by side."""
        grid, own = ceil_div(items, tile.block), {"B": tile.block}
        self.steps.append(Step(kernel, grid, {**arguments, **own}, tile.warps, traffic))

    def check(
        self,
        ids: Operand,
        view: Any,
        strict: bool,
        ascending: bool,
        least: int = 0,
        code: int = RANGE,
    ) -> None:
        """One check of the ids on the device; the program reads its status back. Those below
        `least` are out of range, which is reported as `code`."""
        if not (strict or ascending) or not self.count:
            return
        blocks = ceil_div(self.count, FLAT.block)
        outside, descent = (self.arena.take(ElementKind.I64, blocks) for _ in range(2))
        where = {"ids": ids, "outside": outside, "descent": descent, "count": self.count}
        borders = {"least": least, "extent": self.extent}
        size = self.count * view.element.itemsize
        self.flat(inspect, self.count, size, **where, **walk("ids", view), **borders)
        codes = {"OUTSIDE": code * strict, "DESCENT": ORDER * ascending}
        self.conclude(blocks, view, **where, **codes)

    def conclude(self, blocks: int, view: Any, **findings: Any) -> None:
        """Write the status of a check that left its findings in `blocks` blocks."""
        later = self.status is not None
        if not later:
            self.status = self.arena.take(ElementKind.I64, STATUS_WORDS)
        where = {**findings, **walk("ids", view), "status": self.status, "LATER": later}
        self.flat(conclude, 1, 16 * blocks, **where, blocks=blocks)

    def keys(
        self, ids: Any, view: Any, padding: int | None, bags: Scratch | None, skipped: int
    ) -> Scratch:
        """The ids that are kept, and `skipped` in place of the others."""
        keys = self.arena.take(ElementKind.I64, self.count)
        if self.count:
            size = self.count * (view.element.itemsize + 8)
            where = {"ids": ids, "keys": keys, "bags": bags, "count": self.count}
            where |= {"extent": self.extent, "padding": padding, "skipped": skipped}
            self.flat(make_keys, self.count, size, **where, **walk("ids", view))
        return keys

    def arrange(
        self, ids: Any, view: Any, padding: int | None = None, bags: Scratch | None = None
    ) -> Scratch:
        """Sort ids that come in any order, stably; gives the sorted keys."""
        keys = self.keys(ids, view, padding, bags, self.extent)
        ordered, self.order = (self.arena.take(ElementKind.I64, self.count) for _ in range(2))
        if self.count:
            self.steps.append(Sort(keys, ordered, self.order, traffic=24 * self.count))
        return ordered

    def sort(
        self, ids: Any, view: Any, padding: int | None = None, bags: Scratch | None = None
    ) -> None:
        """Group ids that come in any order."""
        ordered = self.arrange(ids, view, padding, bags)
        self._borders(ordered, (self.count,), (1,), 8)

    def take_sorted(self, ids: Operand, view: Any) -> None:
        """Group ids that are sorted already."""
        walk = merge(view.extents, [view.strides], ordered=True)
        self._borders(ids, walk.extents, walk.strides[0], view.element.itemsize)

    def _borders(self, keys: Any, extents: Any, strides: Any, itemsize: int) -> None:
        self.offsets = self.arena.take(ElementKind.I64, self.extent + 1)
        bits = self.count.bit_length()
        where = {"keys": keys, "keys_extents": extents, "keys_strides": strides, "bits": bits}
        traffic = (self.extent + 1) * (8 + bits * itemsize)
        self.flat(
            find_borders,
            self.extent + 1,
            traffic,
            **where,
            offsets=self.offsets,
            count=self.count,
            extent=self.extent,
        )


def walk(name: str, view: Any) -> dict[str, Any]:
    loops = merge(view.extents, [view.strides], ordered=True)
    return {f"{name}_extents": loops.extents, f"{name}_strides": loops.strides[0]}


def group_bytes(count: int, extent: int) -> int:
    """Scratch that a check and a sort take."""
    blocks = ceil_div(count, FLAT.block)
    words = 2 * blocks + STATUS_WORDS + 3 * count + extent + 1
    return 8 * words + 8 * ALIGNMENT
