"""Where the exponentials of a row are put aside between its two passes: on the stack, if there is
room for all of them. A shelf is (its memory, the extent of the row), or None if nothing is kept."""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from numba import types

from pullback.cpu.emit import inlined
from pullback.cpu.memory import get, put, scalar
from pullback.cpu.tiles import by_type, stack
from pullback.ops.simplex.cpu_steps import lanes_left
from pullback.ops.simplex.cpu_traits import LANES

KEPT = 1 << 15  # exponentials of a row; those of longer rows are computed twice


@inlined
def no_shelf(p, n, L):
    return None


@by_type
def shelf(p, n, L):
    """For rows along the axis; across, nothing is kept."""

    def for_row(p, n, L):
        return stack(scalar(p, 0.0), KEPT), n

    return for_row if L.literal_value == 1 else no_shelf


@by_type
def put_aside(kept, left, e):
    def one_step(kept, left, e):
        memory, n = kept
        put(memory, (n - lanes_left(left)) % KEPT, 1, e, False)  # of longer rows in vain
        return e

    return (lambda kept, left, e: e) if isinstance(kept, types.NoneType) else one_step


@inlined
def fetched(kept, left):
    memory, n = kept
    return get(memory, n - lanes_left(left), 1, LANES)


@by_type
def has_room(kept):
    """Whether there is room for all of a row, if anything is kept."""
    always = isinstance(kept, types.NoneType)
    return (lambda kept: True) if always else (lambda kept: kept[1] <= KEPT)
