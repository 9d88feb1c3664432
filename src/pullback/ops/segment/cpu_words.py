"""The words that the kernels of segments and embeddings share, and how they find their way.

The first five slots of every record of these families have the same meaning, and the words begin at
the same place in all of them, so that one kernel serves many plans. `ORDER_AT` and the like say
where a table lives: in the workspace, at so many bytes, or in the slot of a prepared index.
"""

from __future__ import annotations

from collections.abc import Sequence

from numba.extending import register_jitable

from pullback.contract.element import ElementKind
from pullback.cpu.kernel import word, words
from pullback.cpu.loops import axis_words
from pullback.cpu.loops import offset as loop_offset
from pullback.cpu.memory import as_i64_pointer
from pullback.cpu.program import TENSORS, WORKSPACE
from pullback.tensor.layout import AxisLoops, Loops, merge
from pullback.tensor.view import TensorRef

SOURCE, IDS, TARGET, ORDER, OFFSETS, SAVED = range(TENSORS, TENSORS + 6)
SLOTS = 12  # at least as many as any record has
FIRST = TENSORS + SLOTS

(
    ROWS,  # positions: how many ids there are
    SEGMENTS,
    LAST,  # the largest id in range, or in the id's own type if that is less
    STRICT,  # out-of-range ids are an error
    ASCENDING,  # descending ids are an error
    PADDING,  # an id that counts as empty, or -1
    CHUNK,  # ids per item of the phases that look at ids
    CHUNKS,
    SHIFT,  # ids with these low bits apart share a bucket of the sort
    BUCKETS,
    ORDER_AT,
    OFFSETS_AT,
    FINDINGS_AT,
    HISTOGRAM_AT,
    PACKED_AT,
    LONG_AT,  # which segment each block of a long segment belongs to
    PARTIALS_AT,
    LIMIT_AT,  # a word in the workspace: positions from there on are left out; -1: none are
    ROW_LOOPS,  # loops over positions: ids, then the source
    COLUMN_LOOPS,  # loops over columns: source, target, then the saved input
    COLUMNS,
    SOURCE_ROW,  # element stride between rows, if one is enough
    TARGET_ROW,
    SAVED_ROW,
    DIVIDE,  # by the number of rows
    ACCUMULATE,  # add to what is there
    EMPTY,  # what a segment without rows gets
    STREAMING,
    OPTION,  # the kernel's own
    SECOND,
) = range(FIRST, FIRST + 30)
LOOPS = SECOND + 1

# Where a table lives, if not in the workspace.
NOWHERE, IN_SLOT = -1, -2

OUT_OF_RANGE, NOT_ASCENDING, BAD_OFFSETS = 1, 2, 3  # what a status means

BLOCK = 256  # rows of a segment that are reduced in one go; longer ones are cut there

INDEX_MAX = {ElementKind.I32: 2**31 - 1, ElementKind.I64: 2**63 - 1}


# --- laying out ---------------------------------------------------------------------------------


class Room:
    """Hands out pieces of the workspace, each on its own cache line."""

    def __init__(self) -> None:
        self.bytes = 64  # the workspace itself may begin anywhere

    def take(self, words: int) -> int:
        at = self.bytes - 64
        self.bytes += -(-8 * words // 64) * 64
        return at


def layout_words(
    values: dict[int, int], rows: Loops, columns: AxisLoops, slots: int
) -> tuple[int, ...]:
    """All words of a program, for a record of so many slots."""
    row_words = axis_words(AxisLoops(1, (0,) * len(rows.strides), rows, False))
    values[ROW_LOOPS], values[COLUMN_LOOPS] = LOOPS, LOOPS + len(row_words)
    fixed = [values.get(at, 0) for at in range(FIRST, LOOPS)]
    return (*(0,) * (SLOTS - slots), *fixed, *row_words, *axis_words(columns))


def column_loops(shape: tuple[int, ...], strides: Sequence[tuple[int, ...]]) -> AxisLoops:
    """The innermost loop over columns as the axis, the others around it."""
    loops = merge(shape, strides)
    if not loops.extents:
        return AxisLoops(1, (1,) * len(strides), loops, False)
    outer = Loops(loops.extents[:-1], tuple(s[:-1] for s in loops.strides))
    return AxisLoops(loops.extents[-1], tuple(s[-1] for s in loops.strides), outer, False)


def row_loops(shape: tuple[int, ...], views: Sequence[TensorRef]) -> Loops:
    """The loops over positions, in their order, of tensors whose first axes they are."""
    return merge(shape, [view.strides[: len(shape)] for view in views], ordered=True)


# --- finding the way ----------------------------------------------------------------------------


@register_jitable
def scratch(task, at):
    """Address of what word `at` places in the workspace."""
    return ((word(task, WORKSPACE) + 63) & ~63) + word(task, at)


@register_jitable
def table(task, at, slot):
    """A table of int64, wherever it lives."""
    if word(task, at) == IN_SLOT:
        return as_i64_pointer(word(task, slot))
    return as_i64_pointer(scratch(task, at))


@register_jitable
def has_order(task):
    """Whether sorted rows are found through `order`; if not, they lie in order themselves."""
    at = word(task, ORDER_AT)
    return at >= 0 or at == IN_SLOT


@register_jitable
def position_offset(task, tensor, n):
    """Offset of position n in the ids (0) or in the source (1)."""
    return loop_offset(words(task, word(task, ROW_LOOPS)), tensor, n)


@register_jitable
def segment_end(task, offsets, s):
    """One past the last sorted row of segment s; a padding segment has no rows."""
    return offsets[s + 1 if s != word(task, PADDING) else s]


@register_jitable
def locate(offsets, segments, at):
    """The last segment that begins at or before place `at` of the walk.

    The walk visits each segment once for itself and once for each of its rows, so that equal
    pieces of it are equal work, however the rows are spread."""
    low, high, base = 0, segments, offsets[0]
    while high - low > 1:
        middle = (low + high) >> 1
        if offsets[middle] - base + middle <= at:
            low = middle
        else:
            high = middle
    return low


@register_jitable
def first_block(task, offsets, lo):
    """The first block that begins at or after place `lo` of the walk: its segment and number."""
    segments = word(task, SEGMENTS)
    if segments == 0:
        return 0, 0
    s = locate(offsets, segments, lo)
    k = (lo - (offsets[s] - offsets[0] + s) + BLOCK - 1) // BLOCK
    if k > 0 and offsets[s] + k * BLOCK >= segment_end(task, offsets, s):
        return s + 1, 0
    return s, k


@register_jitable
def next_block(task, offsets, s, k):
    if offsets[s] + (k + 1) * BLOCK < segment_end(task, offsets, s):
        return s, k + 1
    return s + 1, 0


@register_jitable
def begins_before(task, offsets, s, k, hi):
    """Whether block k of segment s exists and begins before place `hi` of the walk."""
    return s < word(task, SEGMENTS) and offsets[s] - offsets[0] + s + k * BLOCK < hi


@register_jitable
def long_slot(offsets, s, k):
    """The number of block k among the blocks of long segments. Those have at least two blocks, so
    twice the start of one is past the last block of the one before."""
    return 2 * ((offsets[s] - offsets[0]) // BLOCK) + k


def long_slots(rows: int) -> int:
    """How many numbers `long_slot` can give."""
    return 2 * (rows // BLOCK) + 1
