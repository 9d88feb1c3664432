"""Which row and which segment each position belongs to: two tables, checked, that all phases after
read in place of the ids. A position whose id or row is out of range is -1 in both."""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import index_pointer, kernel, set_word, word
from pullback.cpu.memory import read_wide
from pullback.cpu.program import DETAIL, STATUS, TENSORS
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_index import (
    chunk_of,
    findings,
    first_descent,
    id_by_step,
    report,
    single_step,
)
from pullback.ops.segment.cpu_words import ints, offsets_of, scratch

GATHER = TENSORS + 5  # the slot of the ids that rows are gathered by
SEGMENT_OF_AT, ROW_OF_AT = at.BAG_OF_AT, at.BORDERS_AT  # words of bags, for the two tables
GATHER_STEP, GATHER_FINDINGS_AT = at.WINNERS_STEP, at.BAG_FINDINGS_AT
ROW_OUT_OF_RANGE = 4


@kernel
def resolve_ids(task, lo, hi):
    """The segment of each position, -1 out of range. Items are chunks of ids."""
    ids, step, found = index_pointer(task, at.IDS), single_step(task), findings(task)
    segment_of, rows = ints(task, SEGMENT_OF_AT), word(task, at.ROWS)
    segments, strict = word(task, at.SEGMENTS), word(task, at.STRICT) != 0
    for c in range(lo, hi):
        first, end = chunk_of(task, c)
        outside = descent = rows
        if word(task, at.ASCENDING):
            descent = first_descent(task, ids, first, end)
        for n in range(first, end):
            s = id_by_step(task, ids, n, step)
            inside = 0 <= s < segments
            if strict and not inside and outside == rows:
                outside = n
            segment_of[n] = s if inside else -1
        found[2 * c], found[2 * c + 1] = outside, descent


@kernel
def judge_ids(task, lo, hi):
    """One item. Range comes before order."""
    if not report(task, 0, at.OUT_OF_RANGE):
        report(task, 1, at.NOT_ASCENDING)


@kernel
def spread_borders(task, lo, hi):
    """The segment of each position, from borders. Items are segments."""
    offsets = offsets_of(task)
    segment_of = ints(task, SEGMENT_OF_AT)
    for s in range(lo, hi):
        for n in range(offsets[s], offsets[s + 1]):
            segment_of[n] = s


@kernel
def resolve_rows(task, lo, hi):
    """The row of each position that has a segment; without one it has none. Items are chunks."""
    ids, step = index_pointer(task, GATHER), word(task, GATHER_STEP)
    segment_of = ints(task, SEGMENT_OF_AT)
    row_of = ints(task, ROW_OF_AT)
    found, rows = ints(task, GATHER_FINDINGS_AT), word(task, at.VOCABULARY)
    strict = word(task, at.STRICT) != 0
    for c in range(lo, hi):
        first, end = chunk_of(task, c)
        outside = word(task, at.ROWS)
        for n in range(first, end):
            r = read_wide(ids, n * step)
            inside = 0 <= r < rows
            if strict and not inside and outside == word(task, at.ROWS):
                outside = n
            kept = inside and segment_of[n] >= 0
            row_of[n] = r if kept else -1
            if not kept:
                segment_of[n] = -1
        found[c] = outside


@kernel
def judge_rows(task, lo, hi):
    """One item: the first row that is out of range."""
    found = ints(task, GATHER_FINDINGS_AT)
    for c in range(word(task, at.CHUNKS)):
        n = found[c]
        if n < word(task, at.ROWS):
            set_word(task, DETAIL, n)
            ids = index_pointer(task, GATHER)
            set_word(task, DETAIL + 1, read_wide(ids, n * word(task, GATHER_STEP)))
            set_word(task, STATUS, ROW_OUT_OF_RANGE)
            return


@kernel
def count_rows(task, lo, hi):
    """How many positions each segment has. One item."""
    segment_of = ints(task, SEGMENT_OF_AT)
    sizes, segments = ints(task, at.BAG_SIZES_AT), word(task, at.BAGS)
    for s in range(segments):
        sizes[s] = 0
    for n in range(word(task, at.ROWS)):
        if segment_of[n] >= 0:
            sizes[segment_of[n]] += 1


@inlined
def _turn(task, table_at):
    """To the next set of words, and to ids that lie in a table."""
    other = word(task, at.OTHER_WORDS)
    for base in range(at.FIRST, at.LOOPS):
        set_word(task, base, word(task, other + base - at.FIRST))
    set_word(task, at.IDS, scratch(task, table_at))


@kernel
def turn_to_segments(task, lo, hi):
    """From here on ids are the segments of positions. One item."""
    _turn(task, SEGMENT_OF_AT)


@kernel
def turn_to_rows(task, lo, hi):
    """From here on ids are the rows of positions. One item."""
    _turn(task, ROW_OF_AT)
