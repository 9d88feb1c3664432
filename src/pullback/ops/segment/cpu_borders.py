"""Borders of segments and bags that are given: checked, and copied to a table; which bag a
position belongs to."""

from __future__ import annotations

from numba.extending import register_jitable

from pullback.cpu.kernel import index_pointer, kernel, word
from pullback.cpu.memory import read_wide
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_index import fail, first_found, single_step
from pullback.ops.segment.cpu_list import row_of
from pullback.ops.segment.cpu_words import ints

NO_OFFSETS = -1  # in place of how many there are
BORDER_CHUNK = 1 << 13  # borders per item


@register_jitable
def border(task, offsets, b):
    """Where bag b begins. Unless offsets say it, the last one ends with the positions. Without any,
    bags are as long as the step."""
    if word(task, at.OFFSETS_COUNT) == NO_OFFSETS:
        return b * word(task, at.OFFSETS_STEP)
    if b >= word(task, at.OFFSETS_COUNT):
        return word(task, at.ROWS) if b > 0 else 0
    return read_wide(offsets, b * word(task, at.OFFSETS_STEP))


@kernel
def take_borders(task, lo, hi):
    """Items are chunks of borders."""
    offsets, borders = index_pointer(task, word(task, at.BORDERS_SLOT)), ints(task, at.BORDERS_AT)
    found, rows = ints(task, at.BORDER_FINDINGS_AT), word(task, at.ROWS)
    past, covering = word(task, at.BAGS) + 1, word(task, at.COVERING) != 0
    for c in range(lo, hi):
        wrong, before, first = past, 0, c * BORDER_CHUNK
        if c > 0:
            before = border(task, offsets, first - 1)
        for b in range(first, min(first + BORDER_CHUNK, past)):
            here = border(task, offsets, b)
            bad = here < before or here > rows or (b == 0 and here != 0)
            bad = bad or (covering and b == past - 1 and here != rows)
            if bad and wrong == past:
                wrong = b
            borders[b] = here
            before = here
        found[c] = wrong


@kernel
def judge_borders(task, lo, hi):
    """One item: the first border that is wrong."""
    past, found = word(task, at.BAGS) + 1, ints(task, at.BORDER_FINDINGS_AT)
    b = first_found(found, 1, word(task, at.BORDER_CHUNKS), past)
    if b < past:
        fail(task, at.BAD_OFFSETS, b, ints(task, at.BORDERS_AT)[b])


@kernel
def fill_bags(task, lo, hi):
    """The bag of each position, -1 after the last bag, and how many positions of each bag are
    kept. Items are bags, and one more for the positions after them."""
    ids, borders = index_pointer(task, at.IDS), ints(task, at.BORDERS_AT)
    bag_of, bags = ints(task, at.BAG_OF_AT), word(task, at.BAGS)
    sizes, wanted = ints(task, at.BAG_SIZES_AT), word(task, at.BAG_SIZES_AT) != at.NOWHERE
    step = single_step(task)
    for b in range(lo, hi):
        past = borders[b + 1] if b < bags else word(task, at.ROWS)
        for n in range(borders[b], past):
            bag_of[n] = b if b < bags else -1
        if wanted and b < bags:
            kept = 0
            for n in range(borders[b], past):
                if row_of(task, ids, n, step) >= 0:
                    kept += 1
            sizes[b] = kept
