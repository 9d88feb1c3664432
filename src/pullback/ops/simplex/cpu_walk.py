"""How the simplex kernels walk a tensor: along a row, or across a strip of columns.

A pass takes the steps of a row or a strip one by one (see cpu_steps). What an op does in a step is
written once, for cursors that stand where the step begins. What it knows of each row lies in
*cells*, vectors of L lanes on the stack, one for each part.

Sums have one association in both: by the lane that a position has in a step along the row, modulo
CLASSES, four terms at a time in their own type, then in f64; more at a time if they are halves and
none is negative. So the bits do not depend on the layout.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable
from functools import reduce

from llvmlite import ir
from numba import types

from pullback.cpu.emit import Lane, Vec, inlined, lanes_below, op, shuffle
from pullback.cpu.kernel import pointer, word, words
from pullback.cpu.loops import offset, step
from pullback.cpu.memory import STORAGE, filled, is_aligned
from pullback.cpu.program import TENSORS
from pullback.cpu.tiles import by_type, moved
from pullback.cpu.vector import like, splat, to_f64
from pullback.ops.simplex.cpu_steps import lane_of, whole_steps
from pullback.ops.simplex.cpu_traits import CLASSES, LANES, traits

STRIP = 64  # columns of an item: whole cache lines, few enough that later passes find them cached
PARTS = STRIP // LANES
SPAN = PARTS * CLASSES  # cells of one sum
SUMS = 2 * SPAN


# --- passes -------------------------------------------------------------------------------------


@by_type
def each(act, cursors, cells, n, width, L):
    """act(cursors, left, cells, part, L) on all elements."""

    def row(act, cursors, cells, n, width, L):
        whole = whole_steps(cursors, n)
        for j in range(0, whole, LANES):
            act(moved(cursors, 0, j), (n - j,), cells, 0, L)
        for j in range(whole, n, LANES):
            act(moved(cursors, j, 0), n - j, cells, 0, L)

    return row if L.literal_value == 1 else _each_across


@by_type
def each_rarely(act, cursors, cells, n, width, L):
    """The same in less code, for what is rare."""

    def row(act, cursors, cells, n, width, L):
        for j in range(0, n, LANES):
            act(moved(cursors, j, 0), n - j, cells, 0, L)

    return row if L.literal_value == 1 else _each_across


def _each_across(act, cursors, cells, n, width, L):
    for j in range(n):
        for c in range(0, width, LANES):
            act(moved(cursors, j, c), width - c, cells, c // LANES, L)


def _two_sum(b, u, v):
    """u + v and what its rounding took away."""
    total = b.fadd(u, v)
    from_v = b.fsub(total, u)
    return total, b.fadd(b.fsub(u, b.fsub(total, from_v)), b.fsub(v, from_v))


def _is_f64(p):
    return STORAGE[p.dtype].compute == types.float64


def pair(b, kind, first, second):
    pair = b.insert_value(ir.Constant(kind, ir.Undefined), first, 0)
    return b.insert_value(pair, second, 1)


@op
def plus(p: types.CPointer, sums: types.BaseTuple, v: object):
    """A sum by classes and its rounding errors, with the terms of v. Terms as wide as the sum are
    added one by one and leave their errors, others four by four; None adds nothing."""

    def emit(b, _, sums_, v_):
        if isinstance(v, types.NoneType):
            return sums_
        total, rest = b.extract_value(sums_, 0), b.extract_value(sums_, 1)
        n = total.type.count
        quarters = [shuffle(b, v_, v_, range(k, k + n)) for k in range(0, v.n, n)]
        if _is_f64(p):
            for quarter in quarters:
                total, error = _two_sum(b, total, quarter)
                rest = b.fadd(rest, error)
        else:
            total = b.fadd(total, _cast(b, reduce(b.fadd, quarters), total.type))
        return pair(b, sums_.type, total, rest)

    return sums(p, sums, v), emit


@op
def _joined(u: types.BaseTuple, v: types.BaseTuple):
    """The sum of two sums."""

    def emit(b, u_, v_):
        (a, c), (d, e) = ([b.extract_value(w, k) for k in (0, 1)] for w in (u_, v_))
        total, error = _two_sum(b, a, d)
        return pair(b, u_.type, total, b.fadd(b.fadd(c, e), error))

    return u(u, v), emit


@by_type
def total(term, cursors, cells, n, width, fours, sums, L):
    """Sums over each row of the two vectors of term(cursors, left, cells, part, L), the second of
    which may be None: in sums[part] and sums[SPAN + part]. `fours` and `sums` have SUMS cells of
    the terms' type and of pairs of f64."""

    def row(term, cursors, cells, n, width, fours, sums, L):
        p, whole, zero = cursors[0][0], whole_steps(cursors, n), splat(0.0, CLASSES)
        first, second = (zero, zero), (zero, zero)
        for j in range(0, whole, LANES):
            u, v = term(moved(cursors, 0, j), (n - j,), cells, 0, 1)
            first, second = plus(p, first, u), plus(p, second, v)
        for j in range(whole, n, LANES):
            u, v = term(moved(cursors, j, 0), n - j, cells, 0, 1)
            first, second = plus(p, first, u), plus(p, second, v)
        sums[0], sums[SPAN] = over_lanes(first), over_lanes(second)

    return row if L.literal_value == 1 else _across(LANES)


