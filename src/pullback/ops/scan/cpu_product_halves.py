"""Products of octets of f16 and bf16 in f32, for cpu_product_halves_backward.

An octet is *moderate* if its factors are neither tiny nor huge: then its products are normal
numbers of f32, and a half has so few bits that their roundings do not show. Which it is follows
from the factors of one line alone, so all layouts agree.
"""

from pullback.cpu.emit import inlined
from pullback.cpu.vector import (
    absolute,
    like,
    maximum,
    minimum,
    select,
)
from pullback.ops.scan.cpu_octets import (
    in_both_quads,
)

LEAST, LIMIT = 2.0**-14, 2.0**15

# What is carried has a wider range than f32: it is brought there, and the products back.
# Where it lies well inside, so do its products with a quad; nothing brings back what is next to 0.
SMALL, LARGE = 2.0**-126, 2.0**127
UP, DOWN = 2.0**126, 2.0**-120
UP_AGAIN, DOWN_AGAIN = 2.0**-126, 2.0**120


@inlined
def times(carry, totals):
    return carry * totals[0]


@inlined
def scaled(c, v):
    return c * v[0], c * v[1], c * v[2], c * v[3]


@inlined
def multiplied(u, v):
    return u[0] * v[0], u[1] * v[1], u[2] * v[2], u[3] * v[3]


@inlined
def products(v):
    """Of the steps of each quad so far."""
    second = v[0] * v[1]
    third = second * v[2]
    return v[0], second, third, third * v[3]


@inlined
def scales(c):
    """What brings c into the range of f32, and what brings it back."""
    size, one = absolute(c), like(c, 1.0)
    small, large = size < SMALL, ~(size < LARGE)
    there, back = select(large, DOWN, one), select(large, DOWN_AGAIN, one)
    return select(small, UP, there), select(small, UP_AGAIN, back)


@inlined
def next_product(tiles, carry, L):
    carry = carry * tiles[0]
    return carry, carry


@inlined
def moderate_lines(v, L):
    u = absolute(v[0]), absolute(v[1]), absolute(v[2]), absolute(v[3])
    least = minimum(minimum(u[0], u[1]), minimum(u[2], u[3]))
    most = maximum(maximum(u[0], u[1]), maximum(u[2], u[3]))
    return in_both_quads((least >= LEAST) & (most < LIMIT), L)
