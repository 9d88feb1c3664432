"""The walks of a scan over its lines, as kernels: see cpu/scan."""

from __future__ import annotations

from collections.abc import Callable
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
from pullback.cpu.edges import about_line, begins, finishes, runs_back, starts
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import Kernel, pointer, word, words
from pullback.cpu.lookback import is_turn, link_of, publish, received, wait_for_turn
from pullback.cpu.loops import extent
from pullback.cpu.memory import fence, is_aligned, to_next_line
from pullback.cpu.named import named
from pullback.cpu.parts import boxes_for, copies_in, copy_out
from pullback.cpu.places import (
    AXIS,
    LINKS,
    STRAIGHT,
    STREAMS,
    STRIP,
    cursors_of,
    index_place,
    place_ahead,
    place_at,
    strip_at,
)
from pullback.cpu.scan import Scan, tile_of
from pullback.cpu.tile_rows import ACROSS, ALONG, LINES
from pullback.cpu.tiles import stack

CHUNK: Final = 1 << 15  # steps that are scanned on their own, so that threads can share a line
SIDE: Final = 1024  # lines of a strip across
# Rows across that are so many elements apart, or fewer, are too short for the machine to see where
# they go: each is asked for so many steps ahead. cumsum of 64x1024x256 f32, axis 1: 0.84 of the
# time.
NEAR: Final = 1024
AHEAD: Final = 16

# --- walks ----------------------------------------------------------------------------------------


class Walks:
    """The kernels of a scan, by name: along, lines, across and, of scans in chunks, shared."""

    def __init__(self, scan: Scan, name: str, module: str, by_direction: bool = False) -> None:
        """by_direction: `lines` has a kernel of its own for lines against memory order."""
        self.scan = scan
        self.shares = scan.carried is not None
        bodies = {"along": _along, "lines": _lines, "across": _across}
        if self.shares:
            bodies["shared"] = _shared
        shared = Pieces(scan)
        self.kernels: dict[str, Kernel] = {}
        for walk, make in bodies.items():
            self._add(walk, make(scan, shared), name, module)
        if by_direction:
            for walk, back in (("lines", 0), ("lines_back", 1)):
                shared.back = _always(back)
                self._add(walk, _lines(scan, shared), name, module)

    def _add(self, walk: str, body: Callable[..., Any], name: str, module: str) -> None:
        self.kernels[walk] = named(body, f"{name}_{walk}", module)


def _always(back: int) -> Callable[..., Any]:
    return inlined(lambda task: back)


class Pieces:
    """What the walks of a scan share."""

    def __init__(self, scan: Scan) -> None:
        places = [
            (place_ahead if far else place_at, t)
            for t, far in zip(scan.inputs, scan.ahead, strict=True)
        ]
        self.ins = cursors_of(places)
        outs = [(place_at, t) for t in scan.outputs] + [(index_place, t) for t in scan.indices]
        self.outs = cursors_of(outs)
        self.copy_in = copies_in(scan.neutral, scan.ahead)
        self.tile = tile_of(scan)
        self.stretch = _stretch(scan, self)
        carried, rebased = scan.carried, scan.rebased
        if carried is None or rebased is None:
            self.renewed = inlined(lambda none, state: state)
        else:
            self.renewed = inlined(lambda none, state: rebased(none, carried(state)))
        self.start, self.begin, self.finish = starts(scan), begins(scan), finishes(scan)
        self.back: Callable[..., Any] = runs_back


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


@inlined
def _fence_streams(task):
    """Only after such stores: it waits for all others too, which short pieces of lines feel."""
    if word(task, STREAMS) != 0:
        fence()