def _across(run: int) -> Callable:
    """The sum where `run` positions at a time add up in their own type."""

    def total(term, cursors, cells, n, width, fours, sums, L):
        p, used = cursors[0][0], SUMS
        for k in range(SUMS):
            sums[k] = (like(sums[k][0], 0.0), like(sums[k][0], 0.0))
        for start in range(0, n, run):
            for k in range(used):
                fours[k] = like(fours[k], 0.0)
            for j in range(start, min(start + run, n)):
                for c in range(0, width, LANES):
                    u, v = term(moved(cursors, j, c), width - c, cells, c // LANES, L)
                    k = lane_of(p, j) * PARTS + c // LANES
                    _note(p, fours, sums, k, u)
                    _note(p, fours, sums, k + SPAN, v)
                    used = _cells_with(v)
            _close(p, fours, sums, used)
        for first in range(0, used, SPAN):
            reach = SPAN // 2
            while reach >= PARTS:
                for k in range(first, first + reach):
                    sums[k] = _joined(sums[k], sums[k + reach])
                reach //= 2

    return total


@by_type
def total_of_positive(term, cursors, cells, n, width, fours, sums, L):
    """The sum of first vectors, of which no lane is negative: runs of them in their own type."""
    run = traits(cursors[0][0]).run

    def simply(term, cursors, cells, n, width, fours, sums, L):
        total(term, cursors, cells, n, width, fours, sums, L)

    def row(term, cursors, cells, n, width, fours, sums, L):
        p, whole = cursors[0][0], whole_steps(cursors, n)
        zero, nothing = splat(0.0, CLASSES), filled(p, 0.0, CLASSES)
        sum = zero
        for start in range(0, n, run):
            some, end = nothing, min(start + run, n)
            for j in range(start, min(end, whole), LANES):
                some = _run_on(some, term(moved(cursors, 0, j), (n - j,), cells, 0, 1)[0])
            for j in range(max(start, whole), end, LANES):
                some = _run_on(some, term(moved(cursors, j, 0), n - j, cells, 0, 1)[0])
            sum += to_f64(some)
        sums[0] = over_lanes((sum, zero))

    if run == LANES:
        return simply
    return row if L.literal_value == 1 else _across(run)


@op
def _run_on(sum: Vec, v: Vec):
    """A sum by classes with the terms of v, one after the other."""

    def emit(b, sum_, v_):
        quarters = [shuffle(b, v_, v_, range(k, k + sum.n)) for k in range(0, v.n, sum.n)]
        return reduce(b.fadd, quarters, sum_)

    return sum(sum, v), emit


@by_type
def _note(p, fours, sums, k, v):
    """Add v to sum k: at once, or to its four terms."""

    def at_once(p, fours, sums, k, v):
        sums[k] = plus(p, sums[k], v)

    def by_fours(p, fours, sums, k, v):
        fours[k] += v

    if isinstance(v, types.NoneType):
        return lambda p, fours, sums, k, v: None
    return at_once if _is_f64(p) else by_fours


@by_type
def _cells_with(v):
    """How many cells are used if this is the second vector of a term."""
    return (lambda v: SPAN) if isinstance(v, types.NoneType) else (lambda v: SUMS)


@by_type
def _close(p, fours, sums, used):
    """Add the four terms to the sums."""

    def by_fours(p, fours, sums, used):
        for k in range(used):
            sums[k] = (sums[k][0] + to_f64(fours[k]), sums[k][1])

    return (lambda p, fours, sums, used: None) if _is_f64(p) else by_fours


@op
def over_lanes(sums: types.BaseTuple):
    """The sum of all classes, as a pair of one lane: the tree that `total` has across columns."""
    one = Vec(types.float64, 1)
    sum = types.UniTuple(one, 2)

    def emit(b, sums_):
        total, rest = b.extract_value(sums_, 0), b.extract_value(sums_, 1)
        while total.type.count > 1:
            n = total.type.count // 2
            (a, d), (c, e) = (
                [shuffle(b, w, w, range(k, k + n)) for k in (0, n)] for w in (total, rest)
            )
            total, error = _two_sum(b, a, d)
            rest = b.fadd(b.fadd(c, e), error)
        return pair(b, ir.ArrayType(one.llvm, 2), total, rest)

    return sum(sums), emit


@op
def greatest(v: Vec, L: Lane):
    """The greatest of the lanes that belong to one row, as f64; NaN if there is one."""
    t = Vec(types.float64, L.literal_value)

    def emit(b, v_, _):
        while v_.type.count > t.n:
            n = v_.type.count // 2
            low, high = shuffle(b, v_, v_, range(n)), shuffle(b, v_, v_, range(n, 2 * n))
            chosen = b.select(b.fcmp_ordered(">", low, high), low, high)
            v_ = b.select(b.fcmp_unordered("uno", low, low), low, chosen)
        return _cast(b, v_, t.llvm)

    return t(v, L), emit


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
def strip(task, tensors, item):
    """The number of an item's first row, and how many rows lie side by side in it."""
    breadth = word(task, TENSORS + tensors)
    strips = (breadth + STRIP - 1) // STRIP
    outer = item if strips == 1 else item // strips
    first = (item - outer * strips) * STRIP
    return outer * breadth + first, min(STRIP, breadth - first)


@inlined
def source(task, tensors, tensor, row):
    """A cursor on an input."""
    w = words(task, TENSORS + tensors + 2)
    return pointer(task, TENSORS + tensor), offset(w, tensor, row), step(w, tensor), False


@inlined
def target(task, tensors, row):
    """A cursor on the output, the last tensor: streaming if that pays and nothing reads it."""
    p, w = pointer(task, TENSORS + tensors - 1), words(task, TENSORS + tensors + 2)
    i, apart = offset(w, tensors - 1, row), step(w, tensors - 1)
    streaming = word(task, TENSORS + tensors + 1) != 0 and is_aligned(p, i, 16)
    streaming = streaming and (apart == 1 or is_aligned(p, i + apart, 16))
    for other in range(tensors - 1):
        streaming = streaming and word(task, TENSORS + other) != word(task, TENSORS + tensors - 1)
    return p, i, apart, streaming


# --- types --------------------------------------------------------------------------------------


def _cast(b, v, kind):
    if v.type == kind:
        return v
    return (b.fptrunc if kind.element == ir.FloatType() else b.fpext)(v, kind)


@op
def computed(p: types.CPointer, v: Vec):
    """v in the compute type of p."""
    t = v.of(STORAGE[p.dtype].compute)
    return t(p, v), lambda b, _, v_: _cast(b, v_, t.llvm)
