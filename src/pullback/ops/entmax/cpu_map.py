"""entmax in Numba for any alpha: p = exp_b(x - m - c), see cpu_rows for the root.

Words after the addresses of the slots: b if alpha is a number, four that only gradients need, then
the axis walk of the tensors that a kernel names. Where alpha is a tensor, rows whose alpha has a
kernel of its own (1, 1.5, 2) are left to that: they get its bits.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from collections.abc import Callable

import numpy as np

from pullback.cpu.emit import inlined
from pullback.cpu.kernel import kernel, pointer, real, set_word, words
from pullback.cpu.loops import extent, offset, step
from pullback.cpu.memory import get, put, read
from pullback.cpu.named import named
from pullback.cpu.program import STATUS, TENSORS
from pullback.cpu.tiles import stack
from pullback.ops.entmax.cpu_rows import (
    INFINITY,
    LANES,
    NAN,
    ROOM,
    fill,
    listed_from,
    powers,
    root,
    scatter,
    survey,
    top_of,
)
from pullback.ops.simplex.cpu_backward import entmax15 as entmax15_adjoint
from pullback.ops.simplex.cpu_backward import softmax as softmax_adjoint
from pullback.ops.simplex.cpu_backward import sparsemax as sparsemax_adjoint
from pullback.ops.simplex.cpu_softmax import softmax
from pullback.ops.simplex.cpu_sparse import entmax15, sparsemax

BAD_ALPHA = 2  # the status of a launch whose alpha is less than 1, or not finite
MAP_SLOTS, BACKWARD_SLOTS = 3, 6  # x, alpha, y; dy, y, alpha, x, dx, dalpha
HEADER = 5  # words between the addresses and the walk
MAP_WALK = TENSORS + MAP_SLOTS + HEADER


@inlined
def on_row(task, slot, w, tensor, row):
    """A cursor on a row of the tensor in a slot, which is number `tensor` of the walk."""
    return pointer(task, TENSORS + slot), offset(w, tensor, row), step(w, tensor)


@inlined
def own_kernel(beta):
    """Whether rows of this alpha have a kernel of their own."""
    return beta == 0.0 or beta == 0.5 or beta == 1.0


@inlined
def alpha_at(task, slot, w, tensor, row):
    return read(pointer(task, TENSORS + slot), offset(w, tensor, row)) * 1.0


# --- forward ------------------------------------------------------------------------------------


@inlined
def write_map(x, y, n, top, at, beta, listed, cut, found, places):
    """p of the candidates, 0 elsewhere. Takes the list."""
    begin = 0
    while begin < n:
        count, end = listed_from(x, n, begin, listed, cut, top, found, places)
        for k in range(0, count, LANES):
            put(found, k, 1, powers(get(found, k, 1, LANES), at, beta)[1], False)
        fill(y, begin, end, 0.0)
        scatter(y, begin, places, count, found)
        begin = end


@inlined
def _map(x, y, n, beta, found, places):
    tops, nan = survey(x, n)
    top = top_of(tops)
    if nan:
        fill(y, 0, n, NAN)
    elif top == -INFINITY:
        fill(y, 0, n, 0.0)
    else:
        at, listed, cut = root(x, n, tops, top, beta, found, places)
        write_map(x, y, n, top, at, beta, listed, cut, found, places)


@kernel
def map_rows(task, lo, hi):
    w, beta = words(task, MAP_WALK), real(task, TENSORS + MAP_SLOTS)
    found, places = stack(0.0, ROOM), stack(np.int32(0), ROOM)
    for row in range(lo, hi):
        x, y = on_row(task, 0, w, 0, row), on_row(task, 2, w, 1, row)
        _map(x, y, extent(w), beta, found, places)


@kernel
def map_each(task, lo, hi):
    """Rows that have each their own alpha."""
    w = words(task, MAP_WALK)
    found, places = stack(0.0, ROOM), stack(np.int32(0), ROOM)
    for row in range(lo, hi):
        beta = alpha_at(task, 1, w, 1, row) - 1.0
        if not own_kernel(beta):
            x, y = on_row(task, 0, w, 0, row), on_row(task, 2, w, 2, row)
            _map(x, y, extent(w), beta, found, places)


def alpha_check(slots: int, slot: int) -> Callable:
    """A kernel body: find an alpha that is less than 1, or not finite. The walk names alpha at the
    place of its slot."""

    def run(task, lo, hi):
        w = words(task, TENSORS + slots + HEADER)
        for row in range(lo, hi):
            alpha = alpha_at(task, slot, w, slot, row)
            if not (alpha >= 1.0 and alpha < INFINITY):
                set_word(task, STATUS, BAD_ALPHA)

    return run


CHECK_MAP = named(alpha_check(MAP_SLOTS, 1), "check_map", __name__)
CHECK_BACKWARD = named(alpha_check(BACKWARD_SLOTS, 2), "check_backward", __name__)


# --- rows of alpha 1, 1.5 and 2, by the bodies of softmax, entmax15 and sparsemax ---------------


def chosen(body: Callable, alpha: float, slots: tuple[int, ...], count: int, at: int) -> Callable:
    """A kernel body: body(cursors, n, 1, 1) on each row of that alpha, over the slots named. The
    walk of the launch names the same tensors, and alpha at `at`, as its slot."""
    last = len(slots) - 1
    first_slot, second_slot, third_slot = slots[0], slots[1], slots[last]

    def tensor(t: int) -> int:
        return t if t < at else t + 1

    first, second, third = tensor(0), tensor(1), tensor(last)

    @inlined
    def cursor(task, slot, w, tensor, row):
        return *on_row(task, slot, w, tensor, row), False

    def two(task, w, row):
        return cursor(task, first_slot, w, first, row), cursor(task, second_slot, w, second, row)

    def three(task, w, row):
        return (
            cursor(task, first_slot, w, first, row),
            cursor(task, second_slot, w, second, row),
            cursor(task, third_slot, w, third, row),
        )

    cursors = inlined(two if last == 1 else three)

    def run(task, lo, hi):
        w = words(task, TENSORS + count + HEADER)
        for row in range(lo, hi):
            if alpha_at(task, at, w, at, row) == alpha:
                body(cursors(task, w, row), extent(w), 1, 1)

    return run


ROWS = (
    named(chosen(softmax, 1.0, (0, 2), MAP_SLOTS, 1), "softmax_rows", __name__),
    named(chosen(entmax15, 1.5, (0, 2), MAP_SLOTS, 1), "entmax15_rows", __name__),
    named(chosen(sparsemax, 2.0, (0, 2), MAP_SLOTS, 1), "sparsemax_rows", __name__),
)
ADJOINTS = (
    named(chosen(softmax_adjoint, 1.0, (0, 1, 4), BACKWARD_SLOTS, 2), "softmax_adjoints", __name__),
    named(
        chosen(entmax15_adjoint, 1.5, (0, 1, 4), BACKWARD_SLOTS, 2), "entmax15_adjoints", __name__
    ),
    named(
        chosen(sparsemax_adjoint, 2.0, (0, 1, 4), BACKWARD_SLOTS, 2), "sparsemax_adjoints", __name__
    ),
)
