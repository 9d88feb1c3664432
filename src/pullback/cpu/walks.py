"""The walks of a scan over its lines, as kernels: see cpu/scan."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

from pullback.cpu.block import TENSORS
from pullback.cpu.columns import (
    block_of,
    cells_across,
    lanes_across,
    lanes_along,
    lanes_lines,
    masks_rows,
    prefetch_tile,
)
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import Kernel, index_pointer, pointer, word, words
from pullback.cpu.lookback import is_turn, link_of, publish, received, wait_for_turn
from pullback.cpu.loops import between, extent, offset, step
from pullback.cpu.memory import fence, is_aligned, to_next_line
from pullback.cpu.parts import boxes_for, copies_in, copy_out
from pullback.cpu.piecewise import add_piecewise
from pullback.cpu.scan import Scan, tile_of
from pullback.cpu.scan_words import FIRST_WORD
from pullback.cpu.tile_rows import ACROSS, ALONG, LINES
from pullback.cpu.tiles import stack

CHUNK: Final = 1 << 15  # steps that are scanned on their own, so that threads can share a line
SIDE: Final = 1024  # lines of a strip across
# Rows across that are so many elements apart, or fewer, are too short for the machine to see where
# they go: each is asked for so many steps ahead. cumsum of 64x1024x256 f32, axis 1: 0.84 of the
# time.
NEAR: Final = 1024
AHEAD: Final = 16

PIECEWISE_WALKS: Final = ("along", "across")  # which run on pieces of lines

# Words of a scan: lines that lie side by side, how many of them an item takes, whether outputs go
# past the caches, whether every tensor walks the axis by 1 or by -1, 0 or -1 for a reversed scan,
# where the links of `shared` begin.
ROW, STRIP, STREAMS, STRAIGHT, REVERSED, LINKS, AXIS = (FIRST_WORD + k for k in range(7))


# --- cursors --------------------------------------------------------------------------------------


@inlined
def _place(task, t, line):
    w = words(task, AXIS)
    return pointer(task, TENSORS + t), offset(w, t, line), step(w, t), between(w, t)


@inlined
def _index_place(task, t, line):
    w = words(task, AXIS)
    return index_pointer(task, TENSORS + t), offset(w, t, line), step(w, t), between(w, t)


@inlined
def _place_ahead(task, t, line):
    w = words(task, AXIS)
    return pointer(task, TENSORS + t), offset(w, t, line) + step(w, t), step(w, t), between(w, t)


def _cursors(places: list[tuple[Callable[..., Any], int]]) -> Callable[..., Any]:
    """(task, line) -> the cursors of these slots."""
    (place, t), *rest = places
    if not rest:
        return inlined(lambda task, line: (place(task, t, line),))
    others = _cursors(rest)
    return inlined(lambda task, line: (place(task, t, line), *others(task, line)))


@inlined
def _strip_at(task, item):
    """(first line of these columns, first column of the strip, columns)"""
    lines, strip = word(task, ROW), word(task, STRIP)
    strips = (lines + strip - 1) // strip
    block = item // strips
    return block * lines, (item - block * strips) * strip, lines


# --- walks ----------------------------------------------------------------------------------------


class Walks:
    """The kernels of a scan, by name: along, lines, across and, of scans in chunks, shared; and
    those whose steps run against memory order, which end in _back. Each is an attribute of its
    module too: a program that JAX exported finds its kernels by name."""

    def __init__(self, scan: Scan, name: str, module: str) -> None:
        self.scan = scan
        self.shares = scan.carried is not None
        bodies = {"along": _along, "lines": _lines, "across": _across}
        if self.shares:
            bodies["shared"] = _shared
        pieces = Pieces(scan)
        self.kernels: dict[str, Kernel] = {}
        for walk, make in bodies.items():
            body = inlined(make(scan, pieces))
            for suffix, back in (("", 0), ("_back", 1)):
                if walk != "across" or not back:
                    full = f"{name}_{walk}{suffix}"
                    kernel = self.kernels[walk + suffix] = _kernel(body, back, full, module)
                    setattr(sys.modules[module], full, kernel)
                    if walk in PIECEWISE_WALKS:
                        once = inlined(_with_direction(body, back))
                        piecewise = add_piecewise(kernel, once, AXIS, module)
                        setattr(sys.modules[module], f"{full}_pieces", piecewise)


def _with_direction(body: Callable[..., Any], back: int) -> Callable[..., Any]:
    return lambda task, lo, hi: body(task, lo, hi, back)


def _template(task, lo, hi):
    body(task, lo, hi, back)  # noqa: F821


def _kernel(body: Callable[..., Any], back: int, name: str, module: str) -> Kernel:
    """Found on disk by its name and the hash of its module, as any kernel is."""
    scope = {"body": body, "back": back, "__name__": module}
    function = FunctionType(_template.__code__, scope, name)
    function.__module__, function.__qualname__ = module, name
    return Kernel(function)


class Pieces:
    """What the walks of a scan share."""

    def __init__(self, scan: Scan) -> None:
        places = [
            (_place_ahead if far else _place, t)
            for t, far in zip(scan.inputs, scan.ahead, strict=True)
        ]
        self.ins = _cursors(places)
        outs = [(_place, t) for t in scan.outputs] + [(_index_place, t) for t in scan.indices]
        self.outs = _cursors(outs)
        self.copy_in = copies_in(scan.neutral, scan.ahead)
        self.tile = tile_of(scan)
        self.stretch = _stretch(scan, self)
        carried, rebased = scan.carried, scan.rebased
        if carried is None or rebased is None:
            self.renewed = inlined(lambda none, state: state)
        else:
            self.renewed = inlined(lambda none, state: rebased(none, carried(state)))


def _stretch(scan: Scan, pieces: Pieces) -> Callable[..., Any]:
    """Steps k to end of one line."""
    tile, copy_in, most = pieces.tile, pieces.copy_in, max(scan.ahead)

    @inlined
    def stretch(ins, outs, boxes, k, end, about, straight, state, streaming, W, back):
        in_boxes, out_boxes = boxes
        n, B = about[0], block_of(ins[0][0])
        rows = B * W
        while k < end:
            whole = (min(end, n - most) - k) // rows if straight else 0
            source, target, at = ins, outs, k
            some = min(rows, end - k)
            if whole <= 0:
                copy_in(ins, in_boxes, k, 0, some, 1, n - k, W, B, ALONG, back)
                source, target, at = in_boxes, out_boxes, 0
            for r in range(max(whole, 1)):
                state = tile(
                    source, target, at + r * rows, 0, 2 * B, k + r * rows, about, state,
                    streaming and whole > 0, W, ALONG, back,
                )  # fmt: skip
            if whole <= 0:
                copy_out(outs, out_boxes, k, 0, some, 1, W, B, ALONG, back)
            k += max(whole, 1) * rows
        return state

    return stretch


@inlined
def _streams_to(task, out, back):
    """Whether the rows of a line leave in aligned pieces of 16 bytes, past the caches."""
    return word(task, STREAMS) != 0 and is_aligned(out[0], out[1] + back, 16)


def _along(scan: Scan, pieces: Pieces) -> Callable[..., Any]:
    start, ins_of, outs_of = scan.start, pieces.ins, pieces.outs
    stretch, renewed = pieces.stretch, pieces.renewed

    def along(task, lo, hi, back):
        p = pointer(task, TENSORS)
        n, B, W = extent(words(task, AXIS)), block_of(p), lanes_along(p, back)
        about, straight, none = (n, word(task, REVERSED)), word(task, STRAIGHT) != 0, start(p, 1)
        boxes = (
            boxes_for(ins_of(task, 0), W, B, ALONG, back),
            boxes_for(outs_of(task, 0), W, B, ALONG, back),
        )
        for number in range(lo, hi):
            # Lines in the order of the walk: what is prefetched beyond one is the next.
            line = lo + hi - 1 - number if back else number
            ins, outs = ins_of(task, line), outs_of(task, line)
            state, streaming = none, _streams_to(task, outs[0], back)
            for k in range(0, n, CHUNK):
                end = min(k + CHUNK, n)
                state = stretch(
                    ins, outs, boxes, k, end, about, straight, state, streaming, W, back
                )
                state = renewed(none, state)
        fence()

    return along


def _shared(scan: Scan, pieces: Pieces) -> Callable[..., Any]:
    start, carried, rebased = scan.start, scan.carried, scan.rebased
    ins_of, outs_of, stretch = pieces.ins, pieces.outs, pieces.stretch

    def shared(task, lo, hi, back):
        """Chunks of a few long lines. Whose base is not known yet sums up its chunk meanwhile, so
        that the next need not wait for this one's outputs."""
        p = pointer(task, TENSORS)
        n, B, W = extent(words(task, AXIS)), block_of(p), lanes_along(p, back)
        about, straight, none = (n, word(task, REVERSED)), word(task, STRAIGHT) != 0, start(p, 1)
        lines = word(task, STRIP)
        in_boxes = boxes_for(ins_of(task, 0), W, B, ALONG, back)
        out_boxes = boxes_for(outs_of(task, 0), W, B, ALONG, back)
        for item in range(lo, hi):
            chunk = item // lines
            line, k = item - chunk * lines, chunk * CHUNK
            end, link = min(k + CHUNK, n), link_of(task, LINKS, line, carried(none))
            ins, outs, state = ins_of(task, line), outs_of(task, line), none
            early = end < n and not is_turn(link, chunk)
            if early:
                state = stretch(
                    ins, (), (in_boxes, ()), k, end, about, straight, none, False, W, back
                )
            wait_for_turn(link, chunk)
            base = carried(none)
            if chunk > 0:
                base = received(link, base)
            if early:
                publish(link, chunk, carried(rebased(state, base)))
            state = stretch(
                ins, outs, (in_boxes, out_boxes), k, end, about, straight, rebased(none, base),
                _streams_to(task, outs[0], back), W, back,
            )  # fmt: skip
            if not early:
                publish(link, chunk, carried(state))
        fence()

    return shared


