"""Candidates of a row, set aside without a branch for each: a table says where the set bits are."""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from llvmlite import ir
from numba import types

from pullback.cpu.emit import I8, I32, I64, Vec, inlined, op, shuffle, splatted
from pullback.cpu.transfer import block_at
from pullback.ops.simplex.cpu_steps import BF16, CLASSES

LIST = ir.VectorType(I8, CLASSES)


def _set_bits(mask: int) -> list[int]:
    """The numbers of the set bits of a byte, and then anything."""
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
    paired = p.dtype == BF16

    def emit(b, _p, places_, count_, j_, x_, cut_):
        table, start = _table(b), b.trunc(j_, I32)
        for k in range(0, x.n, CLASSES):
            lanes = range(k, k + CLASSES)
            chosen = b.fcmp_unordered(
                ">=", shuffle(b, x_, x_, lanes), shuffle(b, cut_, cut_, lanes)
            )
            bits = b.bitcast(chosen, I8)
            row = b.gep(table, [I64(0), b.zext(bits, I64)])
            where = b.zext(b.load(row), ir.VectorType(I32, CLASSES))
            # Of 16 elements in pairs, the even ones come first, then the odd ones.
            first = k // 16 * 16 + k // CLASSES % 2 if paired else k
            where = b.mul(where, ir.Constant(where.type, [1 + paired] * CLASSES))
            where = b.add(where, splatted(b, b.add(start, I32(first)), CLASSES))
            b.store(where, block_at(b, places_, count_, where.type), align=4)
            count_ = b.add(count_, b.zext(b.ctpop(bits), I64))
        return count_

    return types.int64(p, places, types.int64, types.int64, x, cut), emit


@inlined
def sift(found, count, least):
    """Drop what is less than `least`, in order; NaN stays. Gives how many are left."""
    kept = 0
    for j in range(count):
        z = found[j]
        found[kept] = z
        kept += 0 if z < least else 1
    return kept
