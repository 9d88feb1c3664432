"""Tiles: a few steps of a walk on a few lines side by side, held in one Vec.

Lane r * L + c is step r of line c. With L = 1 a tile lies along the axis and a shift by steps is a
shuffle; with more lines it lies across, and the same shift only renames registers. Kernels written
on tiles serve both layouts with the same tree, hence the same bits.

A *cursor* is (pointer, index, step along the axis, streaming): where a tile of one tensor begins;
None stands for a tensor that is not there. A *size* is None for a whole tile, or (steps, lines)
for one that the tensor cuts short. Shapes (rows, L) are literals.

    load(cursor, size, fill, rows, L)     load_wide: the same in the wide type
    store(cursor, size, v, L)
    moved(cursors, k, c)                  the cursors k steps and c lines further on
    turned_round(cursors)                 the same places, walking back
    earlier(v, fill, k, L)  later(...)    step r <- step r -+ k; `fill` comes in from outside
    first(v, L)  last(v, L)  spread(c, v) one step of a tile as Vec(L), and back to all steps
    inside(size, v, L)                    mask of the lanes a tile of this size has
    lanes_of(bits, v)                     the mask with these bits
    step_numbers(v, L)                    0, 1, 2, ... by step
    stack(example, n)                     n uninitialised cells of a type on the stack
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from pullback.cpu.emit import (
    I64,
    INLINED,
    LLVM_ELEMENT,
    Lane,
    Scalar,
    Vec,
    at_most,
    constant,
    lanes_below,
    op,
    shuffle,
    splatted,
)
from pullback.cpu.memory import STORAGE, decoded, encoded
from pullback.cpu.pieces import first_loaded, first_stored_either_way
from pullback.cpu.transfer import (
    block_at,
    by_step,
    gathered,
    lane_bytes,
    lowest,
    masked_load,
    masked_store,
    scattered,
    stored,
    turned,
)

Pointer: Any = types.CPointer


def by_type(choose: Callable) -> Callable:
    """A kernel function whose body `choose(*types)` picks when types and literals are known."""

    def chosen(*_args):
        raise NotImplementedError(f"{choose.__name__} is for kernels")

    def choose_literal(*args):
        try:
            return choose(*args)
        except AttributeError:  # tried without literals, after an error with them
            return None

    overload(chosen, jit_options=INLINED, strict=False, prefer_literal=True)(choose_literal)
    return chosen


def literal(value: int, *args: types.Type) -> tuple:
    """What an op returns whose result is a number known from the types of its arguments."""
    number = types.literal(value)
    return number(*args), lambda b, *_: I64(value)


@op
def lines_across(p: Pointer):
    """How many lines a tile holds across the axis: its eight steps then fit the registers."""
    return literal(4 if STORAGE[p.dtype].wide == types.float64 else 8, p)


@intrinsic(prefer_literal=True)
def stack(typingctx, example, n):
    if not isinstance(n, Lane):  # type: ignore[misc]
        return None
    cells = types.CPointer(types.unliteral(example))

    def codegen(context, builder, sig, args):
        kind = context.get_data_type(cells.dtype)
        with builder.goto_entry_block():
            return builder.alloca(kind, size=I64(n.literal_value))

    return cells(example, n), codegen


# --- steps of a tile ----------------------------------------------------------------------------


@op
def earlier(v: Vec, fill: object, k: Lane, L: Lane):
    start = v.n - k.literal_value * L.literal_value
    return v(v, v, k, L), lambda b, v_, fill_, *_: shuffle(b, fill_, v_, range(start, start + v.n))


@op
def later(v: Vec, fill: object, k: Lane, L: Lane):
    start = k.literal_value * L.literal_value
    return v(v, v, k, L), lambda b, v_, fill_, *_: shuffle(b, v_, fill_, range(start, start + v.n))


@op
def first(v: Vec, L: Lane):
    step = Vec(v.dtype, L.literal_value)
    return step(v, L), lambda b, v_, _: shuffle(b, v_, v_, range(step.n))


@op
def last(v: Vec, L: Lane):
    step = Vec(v.dtype, L.literal_value)
    return step(v, L), lambda b, v_, _: shuffle(b, v_, v_, range(v.n - step.n, v.n))


@op
def step_numbers(v: Vec, L: Lane):
    """0, 1, 2, ... by step, in v's type."""
    steps = [i // L.literal_value for i in range(v.n)]
    return v(v, L), lambda b, _v, _L: ir.Constant(v.llvm, steps)


@op
def lanes_of(bits: types.Integer, v: Vec):
    """The mask with these bits, of as many lanes as v: each lane looks at its own bit."""
    width = v.dtype.bitwidth
    n, number = min(v.n, width), ir.IntType(width)
    own = ir.Constant(ir.VectorType(number, v.n), [1 << i % width for i in range(v.n)])

    def emit(b, bits_, _v):
        parts = [b.lshr(bits_, I64(i)) for i in range(0, v.n, n)]
        lanes = joined(b, [splatted(b, _cut(b, part, number), n) for part in parts])
        return b.icmp_unsigned("==", b.and_(lanes, own), own)

    return v.of(types.boolean)(types.int64, v), emit


def _cut(b: ir.IRBuilder, bits: ir.Value, number: ir.IntType) -> ir.Value:
    return bits if bits.type == number else b.trunc(bits, number)


@op
def spread(c: Vec, v: Vec):
    tile = Vec(c.dtype, v.n)
    return tile(c, v), lambda b, c_, _: shuffle(b, c_, c_, [i % c.n for i in range(v.n)])


# --- memory -------------------------------------------------------------------------------------


def joined(b: ir.IRBuilder, parts: list[ir.Value]) -> ir.Value:
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [shuffle(b, u, v, range(2 * u.type.count)) for u, v in pairs]
    return parts[0]


def _lines_at(b: ir.IRBuilder, row: int, steps: ir.Value, lines: ir.Value) -> ir.Value:
    """How many lines have this step."""
    return b.select(b.icmp_signed(">", steps, I64(row)), lines, I64(0))


def tile_mask(b: ir.IRBuilder, rows: int, L: int, steps: ir.Value, lines: ir.Value) -> ir.Value:
    if L == 1:
        return lanes_below(b, steps, rows)
    counts = (_lines_at(b, row, steps, lines) for row in range(rows))
    return joined(b, [lanes_below(b, count, L) for count in counts])


class Tile:
    """How the lanes of one tile meet memory, as IR: each step apart, or all along the axis."""

    def __init__(self, b: ir.IRBuilder, cursor: types.BaseTuple, at: ir.Value, rows: int, L: int):
        self.b, self.rows, self.L = b, rows, L
        self.p, self.i, self.step, self.streaming = (b.extract_value(at, k) for k in range(4))
        self.raw = ir.VectorType(LLVM_ELEMENT[cursor[0].dtype], rows * L)
        self.line = ir.VectorType(self.raw.element, L)

    def _at(self, row: int) -> ir.Value:
        return self.b.add(self.i, self.b.mul(self.step, I64(row)))

    def _step_of(self, v: ir.Value, row: int) -> ir.Value:
        return shuffle(self.b, v, v, range(row * self.L, (row + 1) * self.L))

    def load(self) -> ir.Value:
        b = self.b
        if self.L == 1:

            def block(at):
                return b.load(block_at(b, self.p, at, self.raw), align=lane_bytes(self.raw))

            return by_step(
                b,
                self.step,
                lambda: block(self.i),
                lambda: turned(b, block(lowest(b, self.i, self.rows))),
                lambda: gathered(b, self.p, self.i, self.step, I64(self.rows), self.raw),
            )
        addresses = (block_at(b, self.p, self._at(row), self.line) for row in range(self.rows))
        return joined(b, [b.load(at, align=lane_bytes(self.raw)) for at in addresses])

    def load_part(self, steps: ir.Value, lines: ir.Value) -> ir.Value:
        b = self.b
        if self.L == 1:
            there = at_most(b, steps, self.rows)
            return gathered(b, self.p, self.i, self.step, there, self.raw)
        # No machine below AVX-512 masks 16-bit lanes.
        parts = []
        for row in range(self.rows):
            count = _lines_at(b, row, steps, lines)
            if lane_bytes(self.raw) == 2:
                none = constant(self.line, 0)
                parts.append(first_loaded(b, self.p, self._at(row), count, none))
            else:
                mask = lanes_below(b, count, self.L)
                parts.append(masked_load(b, self.p, self._at(row), mask, self.line))
        return joined(b, parts)

    def store(self, v: ir.Value) -> None:
        b, streaming = self.b, self.streaming
        if self.L == 1:
            by_step(
                b,
                self.step,
                lambda: stored(b, self.p, self.i, v, streaming),
                lambda: stored(b, self.p, lowest(b, self.i, self.rows), turned(b, v), streaming),
                lambda: scattered(b, self.p, self.i, self.step, I64(self.rows), v),
            )
            return
        for row in range(self.rows):
            stored(b, self.p, self._at(row), self._step_of(v, row), streaming)

    def store_part(self, v: ir.Value, steps: ir.Value, lines: ir.Value) -> None:
        b = self.b
        if self.L == 1:
            scattered(b, self.p, self.i, self.step, at_most(b, steps, self.rows), v)
            return
        for row in range(self.rows):
            count, line = _lines_at(b, row, steps, lines), self._step_of(v, row)
            if lane_bytes(self.raw) == 2:
                first_stored_either_way(b, self.p, self._at(row), count, line)
            else:
                masked_store(b, self.p, self._at(row), lanes_below(b, count, self.L), line)


def steps_and_lines(b: ir.IRBuilder, size: ir.Value) -> tuple[ir.Value, ir.Value]:
    return b.extract_value(size, 0), b.extract_value(size, 1)


def _loader(wide: bool) -> Callable:
    def load(cursor: types.BaseTuple, size: object, fill: Scalar, rows: Lane, L: Lane):
        pointer = cursor[0]
        storage = STORAGE[pointer.dtype]
        dtype = storage.wide if wide else storage.compute
        n = rows.literal_value * L.literal_value

        def emit(b, cursor_, size_, fill_, _rows, _L):
            tile = Tile(b, cursor, cursor_, rows.literal_value, L.literal_value)
            if isinstance(size, types.NoneType):
                return decoded(b, pointer, tile.load(), dtype)
            there = steps_and_lines(b, size_)
            v = decoded(b, pointer, tile.load_part(*there), dtype)
            mask = tile_mask(b, rows.literal_value, L.literal_value, *there)
            return b.select(mask, v, splatted(b, fill_, n))

        return Vec(dtype, n)(cursor, size, dtype, rows, L), emit

    return op(load)


load, load_wide = _loader(wide=False), _loader(wide=True)


@op
def store(cursor: object, size: object, v: Vec, L: Lane):
    if isinstance(cursor, types.NoneType):
        return types.void(cursor, size, v, L), lambda *_: None
    pointer = cursor[0]  # type: ignore[index]

    def emit(b, cursor_, size_, v_, _L):
        tile = Tile(b, cursor, cursor_, v.n // L.literal_value, L.literal_value)
        raw = encoded(b, pointer, v_, v.dtype)
        if isinstance(size, types.NoneType):
            tile.store(raw)
        else:
            tile.store_part(raw, *steps_and_lines(b, size_))

    return types.void(cursor, size, v, L), emit


@op
def inside(size: object, v: Vec, L: Lane):
    """Mask of the lanes that a tile of this size has."""
    rows = v.n // L.literal_value

    def emit(b, size_, _v, _L):
        if isinstance(size, types.NoneType):
            return constant(v.of(types.boolean).llvm, 1)
        return tile_mask(b, rows, L.literal_value, *steps_and_lines(b, size_))

    return v.of(types.boolean)(size, v, L), emit


def _variable(cursors: types.BaseTuple) -> types.BaseTuple:
    """Their type without literals: a constant index would stay what it was."""
    plain = [
        types.Tuple([types.unliteral(t) for t in c])
        if isinstance(c, types.BaseTuple)
        else types.unliteral(c)
        for c in cursors
    ]
    return types.Tuple(plain)


@op
def moved(cursors: types.BaseTuple, k: types.Integer, c: types.Integer):
    def emit(b, cursors_, k_, c_):
        for t, kind in enumerate(cursors):
            if isinstance(kind, types.BaseTuple):
                i, step = b.extract_value(cursors_, [t, 1]), b.extract_value(cursors_, [t, 2])
                there = b.add(b.add(i, b.mul(k_, step)), c_)
                cursors_ = b.insert_value(cursors_, there, [t, 1])
        return cursors_

    variable = _variable(cursors)
    return variable(variable, types.int64, types.int64), emit


@op
def turned_round(cursors: types.BaseTuple):
    """The same places, walking the other way; no streaming, for the tiles now end elsewhere."""

    def emit(b, cursors_):
        for t, kind in enumerate(cursors):
            if isinstance(kind, types.BaseTuple):
                back = b.neg(b.extract_value(cursors_, [t, 2]))
                cursors_ = b.insert_value(cursors_, back, [t, 2])
                plain = ir.Constant(b.extract_value(cursors_, [t, 3]).type, 0)
                cursors_ = b.insert_value(cursors_, plain, [t, 3])
        return cursors_

    variable = _variable(cursors)
    return variable(variable), emit
