"""Borders that are given in place of ids: checked, and copied to the table of offsets."""

from __future__ import annotations

from pullback.cpu.kernel import index_pointer, kernel, set_word, word
from pullback.cpu.memory import as_i64_pointer, read_wide
from pullback.cpu.program import DETAIL, STATUS
from pullback.ops.segment.cpu_words import (
    BAD_OFFSETS,
    BAG_CHUNKS,
    BAG_FINDINGS_AT,
    IDS,
    OFFSETS,
    OFFSETS_AT,
    OFFSETS_COUNT,
    OFFSETS_STEP,
    ROWS,
    scratch,
    table,
)

BORDER_CHUNK = 1 << 13  # borders per item


@kernel
def take_borders(task, lo, hi):
    """offsets[s] = where segment s begins; the last one is where all end. Items are chunks."""
    borders, offsets = index_pointer(task, IDS), table(task, OFFSETS_AT, OFFSETS)
    found, step = as_i64_pointer(scratch(task, BAG_FINDINGS_AT)), word(task, OFFSETS_STEP)
    count, rows = word(task, OFFSETS_COUNT), word(task, ROWS)
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
    found, offsets = (
        as_i64_pointer(scratch(task, BAG_FINDINGS_AT)),
        table(task, OFFSETS_AT, OFFSETS),
    )
    for c in range(word(task, BAG_CHUNKS)):
        b = found[c]
        if b < word(task, OFFSETS_COUNT):
            set_word(task, DETAIL, b)
            set_word(task, DETAIL + 1, offsets[b])
            set_word(task, STATUS, BAD_OFFSETS)
            return
