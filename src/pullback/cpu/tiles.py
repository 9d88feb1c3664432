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
    earlier(v, fill, k, L)  later(...)    step r <- step r -+ k; `fill` comes in from outside
    first(v, L)  last(v, L)  spread(c, v) one step of a tile as Vec(L), and back to all steps
    stack(example, n)                     n uninitialised cells of a type on the stack
"""

from collections.abc import Callable

from numba import types
from numba.extending import intrinsic, overload

from pullback.cpu.emit import I64, Lane, Vec, inlined, op, shuffle
from pullback.cpu.memory import (
    STORAGE,
    filled,
    filled_wide,
    get,
    get_first,
    get_first_wide,
    get_wide,
    put,
    put_first,
)
from pullback.cpu.vector import half, join, shift_down, shift_up

Pointer = types.CPointer


def by_type(choose: Callable) -> Callable:
    """A kernel function whose body `choose(*types)` picks when types and literals are known."""

    def chosen(*_args):
        raise NotImplementedError(f"{choose.__name__} is for kernels")

    options = {"forceinline": True}
    overload(chosen, jit_options=options, strict=False, prefer_literal=True)(choose)
    return chosen


@op
def lines_across(p: Pointer):
    """How many lines a tile holds across the axis: its eight steps then fit the registers."""
    lines = types.literal(4 if STORAGE[p.dtype].wide == types.float64 else 8)
    return lines(p), lambda b, _: I64(lines.literal_value)


@intrinsic(prefer_literal=True)
def stack(typingctx, example, n):
    if not isinstance(n, Lane):
        return None
    cells = types.CPointer(types.unliteral(example))

    def codegen(context, builder, sig, args):
        kind = context.get_data_type(cells.dtype)
        with builder.goto_entry_block():
            return builder.alloca(kind, size=I64(n.literal_value))

    return cells(example, n), codegen


# --- steps of a tile ----------------------------------------------------------------------------


@op
def _steps(k: Lane, lines: Lane):
    """k steps in lanes, still a literal."""
    lanes = types.literal(k.literal_value * lines.literal_value)
    return lanes(k, lines), lambda b, *_: I64(lanes.literal_value)


@inlined
def earlier(v, fill, k, L):
    return shift_up(v, fill, _steps(k, L))


@inlined
def later(v, fill, k, L):
    return shift_down(v, fill, _steps(k, L))


@op
def first(v: Vec, L: Lane):
    step = Vec(v.dtype, L.literal_value)
    return step(v, L), lambda b, v_, _: shuffle(b, v_, v_, range(step.n))


@op
def last(v: Vec, L: Lane):
    step = Vec(v.dtype, L.literal_value)
    return step(v, L), lambda b, v_, _: shuffle(b, v_, v_, range(v.n - step.n, v.n))


@op
def spread(c: Vec, v: Vec):
    tile = Vec(c.dtype, v.n)
    return tile(c, v), lambda b, c_, _: shuffle(b, c_, c_, [i % c.n for i in range(v.n)])


# --- memory -------------------------------------------------------------------------------------


def _loader(get_all: Callable, get_some: Callable, fill_all: Callable) -> Callable:
    @by_type
    def whole(p, i, step, rows, L):
        if L.literal_value == 1:
            return lambda p, i, step, rows, L: get_all(p, i, step, rows)
        if rows.literal_value == 1:
            return lambda p, i, step, rows, L: get_all(p, i, 1, L)
        h = rows.literal_value // 2

        def halves(p, i, step, rows, L):
            return join(whole(p, i, step, h, L), whole(p, i + h * step, step, h, L))

        return halves

    @by_type
    def part(p, i, step, steps, lines, fill, L):
        if L.literal_value == 1:
            return lambda p, i, step, steps, lines, fill, L: get_some(p, i, step, steps, fill)
        if fill.n == L.literal_value:

            def one_step(p, i, step, steps, lines, fill, L):
                return get_some(p, i, 1, lines if steps > 0 else 0, fill)

            return one_step
        h = fill.n // L.literal_value // 2

        def halves(p, i, step, steps, lines, fill, L):
            lower = part(p, i, step, steps, lines, half(fill, 0), L)
            return join(lower, part(p, i + h * step, step, steps - h, lines, half(fill, 1), L))

        return halves

    @by_type
    def load(cursor, size, fill, rows, L):
        if isinstance(size, types.NoneType):

            def all_of_it(cursor, size, fill, rows, L):
                p, i, step, _ = cursor
                return whole(p, i, step, rows, L)

            return all_of_it

        def what_is_there(cursor, size, fill, rows, L):
            p, i, step, _ = cursor
            steps, lines = size
            return part(p, i, step, steps, lines, fill_all(p, fill, _steps(rows, L)), L)

        return what_is_there

    return load


load = _loader(get, get_first, filled)
load_wide = _loader(get_wide, get_first_wide, filled_wide)


@by_type
def _put_whole(p, i, step, v, L, streaming):
    if L.literal_value == 1:
        return lambda p, i, step, v, L, streaming: put(p, i, step, v, streaming)
    if v.n == L.literal_value:
        return lambda p, i, step, v, L, streaming: put(p, i, 1, v, streaming)
    h = v.n // L.literal_value // 2

    def halves(p, i, step, v, L, streaming):
        _put_whole(p, i, step, half(v, 0), L, streaming)
        _put_whole(p, i + h * step, step, half(v, 1), L, streaming)

    return halves


@by_type
def _put_part(p, i, step, steps, lines, v, L):
    if L.literal_value == 1:
        return lambda p, i, step, steps, lines, v, L: put_first(p, i, step, steps, v)
    if v.n == L.literal_value:

        def one_step(p, i, step, steps, lines, v, L):
            put_first(p, i, 1, lines if steps > 0 else 0, v)

        return one_step
    h = v.n // L.literal_value // 2

    def halves(p, i, step, steps, lines, v, L):
        _put_part(p, i, step, steps, lines, half(v, 0), L)
        _put_part(p, i + h * step, step, steps - h, lines, half(v, 1), L)

    return halves


@by_type
def store(cursor, size, v, L):
    if isinstance(cursor, types.NoneType):
        return lambda cursor, size, v, L: None
    if isinstance(size, types.NoneType):

        def all_of_it(cursor, size, v, L):
            p, i, step, streaming = cursor
            _put_whole(p, i, step, v, L, streaming)

        return all_of_it

    def what_is_there(cursor, size, v, L):
        p, i, step, _ = cursor
        steps, lines = size
        _put_part(p, i, step, steps, lines, v, L)

    return what_is_there


# --- cursors ------------------------------------------------------------------------------------


@by_type
def _moved_one(cursor, k, c):
    if isinstance(cursor, types.NoneType):
        return lambda cursor, k, c: None
    return lambda cursor, k, c: (cursor[0], cursor[1] + k * cursor[2] + c, cursor[2], cursor[3])


@by_type
def moved(cursors, k, c):
    if len(cursors) == 1:
        return lambda cursors, k, c: (_moved_one(cursors[0], k, c),)
    return lambda cursors, k, c: (_moved_one(cursors[0], k, c), *moved(cursors[1:], k, c))
