"""What sparsemax and entmax15 look for in a row: the candidates for the support, and sums over them
that do not depend on their order.

Candidates are set aside without a branch for each: a table says where the set bits of a byte are.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

import numpy as np
from llvmlite import ir
from numba import types

from pullback.cpu.emit import I8, I32, I64, Vec, inlined, op, shuffle, splatted
from pullback.cpu.memory import get
from pullback.cpu.row_steps import CLASSES, LANES
from pullback.cpu.tiles import by_type, stack
from pullback.cpu.transfer import block_at
from pullback.cpu.vector import is_nan, reduce_add, select, splat, sqrt
from pullback.ops.simplex.cpu_traits import traits

CANDIDATES = 1024
SEARCH = 16  # lanes of a search among candidates: usually they are few
LIST_LENGTH = CANDIDATES + 2 * LANES
TO_2_36 = 1.5 * 2.0**16  # the grid of `coarse` whose last place is 2^-36
LIST = ir.VectorType(I8, CLASSES)


def _set_bits(mask: int) -> list[int]:
    """Where the set bits of a byte are, and then anything."""
    found = [k for k in range(CLASSES) if mask >> k & 1]
    return found + [0] * (CLASSES - len(found))


def _table(b):
    """A constant of the module: `_set_bits` of every byte."""
    name = "pullback.simplex.set_bits"
    if name in b.module.globals:
        return b.module.globals[name]
    kind = ir.ArrayType(LIST, 1 << CLASSES)
    table = ir.GlobalVariable(b.module, kind, name)
    table.linkage, table.global_constant = "internal", True
    table.initializer = kind([LIST(_set_bits(mask)) for mask in range(1 << CLASSES)])
    return table


@op
def note_places(
    p: types.CPointer,
    places: types.CPointer,
    count: types.Integer,
    j: types.Integer,
    x: Vec,
    cut: Vec,
):
    """Where x >= cut, or is NaN, in a step that begins at j of a row of p's kind: to `places` from
    `count` on. Gives the new count; CLASSES places beyond it are written too."""

    def emit(b, _p, places_, count_, j_, x_, cut_):
        table, start = _table(b), splatted(b, b.trunc(j_, I32), CLASSES)
        for k in range(0, x.n, CLASSES):
            lanes = range(k, k + CLASSES)
            u, v = (shuffle(b, w, w, lanes) for w in (x_, cut_))
            bits = b.bitcast(b.fcmp_unordered(">=", u, v), I8)
            found = b.load(b.gep(table, [I64(0), b.zext(bits, I64)]))
            where = b.add(start, ir.Constant(start.type, [k] * CLASSES))
            where = b.add(b.zext(found, start.type), where)
            b.store(where, block_at(b, places_, count_, where.type), align=4)
            count_ = b.add(count_, b.zext(b.ctpop(bits), I64))
        return count_

    return types.int64(p, places, types.int64, types.int64, x, cut), emit


@inlined
def sift(found, places, count, least):
    """Drop what is less than `least`, in order; NaN stays. Gives how many are left. SEARCH elements
    from `count` on are less."""
    chosen, kept = stack(np.int32(0), LIST_LENGTH), 0
    cut = splat(least, SEARCH)
    for j in range(0, count, SEARCH):
        kept = note_places(found, chosen, kept, j, get(found, j, 1, SEARCH), cut)
    for k in range(kept):
        found[k], places[k] = found[chosen[k]], places[chosen[k]]
    return kept


# --- sums ---------------------------------------------------------------------------------------


@inlined
def coarse(v, grid):
    """v, of size up to 1, to a multiple of the grid's last place."""
    return (v + grid) - grid


@by_type
def exactly(p, v, sums, grid):
    """Add v to a sum in two pieces, the second on a grid as fine as the first is precise. The first
    tells the threshold to n·2^-52, which is enough for bf16."""

    def one(p, v, sums, grid):
        return sums[0] + coarse(v, grid), sums[1]

    def two(p, v, sums, grid):
        high, fine_grid = coarse(v, grid), grid * grid * (2.0**-52 / 1.5)
        return sums[0] + high, sums[1] + coarse(v - high, fine_grid)

    return one if traits(p).brief else two


@inlined
def over_lanes(sums):
    """Excess and slope of a row from those of its lanes."""
    excess = reduce_add(sums[0]) + reduce_add(sums[1])
    return splat(excess, 1), splat(reduce_add(sums[2]), 1)


@by_type
def settled(p, t, rest):
    """The threshold, as it was left: t and the rest of it. In bf16 a multiple of 2^-36, which is as
    good; so an element that lies exactly there, as many do, has a result of exactly 0."""

    def rounded(p, t, rest):
        return coarse(t + rest, TO_2_36), select(is_nan(rest), rest, 0.0)

    return rounded if traits(p).brief else (lambda p, t, rest: (t, rest))


@by_type
def _enough(p):
    enough = traits(p).enough
    return lambda p: enough


@inlined
def if_straight(p, grid):
    """The function is straight between elements: any step may be followed by one as large."""
    return splat(_enough(p), 1)


@inlined
def if_curved(p, grid):
    """The norm bends by no more than n, the grid is larger, and the slope no less than 1: after a
    step s there are less than n/2·s² to go."""
    return sqrt(splat(_enough(p) / grid, 1))


# --- the two maps: summands of excess and slope, the step they lead to, the result -------------
#
# The slope may be coarse: it steers the steps, the excess says where they end.


@inlined
def linear(u, grid):
    return u, select(u > 0, 1.0, u)


@inlined
def square(u, grid):
    return u * u, coarse(u, grid)


@inlined
def by_sum(excess, slope):
    return (excess - 1.0) / slope


@inlined
def by_norm(excess, slope):
    norm = sqrt(excess)
    return (norm - 1.0) * norm / slope


@inlined
def itself(u):
    return u


@inlined
def squared(u):
    return u * u