def _along(scan: Scan, pieces: Pieces) -> Callable[..., Any]:
    start, ins_of, outs_of = pieces.start, pieces.ins, pieces.outs
    stretch, renewed, begin, finish = pieces.stretch, pieces.renewed, pieces.begin, pieces.finish

    def along(task, lo, hi):
        p = pointer(task, TENSORS)
        n, B, W = extent(words(task, AXIS)), block_of(p), lanes_along(p)
        straight, back, none = word(task, STRAIGHT) != 0, runs_back(task), start(task, p, 1)
        boxes = (
            boxes_for(ins_of(task, 0), W, B, ALONG, back),
            boxes_for(outs_of(task, 0), W, B, ALONG, back),
        )
        for number in range(lo, hi):
            # Lines in the order of the walk: what is prefetched beyond one is the next.
            line = lo + hi - 1 - number if back != 0 else number
            ins, outs = ins_of(task, line), outs_of(task, line)
            streaming = _streams_to(task, outs[0], back)
            state, initial = begin(task, none, line, 0, 1, 1)
            about = about_line(task, n, initial)
            for k in range(0, n, CHUNK):
                end = min(k + CHUNK, n)
                state = stretch(
                    ins, outs, boxes, k, end, about, straight, state, streaming, W, back
                )
                state = renewed(none, state)
            finish(task, state, line, 0, 1)
        _fence_streams(task)

    return along


def _shared(scan: Scan, pieces: Pieces) -> Callable[..., Any]:
    start, carried, rebased = pieces.start, scan.carried, scan.rebased
    ins_of, outs_of, stretch = pieces.ins, pieces.outs, pieces.stretch
    begin, finish = pieces.begin, pieces.finish

    def shared(task, lo, hi):
        """Chunks of a few long lines. Whose base is not known yet sums up its chunk meanwhile, so
        that the next need not wait for this one's outputs."""
        p = pointer(task, TENSORS)
        n, B, W = extent(words(task, AXIS)), block_of(p), lanes_along(p)
        straight, back, none = word(task, STRAIGHT) != 0, runs_back(task), start(task, p, 1)
        lines = word(task, STRIP)
        in_boxes = boxes_for(ins_of(task, 0), W, B, ALONG, back)
        out_boxes = boxes_for(outs_of(task, 0), W, B, ALONG, back)
        for item in range(lo, hi):
            chunk = item // lines
            line, k = item - chunk * lines, chunk * CHUNK
            end, link = min(k + CHUNK, n), link_of(task, LINKS, line, carried(none))
            ins, outs, state = ins_of(task, line), outs_of(task, line), none
            first, initial = begin(task, none, line, 0, 1, 1)
            about = about_line(task, n, initial)
            early = end < n and not is_turn(link, chunk)
            if early:
                state = stretch(
                    ins, (), (in_boxes, ()), k, end, about, straight, none, False, W, back
                )
            wait_for_turn(link, chunk)
            base = carried(none)
            if chunk > 0:
                first, base = none, received(link, base)
            if early:
                publish(link, chunk, carried(rebased(state, base)))
            state = stretch(
                ins, outs, (in_boxes, out_boxes), k, end, about, straight, rebased(first, base),
                _streams_to(task, outs[0], back), W, back,
            )  # fmt: skip
            if not early:
                publish(link, chunk, carried(state))
            if end == n:
                finish(task, state, line, 0, 1)
        _fence_streams(task)

    return shared


def _lines(scan: Scan, pieces: Pieces) -> Callable[..., Any]:
    start, ins_of, outs_of, tile = pieces.start, pieces.ins, pieces.outs, pieces.tile
    copy_in, renewed, begin, finish = pieces.copy_in, pieces.renewed, pieces.begin, pieces.finish
    most, tensors, back_of = max(scan.ahead), scan.tensors, pieces.back

    @inlined
    def group(ins, outs, boxes, c, count, about, straight, streaming, state, none, W, back):
        """All steps of the lines from c on."""
        in_boxes, out_boxes = boxes
        n, B, k = about[0], block_of(ins[0][0]), 0
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
        return state

    def lines(task, lo, hi):
        p = pointer(task, TENSORS)
        n, B, W = extent(words(task, AXIS)), block_of(p), lanes_lines(p, tensors)
        straight, back, none = word(task, STRAIGHT) != 0, back_of(task), start(task, p, W)
        boxes = (
            boxes_for(ins_of(task, 0), W, B, LINES, back),
            boxes_for(outs_of(task, 0), W, B, LINES, back),
        )
        for item in range(lo, hi):
            first, column, total = strip_at(task, item)
            ins, outs = ins_of(task, first), outs_of(task, first)
            out = outs[0]
            streaming = _streams_to(task, out, back)
            streaming = streaming and is_aligned(out[0], out[1] + out[3] + back, 16)
            for c in range(column, min(column + word(task, STRIP), total), W):
                count = min(W, total - c)
                state, initial = begin(task, none, first, c, count, W)
                about = about_line(task, n, initial)
                state = group(
                    ins, outs, boxes, c, count, about, straight, streaming, state, none, W, back
                )
                finish(task, state, first, c, count)
        _fence_streams(task)

    return lines


