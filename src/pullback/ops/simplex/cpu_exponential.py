"""Exponentials for sums and products that carry their own power of two: one step per factor.

e^x·2^s is p·2^(k+s) with p from x: the exponent k + s is put into place by adding it to a float
that has the bias in its low bits. Where that exponent would be 0 or less, so is the result; hence
x may be no less than the floor, and no more than keeps e^x·2^s finite.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from pullback.cpu.elementary import _biased as biased
from pullback.cpu.elementary import _exp_tail as exp_tail
from pullback.cpu.elementary import _flush_low as least_exponent
from pullback.cpu.elementary import _ln2_high as ln2_high
from pullback.cpu.elementary import _ln2_low as ln2_low
from pullback.cpu.elementary import _mantissa as mantissa
from pullback.cpu.emit import inlined
from pullback.cpu.vector import as_float, as_int, fma, maximum

LOG2_E = 1.4426950408889634
LN2 = 0.6931471805599453


@inlined
def bias_of(s):
    """What scaled_exp adds to k for e^x·2^s."""
    return biased(s) + s


@inlined
def floor_of(s):
    """The x from which on e^x·2^s counts as 0."""
    return (least_exponent(s) - s) * LN2


@inlined
def scaled_exp(x, bias, floor):
    """e^x·2^s within an ulp, for s integral; NaN stays NaN."""
    x = maximum(floor, x)
    shifted = fma(x, LOG2_E, bias)
    k, bits = shifted - bias, as_int(shifted)
    r = fma(k, -ln2_low(x), fma(k, -ln2_high(x), x))
    return (fma(r * r, exp_tail(r), r) + 1) * as_float(bits << mantissa(bits))
