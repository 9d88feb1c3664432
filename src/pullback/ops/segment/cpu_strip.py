"""Strips of rows: how wide they are, how they are read and written.

Which lanes make a strip never touches the arithmetic of a column, so it may depend on the element
and on strides.

Gain (strips wider than 16 columns): segment_max sorted 1Mx64 bf16 1.52.
"""

from llvmlite import ir
from numba import types

from pullback.cpu.emit import I32, I64, LLVM_ELEMENT, Vec, inlined, op
from pullback.cpu.kernel import word
from pullback.cpu.memory import (
    STORAGE,
    Pointer,
    elements_in,
    filled,
    filled_wide,
    get,
    get_first,
    get_first_wide,
    get_wide,
    is_aligned,
    line_elements,
    prefetch_early,
    put,
    put_first,
)
from pullback.cpu.transfer import block_at
from pullback.ops.segment import cpu_words as at
from pullback.ops.segment.cpu_words import BLOCK

# Sums of f64 carry a correction beside them, which takes as many registers again.
_WIDE_SUM = {types.float32: 64, types.int16: 64, types.uint16: 64, types.float64: 32}
_WIDE = {types.float32: 32, types.int16: 32, types.uint16: 32, types.float64: 16}
_WIDE_PRODUCT = {types.float32: 64, types.int16: 64, types.uint16: 64, types.float64: 8}
_WIDE_OTHERS = {types.float32: 32, types.int16: 32, types.uint16: 32, types.float64: 8}

TILE_BYTES = 256  # of a row that are written at once

MANY_LOOPS = -(1 << 62)  # in place of a row stride: rows are not one stride apart


def _lanes(by_storage):
    def lanes(p: Pointer):
        n = by_storage[p.dtype]
        return types.literal(n)(p), lambda b, _: I64(n)

    return op(lanes)


sum_lanes, lanes, product_lanes, others_lanes = map(
    _lanes, (_WIDE_SUM, _WIDE, _WIDE_PRODUCT, _WIDE_OTHERS)
)


def _cast(target):
    def cast(p: Pointer, v: Vec):
        t = v.of(target(STORAGE[p.dtype]))
        if t == v:
            return t(p, v), lambda b, _, v_: v_
        narrows = t.dtype == types.float32
        return t(p, v), lambda b, _, v_: (b.fptrunc if narrows else b.fpext)(v_, t.llvm)

    return op(cast)


# Floats rounded or widened to the type p's element is computed in, and to that of its sums.
as_compute = _cast(lambda storage: storage.compute)
as_wide = _cast(lambda storage: storage.wide)


@op
def computed(p: Pointer):
    """No address, as a pointer to the type p's element is computed in."""
    kind = types.CPointer(STORAGE[p.dtype].compute)
    element = LLVM_ELEMENT[kind.dtype].as_pointer()
    return kind(p), lambda b, _: b.inttoptr(I64(0), element)


# A panel of a block is written to a tile first: TILE_BYTES of each row, as elements of p.
tile_columns, tile_elements = elements_in(TILE_BYTES), elements_in(BLOCK * TILE_BYTES)


# A strip is `cols`: where it begins and its step in the columns of source, target and saved input,
# the number of its first column, how many of its n lanes there are, and n. In one of those tensors
# it is `view`: where it begins, its step, how many lanes there are, and n.


@inlined
def in_source(cols):
    return cols[0][0], cols[1][0], cols[3], cols[4]


@inlined
def in_target(cols):
    return cols[0][1], cols[1][1], cols[3], cols[4]


@inlined
def in_saved(cols):
    return cols[0][2], cols[1][2], cols[3], cols[4]


@inlined
def load_wide(p, i, view):
    """A strip of the row that begins at i, in the wide type; 0 in the lanes it has not."""
    base, step, count, n = view
    if count >= n:
        return get_wide(p, i + base, step, n)
    return get_first_wide(p, i + base, step, count, filled_wide(p, 0.0, n))


@inlined
def load(p, i, view):
    base, step, count, n = view
    if count >= n:
        return get(p, i + base, step, n)
    return get_first(p, i + base, step, count, filled(p, 0.0, n))


@inlined
def store(task, p, i, view, v):
    """A strip of the row that begins at i; past the caches if the plan says so and the address
    allows."""
    base, step, count, n = view
    if count >= n:
        alignment = word(task, at.STREAMING)
        put(p, i + base, step, v, alignment != 0 and is_aligned(p, i + base, alignment))
    else:
        put_first(p, i + base, step, count, v)


@inlined
def fetch_strip(p, i, n):
    """Ask for n elements from i on, which may begin and end within a cache line; any address is
    allowed."""
    for line in range(0, n, line_elements(p)):
        prefetch_early(p, i + line)
    prefetch_early(p, i + n - 1)


@op
def stream_line(p: Pointer, i: types.Integer, q: Pointer, j: types.Integer):
    """A cache line from q[j] on to p[i], which begins one, past the caches."""
    line = ir.VectorType(I64, 8)

    def emit(b, p_, i_, q_, j_):
        v = b.load(block_at(b, q_, j_, line), align=q.dtype.bitwidth // 8)
        store = b.store(v, block_at(b, p_, i_, line), align=64)
        store.set_metadata("nontemporal", b.module.add_metadata([I32(1)]))

    return types.void(p, types.int64, q, types.int64), emit


@inlined
def streams_lines(task, p, i, step, count):
    """Whether `count` elements from i on are whole cache lines to be written past the caches."""
    whole = step == 1 and count % line_elements(p) == 0
    return whole and word(task, at.STREAMING) != 0 and is_aligned(p, i, 64)
