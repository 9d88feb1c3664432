"""The walks of a scan over its lines, as kernels: see cpu/scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pullback.cpu.block import TENSORS
from pullback.cpu.columns import (
    block_of,
    cells_across,
    lanes_across,
    lanes_lines,
    masks_rows,
    prefetch_tile,
)
from pullback.cpu.edges import about_line
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import Kernel, pointer, word, words
from pullback.cpu.lookback import is_turn, link_of, publish, received, wait_for_turn
from pullback.cpu.loops import extent
from pullback.cpu.memory import fence, is_aligned, to_next_line
from pullback.cpu.named import named
from pullback.cpu.parts import boxes_for, copy_out
from pullback.cpu.places import (
    AXIS,
    LINKS,
    STRAIGHT,
    STREAMS,
    STRIP,
    strip_at,
)
from pullback.cpu.scan import Scan
from pullback.cpu.short_pieces import short_pieces
from pullback.cpu.tile_rows import ACROSS, ALONG, LINES
from pullback.cpu.tiles import stack
from pullback.cpu.walk_parts import Pieces, always, streams_to

CHUNK: Final = 1 << 15  # steps that are scanned on their own, so that threads can share a line
SIDE: Final = 1024  # lines of a strip across
# Rows across that are so many elements apart, or fewer, are too short for the machine to see where
# they go: each is asked for so many steps ahead. cumsum of 64x1024x256 f32, axis 1: 0.84 of the
# time.
NEAR: Final = 1024
AHEAD: Final = 16

# --- walks ----------------------------------------------------------------------------------------


class Walks:
    """The kernels of a scan, by name: along, lines, across, pieces of scans that go one way and
    shared of scans in chunks."""

    def __init__(
        self,
        scan: Scan,
        name: str,
        module: str,
        by_direction: bool = False,
        ahead: Scan | None = None,
    ) -> None:
        """by_direction: `lines` has a kernel of its own for lines against memory order. ahead: see
        cpu/saved."""
        self.scan = scan
        self.shares = scan.carried is not None
        bodies = {"along": _along, "lines": _lines, "across": _across}
        if self.shares:
            bodies["shared"] = _shared
        shared = Pieces(scan)
        self.kernels: dict[str, Kernel] = {}
        for walk, make in bodies.items():
            body = make(scan, shared)
            if ahead is not None:
                first = make(ahead, Pieces(ahead, scan))
                if walk == "shared":  # all of it before the walk back begins
                    self._add("shared_ahead", first, name, module)
                else:
                    body = _twice(first, body)
            self._add(walk, body, name, module)
        if ahead is None:
            self._add("pieces", short_pieces(scan), name, module)
        if by_direction:
            for walk, back in (("lines", 0), ("lines_back", 1)):
                shared.back = always(back)
                self._add(walk, _lines(scan, shared), name, module)

    def _add(self, walk: str, body: Callable[..., Any], name: str, module: str) -> None:
        self.kernels[walk] = named(body, f"{name}_{walk}", module)


def _twice(ahead: Callable[..., Any], back: Callable[..., Any]) -> Callable[..., Any]:
    there, again = inlined(ahead), inlined(back)

    def both(task, lo, hi):
        there(task, lo, hi)
        again(task, lo, hi)

    return both


@inlined
def _chunk_at(chunk, n, lead):
    """Begin and end of a chunk. The first has the short block of a walk ahead, too."""
    return chunk * CHUNK + lead * (chunk > 0), min((chunk + 1) * CHUNK + lead, n)


@inlined
def _fence_streams(task):
    """Only after such stores: it waits for all others too, which short pieces of lines feel."""
    if word(task, STREAMS) != 0:
        fence()


def _along(scan: Scan, pieces: Pieces) -> Callable[..., Any]:
    start, ins_of, outs_of, back_of = pieces.start, pieces.ins, pieces.outs, pieces.back
    lanes_of = pieces.lanes
    stretch, renewed, begin, finish = pieces.stretch, pieces.renewed, pieces.begin, pieces.finish
    streams, target, lead_of, with_area = (
        pieces.streams, pieces.target, pieces.lead, pieces.with_area,
    )  # fmt: skip
    splat = pieces.splat

    def along(task, lo, hi):
        p = pointer(task, TENSORS)
        n, B, W = extent(words(task, AXIS)), block_of(p), lanes_of(p)
        straight, back, none = word(task, STRAIGHT) != 0, back_of(task), start(task, p, 1)
        boxes = (
            boxes_for(ins_of(task, 0), W, B, ALONG, back),
            boxes_for(outs_of(task, 0), W, B, ALONG, back),
        )
        still = boxes_for(ins_of(task, 0), W, B, ALONG, back)
        for number in range(lo, hi):
            # Lines in the order of the walk: what is prefetched beyond one is the next.
            line = lo + hi - 1 - number if back != 0 else number
            ins, outs = ins_of(task, line), outs_of(task, line)
            ins = splat(ins, still, 0, 0, n, 1, W, B, ALONG, back)
            streaming = streams_to(streams(task), target(ins, outs), back)
            state, initial = begin(task, none, line, 0, 1, 1)
            about = with_area(task, about_line(task, n, initial), p, line, 1)
            for chunk in range((n + CHUNK - 1) // CHUNK):
                k, end = _chunk_at(chunk, n, lead_of(n, B))
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
    begin, finish, back_of = pieces.begin, pieces.finish, pieces.back
    streams, target, lead_of, with_area = (
        pieces.streams, pieces.target, pieces.lead, pieces.with_area,
    )  # fmt: skip

    own_links, lanes_of = int(scan.saves is not None), pieces.lanes

    def shared(task, lo, hi):
        """Chunks of a few long lines. Whose base is not known yet sums up its chunk meanwhile, so
        that the next need not wait for this one's outputs."""
        p = pointer(task, TENSORS)
        n, B, W = extent(words(task, AXIS)), block_of(p), lanes_of(p)
        straight, back, none = word(task, STRAIGHT) != 0, back_of(task), start(task, p, 1)
        lines = word(task, STRIP)
        in_boxes = boxes_for(ins_of(task, 0), W, B, ALONG, back)
        out_boxes = boxes_for(outs_of(task, 0), W, B, ALONG, back)
        for item in range(lo, hi):
            chunk = item // lines
            line = item - chunk * lines
            k, end = _chunk_at(chunk, n, lead_of(n, B))
            link = link_of(task, LINKS, line + own_links * lines, carried(none))
            ins, outs, state = ins_of(task, line), outs_of(task, line), none
            first, initial = begin(task, none, line, 0, 1, 1)
            about = with_area(task, about_line(task, n, initial), p, line, 1)
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
                streams_to(streams(task), target(ins, outs), back), W, back,
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
    most, tensors, back_of = max(scan.ahead), pieces.tensors, pieces.back
    streams, target, lead_of = pieces.streams, pieces.target, pieces.lead
    with_area, beside = pieces.with_area, pieces.beside
    splat = pieces.splat

    @inlined
    def group(ins, outs, boxes, c, count, about, straight, streaming, state, none, W, back):
        """All steps of the lines from c on."""
        in_boxes, out_boxes, still = boxes
        n, B, k = about[0], block_of(ins[0][0]), 0
        lead = lead_of(n, B)
        ins = splat(ins, still, 0, c, n, count, W, B, LINES, back)
        while k < n:
            end = min(((k - lead) // CHUNK + 1) * CHUNK + lead, n)
            # Tiles of whole lines; one that ends before its last step has masks.
            last = end + B - 1 if masks_rows(ins[0][0]) else min(end, n - most)
            whole = (last - k) // B if straight and count == W else 0
            source, into, at, line = ins, outs, k, c
            left, some = (n if k >= lead else lead) - k, min(B, end - k)
            if whole <= 0:
                copy_in(ins, in_boxes, k, c, some, count, n - k, W, B, LINES, back)
                source, into, at, line, left = in_boxes, out_boxes, 0, 0, 2 * B
            for r in range(max(whole, 1)):
                state = tile(
                    source, into, at + r * B, line, left - r * B, k + r * B, about, state,
                    streaming and whole > 0, W, LINES, back,
                )  # fmt: skip
            if whole <= 0:
                copy_out(outs, out_boxes, k, c, some, count, W, B, LINES, back)
            k += max(whole, 1) * B
            if k >= end:
                k = end
                state = renewed(none, state)
        return state

    def lines(task, lo, hi):
        p = pointer(task, TENSORS)
        n, B, W = extent(words(task, AXIS)), block_of(p), lanes_lines(p, tensors)
        straight, back, none = word(task, STRAIGHT) != 0, back_of(task), start(task, p, W)
        boxes = (
            boxes_for(ins_of(task, 0), W, B, LINES, back),
            boxes_for(outs_of(task, 0), W, B, LINES, back),
            boxes_for(ins_of(task, 0), W, B, LINES, back),
        )
        for item in range(lo, hi):
            first, column, total = strip_at(task, item)
            ins, outs = ins_of(task, first), outs_of(task, first)
            out = target(ins, outs)
            streaming = streams_to(streams(task), out, back)
            streaming = streaming and is_aligned(out[0], out[1] + out[3] + back, 16)
            for c in range(column, min(column + word(task, STRIP), total), W):
                count = min(W, total - c)
                state, initial = begin(task, none, first, c, count, W)
                about = with_area(task, about_line(task, n, initial), p, first, total)
                about = beside(about, c, count)
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
    most, streams, target_of, lead_of = max(scan.ahead), pieces.streams, pieces.target, pieces.lead
    with_area, beside = pieces.with_area, pieces.beside
    splat = pieces.splat

    @inlined
    def block(ins, outs, boxes, k, some, low, end, about, cells, streaming, near, W):
        """One block of steps of the columns from low to end; low may be negative, where tiles start
        at a cache line of the output and the first is a part."""
        in_boxes, out_boxes, still = boxes
        states, initials = cells
        n, B, c = about[0], block_of(ins[0][0]), low
        ins = splat(ins, still, k, 0, some, 1, W, B, ACROSS, 0)
        while c < end:
            whole = (end - c) // W if some == B and k + B + most <= n and c >= 0 else 0
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
                here = (*about[:4], initials[cell + r], *about[5:])
                states[cell + r] = tile(
                    source, target, at, column + r * W, 2 * B, k,
                    beside(here, first + r * W, count), states[cell + r],
                    streaming and whole > 0, W, ACROSS, 0,
                )  # fmt: skip
            if whole <= 0:
                copy_out(outs, out_boxes, k, first, some, count, W, B, ACROSS, 0)
            c += max(whole, 1) * W

    def across(task, lo, hi):
        p = pointer(task, TENSORS)
        n, B, W = extent(words(task, AXIS)), block_of(p), lanes_across(p)
        strip, none = word(task, STRIP), start(task, p, W)
        plain, lead = about_line(task, n, work(p, W)), lead_of(n, B)
        states = stack(none, cells_across(p, SIDE))
        initials = stack(work(p, W), cells_across(p, SIDE))
        boxes = (
            boxes_for(ins_of(task, 0), W, B, ACROSS, 0),
            boxes_for(outs_of(task, 0), W, B, ACROSS, 0),
            boxes_for(ins_of(task, 0), W, B, ACROSS, 0),
        )
        for item in range(lo, hi):
            first, column, total = strip_at(task, item)
            ins, outs = ins_of(task, first), outs_of(task, first)
            about = with_area(task, plain, p, first, total)
            out, streaming = target_of(ins, outs), streams(task)
            head = to_next_line(out[0], out[1]) if streaming else 0
            streaming = streaming and is_aligned(out[0], out[1] + head + out[2], 64)
            # Whole cache lines of the output: the first strip begins with a part of one.
            low = column + head - W if column == 0 and head > 0 else column + head
            end = min(column + strip + head, total)
            cells, near = (end - low + W - 1) // W, abs(out[2]) <= NEAR
            for cell in range(cells):
                c = low + cell * W
                count = min(c + W, end) - max(c, 0)
                states[cell], initials[cell] = begin(task, none, first, max(c, 0), count, W)
            k, cells_of_all = 0, (states, initials)
            while k < n:
                if k > lead and (k - lead) % CHUNK == 0:
                    for cell in range(cells):
                        states[cell] = renewed(none, states[cell])
                some = min(B, (n if k >= lead else lead) - k)
                block(ins, outs, boxes, k, some, low, end, about, cells_of_all, streaming, near, W)
                k += some
            for cell in range(cells):
                c = low + cell * W
                finish(task, states[cell], first, max(c, 0), min(c + W, end) - max(c, 0))
        _fence_streams(task)

    return across
