"""Sums in pairs of f32: what takes f64 elsewhere, with no instruction of f64.

A pair (s, r) is a sum and what rounding took from it, together some 48 bits. Only the sum has a
range, that of f32: where it is not finite the rest says nothing, and whoever needs the range of f64
adds up again in f64.
"""

from __future__ import annotations

import triton
import triton.language as tl

# The rest of a product of this size, or larger, is no subnormal number.
LEAST = tl.constexpr(2.0**-100)


@triton.jit
def two_sum(a, b):
    """a + b rounded, and what was rounded off."""
    s = a + b
    part = s - a
    return s, (a - (s - part)) + (b - part)


@triton.jit
def two_product(a, b):
    """a · b rounded, and what was rounded off."""
    product = a * b
    return product, tl.fma(a, b, -product)


@triton.jit
def add_pairs(s1, r1, s2, r2):
    """The sum of two pairs."""
    s, r = two_sum(s1, s2)
    return s, r + (r1 + r2)


@triton.jit
def multiply_pairs(s1, r1, s2, r2):
    """The product of two pairs."""
    product, rest = two_product(s1, s2)
    return product, rest + (s1 * r2 + r1 * s2)


@triton.jit
def run_pairs(f1, s1, r1, f2, s2, r2):
    """The same within runs: f2 says that a run begins somewhere in the second operand."""
    s, r = add_pairs(s1, r1, s2, r2)
    return f1 | f2, tl.where(f2 != 0, s2, s), tl.where(f2 != 0, r2, r)


@triton.jit
def rounded(s, r):
    """A pair as one number."""
    return tl.where(tl.abs(s) < float("inf"), s + r, s)


@triton.jit
def narrowed(u):
    """A number of f64 as a pair; an infinite sum where it is out of range."""
    s = u.to(tl.float32)
    return s, (u - s.to(tl.float64)).to(tl.float32)


@triton.jit
def widened(s, r, instead):
    """A pair as a number of f64, and another one where its sum is not finite."""
    return tl.where(tl.abs(s) < float("inf"), s.to(tl.float64) + r.to(tl.float64), instead)


@triton.jit
def any_beyond(s):
    """Whether a number of a tile is not finite: 1 or 0."""
    beyond = (~(tl.abs(s) < float("inf"))).to(tl.int32)
    return tl.max(tl.max(beyond, 1), 0)
