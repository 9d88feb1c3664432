"""Rows grouped by id, on the GPU: checked, and sorted stably.

Keys are the ids, with everything skipped behind the last group; the framework sorts them, as 32-bit
numbers where they fit. A group is then a run of equal keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import triton
import triton.language as tl

from pullback.contract.element import ElementKind
from pullback.gpu.program import ALIGNMENT, Arena, Operand, Scratch, Sort, Step, Tile, ceil_div
from pullback.gpu.tile import multiple, place, start_of_loop
from pullback.ops.segment.gpu_kernels import fill
from pullback.tensor.layout import merge

FLAT = Tile(1, 1024, 4)
STATUS_WORDS = 3
RANGE, ORDER = 1, 2  # the status words of the two findings about ids


@triton.jit(do_not_specialize=["count", "least", "extent"])
def inspect(ids, outside, descent, count, least, extent, ids_extents, ids_strides, B: tl.constexpr):
    """Of a block of ids, the first position out of range and the first below the one before."""
    count = multiple(count, ids_extents)
    k = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = k < count
    later = live & (k > 0)
    value = tl.load(ids + place(k, ids_extents, ids_strides), mask=live, other=0).to(tl.int64)
    before = tl.load(ids + place(k - 1, ids_extents, ids_strides), mask=later, other=0).to(tl.int64)
    bad = live & ((value < least) | (value >= extent))
    tl.store(outside + tl.program_id(0), tl.min(tl.where(bad, k, count), 0))
    tl.store(descent + tl.program_id(0), tl.min(tl.where(later & (value < before), k, count), 0))


@triton.jit(do_not_specialize=["count", "blocks"])
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


@triton.jit(do_not_specialize=["count", "extent", "padding", "skipped"])
def make_keys(
    ids, keys, bags, count, extent, padding, skipped, ids_extents, ids_strides, B: tl.constexpr
):
    """Ids, and `skipped` for those out of range, padding, or in no bag."""
    count = multiple(count, ids_extents)
    k = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = k < count
    value = tl.load(ids + place(k, ids_extents, ids_strides), mask=live, other=0).to(tl.int64)
    kept = (value >= 0) & (value < extent)
    if padding is not None:
        kept = kept & (value != padding)
    if bags is not None:
        kept = kept & (tl.load(bags + k, mask=live, other=-1) >= 0)
    tl.store(keys + k, tl.where(kept, value, skipped).to(keys.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["count"])
def gather_keys(ids, order, keys, count, ids_extents, ids_strides, B: tl.constexpr):
    """Ids in an order that was found before."""
    count = multiple(count, ids_extents)
    k = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = k < count
    element = tl.load(order + k, mask=live, other=0)
    value = tl.load(ids + place(element, ids_extents, ids_strides), mask=live, other=0)
    tl.store(keys + k, value.to(tl.int64), mask=live)


@triton.jit(do_not_specialize=["count", "extent"])
def find_runs(keys, begin, end, count, extent, keys_extents, keys_strides, B: tl.constexpr):
    """Where the run of each key begins and ends; of keys that do not occur nothing is written."""
    count = multiple(count, keys_extents)
    k = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = k < count
    key = tl.load(keys + place(k, keys_extents, keys_strides), mask=live, other=-1).to(tl.int64)
    at = place(k - 1, keys_extents, keys_strides)
    before = tl.load(keys + at, mask=live & (k > 0), other=-1).to(tl.int64)
    at = place(k + 1, keys_extents, keys_strides)
    after = tl.load(keys + at, mask=k + 1 < count, other=-1).to(tl.int64)
    kept = live & (key >= 0) & (key < extent)
    tl.store(begin + key, k, mask=kept & (key != before))
    tl.store(end + key, k + 1, mask=kept & (key != after))


# --- steps --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Groups:
    """Collects the steps that group ids; `status` is what later steps ask before they write."""

    count: int
    extent: int
    arena: Arena
    steps: list[Step | Sort]
    status: Scratch | None = None
    order: Scratch | Operand | None = None
    sorted: dict[str, Any] = field(default_factory=dict)  # the keys in order, and their loops

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
        self,
        ids: Any,
        view: Any,
        padding: int | None,
        bags: Scratch | None,
        skipped: int,
        element: ElementKind = ElementKind.I64,
    ) -> Scratch:
        """The ids that are kept, and `skipped` in place of the others."""
        keys = self.arena.take(element, self.count)
        if self.count:
            size = self.count * (view.element.itemsize + element.itemsize)
            where = {"ids": ids, "keys": keys, "bags": bags, "count": self.count}
            where |= {"extent": self.extent, "padding": padding, "skipped": skipped}
            self.flat(make_keys, self.count, size, **where, **walk("ids", view))
        return keys

    def sort(
        self, ids: Any, view: Any, padding: int | None = None, bags: Scratch | None = None
    ) -> None:
        """Group ids that come in any order, stably."""
        narrow = key_element(self.extent)
        keys = self.keys(ids, view, padding, bags, self.extent, narrow)
        ordered = self.arena.take(narrow, self.count)
        self.order = self.arena.take(ElementKind.I64, self.count)
        if self.count:
            traffic = (2 * narrow.itemsize + 8) * self.count
            self.steps.append(Sort(keys, ordered, self.order, traffic))
        self.sorted = flat_keys(ordered, self.count)

    def take_sorted(self, ids: Operand, view: Any) -> None:
        """Group ids that are sorted already."""
        self.sorted = {"keys": ids, **walk("keys", view)}

    def take_order(self, ids: Operand, view: Any, order: Operand) -> None:
        """Group ids whose order was found before."""
        self.order = order
        keys = self.arena.take(ElementKind.I64, self.count)
        if self.count:
            where = {"ids": ids, "order": order, "keys": keys, "count": self.count}
            size = self.count * (view.element.itemsize + 16)
            self.flat(gather_keys, self.count, size, **where, **walk("ids", view))
        self.sorted = flat_keys(keys, self.count)

    def runs(self, cleared: bool = False) -> dict[str, Scratch]:
        """Where the groups begin and end in the order; `cleared`: 0 where a group has no rows,
        which else is not written."""
        begin, end = (self.arena.take(ElementKind.I64, self.extent) for _ in range(2))
        if cleared:
            for table in (begin, end):
                self.fill({"out": table, "out_extents": (self.extent,), "out_strides": (1,)}, 0.0)
        if self.count:
            where = {"begin": begin, "end": end, "count": self.count, "extent": self.extent}
            self.flat(find_runs, self.count, 24 * self.count, **self.sorted, **where)
        return {"begin": begin, "end": end}

    def fill(self, out: dict[str, Any], value: float) -> None:
        """One value in all of a tensor, which is given with its loops."""
        count = prod(out["out_extents"])
        if count:
            size = count * out["out"].element.itemsize
            where = {"gate": self.status, "value": value, "count": count}
            self.flat(fill, count, size, **out, **where)


def key_element(extent: int) -> ElementKind:
    """The narrowest keys that hold all groups and one number more."""
    return ElementKind.I32 if extent < 2**31 else ElementKind.I64


def flat_keys(keys: Scratch, count: int) -> dict[str, Any]:
    return {"keys": keys, "keys_extents": (count,), "keys_strides": (1,)}


def walk(name: str, view: Any) -> dict[str, Any]:
    loops = merge(view.extents, [view.strides], ordered=True)
    return {f"{name}_extents": loops.extents, f"{name}_strides": loops.strides[0]}


def check_bytes(count: int) -> int:
    """Scratch that a check of ids takes."""
    return 8 * (2 * ceil_div(count, FLAT.block) + STATUS_WORDS) + 3 * ALIGNMENT


def sort_bytes(count: int, extent: int) -> int:
    """Scratch that a sort takes, or an order that was found before."""
    return (2 * key_element(extent).itemsize + 8) * count + 3 * ALIGNMENT


def run_bytes(extent: int) -> int:
    """Scratch that the borders of all groups take."""
    return 16 * extent + 2 * ALIGNMENT
