"""How the simplex kernels walk a tensor: along a row, across a strip of columns, or along a group
of short rows.

A pass takes the steps of rows or of a strip one by one (see cpu_steps). What an op does in a step
is written once, for cursors that stand where the step begins. What it knows of each row lies in
*cells*, vectors of L lanes on the stack, one for each part; L tells the ways apart:

    1        one row
    LANES    a strip of columns, STRIP of them at most, in parts of LANES
    GROUP    so many short rows, one after the other: what costs as much for one row as for a whole
             vector of them is done once. In a step along one of them, cells have one lane, and the
             part is the number of the row.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable
from functools import reduce

from llvmlite import ir
from numba import types

from pullback.cpu.emit import I64, Lane, Vec, inlined, lanes_below, op, shuffle
from pullback.cpu.kernel import pointer, word, words
from pullback.cpu.loops import between, extent, offset, step
from pullback.cpu.memory import STORAGE, is_aligned
from pullback.cpu.program import TENSORS
from pullback.cpu.tiles import by_type, joined, literal, moved
from pullback.ops.simplex.cpu_groups import lane_by_lane, of_row
from pullback.ops.simplex.cpu_steps import whole_steps
from pullback.ops.simplex.cpu_traits import CLASSES, GROUP, HALF, LANES

STRIP = 64  # columns of an item: whole cache lines, few enough that later passes find them cached
PARTS = STRIP // LANES
SPAN = PARTS * CLASSES  # cells of one sum
SUMS = 2 * SPAN


@op
def spots(L: Lane):
    """How many there are of what has its own vectors in each part or row."""
    return literal({1: 1, LANES: PARTS, GROUP: GROUP}[L.literal_value], L)


# --- passes -------------------------------------------------------------------------------------


@inlined
def along(act, cursors, cells, n, part):
    """act(cursors, left, cells, part, 1) on all elements of a row."""
    whole = whole_steps(cursors, n)
    for j in range(0, whole, LANES):
        act(moved(cursors, 0, j), (n - j,), cells, part, 1)
    for j in range(whole, n, LANES):
        act(moved(cursors, j, 0), n - j, cells, part, 1)


@inlined
def along_rarely(act, cursors, cells, n, part):
    """The same in less code, for what is rare."""
    for j in range(0, n, LANES):
        act(moved(cursors, j, 0), n - j, cells, part, 1)


@inlined
def along_short(act, cursors, cells, n, part):
    """The same on neighbours, few of which are left after whole steps."""
    whole = n - n % LANES
    for j in range(0, whole, LANES):
        act(moved(cursors, 0, j), (n - j,), cells, part, 1)
    if n - whole > HALF:
        act(moved(cursors, 0, whole), (n - whole, None), cells, part, 1)
    elif n > whole:
        act(moved(cursors, 0, whole), (n - whole, None, None), cells, part, 1)


def _pass(along: Callable, along_short: Callable) -> Callable:
    @by_type
    def each(act, cursors, cells, n, width, L):
        def row(act, cursors, cells, n, width, L):
            along(act, cursors, cells, n, 0)

        def strip(act, cursors, cells, n, width, L):
            for j in range(n):
                for c in range(0, width, LANES):
                    act(moved(cursors, j, c), width - c, cells, c // LANES, L)

        def group(act, cursors, cells, n, width, L):
            for r in range(width):
                along_short(act, of_row(cursors, r), lane_by_lane(cells), n, r)

        return {1: row, LANES: strip, GROUP: group}[L.literal_value]

    return each


# each(act, cursors, cells, n, width, L): act(cursors, left, cells, part, L) on all elements.
each, each_rarely = _pass(along, along_short), _pass(along_rarely, along_rarely)


@op
def greatest(v: Vec, L: Lane):
    """The greatest of the lanes that belong to one row, as f64; NaN if there is one."""
    t = Vec(types.float64, L.literal_value)

    def emit(b, v_, _):
        while v_.type.count > t.n:
            n = v_.type.count // 2
            low, high = shuffle(b, v_, v_, range(n)), shuffle(b, v_, v_, range(n, 2 * n))
            v_ = _larger(b, low, high)
        return cast(b, v_, t.llvm)

    return t(v, L), emit


def _larger(b, low, high):
    chosen = b.select(b.fcmp_ordered(">", low, high), low, high)
    return b.select(b.fcmp_unordered("uno", low, low), low, chosen)


@op
def sum_as(v: Vec, cell: Vec):
    """The sum of v in as many lanes as a cell has."""

    def emit(b, v_, _):
        quarters = [shuffle(b, v_, v_, range(k, k + cell.n)) for k in range(0, v.n, cell.n)]
        return reduce(b.fadd, quarters)

    return cell(v, cell), emit


@op
def greatest_of_rows(rows: types.CPointer):
    """The same of each row of a group, from vectors of CLASSES lanes."""
    lanes = Vec(types.float64, GROUP)

    def emit(b, rows_):
        blocks = []
        for first in range(0, GROUP, 4):
            vectors = [b.load(b.gep(rows_, [I64(first + r)])) for r in range(4)]
            halves = ([shuffle(b, u, u, range(k, k + 4)) for k in (0, 4)] for u in vectors)
            a, c, d, e = transposed(b, [_larger(b, *pair) for pair in halves])
            blocks.append(_larger(b, _larger(b, a, d), _larger(b, c, e)))
        return cast(b, joined(b, blocks), lanes.llvm)

    return lanes(rows), emit


@op
def exists(width: types.Integer, L: Lane):
    """Mask of the rows that there are from some column on."""
    mask = Vec(types.boolean, L.literal_value)

    def emit(b, width_, _):
        return lanes_below(b, width_, mask.n)

    return mask(types.int64, L), emit


# --- rows of a launch ---------------------------------------------------------------------------
#
# Words after the tensors of a plan: columns side by side (1 along rows), streaming, the axis walk.


@inlined
def walk(task, tensors):
    return words(task, TENSORS + tensors + 2)


@inlined
def strip(task, tensors, item, L):
    """The number of an item's first row, and how many rows lie side by side in it."""
    breadth, most = word(task, TENSORS + tensors), GROUP if L == GROUP else STRIP
    strips = (breadth + most - 1) // most
    outer = item if strips == 1 else item // strips
    first = (item - outer * strips) * most
    return outer * breadth + first, min(most, breadth - first)