def _lines(scan: Scan, pieces: Pieces) -> Callable[..., Any]:
    start, ins_of, outs_of, tile = scan.start, pieces.ins, pieces.outs, pieces.tile
    copy_in, renewed = pieces.copy_in, pieces.renewed
    most, tensors = max(scan.ahead), scan.tensors

    @inlined
    def group(ins, outs, boxes, c, count, about, straight, streaming, none, W, back):
        """All steps of the lines from c on."""
        in_boxes, out_boxes = boxes
        n, B, state, k = about[0], block_of(ins[0][0]), none, 0
        while k < n:
            end = min((k // CHUNK + 1) * CHUNK, n)
            # Tiles of whole lines; one that ends before its last step has masks.
            last = end + B - 1 if masks_rows(ins[0][0]) else min(end, n - most)
            whole = (last - k) // B if straight and count == W else 0
            source, target, at, line, left = ins, outs, k, c, n - k
            some = min(B, end - k)
            if whole <= 0:
                copy_in(ins, in_boxes, k, c, some, count, n - k, W, B, LINES, back)
                source, target, at, line, left = in_boxes, out_boxes, 0, 0, 2 * B
            for r in range(max(whole, 1)):
                state = tile(
                    source, target, at + r * B, line, left - r * B, k + r * B, about, state,
                    streaming and whole > 0, W, LINES, back,
                )  # fmt: skip
            if whole <= 0:
                copy_out(outs, out_boxes, k, c, some, count, W, B, LINES, back)
            k += max(whole, 1) * B
            if k >= end:
                state = renewed(none, state)

    def lines(task, lo, hi, back):
        p = pointer(task, TENSORS)
        n, B, W = extent(words(task, AXIS)), block_of(p), lanes_lines(p, tensors)
        about, straight, none = (n, word(task, REVERSED)), word(task, STRAIGHT) != 0, start(p, W)
        boxes = (
            boxes_for(ins_of(task, 0), W, B, LINES, back),
            boxes_for(outs_of(task, 0), W, B, LINES, back),
        )
        for item in range(lo, hi):
            first, column, total = _strip_at(task, item)
            ins, outs = ins_of(task, first), outs_of(task, first)
            out = outs[0]
            streaming = _streams_to(task, out, back)
            streaming = streaming and is_aligned(out[0], out[1] + out[3] + back, 16)
            for c in range(column, min(column + word(task, STRIP), total), W):
                count = min(W, total - c)
                group(ins, outs, boxes, c, count, about, straight, streaming, none, W, back)
        fence()

    return lines


def _across(scan: Scan, pieces: Pieces) -> Callable[..., Any]:
    start, ins_of, outs_of, tile = scan.start, pieces.ins, pieces.outs, pieces.tile
    copy_in, renewed = pieces.copy_in, pieces.renewed
    most = max(scan.ahead)

    @inlined
    def block(ins, outs, boxes, k, begin, end, about, states, streaming, near, W):
        """One block of steps of the columns from begin to end; begin may be negative, where tiles
        start at a cache line of the output and the first is a part."""
        in_boxes, out_boxes = boxes
        n, B = about[0], block_of(ins[0][0])
        some, c = min(B, n - k), begin
        while c < end:
            whole = (end - c) // W if k + B + most <= n and c >= 0 else 0
            source, target, at, column = ins, outs, k, c
            low = max(c, 0)
            count = min(c + W, end) - low
            if whole <= 0:
                copy_in(ins, in_boxes, k, low, some, count, n - k, W, B, ACROSS, 0)
                source, target, at, column = in_boxes, out_boxes, 0, 0
            first = (c - begin) // W
            for r in range(max(whole, 1)):
                if near:
                    prefetch_tile(ins, k + AHEAD, c + r * W, B)
                states[first + r] = tile(
                    source, target, at, column + r * W, 2 * B, k, about, states[first + r],
                    streaming and whole > 0, W, ACROSS, 0,
                )  # fmt: skip
            if whole <= 0:
                copy_out(outs, out_boxes, k, low, some, count, W, B, ACROSS, 0)
            c += max(whole, 1) * W

    def across(task, lo, hi, back):
        p = pointer(task, TENSORS)
        n, B, W = extent(words(task, AXIS)), block_of(p), lanes_across(p)
        about, strip, none = (n, word(task, REVERSED)), word(task, STRIP), start(p, W)
        states = stack(none, cells_across(p, SIDE))
        boxes = (
            boxes_for(ins_of(task, 0), W, B, ACROSS, 0),
            boxes_for(outs_of(task, 0), W, B, ACROSS, 0),
        )
        for item in range(lo, hi):
            first, column, total = _strip_at(task, item)
            ins, outs = ins_of(task, first), outs_of(task, first)
            out, streaming = outs[0], word(task, STREAMS) != 0
            head = to_next_line(out[0], out[1]) if streaming else 0
            streaming = streaming and is_aligned(out[0], out[1] + head + out[2], 64)
            # Whole cache lines of the output: the first strip begins with a part of one.
            begin = column + head - W if column == 0 and head > 0 else column + head
            end = min(column + strip + head, total)
            cells, near = (end - begin + W - 1) // W, abs(ins[0][2]) <= NEAR
            for cell in range(cells):
                states[cell] = none
            for k in range(0, n, B):
                if k > 0 and k % CHUNK == 0:
                    for cell in range(cells):
                        states[cell] = renewed(none, states[cell])
                block(ins, outs, boxes, k, begin, end, about, states, streaming, near, W)
        fence()

    return across