def _across(scan: Scan, pieces: Pieces) -> Callable[..., Any]:
    start, work, tile = pieces.start, scan.work, pieces.tile
    ins_of, outs_of = pieces.ins, pieces.outs
    copy_in, renewed, begin, finish = pieces.copy_in, pieces.renewed, pieces.begin, pieces.finish
    most = max(scan.ahead)

    @inlined
    def block(ins, outs, boxes, k, low, end, about, cells, streaming, near, W):
        """One block of steps of the columns from low to end; low may be negative, where tiles start
        at a cache line of the output and the first is a part."""
        in_boxes, out_boxes = boxes
        states, initials = cells
        n, B = about[0], block_of(ins[0][0])
        some, c = min(B, n - k), low
        while c < end:
            whole = (end - c) // W if k + B + most <= n and c >= 0 else 0
            source, target, at, column = ins, outs, k, c
            first = max(c, 0)
            count = min(c + W, end) - first
            if whole <= 0:
                copy_in(ins, in_boxes, k, first, some, count, n - k, W, B, ACROSS, 0)
                source, target, at, column = in_boxes, out_boxes, 0, 0
            cell = (c - low) // W
            for r in range(max(whole, 1)):
                if near:
                    prefetch_tile(ins, k + AHEAD, c + r * W, B)
                states[cell + r] = tile(
                    source, target, at, column + r * W, 2 * B, k,
                    (*about[:4], initials[cell + r], *about[5:]),
                    states[cell + r], streaming and whole > 0, W, ACROSS, 0,
                )  # fmt: skip
            if whole <= 0:
                copy_out(outs, out_boxes, k, first, some, count, W, B, ACROSS, 0)
            c += max(whole, 1) * W

    def across(task, lo, hi):
        p = pointer(task, TENSORS)
        n, B, W = extent(words(task, AXIS)), block_of(p), lanes_across(p)
        strip, none = word(task, STRIP), start(task, p, W)
        about = about_line(task, n, work(p, W))
        states = stack(none, cells_across(p, SIDE))
        initials = stack(work(p, W), cells_across(p, SIDE))
        boxes = (
            boxes_for(ins_of(task, 0), W, B, ACROSS, 0),
            boxes_for(outs_of(task, 0), W, B, ACROSS, 0),
        )
        for item in range(lo, hi):
            first, column, total = strip_at(task, item)
            ins, outs = ins_of(task, first), outs_of(task, first)
            out, streaming = outs[0], word(task, STREAMS) != 0
            head = to_next_line(out[0], out[1]) if streaming else 0
            streaming = streaming and is_aligned(out[0], out[1] + head + out[2], 64)
            # Whole cache lines of the output: the first strip begins with a part of one.
            low = column + head - W if column == 0 and head > 0 else column + head
            end = min(column + strip + head, total)
            cells, near = (end - low + W - 1) // W, abs(ins[0][2]) <= NEAR
            for cell in range(cells):
                c = low + cell * W
                count = min(c + W, end) - max(c, 0)
                states[cell], initials[cell] = begin(task, none, first, max(c, 0), count, W)
            for k in range(0, n, B):
                if k > 0 and k % CHUNK == 0:
                    for cell in range(cells):
                        states[cell] = renewed(none, states[cell])
                block(ins, outs, boxes, k, low, end, about, (states, initials), streaming, near, W)
            for cell in range(cells):
                c = low + cell * W
                finish(task, states[cell], first, max(c, 0), min(c + W, end) - max(c, 0))
        _fence_streams(task)

    return across
