"""Sums over rows, with one association wherever the rows lie: by the lane that a position has in a
step along the row, modulo CLASSES, four terms at a time in their own type, then in f64; more at a
time if they are halves and none is negative. So the bits do not depend on the layout.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable
from functools import reduce

from llvmlite import ir
from numba import types

from pullback.cpu.emit import I64, Vec, constant, inlined, op, shuffle
from pullback.cpu.memory import STORAGE, filled
from pullback.cpu.tiles import by_type, joined, moved, stack
from pullback.cpu.transfer import block_at
from pullback.cpu.vector import like, splat, to_f64
from pullback.ops.simplex.cpu_groups import lane_by_lane, of_row
from pullback.ops.simplex.cpu_pairs import in_turn, lane_of
from pullback.ops.simplex.cpu_steps import whole_steps
from pullback.ops.simplex.cpu_traits import CLASSES, GROUP, HALF, LANES, traits
from pullback.ops.simplex.cpu_walk import PARTS, SPAN, SUMS, cast, pair, transposed


def _two_sum(b, u, v):
    """u + v and what its rounding took away."""
    total = b.fadd(u, v)
    from_v = b.fsub(total, u)
    return total, b.fadd(b.fsub(u, b.fsub(total, from_v)), b.fsub(v, from_v))


def _is_f64(p):
    return STORAGE[p.dtype].compute == types.float64


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
        quarters = in_turn(p, quarters)
        if _is_f64(p):
            for quarter in quarters:
                total, error = _two_sum(b, total, quarter)
                rest = b.fadd(rest, error)
        else:
            total = b.fadd(total, cast(b, reduce(b.fadd, quarters), total.type))
        return pair(b, sums_.type, total, rest)

    return sums(p, sums, v), emit


def _sum_of_sums(b, p, u, v):
    """Of two pairs of a sum and its errors: there are none worth keeping if terms have fewer digits
    than their sum."""
    if not _is_f64(p):
        return b.fadd(u[0], v[0]), u[1]
    total, error = _two_sum(b, u[0], v[0])
    return total, b.fadd(b.fadd(u[1], v[1]), error)


@op
def _joined(p: types.CPointer, u: types.BaseTuple, v: types.BaseTuple):
    """The sum of two sums."""

    def emit(b, _, *sums):
        pairs = ([b.extract_value(sum, k) for k in (0, 1)] for sum in sums)
        return pair(b, sums[0].type, *_sum_of_sums(b, p, *pairs))

    return u(p, u, v), emit


@inlined
def with_terms(p, both, terms):
    return plus(p, both[0], terms[0]), plus(p, both[1], terms[1])


@inlined
def _summed(term, cursors, cells, n, part):
    """The two sums over a row, by classes, and how many cells they take."""
    p, whole, zero, used = cursors[0][0], whole_steps(cursors, n), splat(0.0, CLASSES), SPAN
    both = (zero, zero), (zero, zero)
    for j in range(0, whole, LANES):
        terms = term(moved(cursors, 0, j), (n - j,), cells, part, 1)
        both, used = with_terms(p, both, terms), _cells_with(terms[1])
    for j in range(whole, n, LANES):
        terms = term(moved(cursors, j, 0), n - j, cells, part, 1)
        both, used = with_terms(p, both, terms), _cells_with(terms[1])
    return both[0], both[1], used


@inlined
def _summed_short(term, cursors, cells, n, part):
    """The same of neighbours, few of which are left after whole steps."""
    p, whole, zero, used = cursors[0][0], n - n % LANES, splat(0.0, CLASSES), SPAN
    both = (zero, zero), (zero, zero)
    for j in range(0, whole, LANES):
        terms = term(moved(cursors, 0, j), (n - j,), cells, part, 1)
        both, used = with_terms(p, both, terms), _cells_with(terms[1])
    if n - whole > HALF:
        terms = term(moved(cursors, 0, whole), (n - whole, None), cells, part, 1)
        both, used = with_terms(p, both, terms), _cells_with(terms[1])
    elif n > whole:
        terms = term(moved(cursors, 0, whole), (n - whole, None, None), cells, part, 1)
        both, used = with_terms(p, both, terms), _cells_with(terms[1])
    return both[0], both[1], used


@inlined
def _summed_rarely(term, cursors, cells, n, part):
    """The same in less code, for what is rare."""
    p, zero, used = cursors[0][0], splat(0.0, CLASSES), SPAN
    both = (zero, zero), (zero, zero)
    for j in range(0, n, LANES):
        terms = term(moved(cursors, j, 0), n - j, cells, part, 1)
        both, used = with_terms(p, both, terms), _cells_with(terms[1])
    return both[0], both[1], used


def _totals(summed: Callable, summed_short: Callable) -> Callable:
    @by_type
    def total(term, cursors, cells, n, width, fours, sums, L):
        def row(term, cursors, cells, n, width, fours, sums, L):
            p, (first, second, _) = cursors[0][0], summed(term, cursors, cells, n, 0)
            sums[0], sums[SPAN] = over_lanes(p, first), over_lanes(p, second)

        def group(term, cursors, cells, n, width, fours, sums, L):
            zero, used = splat(0.0, CLASSES), SPAN
            first, second = stack((zero, zero), GROUP), stack((zero, zero), GROUP)
            for r in range(width):
                here = of_row(cursors, r)
                first[r], second[r], used = summed_short(term, here, lane_by_lane(cells), n, r)
            sums[0] = _over_rows(cursors[0][0], first)
            if used > SPAN:
                sums[SPAN] = _over_rows(cursors[0][0], second)

        return {1: row, LANES: _across(LANES), GROUP: group}[L.literal_value]

    return total


# total(term, cursors, cells, n, width, fours, sums, L): sums over each row of the two vectors of
# term(cursors, left, cells, part, L), the second of which may be None: in sums[part] and
# sums[SPAN + part]. `fours` and `sums` have SUMS cells of the terms' type and of pairs of f64.
total, _total_rarely = _totals(_summed, _summed_short), _totals(_summed_rarely, _summed_rarely)


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
                    sums[k] = _joined(p, sums[k], sums[k + reach])
                reach //= 2

    return total


@inlined
def _run_summed(term, cursors, cells, n, part, run):
    """The sum over a row whose terms add up in runs."""
    p, whole = cursors[0][0], whole_steps(cursors, n)
    zero, nothing = splat(0.0, CLASSES), filled(p, 0.0, CLASSES)
    sum = zero
    for start in range(0, n, run):
        some, end = nothing, min(start + run, n)
        for j in range(start, min(end, whole), LANES):
            some = _run_on(p, some, term(moved(cursors, 0, j), (n - j,), cells, part, 1)[0])
        for j in range(max(start, whole), end, LANES):
            some = _run_on(p, some, term(moved(cursors, j, 0), n - j, cells, part, 1)[0])
        sum += to_f64(some)
    return sum, zero


@inlined
def _run_summed_short(term, cursors, cells, n, part, run):
    """The same of no more than a run of neighbours."""
    p, whole = cursors[0][0], n - n % LANES
    some = filled(p, 0.0, CLASSES)
    for j in range(0, whole, LANES):
        some = _run_on(p, some, term(moved(cursors, 0, j), (n - j,), cells, part, 1)[0])
    last = moved(cursors, 0, whole)
    if n - whole > HALF:
        some = _run_on(p, some, term(last, (n - whole, None), cells, part, 1)[0])
    elif n > whole:
        some = _run_on(p, some, term(last, (n - whole, None, None), cells, part, 1)[0])
    return to_f64(some), splat(0.0, CLASSES)


@inlined
def _run_summed_rarely(term, cursors, cells, n, part, run):
    """The same in less code, for what is rare."""
    p, zero = cursors[0][0], splat(0.0, CLASSES)
    sum = zero
    for start in range(0, n, run):
        some = filled(p, 0.0, CLASSES)
        for j in range(start, min(start + run, n), LANES):
            some = _run_on(p, some, term(moved(cursors, j, 0), n - j, cells, part, 1)[0])
        sum += to_f64(some)
    return sum, zero


def _totals_of_positive(total: Callable, summed: Callable, summed_short: Callable) -> Callable:
    @by_type
    def total_of_positive(term, cursors, cells, n, width, fours, sums, L):
        run = traits(cursors[0][0]).run

        def simply(term, cursors, cells, n, width, fours, sums, L):
            total(term, cursors, cells, n, width, fours, sums, L)

        def row(term, cursors, cells, n, width, fours, sums, L):
            sums[0] = over_lanes(cursors[0][0], summed(term, cursors, cells, n, 0, run))

        def group(term, cursors, cells, n, width, fours, sums, L):
            zero = splat(0.0, CLASSES)
            rows = stack((zero, zero), GROUP)
            for r in range(width):
                here = of_row(cursors, r)
                rows[r] = summed_short(term, here, lane_by_lane(cells), n, r, run)
            sums[0] = _over_rows(cursors[0][0], rows)

        if run == LANES:
            return simply
        return {1: row, LANES: _across(run), GROUP: group}[L.literal_value]

    return total_of_positive


# The sum of first vectors, of which no lane is negative: runs of them in their own type.
total_of_positive = _totals_of_positive(total, _run_summed, _run_summed_short)
total_of_positive_rarely = _totals_of_positive(
    _total_rarely, _run_summed_rarely, _run_summed_rarely
)


@op
def _run_on(p: types.CPointer, sum: Vec, v: Vec):
    """A sum by classes with the terms of v, one after the other."""

    def emit(b, _, sum_, v_):
        quarters = [shuffle(b, v_, v_, range(k, k + sum.n)) for k in range(0, v.n, sum.n)]
        return reduce(b.fadd, in_turn(p, quarters), sum_)

    return sum(p, sum, v), emit


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
def over_lanes(p: types.CPointer, sums: types.BaseTuple):
    """The sum of all classes, as a pair of one lane: the tree that `total` has across columns."""
    one = Vec(types.float64, 1)
    sum = types.UniTuple(one, 2)

    def emit(b, _, sums_):
        sum_ = [b.extract_value(sums_, k) for k in (0, 1)]
        while sum_[0].type.count > 1:
            n = sum_[0].type.count // 2
            low, high = ([shuffle(b, v, v, range(k, k + n)) for v in sum_] for k in (0, n))
            sum_ = _sum_of_sums(b, p, low, high)
        return pair(b, ir.ArrayType(one.llvm, 2), *sum_)

    return sum(p, sums), emit


@op
def _over_rows(p: types.CPointer, sums: types.CPointer):
    """The sums of all classes for each row of a group, as a pair: four rows at a time turned into
    lanes, then the same tree. What is no wider than f32 has left no errors."""
    lanes = Vec(types.float64, GROUP)
    sum = types.UniTuple(lanes, 2)
    kind = ir.VectorType(ir.DoubleType(), 4)

    def emit(b, _, sums_):
        cells = b.bitcast(sums_, ir.DoubleType().as_pointer())

        def classes(first, at):
            """By class, of four rows."""
            found = []
            for k in range(at, at + CLASSES, 4):
                places = [I64((first + r) * 2 * CLASSES + k) for r in range(4)]
                found += transposed(b, [b.load(block_at(b, cells, i, kind)) for i in places])
            return found

        blocks = []
        for first in range(0, GROUP, 4):
            none = [constant(kind, 0.0)] * CLASSES
            rests = classes(first, CLASSES) if _is_f64(p) else none
            row_sums = list(zip(classes(first, 0), rests, strict=True))
            while (n := len(row_sums) // 2) > 0:
                row_sums = [_sum_of_sums(b, p, *row_sums[k::n]) for k in range(n)]
            blocks.append(row_sums[0])
        totals, errors = (joined(b, list(parts)) for parts in zip(*blocks, strict=True))
        return pair(b, ir.ArrayType(lanes.llvm, 2), totals, errors)

    return sum(p, sums), emit
