"""A cache of the exponentials of a row between its two passes, on the stack, if all of them fit.
It is (its memory, the extent of a row, from one row to the next), or None if nothing is kept.

Gain (exponentials kept between passes): softmax 4096x1024 bf16 1.63.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from numba import types

from pullback.cpu.emit import inlined
from pullback.cpu.memory import get, put, scalar
from pullback.cpu.tiles import by_type, stack
from pullback.ops.simplex.cpu_steps import lanes_left, lanes_of
from pullback.ops.simplex.cpu_traits import LANES

KEPT = 1 << 15  # exponentials of a row; those of longer rows are computed twice


@inlined
def no_exp_cache(p, n, L):
    return None


@by_type
def exp_cache(p, n, L):
    """For rows along the axis, in groups one after the other; across, nothing is kept."""

    def for_rows(p, n, L):
        return stack(scalar(p, 0.0), KEPT), n, n + LANES

    return no_exp_cache if L.literal_value == LANES else for_rows


@by_type
def keep_exp(kept, part, left, e):
    def one_step(kept, part, left, e):
        memory, n, pitch = kept
        # Rows longer than KEPT wrap around; the second pass recomputes their exponentials.
        put(memory, (part * pitch + n - lanes_left(left)) % KEPT, 1, e, False)
        return e

    return (lambda kept, part, left, e: e) if isinstance(kept, types.NoneType) else one_step


@by_type
def kept_exp(kept, part, left):
    lanes = lanes_of(left) if isinstance(left, types.BaseTuple) else LANES

    def one_step(kept, part, left):
        memory, n, pitch = kept
        return get(memory, part * pitch + n - lanes_left(left), 1, lanes)

    return one_step


@by_type
def fits_exp_cache(kept):
    """Whether there is room for all of a row, if anything is kept."""
    always = isinstance(kept, types.NoneType)
    return (lambda kept: True) if always else (lambda kept: kept[1] <= KEPT)