@inlined
def _on_row(task, tensors, tensor, row):
    w = walk(task, tensors)
    return pointer(task, TENSORS + tensor), offset(w, tensor, row), step(w, tensor)


@inlined
def _unread(task, tensors):
    """Whether the output lies apart from all inputs."""
    apart = True
    for other in range(tensors - 1):
        apart = apart and word(task, TENSORS + other) != word(task, TENSORS + tensors - 1)
    return apart


@by_type
def source(task, tensors, tensor, row, L):
    """A cursor on an input, from some row on."""

    def lines(task, tensors, tensor, row, L):
        return *_on_row(task, tensors, tensor, row), False

    def group(task, tensors, tensor, row, L):
        return *_on_row(task, tensors, tensor, row), False, between(walk(task, tensors), tensor)

    return group if L.literal_value == GROUP else lines


@by_type
def target(task, tensors, row, L):
    """A cursor on the output, the last tensor: streaming if that pays and nothing reads it, and if
    that is possible for all of it."""

    def lines(task, tensors, row, L):
        p, i, apart = _on_row(task, tensors, tensors - 1, row)
        streaming = word(task, TENSORS + tensors + 1) != 0 and is_aligned(p, i, 16)
        streaming = streaming and (apart == 1 or is_aligned(p, i + apart, 16))
        return p, i, apart, streaming and _unread(task, tensors)

    def group(task, tensors, row, L):
        p, i, apart = _on_row(task, tensors, tensors - 1, row)
        w = walk(task, tensors)
        further = between(w, tensors - 1)
        streaming = word(task, TENSORS + tensors + 1) != 0 and is_aligned(p, i, 16)
        streaming = (
            streaming and is_aligned(p, i + further, 16) and is_aligned(p, i + extent(w), 16)
        )
        return p, i, apart, streaming and _unread(task, tensors), further

    return group if L.literal_value == GROUP else lines


# --- types --------------------------------------------------------------------------------------


def pair(b, kind, first, second):
    pair = b.insert_value(ir.Constant(kind, ir.Undefined), first, 0)
    return b.insert_value(pair, second, 1)


def transposed(b, rows):
    """Four vectors of four lanes."""
    low, high = [0, 4, 2, 6], [1, 5, 3, 7]
    pairs = [shuffle(b, *rows[k : k + 2], lanes) for lanes in (low, high) for k in (0, 2)]
    outer, inner = [0, 1, 4, 5], [2, 3, 6, 7]
    return [shuffle(b, *pairs[k : k + 2], lanes) for lanes in (outer, inner) for k in (0, 2)]


def cast(b, v, kind):
    if v.type == kind:
        return v
    return (b.fptrunc if kind.element == ir.FloatType() else b.fpext)(v, kind)


@op
def computed(p: types.CPointer, v: Vec):
    """v in the compute type of p."""
    t = v.of(STORAGE[p.dtype].compute)
    return t(p, v), lambda b, _, v_: cast(b, v_, t.llvm)
