"""The words that the kernels of segments and embeddings share, and how they find their way.

The first five slots of every record of these families have the same meaning, and the words begin at
the same place in all of them, so that one kernel serves many plans. `ORDER_AT` and the like say
where a table lives: in the workspace, at so many bytes, or in the slot of a prepared index.
"""

from __future__ import annotations

from numba.extending import register_jitable

from pullback.contract.element import ElementKind
from pullback.cpu.kernel import word, words
from pullback.cpu.loops import axis_words
from pullback.cpu.loops import offset as loop_offset
from pullback.cpu.memory import as_f64_pointer, as_i64_pointer
from pullback.cpu.program import TENSORS, WORKSPACE
from pullback.tensor.layout import AxisLoops, Loops

SOURCE, IDS, TARGET, ORDER, OFFSETS, SAVED = range(TENSORS, TENSORS + 6)
BAG_OFFSETS, WEIGHTS, WINNERS, TABLE, D_WEIGHTS = range(TENSORS + 5, TENSORS + 10)  # of bags
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
    KEPT_AT,  # how many rows each of those blocks keeps
    PARTIALS_AT,
    MAPPING,  # how a sorted row is found
    SCALING,  # what comes with it
    LIMIT_AT,  # a word in the workspace: positions from there on are left out; -1: none are
    ROW_LOOPS,  # loops over positions: ids, then the tensor with a row for each
    COLUMN_LOOPS,  # loops over columns: source, target, then the saved input
    COLUMNS,
    POSITION_ROW,  # element stride between rows of the tensor with a row for each position
    SEGMENT_ROW,  # and of the one with a row for each segment
    SAVED_ROW,  # and of the saved input
    DIVIDE,  # by the number of rows
    ACCUMULATE,  # add to what is there
    EMPTY,  # what a segment without rows gets
    STREAMING,  # what an address must be a multiple of to be written past the caches, or 0
    SIGN,  # -1 where minima are sought as maxima
    TIES,
    # Bags of an embedding:
    BAGS,
    IDS_SLOT,  # of the next set of words: which ids it is about
    RANGE_STATUS,  # added to the status of an id out of range
    NAMED,  # winners are ids, not positions
    BORDER_CHUNKS,
    BORDER_FINDINGS_AT,
    BORDERS_AT,  # where each bag or segment begins, and where the last one ends
    BORDERS_SLOT,  # what says so
    COVERING,  # the last one ends with the positions
    BAG_OF_AT,  # the bag of each position
    BAG_SIZES_AT,  # how many kept positions each bag has; terms are divided by it
    FREQUENCIES_AT,  # how many kept positions hold each row
    VOCABULARY,
    PADDING_ROW,
    OFFSETS_COUNT,
    OFFSETS_STEP,
    WEIGHTS_STEP,
    D_WEIGHTS_STEP,
    WINNERS_AT,  # where it is put down who holds an extremum, if anywhere; in this slot
    WINNERS_SLOT,
    WINNERS_ROW,
    WINNERS_STEP,
    TABLE_ROW,
    TABLE_STEP,
    OTHER_WORDS,  # where a second set of words begins
) = range(FIRST, FIRST + 58)
LOOPS = OTHER_WORDS + 1

# Where a table lives, if not in the workspace.
NOWHERE, IN_SLOT = -1, -2

BY_POSITION, BY_INDEX, BY_BAG = 0, 1, 2  # mappings
UNSCALED, BY_WEIGHT, BY_SIZE, NUMBERED = 0, 1, 2, 3  # times a weight, over a size, or only numbered

OUT_OF_RANGE, NOT_ASCENDING, BAD_OFFSETS, BAD_WINNER = 1, 2, 3, 4  # what a status means

FAR = 32  # rows asked for in advance, to the second cache: the first has no room for so many

BLOCK = 256  # rows of a segment that are reduced in one go; longer ones are cut there
LISTED = BLOCK + FAR

INDEX_MAX = {ElementKind.I32: 2**31 - 1, ElementKind.I64: 2**63 - 1}


# Rows in order may share cache lines, since the next one fills them up at once; rows at random must
# fill their own.
IN_ORDER, AT_RANDOM = 16, 64


# --- laying out ---------------------------------------------------------------------------------


class Room:
    """Hands out pieces of the workspace, each on its own cache line."""

    def __init__(self) -> None:
        self.bytes = 64  # the workspace itself may begin anywhere

    def take(self, words: int) -> int:
        at = self.bytes - 64
        self.bytes += -(-8 * words // 64) * 64
        return at


def layout_words(slots: int, *sets: tuple[dict[int, int], Loops, AxisLoops]) -> tuple[int, ...]:
    """All words of a program, for a record of so many slots: values, rows and columns, and perhaps
    a second set of them."""
    found, begin = [0] * (SLOTS - slots), FIRST
    for values, rows, columns in sets:
        row_words = axis_words(AxisLoops(1, (0,) * len(rows.strides), rows, False))
        column_words = axis_words(columns)
        loops = begin + LOOPS - FIRST
        places = {ROW_LOOPS: loops, COLUMN_LOOPS: loops + len(row_words)}
        begin = loops + len(row_words) + len(column_words)
        values = {**values, **places, OTHER_WORDS: begin}
        found += [values.get(at, 0) for at in range(FIRST, LOOPS)]
        found += [*row_words, *column_words]
    return tuple(found)


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
def offsets_of(task):
    """Where each segment begins, and where the last one ends."""
    return table(task, OFFSETS_AT, OFFSETS)


@register_jitable
def order_of(task):
    """The position behind each sorted row."""
    return table(task, ORDER_AT, ORDER)


@register_jitable
def ints(task, at):
    """A table of int64 in the workspace."""
    return as_i64_pointer(scratch(task, at))


@register_jitable
def floats(task, at):
    """A table of f64 in the workspace."""
    return as_f64_pointer(scratch(task, at))


@register_jitable
def has_order(task):
    """Whether sorted rows are found through `order`; if not, they lie in order themselves."""
    at = word(task, ORDER_AT)
    return at >= 0 or at == IN_SLOT


@register_jitable
def position_offset(task, tensor, n):
    """Offset of position n in the ids (0) or in the tensor with a row for each (1)."""
    return loop_offset(words(task, word(task, ROW_LOOPS)), tensor, n)


@register_jitable
def long_slots(rows):
    """How many numbers `cpu_walk.long_slot` can give."""
    return 2 * (rows // BLOCK) + 1
