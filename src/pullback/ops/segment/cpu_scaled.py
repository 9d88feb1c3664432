"""Products that neither overflow nor vanish: (a float, its rounding error, an exponent), all f64.

Rows of other elements than f64 cannot take a float out of f64's range in a few steps, so it is
brought back to [1, 2) only now and then, and its rounding error is far below their last bit. Rows
of f64 are moved towards 1 first, and carry the error along. Zeros, infinities and NaN keep
themselves as the float, and IEEE 754 does the rest. Adding -0 changes nothing, and compiles to
nothing: it stands for an error or an exponent that is not there.
"""

from numba import types

from pullback.cpu.elementary import scale_by_power
from pullback.cpu.emit import I64, inlined, op
from pullback.cpu.memory import Pointer, get, put
from pullback.cpu.tiles import by_type
from pullback.cpu.vector import (
    absolute,
    as_float,
    as_int,
    fma,
    like,
    maximum,
    minimum,
    not_le,
    select,
    shift_logical,
    splat,
)

SIGN_OFF = 0x7FFFFFFFFFFFFFFF
COUNTER = 0x4330000000000000  # the bits of 2^52: OR in a small integer
BIAS = 2.0**52 + 1023
FAR = 600.0  # f64 rows are moved by 2^600 towards 1 before they are multiplied
UP, DOWN = 2.0**FAR, 2.0**-FAR
LARGEST_POWER = 1022.0
# Powers of two, see `cpu_product.plain_to_rows`. Products of floats in range are plain products.
# Gain (plain products in range): segment_prod backward sorted 1Mx64 f32 2.08.
IN_RANGE, REACH = 90, 390.0


@op
def steps_between(p: Pointer):
    """One less than how many rows are multiplied before the exponent is taken out: 2^k - 1.

    Three rows below 2^-149 on either side of a row, and the product of both is still normal."""
    n = 0 if p.dtype == types.float64 else 3
    return types.literal(n)(p), lambda b, _: I64(n)


@inlined
def one(n):
    return splat(1.0, n), splat(-0.0, n), splat(0.0, n)


@inlined
def _exponent(m):
    """What brings m back to [1, 2), and the exponent that takes out; 1 and 0 for specials."""
    field = shift_logical(as_int(m) & SIGN_OFF, 52)
    ordinary = (field > 0) & (field < 2047)
    scale = select(ordinary, as_float((like(field, 2046) - field) << 52), like(m, 1.0))
    return scale, select(ordinary, as_float(field | COUNTER) - like(m, BIAS), like(m, 0.0))


@by_type
def normalised(p, product):
    """The same product with its float in [1, 2), unless that is 0, infinite or NaN."""

    def exact(p, product):
        m, c, e = product
        scale, moved = _exponent(m)
        return m * scale, c * scale, e + moved

    def rounded(p, product):
        scale, moved = _exponent(product[0])
        return product[0] * scale, product[1], product[2] + moved

    return exact if p.dtype == types.float64 else rounded


@inlined
def is_wild(m):
    """Where a float should be normalised before it is multiplied by a few rows more; always where
    it is 0, infinite or NaN."""
    size = absolute(m)
    return (size < like(m, 2.0**-IN_RANGE)) | not_le(size, like(m, 2.0**IN_RANGE))


@by_type
def factor(p, v):
    """A row as a float that may be multiplied, and the exponent taken from it."""

    def moved(p, v):
        small = absolute(v) < like(v, 1.0)
        scale, moved = select(small, like(v, UP), like(v, DOWN)), like(v, FAR)
        return v * scale, select(small, -moved, moved)

    return moved if p.dtype == types.float64 else lambda p, v: (v, like(v, -0.0))


@by_type
def times(p, product, other):
    """One product times another, not normalised."""

    def exact(p, product, other):
        (m, c, e), (v, w, k) = product, other
        whole = m * v
        return whole, fma(c, v, fma(m, w, fma(m, v, -whole))), e + k

    def rounded(p, product, other):
        return product[0] * other[0], product[1], product[2] + other[2]

    return exact if p.dtype == types.float64 else rounded


@by_type
def valued(p, product):
    """A product as a float, rounded once."""

    def exact(p, product):
        # A product that became 0, infinite or NaN has no correction.
        m, c, e = normalised(p, product)
        return scale_by_power(select(absolute(c) > 0, m + c, m), e)

    def clamped(p, product):
        # What the clamp changes is far outside the range of the element.
        m, _, e = product
        e = minimum(like(e, LARGEST_POWER), maximum(like(e, -LARGEST_POWER), e))
        return m * as_float(as_int(e + like(e, BIAS)) << 52)

    return exact if p.dtype == types.float64 else clamped


@inlined
def within_reach(product):
    """The same product, its exponent held within +-REACH."""
    m, c, e = product
    return m, c, minimum(like(e, REACH), maximum(like(e, -REACH), e))


@inlined
def keep(memory, j, product, n):
    """Put a product down as number j."""
    for k in range(3):
        put(memory, (3 * j + k) * n, 1, product[k], False)


@inlined
def kept(memory, j, n):
    """Product number j again."""
    k = 3 * j * n
    return get(memory, k, 1, n), get(memory, k + n, 1, n), get(memory, k + 2 * n, 1, n)
