"""Borders that are given in place of ids: checked, and copied to the table of offsets."""

from __future__ import annotations

from pullback.cpu.kernel import index_pointer, kernel, set_word, word
from pullback.cpu.memory import read_wide
from pullback.cpu.program import DETAIL, STATUS
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_words import ints, offsets_of

BORDER_CHUNK = 1 << 13  # borders per item


@kernel
def take_borders(task, lo, hi):
    """offsets[s] = where segment s begins; the last one is where all end. Items are chunks."""
    borders, offsets = index_pointer(task, at.IDS), offsets_of(task)
    found, step = ints(task, at.BAG_FINDINGS_AT), word(task, at.OFFSETS_STEP)
    count, rows = word(task, at.OFFSETS_COUNT), word(task, at.ROWS)
    for c in range(lo, hi):
        first, wrong = c * BORDER_CHUNK, count
        before = 0
        if c > 0:
            before = read_wide(borders, (first - 1) * step)
        for b in range(first, min(first + BORDER_CHUNK, count)):
            here = read_wide(borders, b * step)
            bad = here < before or here > rows
            bad = bad or (b == 0 and here != 0) or (b == count - 1 and here != rows)
            if bad and wrong == count:
                wrong = b
            offsets[b] = here
            before = here
        found[c] = wrong


@kernel
def judge_borders(task, lo, hi):
    """One item: the first border that is wrong."""
    found, offsets = ints(task, at.BAG_FINDINGS_AT), offsets_of(task)
    for c in range(word(task, at.BAG_CHUNKS)):
        b = found[c]
        if b < word(task, at.OFFSETS_COUNT):
            set_word(task, DETAIL, b)
            set_word(task, DETAIL + 1, offsets[b])
            set_word(task, STATUS, at.BAD_OFFSETS)
            return
