"""Inputs of a scan that are broadcast, as boxes of equal rows that tiles load as any other."""

from collections.abc import Callable

from numba import types

from pullback.cpu.emit import I64, Lane, op, splatted
from pullback.cpu.tile_rows import ACROSS, ALONG, LINES, packed
from pullback.cpu.transfer import block_at, lane_bytes


def splats(alike: tuple[int, ...]) -> Callable:
    """splat(cursors, boxes, k, c, steps, lines, W, B, walk, back): the cursors, but that of an
    input that is broadcast along the axis, or across from line to line, is one of a box of equal
    rows: those of the lines from c on, or of the steps from k on. Tiles load it as any other.
    Gain (splats): discounted_sum 4096x4096 f32 3.42."""

    def splat(
        cursors: types.BaseTuple,
        boxes: types.BaseTuple,
        k: types.Integer,
        c: types.Integer,
        steps: types.Integer,
        lines: types.Integer,
        W: Lane,
        B: Lane,
        walk: Lane,
        back: types.Integer,
    ):
        lanes, block, way = W.literal_value, B.literal_value, walk.literal_value
        several, long = {ALONG: (1, block * lanes), LINES: (lanes, block), ACROSS: (block, lanes)}[
            way
        ]

        def replaced(b, own, box, at, counts, back_):
            pointer, start, step, pitch = (b.extract_value(own, m) for m in range(4))
            memory, (k_, c_), (steps_, lines_) = b.extract_value(box, 0), at, counts
            stride, first, most = (step, k_, steps_) if way == ACROSS else (pitch, c_, lines_)
            broadcast = b.icmp_signed("==", pitch if way == ACROSS else step, I64(0))
            broadcast = b.and_(broadcast, b.icmp_signed(">", steps_, I64(0)))
            with b.if_then(broadcast):
                for r in range(several):
                    last = b.sub(most, I64(1))
                    line = b.select(b.icmp_signed("<", I64(r), most), I64(r), last)
                    off = b.mul(b.add(first, line), stride) if several > 1 else I64(0)
                    element = b.load(b.gep(pointer, [b.add(start, off)]))
                    row = splatted(b, element, long)
                    size = lane_bytes(row.type)
                    b.store(row, block_at(b, memory, I64(r * long), row.type), align=size)
            far = b.mul(back_, I64(long - 1))
            by = {
                ALONG: (far, I64(0), I64(0)),
                LINES: (b.sub(far, b.mul(c_, I64(long))), I64(0), I64(long)),
                ACROSS: (b.neg(b.mul(k_, I64(long))), I64(long), I64(0)),
            }[way]
            pairs = zip((memory, *by), (pointer, start, step, pitch), strict=True)
            return packed(b, [b.select(broadcast, new, old) for new, old in pairs])

        def emit(b, cursors_, boxes_, k_, c_, steps_, lines_, _W, _B, _walk, back_):
            out = []
            for t in range(len(cursors)):
                own = b.extract_value(cursors_, t)
                if t in alike:
                    box = b.extract_value(boxes_, t)
                    own = replaced(b, own, box, (k_, c_), (steps_, lines_), back_)
                out.append(own)
            return packed(b, out)

        numbers = [types.int64] * 4
        return cursors(cursors, boxes, *numbers, W, B, walk, types.int64), emit

    return op(splat)
