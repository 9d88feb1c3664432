"""Bags in Numba: where they begin and end, and which one a position belongs to. Their sums are
those of segments, over listed rows."""

from __future__ import annotations

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import index_pointer, kernel, set_word, word
from pullback.cpu.memory import read_wide
from pullback.cpu.program import DETAIL, STATUS
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_index import single_step
from pullback.ops.segment.cpu_list import row_of
from pullback.ops.segment.cpu_words import ints

NO_OFFSETS = -1  # in place of how many there are
BAG_CHUNK = 1 << 13  # offsets per item of the phases that look at them


# --- borders ------------------------------------------------------------------------------------


@inlined
def border(task, offsets, b):
    """Where bag b begins. Unless offsets say it, the last one ends with the positions. Without any,
    bags are as long as the step."""
    if word(task, at.OFFSETS_COUNT) == NO_OFFSETS:
        return b * word(task, at.OFFSETS_STEP)
    if b >= word(task, at.OFFSETS_COUNT):
        return word(task, at.ROWS) if b > 0 else 0
    return read_wide(offsets, b * word(task, at.OFFSETS_STEP))


@kernel
def find_bags(task, lo, hi):
    """Borders in one table, checked. Items are chunks of them."""
    offsets, borders = index_pointer(task, at.BAG_OFFSETS), ints(task, at.BORDERS_AT)
    found, past, rows = findings(task), word(task, at.BAGS) + 1, word(task, at.ROWS)
    for c in range(lo, hi):
        wrong = past
        before = 0
        if c > 0:
            before = border(task, offsets, c * BAG_CHUNK - 1)
        for b in range(c * BAG_CHUNK, min((c + 1) * BAG_CHUNK, past)):
            here = border(task, offsets, b)
            if wrong == past and (here < before or here > rows or (b == 0 and here != 0)):
                wrong = b
            borders[b] = here
            before = here
        found[c] = wrong


@inlined
def findings(task):
    return ints(task, at.BAG_FINDINGS_AT)


@kernel
def judge_bags(task, lo, hi):
    """One item: the first border that is wrong."""
    found, borders = findings(task), ints(task, at.BORDERS_AT)
    for c in range(word(task, at.BAG_CHUNKS)):
        b = found[c]
        if b <= word(task, at.BAGS):
            set_word(task, DETAIL, b)
            set_word(task, DETAIL + 1, borders[b])
            set_word(task, STATUS, at.BAD_OFFSETS)
            return


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
