"""One engine for what is done with the rows of segments.

An op says what the rows of a block come to, how blocks of a long segment are combined, and what is
written. The engine owns the rest: which rows a block has (`cpu_list`, `cpu_panel`), in which strips
of columns they are read, and the blocks of long segments. All is said of a strip, `cols`.

`reduction` makes two kernels that write a row for each segment: one walks all segments, one writes
the long ones.

    total(task, state, block, cols) -> tuple     what the listed rows come to
    write(task, state, block, cols, total)       the row of a short segment; `empty`: without rows
    parts(p, total) -> tuple of f64              what a block of a long segment leaves
    join(task, p, block, cols)                   the row of a long segment, from these parts

`spread` makes three kernels that write a row for each row: one walks all segments and writes to the
rows of short ones, one combines the blocks of long ones, one writes to the rows of these.

    whole(p, total) -> tuple                     what is written with, of a short segment
    write(task, state, block, cols, whole)       all rows of a block
    join(task, p, block, cols)                   puts down what `again` finds
    again(task, state, block, cols) -> tuple     the same as `whole`, of a long segment

A state is (source, lists, target, kept, ...) in reductions, (places, target, sheet, listed, source,
saved, kept, others, ...) in spreads, and what `own(task, p, kept)` adds; `kept` has room for a
strip of all rows of a block. Parts of block `slot` have the numbers from `many * slot` on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import Kernel, pointer, real, word
from pullback.cpu.memory import (
    as_f64_pointer,
    as_i64_pointer,
    filled_wide,
    get_first,
    on_stack,
    put_first,
)
from pullback.cpu.named import named
from pullback.cpu.tiles import by_type
from pullback.cpu.vector import splat, to_f64
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_list import over_positions
from pullback.ops.segment.cpu_panel import over_saved_panels
from pullback.ops.segment.cpu_strip import computed, in_target, lanes, store, tile_elements
from pullback.ops.segment.cpu_walk import over_long_blocks, over_long_segments, over_segments
from pullback.ops.segment.cpu_words import BLOCK, LISTED, floats

KEPT = BLOCK * 32  # elements of a strip of all rows of a block


@inlined
def write_segment(task, target, s, cols, v):
    store(task, target, s * word(task, at.SEGMENT_ROW), in_target(cols), v)


@inlined
def write_empty(task, state, block, cols):
    """A segment without rows leaves what it is added to alone."""
    if word(task, at.ACCUMULATE) == 0:
        v = filled_wide(state[2], real(task, at.EMPTY), cols[4])
        write_segment(task, state[2], block[0], cols, v)


@inlined
def put_part(task, part, cols, v):
    here = part * word(task, at.COLUMNS) + cols[2]
    put_first(floats(task, at.PARTIALS_AT), here, 1, cols[3], to_f64(v))


@inlined
def get_part(task, part, cols):
    here = part * word(task, at.COLUMNS) + cols[2]
    return get_first(floats(task, at.PARTIALS_AT), here, 1, cols[3], splat(0.0, cols[4]))


@inlined
def get_parts(task, part, cols):
    """Three of them, from number `part` on."""
    first, second = get_part(task, part, cols), get_part(task, part + 1, cols)
    return first, second, get_part(task, part + 2, cols)


@by_type
def put_parts(task, part, cols, parts):
    """All of a tuple, from number `part` on."""
    if len(parts) == 0:
        return lambda task, part, cols, parts: None

    def one_by_one(task, part, cols, parts):
        put_part(task, part, cols, parts[0])
        put_parts(task, part + 1, cols, parts[1:])

    return one_by_one


@inlined
def first_slot(block):
    """The first block of a long segment holds what is known of them all."""
    return block[5] - (block[2] - block[1]) // BLOCK


@inlined
def _nothing_more(task, p, kept):
    return ()


def reduction(
    module: str,
    names: tuple[str, str],
    *,
    total: Callable[..., Any],
    write: Callable[..., Any],
    parts: Callable[..., Any],
    join: Callable[..., Any],
    many: int,
    empty: Callable[..., Any] = write_empty,
    own: Callable[..., Any] = _nothing_more,
    wide: Callable[..., Any] = lanes,
    over: Callable[..., Any] = over_positions,
    source: int = at.SOURCE,
) -> tuple[Kernel, Kernel]:
    """Items are places of the walk over segments and their rows, then blocks of long segments."""

    @inlined
    def strip(task, state, block, cols):
        if block[5] < 0 and block[7] == 0:
            empty(task, state, block, cols)
            return
        found = total(task, state, block, cols)
        if block[5] < 0:
            write(task, state, block, cols, found)
        else:
            put_parts(task, many * block[5], cols, parts(state[0], found))

    def walk(task, lo, hi):
        p, target = pointer(task, source), pointer(task, at.TARGET)
        lists = on_stack(as_i64_pointer(0), LISTED), on_stack(as_f64_pointer(0), BLOCK)
        kept = on_stack(computed(p), KEPT)
        state = (p, lists, target, kept) + own(task, p, kept)  # noqa: RUF005
        over_segments(task, lo, hi, wide(p), strip, state, over)

    def combine(task, lo, hi):
        over_long_segments(task, lo, hi, join, pointer(task, at.TARGET))

    return named(walk, names[0], module), named(combine, names[1], module)


def spread(
    module: str,
    names: tuple[str, str, str],
    *,
    total: Callable[..., Any],
    whole: Callable[..., Any],
    write: Callable[..., Any],
    parts: Callable[..., Any],
    join: Callable[..., Any],
    again: Callable[..., Any],
    many: int,
    own: Callable[..., Any] = _nothing_more,
    wide: Callable[..., Any] = lanes,
    over: Callable[..., Any] = over_saved_panels,
    over_long: Callable[..., Any] = over_saved_panels,
    saved: int = at.SAVED,
) -> tuple[Kernel, Kernel, Kernel]:
    """Items are places of the walk over segments and their rows, then blocks of long segments."""

    @inlined
    def short(task, state, block, cols):
        if block[4] == 0:
            return False
        found = total(task, state, block, cols)
        if block[5] < 0:
            write(task, state, block, cols, whole(state[5], found))
        else:
            put_parts(task, many * block[5], cols, parts(state[5], found))
        return block[5] < 0

    @inlined
    def long(task, state, block, cols):
        write(task, state, block, cols, again(task, state, block, cols))
        return True

    def body(strip, walk, over):
        @inlined
        def walked(task, lo, hi):
            p, target = pointer(task, saved), pointer(task, at.TARGET)
            places, kept = on_stack(as_i64_pointer(0), LISTED), on_stack(computed(p), KEPT)
            tile, listed = on_stack(target, tile_elements(target)), on_stack(places, LISTED)
            others = on_stack(places, LISTED)
            source = pointer(task, at.SOURCE)
            state = (places, target, tile, listed, source, p, kept, others) + own(task, p, kept)  # noqa: RUF005
            walk(task, lo, hi, wide(target), strip, state, over)

        return walked

    def combine(task, lo, hi):
        over_long_segments(task, lo, hi, join, pointer(task, at.TARGET))

    return (
        named(body(short, over_segments, over), names[0], module),
        named(combine, names[1], module),
        named(body(long, over_long_blocks, over_long), names[2], module),
    )
