"""What a walk ahead saves of each block of steps for the walk back, in the workspace.

A backward may need what only a walk the other way knows: Walks(scan, ..., ahead) goes over its
lines twice, first with the scan `ahead`, against the direction of `scan`. Of that one, `apply`
gives a single Vec of type `saves`, which `scan` has behind its columns; it has the option of the op
as well, and so has `holds`. A saved Vec has a lane for
each block of a tile.

Blocks are counted from where the walk back begins: the one that is short is the first of the walk
ahead. Lines that go together lie side by side, so that the workspace follows from the shape alone.
An *area* is (pointer, place of the first block of a line, from block to block, lanes there are).
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from pullback.cpu.block import WORKSPACE
from pullback.cpu.blocks import passed_on, step_numbers
from pullback.cpu.columns import block_of, loads
from pullback.cpu.emit import I64, Lane, Vec, inlined, op, shuffle
from pullback.cpu.kernel import word
from pullback.cpu.memory import as_f64_pointer, as_u8_pointer
from pullback.cpu.tile_rows import ALONG, size_of
from pullback.cpu.tiles import Pointer, by_type
from pullback.cpu.transfer import block_at, either, scattered
from pullback.cpu.transpose import lane_order
from pullback.cpu.vector import to_u8

_POINTERS = {types.uint8: as_u8_pointer, types.float64: as_f64_pointer}


@op
def _store(p: Pointer, area: types.BaseTuple, at: types.Integer, v: Vec, walk: Lane):
    along = walk.literal_value == ALONG
    order = lane_order(size_of(p), v.n)

    def emit(b, _p, area_, at_, v_, _walk):
        pointer, count = b.extract_value(area_, 0), b.extract_value(area_, 3)

        def whole():
            out, low = v_, at_
            if along:
                out, low = shuffle(b, v_, v_, order[::-1]), b.sub(at_, I64(v.n - 1))
            b.store(out, block_at(b, pointer, low, out.type), align=1)

        def some():
            out = shuffle(b, v_, v_, order) if along else v_
            scattered(b, pointer, at_, I64(-1 if along else 1), count, out)

        either(b, b.icmp_signed(">=", count, I64(v.n)), whole, some)

    return types.void(p, area, types.int64, v, walk), emit


@op
def _load(p: Pointer, area: types.BaseTuple, at: types.Integer, like: Vec, walk: Lane):
    v = like.of(area[0].dtype)
    order = lane_order(size_of(p), v.n)

    def emit(b, _p, area_, at_, *_):
        where = block_at(b, b.extract_value(area_, 0), at_, v.llvm)
        raw = b.load(where, align=1)
        if walk.literal_value != ALONG:
            return raw
        return shuffle(b, raw, raw, [order.index(k) for k in range(v.n)])

    return v(p, area, types.int64, like, walk), emit


@inlined
def _blocks(n, B):
    return (n + B - 1) // B


def areas(scan: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(task, about, p, line, columns) -> about with the area of lines from there on, if the scan
    has one; (about, c, count) -> about of the lines from c on."""
    kind = scan.saves or scan.recalls
    if kind is None:
        same = inlined(lambda about, c, count: about)
        return inlined(lambda task, about, p, line, columns: about), same
    pointer_to = _POINTERS[kind]

    @inlined
    def with_area(task, about, p, line, columns):
        first = line * _blocks(about[0], block_of(p))
        return (*about, (pointer_to(word(task, WORKSPACE)), first, columns, columns))

    @inlined
    def beside(about, c, count):
        area = about[9]
        return (*about[:9], (area[0], area[1] + c, area[2], count))

    return with_area, beside


def recalled(scan: Any) -> Callable[..., Any]:
    """(columns, p, number, about, walk) -> the columns and what was saved of their blocks."""
    if scan.recalls is None:
        return inlined(lambda columns, p, number, about, walk: columns)

    @inlined
    def recall(columns, p, number, about, walk):
        area = about[9]
        at = area[1] + number // block_of(p) * area[2]
        return (*columns, _load(p, area, at, columns[0][0], walk))

    return recall


def relative_within(within: Callable[..., Any], relative: bool) -> Callable[..., Any]:
    """(columns, state) -> what `within` makes of them."""
    return within if relative else inlined(lambda columns, state: within(columns))


