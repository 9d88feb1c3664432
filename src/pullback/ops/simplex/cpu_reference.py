"""Exponentials relative to a power of two near their maximum, and how it is chosen.

A reference is four vectors: the origin; bias and floor of scaled_exp; the term of an x at the
origin.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

import numpy as np

from pullback.cpu.emit import inlined
from pullback.cpu.row_steps import CLASSES, computed, largest, narrowed, take
from pullback.cpu.tiles import by_type, moved, spread
from pullback.cpu.vector import absolute, like, maximum, round_even, select
from pullback.ops.simplex.cpu_exponential import LOG2_E, bias_of, floor_of, scaled_exp

INFINITY = np.inf
FAR = 2048.0
HEADROOM = 64.0  # binades from a maximum of 1 up: terms are normal even where results are not
NEAR = 24.0  # binades by which a guess may be too low


@inlined
def near_exp(p, x, reference):
    """e^x·2^(HEADROOM - power), for an origin of 0."""
    _, bias, floor, _ = reference
    return scaled_exp(p, x, spread(bias, x), spread(floor, x))


@inlined
def any_exp(p, x, reference):
    """e^(x - origin)·2^(HEADROOM - power), and the origin's own term at the origin."""
    origin = spread(reference[0], x)
    own = spread(reference[3], x)
    return select(x == origin, own, near_exp(p, x - origin, reference))


@inlined
def nearest_power(top):
    return select(absolute(top) < FAR, round_even(top * LOG2_E), 0.0)


@inlined
def origin_of(top):
    """From where exponents count: beyond FAR the difference itself is exact."""
    return select((absolute(top) < FAR) | (top == -INFINITY), 0.0, top)


@inlined
def reference_at(p, origin, power, own):
    """`own`: 1, or 0 to leave out what is at the origin."""
    origin, shift = computed(p, origin), computed(p, HEADROOM - power)
    reference = origin, bias_of(shift), floor_of(shift), shift
    term = near_exp(p, like(shift, 0.0), reference) * own
    return origin, reference[1], reference[2], term


@by_type
def first_look(x, n, width, L):
    """The greatest of the first few elements: near the maximum, but for odd rows."""

    def row(x, n, width, L):
        return largest(narrowed(take(x, n, -INFINITY, 1), 1), 1)

    def across(x, n, width, L):
        top = take(x, width, -INFINITY, L)
        for j in range(1, min(n, CLASSES)):
            top = maximum(take(moved((x,), j, 0)[0], width, -INFINITY, L), top)
        return largest(top, L)

    return row if L.literal_value == 1 else across


@inlined
def fits(guess, top):
    """Rows whose guess was near enough to their maximum."""
    near = (absolute(top) < FAR) & (absolute(guess) < FAR)
    return (guess == top) | (near & (nearest_power(top) - nearest_power(guess) <= NEAR))
