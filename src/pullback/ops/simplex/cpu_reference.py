"""Exponentials relative to a power of two near their maximum, and how it is chosen.

A reference is five cells: the origin; bias and floor of scaled_exp; the term of an x at the origin;
the measure beyond which a row needs no sum of others.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

import numpy as np

from pullback.cpu.emit import inlined
from pullback.cpu.tiles import spread
from pullback.cpu.vector import absolute, like, round_even, select, to_f64
from pullback.ops.simplex.cpu_exponential import LOG2_E, bias_of, floor_of, scaled_exp
from pullback.ops.simplex.cpu_row_max import reset_max
from pullback.ops.simplex.cpu_walk import computed

INFINITY = np.inf
FAR = 2048.0
HEADROOM = 64.0  # binades from a maximum of 1 up: terms are normal even where results are not
NEAR = 8.0  # binades by which a guess may be off
PEAKED = 0.5  # a smaller log-sum needs more digits than the sum has
DONE, OTHERS, EXACT, GUESS = range(4)  # what to sum next


@inlined
def near_exp(p, x, reference, part):
    """e^x·2^(HEADROOM - power), for an origin of 0."""
    _, biases, floors, _, _ = reference
    return scaled_exp(p, x, spread(biases[part], x), spread(floors[part], x))


@inlined
def any_exp(p, x, reference, part):
    """e^(x - origin)·2^(HEADROOM - power), and the origin's own term at the origin."""
    origins, _, _, owns, _ = reference
    origin = spread(origins[part], x)
    return select(x == origin, spread(owns[part], x), near_exp(p, x - origin, reference, part))


@inlined
def nearest_power(top):
    return select(absolute(top) < FAR, round_even(top * LOG2_E), 0.0)


@inlined
def choose_reference(p, cells, part, wanted, L):
    """Choose the reference for the wanted sum; gives the lanes whose origin is plainly 0."""
    maxima, row_maxima, guesses, powers, reference = cells[:5]
    origins, biases, floors, owns, bounds = reference
    top = row_maxima[part]
    origin, power, own = like(top, 0.0), to_f64(guesses[part]), 1.0
    if wanted == GUESS:
        reset_max(p, maxima, part, L)
    elif wanted == EXACT:
        origin = select((absolute(top) < FAR) | (top == -INFINITY), 0.0, top)
        power = nearest_power(top)
        guesses[part] = computed(p, power)
    else:
        origin, power, own = top, like(top, 0.0), 0.0
    powers[part], bounds[part] = power, like(top, PEAKED if wanted == OTHERS else INFINITY)
    shift = computed(p, HEADROOM - power)
    origins[part], biases[part], floors[part] = computed(p, origin), bias_of(shift), floor_of(shift)
    owns[part] = near_exp(p, like(shift, 0.0), reference, part) * own
    return (origin == 0) & (like(top, own) == 1)


@inlined
def fits(cells, part):
    """Lanes whose guess was near enough."""
    top, guess = cells[1][part], to_f64(cells[2][part])
    return (absolute(top) < FAR) & (absolute(nearest_power(top) - guess) <= NEAR)