def _step_of(scan: Any) -> Callable[..., Any]:
    """(p, columns, about, state, walk) -> what a tile saves and the state behind it."""

    def by(within: Any, combine: Any, apply: Any) -> Callable[..., Any]:
        @inlined
        def one(p, columns, about, state, walk):
            inner, total = within(columns, state)
            entering, after = passed_on(combine, p, state, total, walk)
            return apply(entering, inner, about[8]), after

        return one

    usual = by(relative_within(scan.within, False), scan.combine, scan.apply)
    for way, relative in ((scan.fast, False), (scan.faster, scan.relative)):
        if way:
            may, within, *rest = way
            usual = _either(may, by(relative_within(within, relative), *rest), usual)
    return usual


def _either(may: Any, short: Any, careful: Any) -> Callable[..., Any]:
    @inlined
    def short_or_careful(p, columns, about, state, walk):
        if may(state, columns):
            return short(p, columns, about, state, walk)
        return careful(p, columns, about, state, walk)

    return short_or_careful


def saving_tile(scan: Any, signed: Callable[..., Any]) -> Callable[..., Any]:
    """See `tile_of` in cpu/scan: a tile of a scan that only saves."""
    work, load_tile = scan.work, loads(scan.neutral, scan.ahead)
    edged = scan.edged or inlined(lambda columns, numbers, about: columns)

    @by_type
    def lanes_of(area, block, walk):
        if walk.literal_value == ALONG:
            return lambda area, block, walk: (area[0], area[1], area[2], block + 1)
        return lambda area, block, walk: area

    @inlined
    def save(p, number, about, v, walk):
        B = block_of(p)
        block = _blocks(about[0], B) - 1 - _blocks(number, B)
        area = about[9]
        _store(p, lanes_of(area, block, walk), area[1] + block * area[2], v, walk)

    usual = _step_of(scan)

    @inlined
    def tile(ins, outs, k, c, left, number, about, state, streaming, W, walk, back):
        p = ins[0][0]
        columns = signed(load_tile(ins, k, c, left, work(p, W), walk, back, 0), about)
        if number == 0:
            columns = edged(columns, step_numbers(p, number, columns[0][0], walk), about)
        v, after = usual(p, columns, about, state, walk)
        save(p, number, about, v, walk)
        return after

    if not scan.held:
        return tile
    (holds, held), (rises, risen, top) = scan.held, scan.rising

    @by_type
    def is_rising(ins, k, c, left, about, state, steps, W, walk, back):
        if walk.literal_value != ALONG:
            return lambda ins, k, c, left, about, state, steps, W, walk, back: False

        def along(ins, k, c, left, about, state, steps, W, walk, back):
            if k == 0:  # the line begins there, or the tile is a copy
                return False
            w = work(ins[0][0], W)
            before = signed(load_tile(ins, k - 1, c, left, w, walk, back, 1), about)
            return rises(state, steps, before, about[8])

        return along

    @by_type
    def top_of(columns, state, walk):
        if walk.literal_value != ALONG:
            return lambda columns, state, walk: state
        return lambda columns, state, walk: top(columns)

    @inlined
    def unless_held(ins, outs, k, c, left, number, about, state, streaming, W, walk, back):
        p = ins[0][0]
        columns = signed(load_tile(ins, k, c, left, work(p, W), walk, back, 1), about)
        if holds(state, columns, about[8]):
            save(p, number, about, held(state, columns), walk)
            return state
        if is_rising(ins, k, c, left, about, state, columns, W, walk, back):
            save(p, number, about, risen(state, columns), walk)
            return top_of(columns, state, walk)
        return tile(ins, outs, k, c, left, number, about, state, streaming, W, walk, back)

    return unless_held


# --- a bit for each step of a block ---------------------------------------------------------------


@by_type
def bits_of(masks):
    """Of each lane, bit s for step s."""
    if len(masks) == 4:
        return lambda masks: (
            (to_u8(masks[0]) | (to_u8(masks[1]) << 1))
            | ((to_u8(masks[2]) << 2) | (to_u8(masks[3]) << 3))
        )
    return lambda masks: bits_of(masks[:4]) | (bits_of(masks[4:]) << 4)


@op
def no_bits(v: Vec):
    def emit(b, v_):
        number = ir.IntType(8 * v.n)
        return b.icmp_unsigned("==", b.bitcast(v_, number), ir.Constant(number, 0))

    return types.boolean(v), emit
