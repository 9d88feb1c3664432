"""What the walks of a scan share: where its lines are, how they begin and end, and steps of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.cpu.columns import block_of, lanes_ahead, lanes_along, lanes_by
from pullback.cpu.edges import begins, finishes, runs_ahead, runs_back, starts
from pullback.cpu.emit import inlined
from pullback.cpu.kernel import word
from pullback.cpu.memory import is_aligned
from pullback.cpu.parts import copies_in, copy_out
from pullback.cpu.places import (
    STREAMS,
    cursors_of,
    index_place,
    place_ahead,
    place_at,
    place_turned,
)
from pullback.cpu.saved import areas
from pullback.cpu.scan import Scan, tile_of
from pullback.cpu.splats import splats
from pullback.cpu.tile_rows import ALONG


def always(value: int) -> Callable[..., Any]:
    return inlined(lambda task: value)


@inlined
def _streams(task):
    return word(task, STREAMS) != 0


@inlined
def streams_to(streams, out, back):
    """Whether the rows of a line leave in aligned pieces of 16 bytes, past the caches."""
    return streams and is_aligned(out[0], out[1] + back, 16)


class Pieces:
    """What the walks of a scan share: of one that walks `before` another, the other way."""

    def __init__(self, scan: Scan, before: Scan | None = None) -> None:
        near = place_at if before is None else place_turned
        places = [
            (place_ahead if far else near, t)
            for t, far in zip(scan.inputs, scan.ahead, strict=True)
        ]
        self.ins = cursors_of(places)
        self.lanes = lanes_along if before is None else lanes_ahead
        if scan.busy is not None:
            self.lanes = lanes_by(scan.busy)
        self.tensors = (before or scan).tensors
        self.lead = inlined((lambda n, B: 0) if before is None else (lambda n, B: n % B))
        self.with_area, self.beside = areas(scan)
        outs = [(place_at, t) for t in scan.outputs] + [(index_place, t) for t in scan.indices]
        self.outs = cursors_of(outs)
        self.copy_in = copies_in(scan.neutral, scan.ahead)
        self.splat = splats(scan.alike)
        self.tile = tile_of(scan)
        self.stretch = stretch_of(scan, self)
        carried, rebased = scan.carried, scan.rebased
        if carried is None or rebased is None:
            self.renewed = inlined(lambda none, state: state)
        else:
            self.renewed = inlined(lambda none, state: rebased(none, carried(state)))
        self.start, self.begin, self.finish = starts(scan), begins(scan), finishes(scan)
        self.back: Callable[..., Any] = runs_back if before is None else runs_ahead
        self.streams, self.target = _streams, inlined(lambda ins, outs: outs[0])
        if scan.results == 0:
            self.streams, self.target = always(False), inlined(lambda ins, outs: ins[0])


def stretch_of(scan: Scan, pieces: Pieces) -> Callable[..., Any]:
    """Steps k to end of one line."""
    tile, copy_in, most, lead_of = pieces.tile, pieces.copy_in, max(scan.ahead), pieces.lead

    @inlined
    def stretch(ins, outs, boxes, k, end, about, straight, state, streaming, W, back):
        in_boxes, out_boxes = boxes
        n, B = about[0], block_of(ins[0][0])
        rows, lead = B * W, lead_of(about[0], block_of(ins[0][0]))
        while k < end:
            whole = (min(end, n - most) - k) // rows if straight and k >= lead else 0
            source, target, at = ins, outs, k
            some = min(rows, (end if k >= lead else lead) - k)
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
            k += max(whole * rows, some)
        return state

    return stretch
