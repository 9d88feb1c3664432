"""What kernels are built with: bodies picked by type, cells on the stack, cursors.

A *cursor* of the maps over rows is (pointer, index, step along the axis, streaming): where a tile
of one tensor begins; None stands for a tensor that is not there.

    by_type(choose)       a kernel function whose body depends on the types of its arguments
    literal(n, *args)     the type and code of an op whose result is that number
    spread(c, v)          c, repeated over the lanes of v
    stack(example, n)     n uninitialised cells of a type on the stack
    moved(cursors, k, c)  the cursors k steps and c lines further on
"""

from collections.abc import Callable
from typing import Any

from numba import types
from numba.extending import intrinsic, overload

from pullback.cpu.emit import I64, INLINED, Lane, Vec, op, shuffle

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


@op
def spread(c: Vec, v: Vec):
    tile = Vec(c.dtype, v.n)
    return tile(c, v), lambda b, c_, _: shuffle(b, c_, c_, [i % c.n for i in range(v.n)])


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
